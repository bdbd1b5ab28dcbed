"""Places for batches at the log's end: what single appends, runs and staged commits share.

1. `original` tells whether a batch was sent before; `duplicate` answers it then.
2. `place` makes what the stream stores: a new header before the client's own bytes, the attributes,
   and the CRC of it all. It rolls the segment where that is due, and changes nothing else.
3. `account` changes the state at the log's end, and gives the caller an answer that waits.

A stream that may refuse a batch gets it between 2 and 3. Nothing is awaited here: another batch
must not come to the log's end meanwhile.
"""

from __future__ import annotations

import asyncio

from streamlog.codec.batch import (
    CONTROL,
    BatchHeader,
    ScannedBatch,
    placed_at_append_time,
    placed_crc32c,
    placed_with_crc32c,
)
from streamlog.codec.control import decode_end_marker
from streamlog.errors import QuotaExceeded
from streamlog.format.kafka_files.time_index import TimeEntry
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import LogAppendInfo
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.metrics import TopicMetrics
from streamlog.log.api.topic_config import LOG_APPEND_TIME, TopicConfig
from streamlog.log.partition.ack_queue import PendingAppend
from streamlog.log.partition.batch_metadata import LogBatchMetadata, encode_batch_metadata
from streamlog.log.partition.producer_state_entry import ProducerBatch
from streamlog.log.partition.view.visibility import Visibility
from streamlog.log.shared.durable.meta_jobs import IndexEntries, MetaJob, MetaJobs
from streamlog.log.shared.meta.codec import LeaderEpoch
from streamlog.log.shared.state.append_time import UNKNOWN_MS, append_time_of
from streamlog.log.shared.state.recovery import OpenStreams
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.log.shared.state.tail import LogTail
from streamlog.model.batch import CheckedBatch, RecordBatch
from streamlog.runtime.concurrency.background import Background


def placed_batch(
    batch: ScannedBatch, base: int, leader_epoch: int, config: TopicConfig, now_ms: int
) -> tuple[RecordBatch, LogBatchMetadata]:
    """The batch at offset `base`, as the stream stores it, and what the log must know of it.

    Log-append time is `now_ms`, where the topic has it.
    """
    header, view = batch
    if config.message_timestamp_type == LOG_APPEND_TIME:
        stamp = now_ms
        parts = placed_at_append_time(view, base, leader_epoch, now_ms)
        crc = placed_crc32c(parts)
    else:
        stamp = header.max_timestamp_ms
        parts, crc = placed_with_crc32c(batch, base, leader_epoch)
    metadata = LogBatchMetadata.of(
        header,
        leader_epoch=leader_epoch,
        append_time_ms=now_ms,
        max_timestamp_ms=stamp,
        marker=decode_end_marker(view) if header.attributes & CONTROL else None,
    )
    attributes = encode_batch_metadata(metadata)
    span = header.last_offset_delta + 1
    record = (span, header.base_timestamp_ms, parts, attributes, crc)
    # The log has checked the batch's own CRC, of which this one was made.
    return CheckedBatch._make(record), metadata


