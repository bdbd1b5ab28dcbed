"""Segments, producers and leader epochs of a log up to its end: the state that a batch changes.

1. All changes go through `account`, which appends call, and recovery for each batch's attributes.
2. `checkpoint` captures the state at the log's end; `restore` and later attributes rebuild it.
"""

from __future__ import annotations

from streamlog.format.kafka_files.time_index import TimeEntry
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache
from streamlog.log.partition.producer_state_manager import ProducerStateManager
from streamlog.log.shared.meta.codec import (
    NO_TXN_ENTRIES,
    OPEN_END,
    Checkpoint,
    SegmentOpened,
    SegmentSealed,
)
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.shared.state.segment import LogEnd, SharedLogSegment
from streamlog.model.batch import StreamSlice
from streamlog.model.stream import Stream


class LogTail:
    """`segments` in order; the last is the active one.

    Offset o of the log is offset o + `shift` of the stream `data`.
    """

    def __init__(
        self, producers: ProducerStateManager, epochs: LeaderEpochCache, data: Stream, shift: int
    ) -> None:
        self.producers = producers
        self.epochs = epochs
        self.segments: list[SharedLogSegment] = []
        self.batches_since_checkpoint = 0
        self.accounted_end = 0
        """End of the accounted batches: the log's end, except while a commit attaches batches."""
        self._log_end = LogEnd(data, shift)

    @property
    def active(self) -> SharedLogSegment:
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        """The log's end, provisional batches included."""
        return self._log_end.offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def restore(self, state: MetaState, opened: SegmentOpened, time_stored_end: int) -> None:
        """Takes the state of the meta stream; the batches behind its checkpoint must follow, then
        `found_aborted`."""
        self.segments = [self.sealed(record) for record in state.sealed]
        active = SharedLogSegment(opened, self._log_end)
        active.time_index.stored_end = time_stored_end
        self.segments.append(active)
        for epoch, start in state.epochs.entries:
            self.epochs.assign(epoch, start)
        checkpoint = state.checkpoint
        self.accounted_end = active.base_offset
        if checkpoint is None:
            return
        self.accounted_end = max(checkpoint.offset, active.base_offset)
        self.producers.restore(checkpoint.producers)
        if checkpoint.active_base_offset != active.base_offset:
            return
        if checkpoint.txn_stream_end != NO_TXN_ENTRIES:
            active.aborted.stored_end = checkpoint.txn_stream_end
            active.aborted.stored_below = checkpoint.offset
        active.size = checkpoint.size_bytes
        active.first_timestamp = checkpoint.first_timestamp_ms
        active.largest = active.largest_visible = checkpoint.largest_timestamp_ms
        active.last_append = checkpoint.last_append_ms
        index = active.time_index
        index.max_timestamp_ms = checkpoint.largest_timestamp_ms
        index.bytes_since = checkpoint.bytes_since_indexed
        index.last = TimeEntry(
            checkpoint.indexed_timestamp_ms, checkpoint.indexed_offset - active.base_offset
        )

    def sealed(self, record: SegmentSealed) -> SharedLogSegment:
        """The segment that a cleaning has made; the caller puts it in the place of others."""
        return SharedLogSegment.of_sealed(record, self._log_end)

    def account(
        self, base_offset: int, span: int, metadata: LogBatchMetadata, config: TopicConfig
    ) -> bool:
        """Accounts for a batch at the end of the log; True if it begins a leader epoch."""
        aborted = self.producers.account(base_offset, span, metadata)
        active = self.active
        active.account(base_offset, span, metadata, config.index_interval_bytes)
        if aborted is not None:
            active.aborted.unstored.append(aborted)
        self.batches_since_checkpoint += 1
        self.accounted_end = base_offset + span
        return metadata.leader_epoch > self.epochs.latest and self.epochs.assign(
            metadata.leader_epoch, base_offset
        )

    def found_aborted(self, txn_confirm_offset: int) -> bool:
        """Ends the recovery of aborted transactions: the txn stream ends here.

        False, and nothing changes, where that does not agree with the log's data.
        """
        aborted = self.active.aborted
        found = txn_confirm_offset - aborted.stored_end
        if not 0 <= found <= len(aborted.unstored):
            return False
        aborted.found_stored(found)
        return True

    def should_roll(
        self, span: int, metadata: LogBatchMetadata, config: TopicConfig, jitter: float
    ) -> bool:
        """Whether the batch needs a new segment: by size, event time, or 31 bits of offset."""
        active = self.active
        relative = self.accounted_end + span - 1 - active.base_offset
        return metadata.needs_new_segment(
            active.size, active.first_timestamp, relative, config, jitter
        )

    def roll(self, now_ms: int) -> tuple[SegmentSealed, SegmentOpened]:
        """Ends the active segment at the log's end and begins the next one there."""
        end = self.accounted_end
        sealed = self.active.seal(end)
        opened = SegmentOpened(
            end,
            now_ms,
            StreamSlice(sealed.data.stream_id, sealed.data.end_offset, OPEN_END),
            StreamSlice(sealed.time.stream_id, sealed.time.end_offset, OPEN_END),
            StreamSlice(sealed.txn.stream_id, sealed.txn.end_offset, OPEN_END),
        )
        self.segments.append(SharedLogSegment(opened, self._log_end))
        return sealed, opened

    def checkpoint(self, now_ms: int) -> Checkpoint:
        """The state at the log's end; expired producers are forgotten first."""
        self.producers.expire(now_ms)
        self.batches_since_checkpoint = 0
        active = self.active
        index = active.time_index
        return Checkpoint(
            offset=self.accounted_end,
            active_base_offset=active.base_offset,
            size_bytes=active.size,
            first_timestamp_ms=active.first_timestamp,
            largest_timestamp_ms=active.largest,
            last_append_ms=active.last_append,
            time_stream_end=index.end,
            indexed_timestamp_ms=index.last.timestamp_ms,
            indexed_offset=active.base_offset + index.last.relative_offset,
            bytes_since_indexed=index.bytes_since,
            producers=self.producers.snapshot(),
            txn_stream_end=active.aborted.end or NO_TXN_ENTRIES,
        )
