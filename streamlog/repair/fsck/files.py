"""fsck of checkpoint files: those that the metadata does not name, and the end of the newest.

A file that no key names was replaced, or its node died before it named it. It tells of newer
metadata where its revision is past the metadata's; and a recovery names its file in the metadata
that it makes, so that one past the named checkpoint belongs to metadata that replaced this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlog.errors import Corrupt, ForeignCluster, ObjectNotFound, UnsupportedVersion
from streamlog.metadata.checkpoint.trailer import read_trailer
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.checkpoint import CheckpointPointer
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.repair.bucket import Bucket
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.fsck.keys import Keys
from streamlog.repair.fsck.owners import foreign
from streamlog.repair.in_flight import in_flight
from streamlog.repair.recover.write_metadata import WRITER_NODE
from streamlog.repair.view import MetadataView


@dataclass(slots=True)
class StrayFiles:
    """`unneeded`: no node deletes them. `unreadable`: whose they are is unknown."""

    unneeded: list[str] = field(default_factory=list)
    unreadable: int = 0


async def check_files(
    named: CheckpointPointer | None,
    revision: int,
    cluster_id: str,
    keys: Keys,
    bucket: Bucket,
    store: ObjectStore,
    report: RepairReport,
) -> StrayFiles:
    """`revision`: the metadata's. Errors: StoreUnavailable."""
    names = {ref.name for ref in named.files} if named is not None else set()
    report.counts["checkpoint_files"] += len(bucket.checkpoints)
    unnamed = [
        (info, checkpoint.tenure_of_name(info.key))
        for info in bucket.checkpoints
        if info.key not in names
    ]
    strays = StrayFiles()

    async def look(one: tuple[ObjectInfo, Tenure | None]) -> None:
        info, tenure = one
        if tenure is None:
            report.add(
                Finding(
                    FindingKind.FOREIGN_KEY,
                    Severity.WARNING,
                    f"{info.key} is not the name of a checkpoint file",
                    "give the cluster a prefix of its own",
                    key=info.key,
                )
            )
            return
        try:
            found = await read_trailer(store, info, cluster_id)
        except ForeignCluster as error:
            report.add(foreign(info.key, error.message))
            return
        except UnsupportedVersion:
            report.add(_newer(info.key, "was written by a newer release"))
            return
        except ObjectNotFound:
            return
        except Corrupt:
            found = None
            strays.unreadable += 1
        if found is not None and found.revision > revision:
            report.add(_newer(info.key, f"has revision {found.revision}, the metadata {revision}"))
            return
        last = named.revision if named is not None else 0
        if found is not None and tenure.node_id == WRITER_NODE and found.revision > last:
            report.add(_newer(info.key, "was written by a recovery that this metadata is not of"))
            return
        fence = keys.fences.get(tenure)
        is_live = fence is not None and fence.is_live
        report.add(_stray(info.key, is_live=is_live))
        if not is_live:
            strays.unneeded.append(info.key)

    await in_flight(unnamed, look)
    return strays


def _newer(key: str, what: str) -> Finding:
    return Finding(
        FindingKind.OBJECT_NEWER,
        Severity.ERROR,
        f"the checkpoint file {key} {what}: the metadata is older than the store",
        "do not start a node on it; put the newer metadata back, or rebuild it with streamlog "
        "recover",
        key=key,
    )


def _stray(key: str, *, is_live: bool) -> Finding:
    return Finding(
        FindingKind.CHECKPOINT_STRAY,
        Severity.NOTE,
        f"{key} is a checkpoint file that nothing names",
        "a node deletes it in time" + ("" if is_live else ", and so does --repair"),
        key=key,
    )


async def check_trailer(
    view: MetadataView, bucket: Bucket, store: ObjectStore, report: RepairReport
) -> None:
    """The end of the newest checkpoint, which only a recovery reads."""
    named = view.state.checkpoint
    delta = named.delta.name if named is not None and named.delta is not None else ""
    for info in bucket.checkpoints:
        if info.key != delta:
            continue
        try:
            if await read_trailer(store, info, view.cluster_id) is not None:
                return
            reason = "it has no trailer"
        except (Corrupt, ForeignCluster, ObjectNotFound) as error:
            reason = str(error)
        report.add(
            Finding(
                FindingKind.CHECKPOINT_TRAILER,
                Severity.WARNING,
                f"a recovery could not use the checkpoint {delta}: {reason}",
                "nodes can; the next checkpoint of a node replaces it",
                key=delta,
            )
        )
