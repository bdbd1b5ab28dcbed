"""fsck of the bucket against the metadata: finds objects and files that the metadata does not need.

The owner of its id tells what an object is that the fold does not know (PROTOCOL 7):

    owner                            what the object is
    none: it is staged               waits for its commit, or expires
    past the counter of blocks, or   the metadata is older than the bucket: never deleted
    no stream and no checkpoint yet
    given up and deleted once        a late PUT: the collector deletes it once more
    a tenure, past its window        the metadata is older than the bucket: never deleted
    a LIVE tenure, in its window     an upload under way, or one that a crash cut short: deleted
                                     after the node's next start
    a SEALED tenure, in its window   an orphan that the collector will delete
    else                             an orphan that no node looks for: `--repair` deletes it

What tells of older metadata is what the collector goes by (compaction/collect/guard.py). A copy
that lacks no more than one window of objects looks like metadata after a crash: nothing tells them
apart.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import chain

from streamlog.errors import Corrupt, ForeignCluster, ObjectNotFound
from streamlog.metadata.checkpoint.trailer import read_trailer
from streamlog.metadata.fold.staging import Stage
from streamlog.metadata.interface import Tenure
from streamlog.metadata.journal.object_ids import window_ids
from streamlog.metadata.keys import checkpoint, id_block
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import Bucket
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.fsck.keys import Keys
from streamlog.repair.in_flight import in_flight
from streamlog.repair.view import MetadataView


@dataclass(slots=True)
class Unneeded:
    """What `--repair` may delete: objects that can never be committed, files that no key names."""

    orphans: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    windows: int = 0
    """W × sealed tenures, and late PUTs: this many orphans are normal."""


async def check_bucket(
    view: MetadataView,
    bucket: Bucket,
    store: ObjectStore,
    live: array[int],
    keys: Keys,
    report: RepairReport,
) -> Unneeded:
    """`bucket` was listed before the view was read; `live` is sorted. Errors: StoreUnavailable."""
    unneeded = Unneeded()
    for fence in keys.fences.values():
        unneeded.windows += 0 if fence.is_live else fence.window
    unneeded.windows += sum(map(len, keys.late_deletes.values()))
    report.counts["objects_in_store"] = len(bucket.ids)
    report.counts["bytes_in_store"] = bucket.size_bytes
    report.counts["dead_objects"] = len(view.state.dead)
    staged = view.state.fold.staging.staged
    await _check_staged(view, bucket, store, report)
    rules = _OwnerRules(view, keys)
    for object_id in bucket.ids:
        index = bisect_left(live, object_id)
        if (index < len(live) and live[index] == object_id) or object_id in view.state.dead:
            continue
        if object_id in staged:
            report.counts["staged_objects"] += 1
            continue
        if await view.object(object_id) is not None:
            # It died since the last checkpoint; the collector learns of it by the next one.
            report.counts["dead_objects"] += 1
            continue
        finding = rules.finding(object_id)
        report.add(finding)
        if finding.kind in (FindingKind.ORPHAN, FindingKind.ORPHAN_DUE):
            unneeded.orphans.append(object_id)
    for key in bucket.foreign:
        report.add(
            Finding(
                FindingKind.FOREIGN_KEY,
                Severity.WARNING,
                f"the store has the key {key}, which is not of streamlog's making",
                "give the cluster a prefix of its own",
                key=key,
            )
        )
    if not bucket.has_cluster_file:
        report.add(no_cluster_file(is_elsewhere=is_elsewhere(bucket, live)))
    _check_files(view, bucket, keys, report, unneeded)
    await _check_trailer(view, bucket, store, report)
    return unneeded


def is_elsewhere(bucket: Bucket, live: array[int]) -> bool:
    """Whether the store is not the metadata's: nobody's, without any object that it names."""
    if bucket.has_cluster_file or not live:
        return False
    return not any(object_id in bucket for object_id in live)


def no_cluster_file(*, is_elsewhere: bool) -> Finding:
    if is_elsewhere:
        return Finding(
            FindingKind.CLUSTER_FILE,
            Severity.ERROR,
            "the store has no cluster.json, and nothing that the metadata names: it is probably "
            "not the store of this cluster",
            "mount the folder, or give the bucket and the prefix that belong to this metadata; do "
            "not replace the metadata",
            key="cluster.json",
        )
    return Finding(
        FindingKind.CLUSTER_FILE,
        Severity.ERROR,
        "the store has no cluster.json: no node starts on it, and another cluster could take it "
        "for empty",
        "streamlog fsck --repair writes it again",
        key="cluster.json",
    )


async def _check_staged(
    view: MetadataView, bucket: Bucket, store: ObjectStore, report: RepairReport
) -> None:
    async def is_there(stage: Stage) -> bool:
        """Looks again, because it may have been staged since the bucket was listed."""
        try:
            info = await store.head(data_key(stage.row.object_id))
        except ObjectNotFound:
            return False
        return info.size_bytes == stage.row.size_bytes

    unlisted = [
        (object_id, stage)
        for object_id, stage in view.state.fold.staging.staged.items()
        if bucket.size_of(object_id) != stage.row.size_bytes
    ]
    there = await in_flight((stage for _, stage in unlisted), is_there)
    for (object_id, stage), is_stored in zip(unlisted, there, strict=True):
        if not is_stored:
            report.add(
                _finding(
                    FindingKind.OBJECT_MISSING,
                    Severity.WARNING,
                    object_id,
                    f"was staged by writer {stage.writer_id} and is not in the store as it was",
                    "have the writer stage it again; the metadata forgets it when it expires",
                )
            )


class _OwnerRules:
    def __init__(self, view: MetadataView, keys: Keys) -> None:
        self._view = view
        self._keys = keys
        self._blocks: dict[Tenure, list[int]] = {}
        for block, owner in sorted(keys.object_blocks.items()):
            self._blocks.setdefault(owner, []).append(block)
        self._windows: dict[Tenure, tuple[int, int] | None] = {}
        self._late_deletes = frozenset(chain.from_iterable(keys.late_deletes.values()))

    def finding(self, object_id: int) -> Finding:
        block = object_id >> id_block.OBJECTS.block_bits
        if not 0 < block <= self._keys.object_counter:
            return _newer(object_id, "has an id that this metadata never handed out")
        if not self._view.state.has_history:
            return _newer(
                object_id, "is there, and this metadata has neither a stream nor a checkpoint"
            )
        if object_id in self._late_deletes:
            return _due(object_id, "was given up and deleted, and a late PUT stored it again")
        owner = self._keys.object_blocks.get(block)
        fence = self._keys.fences.get(owner) if owner is not None else None
        if owner is None or fence is None:
            return _orphan(object_id, "its tenure is retired")
        window = self._window(owner, fence.window)
        if window is None or object_id < window[0]:
            return _orphan(object_id, f"tenure {owner} is past it")
        if object_id > window[1]:
            return _newer(
                object_id,
                f"is past the window of tenure {owner}, which could not store it before it "
                "committed more than this metadata knows",
            )
        if fence.is_live:
            return _finding(
                FindingKind.UPLOAD_UNDER_WAY,
                Severity.NOTE,
                object_id,
                f"was stored by tenure {owner} and not committed yet",
                "the node finishes or deletes it after its next start",
            )
        return _due(object_id, f"was stored by tenure {owner}, which ended before it was committed")

    def _window(self, owner: Tenure, size: int) -> tuple[int, int] | None:
        """The first and the last id that the tenure may have stored and not committed.

        The ids of a tenure's blocks rise, so those between them are all of its window.
        """
        if owner not in self._windows:
            floor = self._view.state.fold.mark(owner).floor
            ids = window_ids(self._blocks[owner], floor, size)
            self._windows[owner] = (ids[0], ids[-1]) if ids else None
        return self._windows[owner]


def _newer(object_id: int, what: str) -> Finding:
    return _finding(
        FindingKind.OBJECT_NEWER,
        Severity.ERROR,
        object_id,
        f"{what}: the metadata is older than the store, or of another store",
        "do not start a node on it; put the newer metadata back, or rebuild it with streamlog "
        "recover",
    )


def _due(object_id: int, what: str) -> Finding:
    return _finding(
        FindingKind.ORPHAN_DUE, Severity.NOTE, object_id, what, "the collector deletes it"
    )


def _orphan(object_id: int, why: str) -> Finding:
    return _finding(
        FindingKind.ORPHAN,
        Severity.WARNING,
        object_id,
        f"is in no stream and never will be ({why})",
        "streamlog fsck --repair deletes it",
    )


def _finding(
    kind: FindingKind, severity: Severity, object_id: int, what: str, advice: str
) -> Finding:
    return Finding(
        kind,
        severity,
        f"object {object_id} {what}",
        advice,
        key=data_key(object_id),
        object_id=object_id,
    )


def _check_files(
    view: MetadataView, bucket: Bucket, keys: Keys, report: RepairReport, unneeded: Unneeded
) -> None:
    named = view.state.checkpoint.files if view.state.checkpoint is not None else ()
    names = {ref.name for ref in named}
    for info in bucket.checkpoints:
        report.counts["checkpoint_files"] += 1
        if info.key in names:
            continue
        tenure = checkpoint.tenure_of_name(info.key)
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
            continue
        fence = keys.fences.get(tenure)
        is_live = fence is not None and fence.is_live
        report.add(
            Finding(
                FindingKind.CHECKPOINT_STRAY,
                Severity.NOTE,
                f"{info.key} is a checkpoint file that nothing names",
                "a node deletes it in time" + ("" if is_live else ", and so does --repair"),
                key=info.key,
            )
        )
        if not is_live:
            unneeded.files.append(info.key)


async def _check_trailer(
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
