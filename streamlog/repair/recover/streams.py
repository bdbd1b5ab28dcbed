"""Recovery of streams: from a checkpoint, if there is one, and from the footers of newer objects.

Memory: about 1.6 KB for each object with four ranges, whether a checkpoint knows it or not.
"""

from __future__ import annotations

from array import array
from bisect import insort
from dataclasses import dataclass, field
from itertools import chain

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.checkpoint.state import StagingRows
from streamlog.format.object.footer import ObjectFooter
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import StreamRow, Tenure
from streamlog.metadata.journal.object_ids import position_of
from streamlog.metadata.keys import id_block
from streamlog.metadata.ownership.registration import COMPACTOR
from streamlog.model.batch import StreamState
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import Bucket, read_footer
from streamlog.repair.findings import (
    Finding,
    FindingKind,
    Progress,
    RepairReport,
    Severity,
)
from streamlog.repair.in_flight import in_flight
from streamlog.repair.recover.recovered import NOBODY, Recovered, RecoveredStream
from streamlog.repair.recover.resolve import Known, Resolved, Row, resolve
from streamlog.repair.recover.sources import KnownStreams
from streamlog.repair.recover.stream_findings import findings
from streamlog.runtime.offload import Offload

PART_OBJECTS = 256
WINDOW_IDS = 16 * MetadataConfig().put_window
"""No node has this many uncommitted ids, unless `put_window` was set far above its default."""


@dataclass(slots=True)
class _Footers:
    """Footers of objects that the checkpoint does not know.

    `rows`: by stream, flat: epoch, start, end, object.
    """

    rows: dict[int, array[int]] = field(default_factory=dict)
    writers: dict[int, tuple[int, int, Tenure]] = field(default_factory=dict)
    """Stream → epoch and end of its last row, and the tenure that wrote it."""
    newest: dict[Tenure, int] = field(default_factory=dict)
    tenures: dict[int, Tenure] = field(default_factory=dict)
    blocks: dict[Tenure, list[int]] = field(default_factory=dict)
    """Tenure → its blocks of ids, as far as seen; rising."""

    def rows_of(self, stream_id: int) -> list[Row]:
        flat = iter(self.rows.get(stream_id, ()))
        return [Row(*values) for values in zip(flat, flat, flat, flat, strict=True)]

    def is_certain(self, object_id: int) -> bool:
        """Rule 6 of `resolve`."""
        tenure = self.tenures.get(object_id)
        if tenure is None:
            return False
        if tenure.node_id & COMPACTOR:
            return True
        # Blocks without an object are not counted: ids are at least this far apart.
        blocks = self.blocks[tenure]
        block = position_of(blocks, object_id)
        return block + WINDOW_IDS <= position_of(blocks, self.newest[tenure])

    def add(self, footer: ObjectFooter) -> None:
        object_id = footer.identity.object_id
        tenure = Tenure(footer.identity.node_id, footer.identity.node_epoch)
        self.tenures[object_id] = tenure
        self.newest[tenure] = max(self.newest.get(tenure, 0), object_id)
        blocks, block = self.blocks.setdefault(tenure, []), object_id >> id_block.OBJECTS.block_bits
        if block not in blocks:
            insort(blocks, block)


