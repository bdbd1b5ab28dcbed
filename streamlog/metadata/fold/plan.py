"""Plans the tenure's next commit record from commit entries. Pure: changes nothing.

1. A row (or trim, close, …) whose stream has another epoch or holder than the entry says is
   stripped. The epoch is compared because the tenure may have lost the stream and got it back.
2. An object that keeps no row is not committed: it becomes an orphan.
3. An entry that does not fit for any other reason is the caller's error: that entry fails as a
   whole, and no other.
4. Entries stay in order; none is split.
5. An attach is planned as a whole or refused; its error fails the entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import sub

from streamlog.codec.crc import crc32c
from streamlog.errors import (
    Conflict,
    Internal,
    Invalid,
    StagedNotFound,
    StreamFenced,
    StreamlogError,
)
from streamlog.format.columns import to_le
from streamlog.format.records.commit import (
    CommitRecord,
    Create,
    ObjectRows,
    RecordEntry,
    StreamAt,
    Token,
    Trim,
)
from streamlog.format.records.staged_entries import Attach, Stage, Unstage, stored_epoch
from streamlog.format.rows import NO_LEADER_EPOCH
from streamlog.metadata.fold.fold import GONE, STEP_ROWS, Fold, StreamHeader
from streamlog.metadata.fold.generation import SPAN_MAX
from streamlog.metadata.interface import (
    AttachEntry,
    CommitEntry,
    NewObject,
    Tenure,
    UnstageEntry,
)
from streamlog.model.numbers import OFFSET_MAX
from streamlog.runtime.concurrency.steps import Steps


@dataclass(slots=True)
class PlannedEntry:
    """`failure`: why the entry is left out. `stripped`: streams without any committed change."""

    stripped: frozenset[int] = frozenset()
    committed: list[int] = field(default_factory=list)
    orphaned: list[int] = field(default_factory=list)
    failure: StreamlogError | None = None
    has_changed: bool = True
    """False: everything in the entry was applied before, or was stripped."""


@dataclass(slots=True)
class CommitPlan:
    """`record` None: nothing is left to commit. `entries` are in the order of the input."""

    record: CommitRecord | None
    entries: list[PlannedEntry]
    compactions: int | None = None
    """The compaction counter that the record compares and raises; None: it does neither."""


class _Unfit(Exception):
    """The entry breaks a rule, and stripping does not help."""


def plan_record(
    fold: Fold,
    tenure: Tenure,
    entries: Sequence[CommitEntry],
    is_open_object: frozenset[int],
    *,
    may_be_empty: bool = False,
) -> Steps[CommitPlan]:
    """Plans one record; its floor is 0, for the caller to fill in.

    `is_open_object`: ids that the tenure took and has neither committed nor given up.
    `may_be_empty`: a record without entries is wanted too, to raise the floor.
    """
    work = _RecordDraft(fold, tenure, is_open_object)
    planned = []
    for entry in entries:
        planned.append((yield from work.add(entry)))
    if not work.entries and not may_be_empty:
        return CommitPlan(None, planned)
    compares = any(entry.attaches or entry.unstages for entry in work.entries)
    compactions = fold.compactions.counter if compares else None
    return CommitPlan(CommitRecord(0, work.rows_crc32c, tuple(work.entries)), planned, compactions)


class _RecordDraft:
    """The record so far: the changes of its entries, on top of the fold."""

    def __init__(self, fold: Fold, tenure: Tenure, open_objects: frozenset[int]) -> None:
        self._fold = fold
        self._tenure = tenure
        self._open_objects = set(open_objects)
        self._info: dict[int, StreamHeader] = {}
        self._ends: dict[int, int] = {}
        self.entries: list[RecordEntry] = []
        self.rows_crc32c = 0

    def add(self, entry: CommitEntry) -> Steps[PlannedEntry]:
        draft = _EntryDraft(self._fold, self._tenure, self._info, self._ends)
        crc = self.rows_crc32c
        try:
            creates = [draft.create(c.stream_id, c.epoch, c.tags) for c in entry.creates]
            objects: list[ObjectRows] = []
            orphaned = []
            for new in entry.objects:
                if new.row.object_id not in self._open_objects:
                    raise _Unfit(f"object {new.row.object_id} is not this tenure's to commit")
                rows, crc = yield from draft.add_object(new, crc)
                if len(rows.streams):
                    objects.append(rows)
                else:
                    orphaned.append(new.row.object_id)
            made = _EntryBuilder(
                creates,
                objects,
                [Token(*t) for t in entry.tokens if draft.holds(t.stream_id, t.epoch)],
                [Trim(*t) for t in entry.trims if draft.trim(*t)],
                [StreamAt(*c) for c in entry.closes if draft.close(*c)],
                [StreamAt(*d) for d in entry.destroys if draft.destroy(*d)],
                [self._stage(stage) for stage in entry.stages],
            )
            for attach in entry.attaches:
                attaches, crc = yield from draft.attach(attach, crc)
                made.attaches.extend(attaches)
            for unstage in entry.unstages:
                made.unstages.extend(self._unstage(unstage))
        except StreamlogError as error:
            return PlannedEntry(failure=error)
        except _Unfit as error:
            failure = Internal(f"a commit entry does not fit the metadata: {error}")
            return PlannedEntry(failure=failure)
        self._info.update(draft.info)
        self._ends.update(draft.ends)
        self.rows_crc32c = crc
        committed = [rows.object_id for rows in objects]
        committed += [stage.row.object_id for stage in made.stages]
        self._open_objects.difference_update(committed, orphaned)
        record_entry = made.entry()
        if not record_entry.is_empty:
            self.entries.append(record_entry)
        return PlannedEntry(
            frozenset(draft.stripped), committed, orphaned, has_changed=not record_entry.is_empty
        )

    def _stage(self, stage: Stage) -> Stage:
        if stage.row.object_id not in self._open_objects:
            raise _Unfit(f"object {stage.row.object_id} is not this tenure's to stage")
        return stage

    def _unstage(self, unstage: UnstageEntry) -> list[Unstage]:
        staging = self._fold.staging
        ids = [i for i in unstage.object_ids if i in staging.staged]
        forgotten = [(w, epoch) for w, epoch in unstage.forgotten if staging.last_epoch(w) == epoch]
        if not ids and not forgotten:
            return []
        counter = self._fold.compactions.counter + 1
        return [Unstage(counter, array("Q", ids), tuple(forgotten))]


@dataclass(slots=True)
class _EntryBuilder:
    """Collects the fields of a RecordEntry."""

    creates: Sequence[Create]
    objects: Sequence[ObjectRows]
    tokens: Sequence[Token]
    trims: Sequence[Trim]
    closes: Sequence[StreamAt]
    destroys: Sequence[StreamAt]
    stages: Sequence[Stage]
    attaches: list[Attach] = field(default_factory=list)
    unstages: list[Unstage] = field(default_factory=list)

    def entry(self) -> RecordEntry:
        return RecordEntry(
            self.creates,
            self.objects,
            self.tokens,
            self.trims,
            self.closes,
            self.destroys,
            self.stages,
            self.attaches,
            self.unstages,
        )


class _EntryDraft:
    """One entry's changes on top of the record and the fold; dropped when the entry is unfit."""

    def __init__(
        self, fold: Fold, tenure: Tenure, info: dict[int, StreamHeader], ends: dict[int, int]
    ) -> None:
        self._fold = fold
        self._tenure = tenure
        self._info_before = info
        self._ends_before = ends
        self.info: dict[int, StreamHeader] = {}
        self.ends: dict[int, int] = {}
        self.stripped: set[int] = set()

    def create(self, stream_id: int, epoch: int, tags: dict[str, str]) -> Create:
        if self._known(stream_id) is not None:
            raise _Unfit(f"stream {stream_id} to be created exists")
        create = Create(stream_id, epoch, tuple(tags.items()))
        self.info[stream_id] = StreamHeader(epoch, self._tenure, True, b"", create.tags)
        self.ends[stream_id] = 0
        return create

    def add_object(self, new: NewObject, crc: int) -> Steps[tuple[ObjectRows, int]]:
        streams, counts, last = array("Q"), array("I"), 0
        info_before, info_there = self._info_before, self._fold.info
        ends, ends_before, ends_there = self.ends, self._ends_before, self._fold.ends
        is_mine = self._is_mine
        for low in range(0, len(new.ranges), STEP_ROWS):
            flat: list[int] = []
            for stream_id, epoch, start, end in new.ranges[low : low + STEP_ROWS]:
                if stream_id < last or start >= end:
                    raise _Unfit(
                        f"the ranges of object {new.row.object_id} are out of order or empty at "
                        f"stream {stream_id}, {start} to {end}"
                    )
                last = stream_id
                info = (
                    self.info.get(stream_id)
                    or info_before.get(stream_id)
                    or info_there.get(stream_id)
                )
                if info is None or not is_mine(info, epoch):
                    self.stripped.add(stream_id)
                    continue
                stream_end = ends.get(stream_id)
                if stream_end is None:
                    stream_end = ends_before.get(stream_id)
                    if stream_end is None:
                        stream_end = ends_there[stream_id]
                if start != stream_end or not info.is_open:
                    raise _Unfit(
                        f"rows {start} to {end} of stream {stream_id}, which ends at {stream_end}"
                        + ("" if info.is_open else " and is closed")
                    )
                ends[stream_id] = end
                if end - start <= SPAN_MAX:
                    flat += (stream_id, epoch, start, end)
                else:
                    for part in range(start, end, SPAN_MAX):
                        flat += (stream_id, epoch, part, min(end, part + SPAN_MAX))
            streams.extend(flat[0::4])
            counts.extend(map(sub, flat[3::4], flat[2::4]))
            crc = crc32c(to_le(array("Q", flat)), crc)
            yield
        row = new.row
        rows = ObjectRows(
            row.object_id,
            row.size_bytes,
            row.index_position,
            row.index_length,
            row.index_crc32c,
            row.store,
            streams,
            counts,
        )
        return rows, crc

    def attach(self, attach: AttachEntry, crc: int) -> Steps[tuple[list[Attach], int]]:
        """The planned attach; empty where that epoch, or a later one, is attached already.

        Errors: StagedNotFound, StreamFenced, Conflict, Invalid.
        """
        staging = self._fold.staging
        if attach.epoch <= staging.last_epoch(attach.writer_id):
            return [], crc
        if len(set(attach.object_ids)) != len(attach.object_ids):
            raise Invalid("a commit names a staged object twice")
        streams: set[int] = set()
        for object_id in attach.object_ids:
            stage = staging.staged.get(object_id)
            if stage is None or stage.writer_id != attach.writer_id:
                raise StagedNotFound(
                    f"writer {attach.writer_id} has no staged object {object_id}: it expired, was "
                    "dropped, or is committed already; nothing of this commit was applied. Stage "
                    "everything again under new attempts, and commit that",
                    writer_id=attach.writer_id,
                    object_id=object_id,
                )
            for low in range(0, len(stage.streams), STEP_ROWS):
                flat: list[int] = []
                high = low + STEP_ROWS
                for stream_id, count in zip(
                    stage.streams[low:high], stage.counts[low:high], strict=True
                ):
                    epoch = self._attachable(stream_id, attach)
                    start = self._end(stream_id)
                    end = self.ends[stream_id] = start + count
                    if end > OFFSET_MAX:
                        raise Invalid(
                            f"{count} staged records from offset {start} of stream {stream_id} on "
                            f"would end past {OFFSET_MAX}, the last offset of a stream"
                        )
                    flat += (stream_id, epoch, start, end)
                crc = crc32c(to_le(array("Q", flat)), crc)
                yield
            streams.update(stage.streams)
        ordered = array("Q", sorted(streams))
        leaders = attach.leader_epochs
        made = Attach(
            attach.writer_id,
            attach.epoch,
            attach.at_ms,
            self._fold.compactions.counter + 1,
            array("Q", attach.object_ids),
            ordered,
            array("I", [stored_epoch(leaders.get(s, NO_LEADER_EPOCH)) for s in ordered]),
        )
        return [made], crc

    def _attachable(self, stream_id: int, attach: AttachEntry) -> int:
        """The stream's epoch. Errors: Conflict, StreamFenced."""
        info = self._known(stream_id)
        if info is None or info is GONE or not info.is_open:
            raise Conflict(
                f"stream {stream_id}, for which writer {attach.writer_id} staged data, is gone or "
                "closed; nothing of this commit was applied",
                stream_id=stream_id,
            )
        if not self._is_mine(info, attach.stream_epochs.get(stream_id, -1)):
            raise StreamFenced(
                f"stream {stream_id} is held by {info.holder} under epoch {info.epoch}; nothing of "
                f"the commit of writer {attach.writer_id} was applied, ask that node",
                stream_id=stream_id,
                epoch=info.epoch,
            )
        return info.epoch

    def holds(self, stream_id: int, epoch: int) -> bool:
        """Whether the tenure holds the stream under that epoch; if not, notes it as stripped."""
        info = self._known(stream_id)
        if info is None or not self._is_mine(info, epoch):
            self.stripped.add(stream_id)
            return False
        return True

    def _is_mine(self, info: StreamHeader, epoch: int) -> bool:
        return info[0] == epoch and info[1] == self._tenure

    def trim(self, stream_id: int, epoch: int, start: int) -> bool:
        if not self.holds(stream_id, epoch):
            return False
        if start > self._end(stream_id):
            raise _Unfit(
                f"trim of stream {stream_id} to {start}, past its end {self._end(stream_id)}"
            )
        return True

    def close(self, stream_id: int, epoch: int) -> bool:
        if not self.holds(stream_id, epoch):
            return False
        info = self._known(stream_id)
        assert info is not None
        self.info[stream_id] = info._replace(is_open=False)
        return True

    def destroy(self, stream_id: int, epoch: int) -> bool:
        if not self.holds(stream_id, epoch):
            return False
        self.info[stream_id] = GONE
        return True

    def _known(self, stream_id: int) -> StreamHeader | None:
        return (
            self.info.get(stream_id)
            or self._info_before.get(stream_id)
            or self._fold.info.get(stream_id)
        )

    def _end(self, stream_id: int) -> int:
        for ends in (self.ends, self._ends_before):
            if (end := ends.get(stream_id)) is not None:
                return end
        return self._fold.ends[stream_id]