class BatchPlacer:
    """It moves the log's end, rolls segments and takes checkpoints. It does not store batches."""

    def __init__(
        self,
        streams: OpenStreams,
        tail: LogTail,
        jobs: MetaJobs,
        visibility: Visibility[SharedLogSegment],
        environment: LogEnvironment,
        metrics: TopicMetrics,
        config: TopicConfig,
        background: Background,
    ) -> None:
        self.follow(config)
        self.leader_epoch = streams.meta.stream.stream_epoch
        self._streams = streams.by_id
        self._background = background
        self._tail = tail
        self._jobs = jobs
        self._visibility = visibility
        self._environment = environment
        self._clock = environment.clock
        self._metrics = metrics
        self._jitter = environment.random.random()

    def follow(self, config: TopicConfig) -> None:
        """Takes the topic's settings for batches from now on."""
        self.config = config
        self.needs_keys = config.needs_keys
        """Whether a record without a key is refused."""

    def original(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        """As ProducerStateManager.check, and counts refusals; None without a producer id."""
        if header.producer_id < 0:
            return None
        try:
            return self._tail.producers.check(header, now_ms)
        except QuotaExceeded:
            self._environment.metrics.producers_refused.inc()
            raise

    def duplicate(
        self, original: ProducerBatch, pending: PendingAppend[SharedLogSegment] | None
    ) -> asyncio.Future[LogAppendInfo]:
        """Answers a retry with the original's offsets and time, when the original is durable.

        `pending`: the original, unless it is durable.
        """
        self._metrics.duplicates.inc()
        info = LogAppendInfo(
            original.base_offset,
            original.last_offset,
            UNKNOWN_MS,
            self._visibility.log_start_offset,
            is_duplicate=True,
        )
        if pending is not None:
            return pending.wait(info._replace(log_append_time_ms=pending.append_time_ms))
        future: asyncio.Future[LogAppendInfo] = asyncio.get_running_loop().create_future()
        if self.config.message_timestamp_type == LOG_APPEND_TIME:
            self._answer_with_time(future, info)
        else:
            future.set_result(info)
        return future

    def _answer_with_time(self, future: asyncio.Future[LogAppendInfo], info: LogAppendInfo) -> None:
        async def answer() -> None:
            segments = self._tail.segments
            at_ms = await append_time_of(segments, self._streams, info.last_offset)
            if not future.done():
                future.set_result(info._replace(log_append_time_ms=at_ms))

        def ended(_: object) -> None:
            if not future.done():
                # The log ended first; the original is stored all the same.
                future.set_result(info)

        self._background.spawn(answer(), name="duplicate").add_done_callback(ended)

    def place(
        self, batch: ScannedBatch, base: int, now_ms: int
    ) -> tuple[RecordBatch, LogBatchMetadata]:
        """As placed_batch, at the log's end `base`, in the segment that is active on return."""
        config = self.config
        record, metadata = placed_batch(batch, base, self.leader_epoch, config, now_ms)
        if self._tail.should_roll(record.record_count, metadata, config, self._jitter):
            self.roll()
        return record, metadata

    def account(
        self, base: int, span: int, metadata: LogBatchMetadata, first_base: int | None = None
    ) -> tuple[PendingAppend[SharedLogSegment], asyncio.Future[LogAppendInfo]]:
        """The batch is in the log from here on: an append for the queue of acks, and its answer.

        `first_base`: the offset of the first batch of the same call, if that is another one.
        """
        tail, config, end = self._tail, self.config, base + span
        if tail.account(base, span, metadata, config):
            self._jobs.add(MetaJob(end, (LeaderEpoch(metadata.leader_epoch, base),)))
        pending = PendingAppend(base, end, tail.active, metadata.max_timestamp_ms)
        is_stamped = config.message_timestamp_type == LOG_APPEND_TIME
        answer = pending.wait(
            LogAppendInfo(
                base if first_base is None else first_base,
                end - 1,
                metadata.append_time_ms if is_stamped else -1,
                self._visibility.log_start_offset,
            )
        )
        return pending, answer

    def account_attached(self, base: int, span: int, metadata: LogBatchMetadata) -> None:
        """Accounts for a batch that is in the stream already."""
        tail, config = self._tail, self.config
        if tail.should_roll(span, metadata, config, self._jitter):
            self.roll()
        tail.account(base, span, metadata, config)

    def begin_epoch(self) -> None:
        """Begins the leader epoch at the log's end, if it has not begun.

        The attributes of attached batches do not have it.
        """
        tail, epoch = self._tail, self.leader_epoch
        end = tail.accounted_end
        if epoch > tail.epochs.latest and tail.epochs.assign(epoch, end):
            self._jobs.add(MetaJob(end, (LeaderEpoch(epoch, end),)))

    def roll(self) -> None:
        """Seals the active segment at the log's end."""
        now_ms = self._clock.now_ms()
        time, txn = _taken(self._tail.active)
        sealed, opened = self._tail.roll(now_ms)
        records = (sealed, opened, self._tail.checkpoint(now_ms))
        self._jobs.add(MetaJob(opened.base_offset, records, time, txn))
        self._jitter = self._environment.random.random()
        self._metrics.rolls.inc()

    def checkpoint(self) -> None:
        """Queues a checkpoint at the log's end, to be written when data is durable up to there."""
        time, txn = _taken(self._tail.active)
        state = self._tail.checkpoint(self._clock.now_ms())
        self._jobs.add(MetaJob(state.offset, (state,), time, txn))

    @property
    def is_checkpoint_due(self) -> bool:
        """A checkpoint holds all producers. It is due after as many batches at least, so that its
        cost per batch does not grow with their number."""
        tail = self._tail
        interval = self._environment.config.checkpoint_interval_batches
        return tail.batches_since_checkpoint >= max(interval, len(tail.producers))


def _taken(
    segment: SharedLogSegment,
) -> tuple[IndexEntries[TimeEntry], IndexEntries[AbortedTxn]]:
    """The index entries of the segment that are not on their way to their streams yet."""
    time, aborted = segment.time_index, segment.aborted
    return IndexEntries(time, time.take()), IndexEntries(aborted, aborted.take())
