"""The fold: stream state computed from commit and transfer records in revision order. Pure.

1. The same records in the same order give the same fold on every node.
2. A record is checked in full before anything of it is applied: its tenure holds every stream it
   touches, under one epoch; the CRC over its absolute rows is the writer's.
3. A stream's ranges are adjacent: each row starts where the stream ends. A compaction puts other
   objects in the place of some (`fold/compaction.py`).
4. Epochs only rise. A transfer skips a stream that its holder no longer has.

Work on many rows is cut into steps (`Steps`), so that other tasks run between them. Only the task
that folds may change the fold meanwhile. Readers between two steps see committed state only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import replace
from operator import sub
from typing import NamedTuple

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt
from streamlog.format.columns import to_le
from streamlog.format.records.commit import CommitRecord, RecordEntry
from streamlog.format.records.compaction import CompactionRecord
from streamlog.format.records.record import Record
from streamlog.format.records.staged_entries import leader_epoch_of
from streamlog.metadata.fold.compaction import CompactionDraft
from streamlog.metadata.fold.compaction_history import CompactionHistory
from streamlog.metadata.fold.generation import SPAN_MAX, Generation, NewObjectEntry
from streamlog.metadata.fold.staging import (
    Attach,
    FoldedStaging,
    Placements,
    Stage,
    Unstage,
    WriterRow,
)
from streamlog.metadata.interface import ObjectRow, StreamRow, Tenure
from streamlog.metadata.keys.checkpoint import TenureMark
from streamlog.metadata.keys.transfer import TransferRecord
from streamlog.model.batch import StreamState
from streamlog.runtime.concurrency.steps import Steps

STEP_ROWS = 512

NO_HOLDER = Tenure(0, 0)
NEW_MARK = TenureMark(0, 0, 0)


class StreamHeader(NamedTuple):
    """The fields of a stream that change seldom."""

    epoch: int
    holder: Tenure
    is_open: bool
    token: bytes
    tags: tuple[tuple[str, str], ...]


GONE = StreamHeader(0, NO_HOLDER, False, b"", ())
"""Marks a stream as destroyed, in a draft."""


class MovedStream(NamedTuple):
    stream_id: int
    holder: Tenure
    epoch: int


class Fold:
    """Every stream, its holder, and how far the records of each tenure are applied."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        self.ids: list[int] = []
        """All stream ids, sorted."""
        self.info: dict[int, StreamHeader] = {}
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.held: dict[Tenure, set[int]] = {}
        self.marks: dict[Tenure, TenureMark] = {}
        self.compactions = CompactionHistory()
        self.staging = FoldedStaging()
        self.generations: list[Generation] = [Generation()]
        """Changes since the checkpoint, the newest last; running checkpoints froze the others."""

    @property
    def newest(self) -> Generation:
        return self.generations[-1]

    def mark(self, tenure: Tenure) -> TenureMark:
        return self.marks.get(tenure, NEW_MARK)

    def row(self, stream_id: int) -> StreamRow | None:
        info = self.info.get(stream_id)
        if info is None:
            return None
        return StreamRow(
            stream_id,
            info.epoch,
            info.holder,
            self.starts[stream_id],
            self.ends[stream_id],
            StreamState.OPEN if info.is_open else StreamState.CLOSED,
            info.token,
            dict(info.tags),
        )

    def add_stream(self, stream_id: int, info: StreamHeader, start: int, end: int) -> None:
        if not self.ids or stream_id > self.ids[-1]:
            self.ids.append(stream_id)
        else:
            insort(self.ids, stream_id)
        self.info[stream_id] = info
        self.starts[stream_id], self.ends[stream_id] = start, end
        self.held.setdefault(info.holder, set()).add(stream_id)

    def remove_stream(self, stream_id: int) -> None:
        info = self.info.pop(stream_id)
        del self.ids[bisect_left(self.ids, stream_id)]
        del self.starts[stream_id], self.ends[stream_id]
        self._unhold(info.holder, stream_id)

    def apply_transfer(
        self, holder: Tenure, gen: int, record: TransferRecord
    ) -> Steps[list[MovedStream]]:
        """Applies the transfer record `gen` of `holder`, if it is not applied yet; what moved."""
        mark = self.mark(holder)
        if gen <= mark.gen:
            return []
        if gen != mark.gen + 1:
            raise Corrupt(
                f"transfer {gen} away from tenure {holder} follows transfer {mark.gen}: one is lost"
            )
        wanted: Sequence[tuple[int, int | None]]
        if record.streams is None:
            wanted = [(stream_id, None) for stream_id in sorted(self.held.get(holder, ()))]
        else:
            wanted = record.streams
        moved = []
        for index, (stream_id, epoch) in enumerate(wanted):
            if index % STEP_ROWS == STEP_ROWS - 1:
                yield
            info = self.info.get(stream_id)
            if info is None or info.holder != holder:
                continue
            if epoch is not None and epoch <= info.epoch:
                raise Corrupt(
                    f"transfer {gen} away from tenure {holder} takes stream {stream_id} from epoch "
                    f"{info.epoch} back to {epoch}"
                )
            new = info.epoch + 1 if epoch is None else epoch
            is_open = info.is_open or epoch is not None
            self.info[stream_id] = StreamHeader(new, record.to, is_open, info.token, info.tags)
            self._unhold(holder, stream_id)
            self.held.setdefault(record.to, set()).add(stream_id)
            moved.append(MovedStream(stream_id, record.to, new))
        self.marks[holder] = mark._replace(gen=gen)
        self.newest.records += 1
        self.newest.rows += len(wanted)
        return moved

    def apply_record(
        self, tenure: Tenure, seq: int, record: Record, revision: int, size_bytes: int = 0
    ) -> Steps[None]:
        """Applies record `seq` of the tenure, if it is not applied yet."""
        mark = self.mark(tenure)
        if seq <= mark.seq:
            return
        if seq != mark.seq + 1:
            raise Corrupt(f"record {seq} of tenure {tenure} follows record {mark.seq}: one is lost")
        if isinstance(record, CompactionRecord):
            compaction = CompactionDraft(self, f"record {seq} of tenure {tenure}", record)
            yield from compaction.check()
            yield from compaction.finish(revision)
        else:
            yield from self._apply_commit(tenure, seq, record, revision)
        self.marks[tenure] = TenureMark(seq, mark.gen, max(mark.floor, record.floor))
        self.newest.records += 1
        self.newest.bytes += size_bytes

    def _apply_commit(
        self, tenure: Tenure, seq: int, record: CommitRecord, revision: int
    ) -> Steps[None]:
        draft = CommitDraft(self, tenure, seq)
        for entry in record.entries:
            yield from draft.add(entry)
        if draft.rows_crc32c != record.rows_crc32c:
            raise Corrupt(
                f"record {seq} of tenure {tenure} was written for other offsets or epochs than the "
                "fold has"
            )
        yield from draft.finish(revision)

    def _unhold(self, holder: Tenure, stream_id: int) -> None:
        streams = self.held[holder]
        streams.discard(stream_id)
        if not streams:
            del self.held[holder]