def rows_of(entry: CommitEntry) -> int:
    """Most rows that the entry adds to a record."""
    return sum(len(new.ranges) for new in entry.objects)


def size_bound_bytes(entries: Iterable[CommitEntry]) -> int:
    """An upper bound of the entries' bytes in a record's body before compression."""
    size = 64
    for e in entries:
        size += 64 + 8 * rows_of(e) + 64 * len(e.objects)
        size += sum(
            24 + sum(4 + _utf8_bound(k) + _utf8_bound(v) for k, v in c.tags.items())
            for c in e.creates
        )
        size += sum(24 + len(t.token) for t in e.tokens)
        size += 24 * (len(e.trims) + len(e.closes) + len(e.destroys))
        for stage in e.stages:
            size += 64 + 12 * len(stage.streams) + 4 * len(stage.writer_id + stage.attempt)
        for attach in e.attaches:
            size += 64 + 8 * len(attach.object_ids) + 12 * len(attach.stream_epochs)
            size += 4 * len(attach.writer_id)
        for unstage in e.unstages:
            size += 64 + 8 * len(unstage.object_ids)
            size += sum(16 + 4 * len(writer_id) for writer_id, _ in unstage.forgotten)
    return size


def _utf8_bound(text: str) -> int:
    """An upper bound of the text's bytes, exact for ASCII (as names are); makes no copy."""
    return len(text) if text.isascii() else 4 * len(text)
