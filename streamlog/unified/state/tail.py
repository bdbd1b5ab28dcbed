"""Segments, producers and leader epochs of a unified log up to its end: what a batch changes.

Changes are provisional until the batch is carried out; a log that fails is loaded again from its
files.
"""

from __future__ import annotations

from streamlog.format.kafka_files.checkpoints import encode_epochs
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache
from streamlog.log.partition.producer_state_manager import ProducerStateManager
from streamlog.unified.disk.log_files import Epochs, IndexFiles, Roll
from streamlog.unified.recovery.snapshots import snapshot_of
from streamlog.unified.state.segment import UnifiedLogSegment


class UnifiedTail:
    """`segments` in order; the last is the active one."""

    def __init__(
        self,
        segments: list[UnifiedLogSegment],
        producers: ProducerStateManager,
        epochs: LeaderEpochCache,
    ) -> None:
        self.segments = segments
        self.producers = producers
        self.epochs = epochs

    @property
    def active(self) -> UnifiedLogSegment:
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        """The log's end, provisional batches included."""
        return self.segments[-1].end

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def should_roll(
        self, span: int, metadata: LogBatchMetadata, config: TopicConfig, jitter: float
    ) -> bool:
        active = self.active
        relative = self.end_offset + span - 1 - active.base_offset
        return metadata.needs_new_segment(
            active.size, active.first_timestamp, relative, config, jitter
        )

    def account(
        self, base_offset: int, span: int, metadata: LogBatchMetadata, config: TopicConfig
    ) -> Epochs | None:
        """Accounts for a batch at the log's end. What is returned has to be carried out before it:
        the batch begins a leader epoch."""
        active = self.active
        aborted = self.producers.account(base_offset, span, metadata)
        active.account(base_offset, span, metadata, config.index_interval_bytes)
        if aborted is not None and active.aborted is not None:
            active.aborted.append(aborted)
        epoch = metadata.leader_epoch
        if epoch > self.epochs.latest and self.epochs.assign(epoch, base_offset):
            return Epochs(encode_epochs(self.epochs.entries))
        return None

    def indexes(self) -> IndexFiles:
        """Of the active segment, which gets no more batches before they are written."""
        active = self.active
        active.index_time()
        assert active.offsets is not None
        assert active.times is not None
        return IndexFiles(
            active.base_offset, bytes(active.offsets), bytes(active.times), active.aborted or ()
        )

    def roll(self, now_ms: int) -> tuple[Roll, UnifiedLogSegment]:
        """Begins a segment at the log's end: what has to be carried out, and the sealed segment,
        whose indexes stay in memory until then."""
        sealed, end = self.active, self.end_offset
        indexes = self.indexes()
        sealed.seal()
        self.producers.expire(now_ms)
        step = Roll(indexes, end, snapshot_of(self.producers))
        self.segments.append(UnifiedLogSegment(end))
        return step, sealed
