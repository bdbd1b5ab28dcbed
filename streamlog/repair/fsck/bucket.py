"""fsck of the bucket against the metadata: finds objects and files that the metadata does not need.

The owner of its id tells what an object is that the fold does not know (PROTOCOL 7):

    owner                            what the object is
    another cluster, by its footer   not this metadata's: never deleted
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

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import chain

from streamlog.errors import ObjectNotFound
from streamlog.metadata.fold.staging import Stage
from streamlog.metadata.interface import Tenure
from streamlog.metadata.journal.object_ids import window_ids
from streamlog.metadata.keys import id_block
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import Bucket
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.fsck.files import check_files, check_trailer
from streamlog.repair.fsck.keys import Keys
from streamlog.repair.fsck.objects import ObjectChecks
from streamlog.repair.fsck.owners import find_foreign
from streamlog.repair.in_flight import in_flight
from streamlog.repair.view import MetadataView
from streamlog.runtime.offload import Offload


@dataclass(slots=True)
class Unneeded:
    """What `--repair` may delete: objects that can never be committed, files that no key names."""

    orphans: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    unreadable_files: int = 0
    windows: int = 0
    """W × sealed tenures, and late PUTs: this many orphans are normal."""


async def check_bucket(
    view: MetadataView,
    bucket: Bucket,
    store: ObjectStore,
    offload: Offload,
    checks: ObjectChecks,
    keys: Keys,
    report: RepairReport,
) -> Unneeded:
    """`bucket` was listed before the view was read; `checks` are done. Errors: StoreUnavailable."""
    unneeded, live = Unneeded(), checks.live
    for fence in keys.fences.values():
        unneeded.windows += 0 if fence.is_live else fence.window
    unneeded.windows += sum(map(len, keys.late_deletes.values()))
    report.counts["objects_in_store"] = len(bucket.ids)
    report.counts["bytes_in_store"] = bucket.size_bytes
    report.counts["remote_files"] = bucket.remote_files
    report.counts["remote_bytes"] = bucket.remote_bytes
    report.counts["dead_objects"] = len(view.state.dead)
    staged = view.state.fold.staging.staged
    await _check_staged(view, bucket, store, report)
    unknown = list[int]()
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
        unknown.append(object_id)
    to_ask = chain(unknown, (one for one in sorted(checks.damaged) if one in bucket))
    foreign = await find_foreign(store, offload, bucket, view.cluster_id, to_ask, report)
    rules = _OwnerRules(view, keys)
    for object_id in unknown:
        if object_id in foreign:
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
    strays = await check_files(
        view.state.checkpoint, view.revision, view.cluster_id, keys, bucket, store, report
    )
    unneeded.files = strays.unneeded
    unneeded.unreadable_files = strays.unreadable
    await check_trailer(view, bucket, store, report)
    return unneeded


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
            return newer(object_id, "has an id that this metadata never handed out")
        if not self._view.state.has_history:
            return newer(
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
            return newer(
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


def newer(object_id: int, what: str) -> Finding:
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
