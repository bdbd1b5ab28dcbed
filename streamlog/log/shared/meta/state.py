"""The fold of a meta stream: the state of one partition. Pure.

`records()` gives the fewest records that fold to the same state: the snapshot that allows all
entries before it to be trimmed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from streamlog.errors import Corrupt
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache
from streamlog.log.partition.producer_state_entry import ProducerStateEntry
from streamlog.log.shared.meta.codec import (
    OPEN_END,
    Checkpoint,
    CleanedStreams,
    CleanEnd,
    Description,
    FencingToken,
    LeaderEpoch,
    LogStart,
    MetaEntry,
    MetaRecord,
    Producers,
    SegmentOpened,
    SegmentRemoved,
    SegmentSealed,
    SegmentsReplaced,
    TransactionalProducers,
)
from streamlog.model.batch import StreamSlice

NOTHING_CLEAN = -1
"""The clean end offset of a log that was never cleaned."""


class MetaState:
    """Segments in order: sealed ones that meet, then the open one."""

    def __init__(self) -> None:
        self.description: Description | None = None
        self.sealed: list[SegmentSealed] = []
        self.active: SegmentOpened | None = None
        self.epochs = LeaderEpochCache()
        self.checkpoint: Checkpoint | None = None
        self.log_start_offset = 0
        self.fencing_token = b""
        self.cleaned: CleanedStreams | None = None
        self.clean_end_offset = NOTHING_CLEAN
        self._group: list[MetaEntry] | None = None
        """The entries of a group whose last entry has not been read yet."""

    def apply_entry(self, entry: MetaEntry) -> None:
        """The next entry of the stream. Errors: as for `apply`."""
        if not entry.is_continuing:
            self._group = []  # Drops a group that a crash cut short.
        elif self._group is None:
            raise Corrupt("an entry of the meta stream continues a missing entry")
        self._group.append(entry)
        if entry.is_continued:
            return
        group, self._group = self._group, None
        if entry.is_snapshot:
            self.__init__()  # type: ignore[misc]
        more: list[Producers | TransactionalProducers] = []
        for record in (record for member in group for record in member.records):
            if isinstance(record, Producers | TransactionalProducers):
                more.append(record)
            else:
                self.apply(record)
        if more:
            self._extend_checkpoint(more)

    def _extend_checkpoint(self, more: Sequence[Producers | TransactionalProducers]) -> None:
        if self.checkpoint is None:
            raise Corrupt("the meta stream has producers without a checkpoint")
        producers = list(self.checkpoint.producers)
        txn_stream_end = self.checkpoint.txn_stream_end
        for record in more:
            producers += record.producers
            if isinstance(record, TransactionalProducers):
                txn_stream_end = record.txn_stream_end
        self.checkpoint = replace(
            self.checkpoint, producers=tuple(producers), txn_stream_end=txn_stream_end
        )

    def apply(self, record: MetaRecord) -> None:
        """Folds one record. Producers belong to a checkpoint; `apply_entry` folds them.

        Errors: Corrupt for a record that cannot follow the ones before it.
        """
        match record:
            case Description():
                self.description = record
            case SegmentOpened():
                self._open(record)
            case SegmentSealed():
                self._seal(record)
            case SegmentRemoved():
                self._remove(record)
            case LeaderEpoch():
                self.epochs.assign(record.epoch, record.start_offset)
            case Checkpoint():
                self.checkpoint = record
            case LogStart():
                self.log_start_offset = max(self.log_start_offset, record.offset)
                self.epochs.raise_start(self.log_start_offset)
            case FencingToken():
                self.fencing_token = record.token
            case CleanedStreams():
                self.cleaned = record
            case SegmentsReplaced(segment):
                self._replace(segment)
            case CleanEnd():
                self.clean_end_offset = record.offset

    def _open(self, record: SegmentOpened) -> None:
        if self.active is not None or (
            self.sealed and self.sealed[-1].end_offset != record.base_offset
        ):
            raise Corrupt(
                f"the meta stream opens a segment at {record.base_offset}, where none can begin"
            )
        self.active = record

    def _seal(self, record: SegmentSealed) -> None:
        follows = not self.sealed or self.sealed[-1].end_offset == record.base_offset
        if self.active is not None and self.active.base_offset == record.base_offset:
            self.active = None
        elif self.active is not None or not follows:
            raise Corrupt(
                f"the meta stream seals a segment at {record.base_offset}, which is not open"
            )
        self.sealed.append(record)

    def _remove(self, record: SegmentRemoved) -> None:
        if not self.sealed or self.sealed[0].base_offset != record.base_offset:
            raise Corrupt(
                f"the meta stream removes the segment at {record.base_offset}, not the oldest one"
            )
        del self.sealed[0]

    def _replace(self, new: SegmentSealed) -> None:
        low = bisect_left(self.sealed, new.base_offset, key=lambda one: one.base_offset)
        high = bisect_left(self.sealed, new.end_offset, key=lambda one: one.end_offset)
        old = self.sealed[low : high + 1]
        if not old or (old[0].base_offset, old[-1].end_offset) != (
            new.base_offset,
            new.end_offset,
        ):
            raise Corrupt(
                f"the meta stream replaces segments from {new.base_offset} to {new.end_offset}, "
                "where none begins or ends"
            )
        self.sealed[low : high + 1] = [new]

    def records(self) -> list[MetaRecord]:
        records: list[MetaRecord] = []
        if self.description is not None:
            records.append(self.description)
        records += [LeaderEpoch(epoch, start) for epoch, start in self.epochs.entries]
        records += self.sealed
        if self.active is not None:
            records.append(self.active)
        if self.checkpoint is not None:
            records.append(self.checkpoint)
        records.append(LogStart(self.log_start_offset))
        if self.fencing_token:
            records.append(FencingToken(self.fencing_token))
        if self.cleaned is not None:
            records.append(self.cleaned)
        if self.clean_end_offset != NOTHING_CLEAN:
            records.append(CleanEnd(self.clean_end_offset))
        return records

    def truncate(self, end_offset: int, time_next_offset: int) -> bool:
        """Forgets all state past `end_offset`, the true end of the data; True if there was any.

        There is none unless an operator gave up acknowledged data for lost: meta records follow the
        data that they describe. The segment that is open afterwards starts a new time slice at
        `time_next_offset`, because entries of lost records may lie before it. Its txn slice holds
        such entries until the caller replaces it, too. What a cleaning has written to other streams
        is there: the log ends behind it at least.
        """
        cleaned_end = self._cleaned_end()
        if end_offset < cleaned_end:
            self._reopen_behind(cleaned_end, end_offset)
            self.epochs.truncate_end(cleaned_end)
            self._cut_checkpoint(None, cleaned_end, time_next_offset)
            return True
        self.clean_end_offset = min(self.clean_end_offset, end_offset)
        is_behind = self.active is not None and self.active.base_offset > end_offset
        has_lost_state = self.checkpoint is not None and self.checkpoint.offset > end_offset
        is_ahead = self.epochs.truncate_end(end_offset)
        if self.log_start_offset > end_offset:
            self.log_start_offset = end_offset
            is_ahead = True
        if is_behind or has_lost_state:
            reopened = self._reopen(end_offset) if is_behind else None
            self._cut_checkpoint(reopened, end_offset, time_next_offset)
            is_ahead = True
        return is_ahead

    def _cleaned_end(self) -> int:
        """End (exclusive) of the cleaned segments: those on other streams come first."""
        assert self.active is not None
        stream_id = self.active.data.stream_id
        cleaned = (one.end_offset for one in self.sealed if one.data.stream_id != stream_id)
        return max(cleaned, default=-1)

    def _reopen_behind(self, cleaned_end: int, end_offset: int) -> None:
        """Begins the open segment anew at `cleaned_end`, where the data goes on that ended at
        `end_offset`."""
        assert self.active is not None
        start = self.active.data.start_offset - (self.active.base_offset - end_offset)
        data = replace(self.active.data, start_offset=start)
        self.active = replace(self.active, base_offset=cleaned_end, data=data)
        self.sealed = [one for one in self.sealed if one.end_offset <= cleaned_end]

    def _reopen(self, end_offset: int) -> SegmentSealed | None:
        """Makes the segment that holds `end_offset` the active one."""
        assert self.active is not None
        keep = bisect_right([sealed.base_offset for sealed in self.sealed], end_offset)
        segment = self.sealed[keep - 1] if keep else None
        del self.sealed[max(keep - 1, 0) :]
        if segment is None:
            start = self.active.data.start_offset - (self.active.base_offset - end_offset)
            data = replace(self.active.data, start_offset=start)
            self.active = replace(self.active, base_offset=end_offset, data=data)
        else:
            data, txn = (replace(part, end_offset=OPEN_END) for part in (segment.data, segment.txn))
            self.active = replace(self.active, base_offset=segment.base_offset, data=data, txn=txn)
        return segment

    def _cut_checkpoint(
        self, reopened: SegmentSealed | None, end_offset: int, time_next_offset: int
    ) -> None:
        """Size and timestamps of the open segment are kept as upper bounds."""
        assert self.active is not None
        time = StreamSlice(self.active.time.stream_id, time_next_offset, OPEN_END)
        self.active = replace(self.active, time=time)
        if self.checkpoint is None:
            return
        producers = []
        for producer in self.checkpoint.producers:
            kept = [batch for batch in producer.batches if batch.last_offset < end_offset]
            if kept:
                entry = ProducerStateEntry.of(*producer[:3], kept)
                first = producer.txn_first_offset
                producers.append(
                    entry._replace(
                        coordinator_epoch=producer.coordinator_epoch,
                        txn_first_offset=first if first < end_offset else -1,
                    )
                )
        bounds = reopened or self.checkpoint
        self.checkpoint = Checkpoint(
            offset=end_offset,
            active_base_offset=self.active.base_offset,
            size_bytes=bounds.size_bytes,
            first_timestamp_ms=bounds.first_timestamp_ms,
            largest_timestamp_ms=bounds.largest_timestamp_ms,
            last_append_ms=bounds.last_append_ms,
            time_stream_end=time_next_offset,
            indexed_timestamp_ms=-1,
            indexed_offset=self.active.base_offset - 1,
            bytes_since_indexed=0,
            producers=tuple(producers),
        )

    def restart_txn(self, start_offset: int, end_offset: int) -> None:
        """The open segment's entries of aborted transactions, up to the checkpoint, lie in another
        slice of the txn stream from now on."""
        assert self.active is not None
        txn = StreamSlice(self.active.txn.stream_id, start_offset, OPEN_END)
        self.active = replace(self.active, txn=txn)
        if self.checkpoint is not None:
            self.checkpoint = replace(self.checkpoint, txn_stream_end=end_offset)