class StreamRecovery:
    def __init__(
        self,
        store: ObjectStore,
        offload: Offload,
        bucket: Bucket,
        known: KnownStreams | None,
        recovered: Recovered,
        report: RepairReport,
        progress: Progress,
    ) -> None:
        self._store = store
        self._offload = offload
        self._bucket = bucket
        self._taken = known
        self._recovered = recovered
        self._report = report
        self._progress = progress
        self._footers = _Footers()
        self._known: dict[int, tuple[StreamRow, Known]] = {}
        self._resolved: dict[int, Resolved] = {}
        self._unknown_staged: set[int] = set()
        """Streams with staged objects that no checkpoint knows."""

    @property
    def trims_are_lost(self) -> bool:
        """Whether a lost or unreadable checkpoint may tell of trims that deleted objects, or of
        commits of staged ones.

        A bucket without checkpoint files may have lost them all, or the cluster never wrote one.
        The first is assumed: otherwise a live part behind a trimmed one would be left out as never
        acknowledged.
        """
        return self._is_checkpoint_damaged or self._taken is None

    @property
    def _is_checkpoint_damaged(self) -> bool:
        return self._report.by_kind[str(FindingKind.CHECKPOINT_CORRUPT)] > 0 or (
            self._taken is None and bool(self._bucket.checkpoints)
        )

    async def run(self) -> None:
        """Fills streams and objects, as far as footers tell; `finish` comes behind.

        Errors: StoreUnavailable.
        """
        self._recovered.knows_deletions = not self.trims_are_lost
        if self._taken is not None:
            self._recovered.from_revision = self._taken.view.revision
            self._take_known(self._taken)
            if self.trims_are_lost:
                for object_id in self._recovered.staged_objects():
                    self._tell_staged(object_id)
        await self._read_unknown()
        for stream_id in sorted(self._known.keys() | self._footers.rows.keys()):
            self._resolve(stream_id)

    def parts(self, stream_id: int) -> Resolved | None:
        """The stream's parts, if anything is left of it; whoever chooses one calls `chosen`."""
        return self._resolved.get(stream_id)

    def chosen(self, stream_id: int) -> None:
        """The stream is what its parts say by now."""
        resolved, stream = self._resolved[stream_id], self._recovered.streams[stream_id]
        stream.start, stream.end, stream.pieces = resolved.start, resolved.end, resolved.pieces

    def written_in_order(self, stream_id: int) -> None:
        """Each record of the stream was written when those before it were stored."""
        self._resolved[stream_id].is_in_order = True

    def finish(self) -> None:
        """Reports what was found, and fills dead objects and the highest numbers."""
        for stream_id, resolved in self._resolved.items():
            self._count(stream_id, resolved)
            for finding in findings(
                stream_id,
                resolved,
                has_staged=stream_id in self._unknown_staged,
                trims_are_known=self._taken is not None or self._is_checkpoint_damaged,
            ):
                self._report.add(finding)
        self._sort_out()

    def _take_known(self, known: KnownStreams) -> None:
        recovered, state = self._recovered, known.view.state
        self._known.update(known.streams)
        recovered.objects.update(known.objects)
        for row, _ in known.streams.values():
            recovered.saw_tenure(row.holder)
        for tenure in [*state.fold.marks, *state.fences]:
            recovered.saw_tenure(tenure)
        if state.checkpoint is not None:
            for tenure in state.checkpoint.tenures:
                recovered.saw_tenure(tenure)
            for ref in state.checkpoint.files:
                recovered.saw_tenure(ref.tenure)
        recovered.dead = {
            object_id: died_ms
            for object_id, (died_ms, _) in state.dead.items()
            if object_id in self._bucket
        }
        recovered.staging = StagingRows(
            [s for s in state.fold.staging.staged.values() if s.row.object_id in self._bucket],
            list(state.fold.staging.writers.values()),
            [
                place
                for place in state.fold.staging.attached.items()
                if place[0] in recovered.objects
            ],
        )
        recovered.revision_max = known.view.revision
        self._report.counts["streams_in_checkpoint"] = len(self._known)
        self._report.counts["objects_in_checkpoint"] = len(recovered.objects)

    async def _read_unknown(self) -> None:
        recovered = self._recovered
        staged = {stage.row.object_id for stage in recovered.staging.stages}
        unknown = [
            (object_id, size)
            for object_id, size in zip(self._bucket.ids, self._bucket.sizes, strict=True)
            if object_id not in recovered.objects and object_id not in recovered.dead
            if object_id not in staged
        ]
        for low in range(0, len(unknown), PART_OBJECTS):
            part = unknown[low : low + PART_OBJECTS]
            for footer in await in_flight(part, self._footer):
                if footer is not None:
                    self._take_footer(footer)
            self._progress("reading footers", low + len(part), len(unknown))
        self._report.counts["objects_read"] = len(unknown)

    async def _footer(self, one: tuple[int, int]) -> ObjectFooter | None:
        object_id, size_bytes = one
        try:
            footer = await read_footer(self._store, self._offload, object_id, size_bytes)
        except (Corrupt, UnsupportedVersion) as error:
            self._skip(
                FindingKind.OBJECT_CORRUPT, object_id, f"cannot be read: {error}", Severity.ERROR
            )
            return None
        if footer is None:
            return None
        identity = footer.identity
        if identity.cluster_id != self._recovered.cluster_id:
            reason = f"is of the cluster {identity.cluster_id}"
            self._skip(FindingKind.OBJECT_FOREIGN, object_id, reason, Severity.WARNING)
            return None
        if identity.object_id != object_id:
            reason = f"says of itself that it is object {identity.object_id}"
            self._skip(FindingKind.OBJECT_WRONG, object_id, reason, Severity.ERROR)
            return None
        return footer

    def _skip(
        self,
        kind: FindingKind,
        object_id: int,
        what: str,
        severity: Severity,
        advice: str = "what it holds is not recovered; put it back from a copy of the store first",
    ) -> None:
        self._report.add(
            Finding(
                kind,
                severity,
                f"object {object_id} {what}",
                advice,
                key=data_key(object_id),
                object_id=object_id,
            )
        )

    def _take_footer(self, footer: ObjectFooter) -> None:
        identity, footers = footer.identity, self._footers
        object_id, tenure = identity.object_id, Tenure(identity.node_id, identity.node_epoch)
        self._recovered.saw_tenure(tenure)
        self._recovered.object_id_max = max(self._recovered.object_id_max, object_id)
        if footer.is_staged:
            self._unknown_staged.update(row.stream_id for row in footer.ranges)
            self._tell_staged(object_id)
            return
        self._recovered.objects[object_id] = footer.row
        footers.add(footer)
        writer = tenure._replace(node_id=tenure.node_id & ~COMPACTOR)
        for stream_id, epoch, start, end in footer.ranges:
            footers.rows.setdefault(stream_id, array("Q")).extend((epoch, start, end, object_id))
            last = footers.writers.get(stream_id)
            if last is None or (epoch, end) > last[:2]:
                # A compactor's node may not have held the stream.
                is_guess = bool(tenure.node_id & COMPACTOR)
                held_by = last[2] if last is not None and is_guess else writer
                footers.writers[stream_id] = epoch, end, held_by

    def _tell_staged(self, object_id: int) -> None:
        """With wal=object a commit is acknowledged only after a checkpoint holds it."""
        if self.trims_are_lost:
            self._skip(
                FindingKind.STAGED,
                object_id,
                "was staged, and the checkpoint that may tell of its commit is gone or cannot be "
                "read: what it holds may have been acknowledged, and comes back in no stream",
                Severity.ERROR,
                "put the newest files of checkpoint/ back from a copy of the store; else have its "
                "writer stage and commit again",
            )
            return
        self._skip(
            FindingKind.STAGED,
            object_id,
            "was staged, and no checkpoint knows it",
            Severity.NOTE,
            "if its writer did not hear of a commit, have it stage and commit again; with "
            "wal=disk it may have heard of one in the last seconds before the disk was lost",
        )

    def _resolve(self, stream_id: int) -> None:
        rows = self._footers.rows_of(stream_id)
        row, known = self._known.get(stream_id, (None, None))
        resolved = self._resolved[stream_id] = resolve(
            known,
            rows,
            self._bucket.__contains__,
            self._footers.is_certain,
            trims_are_lost=self.trims_are_lost,
        )
        holder = row.holder if row is not None else NOBODY
        writer = self._footers.writers.get(stream_id)
        if writer is not None and (row is None or writer[0] > row.epoch):
            holder = writer[2]
        self._recovered.streams[stream_id] = RecoveredStream(
            resolved.start,
            resolved.end,
            resolved.epoch,
            holder,
            resolved.pieces,
            # A stream that continues under a later epoch was opened again.
            row is None or row.state is StreamState.OPEN or resolved.epoch > row.epoch,
            row.token if row is not None else b"",
            dict(row.tags) if row is not None else {},
        )

    def _count(self, stream_id: int, resolved: Resolved) -> None:
        _, known = self._known.get(stream_id, (None, None))
        known_end = known.end if known is not None else resolved.start
        self._report.counts["records_after_checkpoint"] += max(resolved.end - known_end, 0)

    def _sort_out(self) -> None:
        """Keeps the objects that streams need; objects that certainly no stream needs are dead."""
        recovered = self._recovered
        used = {piece.object_id for kept in recovered.streams.values() for piece in kept.pieces}
        needed: set[int] = set()
        for stream_id in self._footers.rows:
            for row in self._footers.rows_of(stream_id):
                if row.object_id not in used and not self._is_redundant(stream_id, row):
                    needed.add(row.object_id)
        now_dead = [
            object_id
            for object_id in self._footers.tenures
            if object_id not in used and object_id not in needed
        ]
        recovered.dead.update(dict.fromkeys(now_dead, 0))
        # The name alone of a file that is no object of the cluster says nothing.
        known = (recovered.objects, recovered.dead, recovered.staged_objects())
        recovered.object_id_max = max([recovered.object_id_max, *chain.from_iterable(known)])
        recovered.stream_id_max = max([0, *recovered.streams])
        self._report.counts["objects"] = recovered.drop_unused_objects()
        self._report.counts["objects_left_over"] = len(needed)

    def _is_redundant(self, stream_id: int, row: Row) -> bool:
        """Whether another object has the row's offsets, or they were certainly trimmed."""
        stream = self._recovered.streams[stream_id]
        in_checkpoint = self._known.get(stream_id)
        was_trimmed = in_checkpoint is not None and row.end <= in_checkpoint[1].start
        return was_trimmed or (stream.start <= row.start and row.end <= stream.end)