class _Rows(NamedTuple):
    """The rows of an object that is added to streams; `ends[i]` is the end offset of row i."""

    row: ObjectRow
    streams: array[int]
    counts: array[int]
    ends: array[int]


class CommitDraft:
    """A commit record while it is applied: `add` checks its entries, `finish` applies them."""

    def __init__(self, fold: Fold, tenure: Tenure, seq: int) -> None:
        self._fold = fold
        self._tenure = tenure
        self._what = f"record {seq} of tenure {tenure}"
        self._info: dict[int, StreamHeader] = {}
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._objects: list[_Rows] = []
        self._stages: dict[int, Stage] = {}
        self._writers: dict[str, WriterRow] = {}
        self._attached: set[int] = set()
        self._unstages: list[Unstage] = []
        self._raised = 0
        """How often the record raises the compaction counter."""
        self.rows_crc32c = 0

    def add(self, entry: RecordEntry) -> Steps[None]:
        """Adds an entry. Errors: Corrupt (it contradicts the fold)."""
        for create in entry.creates:
            if create.stream_id in self._info or create.stream_id in self._fold.info:
                raise Corrupt(f"{self._what} creates stream {create.stream_id}, which exists")
            self._info[create.stream_id] = StreamHeader(
                create.epoch, self._tenure, True, b"", create.tags
            )
            self._starts[create.stream_id] = self._ends[create.stream_id] = 0
        for rows in entry.objects:
            self._check_new(rows.object_id)
            row = ObjectRow(
                rows.object_id,
                rows.size_bytes,
                rows.index_position,
                rows.index_length,
                rows.index_crc32c,
                rows.store,
            )
            ends = yield from self._add_rows(rows.streams, rows.counts)
            self._objects.append(_Rows(row, rows.streams, rows.counts, ends))
        for stream_id, epoch, token in entry.tokens:
            self._info[stream_id] = self._held(stream_id, epoch)._replace(token=token)
        for stream_id, epoch, start in entry.trims:
            self._held(stream_id, epoch)
            if start > self._end(stream_id):
                raise Corrupt(f"{self._what} trims stream {stream_id} past its end")
            self._starts[stream_id] = max(start, self._start(stream_id))
        for stream_id, epoch in entry.closes:
            self._info[stream_id] = self._held(stream_id, epoch)._replace(is_open=False)
        for stream_id, epoch in entry.destroys:
            self._held(stream_id, epoch)
            self._info[stream_id] = GONE
        for stage in entry.stages:
            self._check_new(stage.row.object_id)
            self._stages[stage.row.object_id] = stage
        for attach in entry.attaches:
            yield from self._attach(attach)
        for unstage in entry.unstages:
            self._raise_counter(unstage.counter)
            self._unstages.append(unstage)

    def finish(self, revision: int) -> Steps[None]:
        """Applies the added entries."""
        fold, newest = self._fold, self._fold.newest
        for stream_id, info in self._info.items():
            if info is not GONE and stream_id not in fold.info:
                fold.add_stream(stream_id, info, 0, 0)
        for stream_id, start in self._starts.items():
            old = fold.starts.get(stream_id)
            if old is not None and start > old:
                newest.cuts.setdefault(stream_id, old)
                fold.starts[stream_id] = start
        for stage in self._stages.values():
            fold.staging.add(stage)
        for rows in self._objects:
            yield from self._finish_rows(rows, revision)
        for stream_id, info in self._info.items():
            if info is GONE:
                self._ends.pop(stream_id, None)
        fold.ends.update(self._ends)
        for stream_id, info in self._info.items():
            if info is not GONE:
                fold.info[stream_id] = info
            else:
                newest.cuts.setdefault(stream_id, fold.starts.get(stream_id, 0))
                if stream_id in fold.info:
                    fold.remove_stream(stream_id)
        if self._writers:
            fold.staging.writers.update(self._writers)
            fold.staging.attached_revision = revision
        for unstage in self._unstages:
            self._finish_unstage(unstage, revision)
        for _ in range(self._raised):
            fold.compactions.add(array("Q"))

    def _check_new(self, object_id: int) -> None:
        fold = self._fold
        if (
            any(object_id in generation.objects for generation in fold.generations)
            or object_id in fold.staging.staged
            or object_id in self._stages
            or any(object_id == other.row.object_id for other in self._objects)
        ):
            raise Corrupt(f"{self._what} commits object {object_id} a second time")

    def _raise_counter(self, counter: int) -> None:
        self._raised += 1
        expected = self._fold.compactions.counter + self._raised
        if counter != expected:
            raise Corrupt(
                f"{self._what} makes the compaction counter {counter}, where {expected} follows: a "
                "record is lost"
            )

    def _attach(self, attach: Attach) -> Steps[None]:
        staging = self._fold.staging
        self._raise_counter(attach.counter)
        writer = self._writers.get(attach.writer_id) or staging.writers.get(attach.writer_id)
        if writer is not None and attach.epoch <= writer.epoch:
            raise Corrupt(
                f"{self._what} attaches epoch {attach.epoch} of writer {attach.writer_id} after "
                f"{writer.epoch}"
            )
        leaders = dict(zip(attach.streams, attach.leader_epochs, strict=True))
        starts: dict[int, int] = {}
        for object_id in attach.object_ids:
            stage = staging.staged.get(object_id)
            if stage is None or object_id in self._attached:
                raise Corrupt(f"{self._what} attaches object {object_id}, which is not staged")
            self._attached.add(object_id)
            ends = yield from self._add_rows(stage.streams, stage.counts)
            bases = array("Q", map(sub, ends, stage.counts))
            epochs, leading = array("Q"), array("q")
            for low in range(0, len(bases), STEP_ROWS):
                high = low + STEP_ROWS
                for stream_id, base in zip(stage.streams[low:high], bases[low:high], strict=True):
                    info = self._info.get(stream_id) or self._fold.info[stream_id]
                    leader = leaders.get(stream_id)
                    if leader is None:
                        raise Corrupt(
                            f"{self._what} attaches to stream {stream_id} without naming it"
                        )
                    starts.setdefault(stream_id, base)
                    epochs.append(info.epoch)
                    leading.append(leader_epoch_of(leader))
                yield
            row = replace(stage.row, placements=Placements(stage.streams, bases, epochs, leading))
            self._objects.append(_Rows(row, stage.streams, stage.counts, ends))
        streams = array("Q", sorted(starts))
        self._writers[attach.writer_id] = WriterRow(
            attach.writer_id,
            attach.epoch,
            attach.at_ms,
            streams,
            array("Q", map(starts.__getitem__, streams)),
            array("Q", map(self._ends.__getitem__, streams)),
        )

    def _finish_unstage(self, unstage: Unstage, revision: int) -> None:
        fold = self._fold
        for object_id in unstage.object_ids:
            stage = fold.staging.take(object_id)
            if stage is not None:
                # It has no range, so the next checkpoint finds it dead.
                fold.newest.objects[object_id] = NewObjectEntry(stage.row, 0, revision)
        for writer_id, epoch in unstage.forgotten:
            if fold.staging.last_epoch(writer_id) == epoch:
                del fold.staging.writers[writer_id]

    def _add_rows(self, streams: array[int], counts: array[int]) -> Steps[array[int]]:
        """Adds rows at their streams' ends; the end offset of each."""
        info_here, info_there = self._info, self._fold.info
        ends_here, ends_there, tenure = self._ends, self._fold.ends, self._tenure
        ends = array("Q")
        for low in range(0, len(streams), STEP_ROWS):
            flat: list[int] = []
            high = low + STEP_ROWS
            for stream_id, count in zip(streams[low:high], counts[low:high], strict=True):
                info = info_here.get(stream_id) or info_there.get(stream_id)
                if info is None or info[1] != tenure or not info[2]:
                    raise Corrupt(
                        f"{self._what} has rows of stream {stream_id}, which that tenure does not "
                        "hold open"
                    )
                start = ends_here.get(stream_id)
                if start is None:
                    start = ends_there[stream_id]
                end = ends_here[stream_id] = start + count
                flat += (stream_id, info[0], start, end)
            packed = array("Q", flat)
            self.rows_crc32c = crc32c(to_le(packed), self.rows_crc32c)
            ends.extend(packed[3::4])
            yield
        return ends

    def _finish_rows(self, rows: _Rows, revision: int) -> Steps[None]:
        newest, object_id, count = self._fold.newest, rows.row.object_id, 0
        if rows.row.placements:
            self._fold.staging.take(object_id)
            self._fold.staging.attached[object_id] = Placements.of(rows.row.placements)
        ranges = newest.ranges
        for low in range(0, len(rows.ends), STEP_ROWS):
            high = low + STEP_ROWS
            for stream_id, end, size in zip(
                rows.streams[low:high], rows.ends[low:high], rows.counts[low:high], strict=True
            ):
                written = ranges.get(stream_id)
                if written is None:
                    ranges[stream_id] = array("Q", (end - size, end, object_id))
                    count += 1
                elif (
                    written[-1] == object_id
                    and end - written[-4 if len(written) > 3 else 0] <= SPAN_MAX
                ):
                    written[-2] = end
                else:
                    written.append(end)
                    written.append(object_id)
                    count += 1
            yield
        newest.objects[object_id] = NewObjectEntry(rows.row, count, revision)
        newest.rows += len(rows.ends)

    def _held(self, stream_id: int, epoch: int) -> StreamHeader:
        info = self._info.get(stream_id) or self._fold.info.get(stream_id)
        if info is None or info.holder != self._tenure or info.epoch != epoch:
            raise Corrupt(
                f"{self._what} changes stream {stream_id} under epoch {epoch}, which that tenure "
                "does not hold"
            )
        return info

    def _start(self, stream_id: int) -> int:
        start = self._starts.get(stream_id)
        return self._fold.starts[stream_id] if start is None else start

    def _end(self, stream_id: int) -> int:
        end = self._ends.get(stream_id)
        return self._fold.ends[stream_id] if end is None else end
