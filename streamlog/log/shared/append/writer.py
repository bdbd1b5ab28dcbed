"""Appends to one log: batches are validated, sequenced and given to the data stream, in turn.

Nothing is awaited between the reservation of room and the sequencing of a batch, so that producer
state, offset and stream agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from streamlog.codec.batch import (
    BatchHeader,
    ScannedBatch,
    placed,
    placed_at_append_time,
    placed_crc32c,
)
from streamlog.errors import (
    Fenced,
    Internal,
    InvalidRecord,
    OutcomeUnknown,
    Overloaded,
    QuotaExceeded,
    StreamlogError,
    StreamNotFound,
)
from streamlog.log.api.abstract_log import LogAppendInfo, ProduceContext
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.topic_config import LOG_APPEND_TIME, TopicConfig
from streamlog.log.partition.ack_queue import AckQueue, PendingAppend
from streamlog.log.partition.batch_metadata import (
    NO_LEADER_EPOCH,
    BatchMetadata,
    decode_batch_metadata,
    encode_batch_metadata,
)
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.log.partition.log_validator import validate_batches
from streamlog.log.partition.producer_state_entry import ProducerBatch
from streamlog.log.shared.append.meta_jobs import MetaJob, MetaJobs
from streamlog.log.shared.append.visibility import Visibility
from streamlog.log.shared.meta.codec import LeaderEpoch
from streamlog.log.shared.state.recovery import OpenStreams
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.log.shared.state.tail import LogTail
from streamlog.model.batch import AppendContext, BatchAttributes, RecordBatch, Reservation
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer

ATTACHED_RUNS_MAX = 32
"""Runs of attached batches after which a checkpoint is due: without it the next open would read the
index of as many objects, and do so for each partition that a commit came to."""

STREAM_LOST = (Fenced, StreamNotFound)
"""Errors of a stream that this log no longer holds. They fail the log: its owner opens it anew."""


@dataclass(frozen=True, slots=True)
class LogParts:
    """An append goes one way: LogWriter → stream → `acks` → `visibility` → `jobs`.

    Failures of any part go to `lifecycle`, which every part asks before it takes work.
    """

    partition: TopicPartition
    streams: OpenStreams
    tail: LogTail
    environment: LogEnvironment
    lifecycle: LogLifecycle
    jobs: MetaJobs
    visibility: Visibility
    acks: AckQueue[SharedLogSegment]


class LogWriter:
    """It sequences appends, rolls segments and takes checkpoints. It does not acknowledge."""

    def __init__(self, parts: LogParts, config: TopicConfig) -> None:
        environment = parts.environment
        self.config = config
        self._partition = parts.partition
        self._data = parts.streams.data
        self._txn = parts.streams.txn
        self._leader_epoch = parts.streams.meta.stream.stream_epoch
        self._tail = parts.tail
        self._acks = parts.acks
        self._jobs = parts.jobs
        self._lifecycle = parts.lifecycle
        self._visibility = parts.visibility
        self._environment = environment
        self._clock = environment.clock
        self._metrics = environment.metrics.of_topic(parts.partition.topic)
        self.turn = asyncio.Lock()
        """Held by the one call that appends."""
        self._jitter = environment.random.random()
        self._checks_records = environment.config.checks_records

    async def append(self, batches: Buffer, context: ProduceContext) -> Awaitable[LogAppendInfo]:
        """As AbstractLog.append."""
        validated = self._validated(batches, self._clock.now_ms())
        await self._take_turn(context)
        try:
            if len(validated) == 1:
                return await self._append_one(validated[0], context)
            return await self._append_all(validated, context)
        finally:
            self.turn.release()

    def roll(self) -> None:
        """Seals the active segment at the log's end."""
        now_ms = self._clock.now_ms()
        index = self._tail.active.time_index
        entries = index.take()
        sealed, opened = self._tail.roll(now_ms, self._txn.next_offset)
        records = (sealed, opened, self._tail.checkpoint(now_ms))
        self._jobs.add(MetaJob(opened.base_offset, records, index, entries))
        self._jitter = self._environment.random.random()
        self._metrics.rolls.inc()

    def checkpoint(self) -> None:
        """Queues a checkpoint at the log's end, to be written when data is durable up to there."""
        index = self._tail.active.time_index
        entries = index.take()
        state = self._tail.checkpoint(self._clock.now_ms())
        self._jobs.add(MetaJob(state.offset, (state,), index, entries))

    @property
    def data_shift(self) -> int:
        """Offset o of the log is offset o + data_shift of the data stream."""
        return self._tail.active.data_shift

    def to_stage(self, batches: Buffer) -> list[RecordBatch]:
        """Batches without offsets and leader epoch; log-append time is now. Burns CPU.

        Errors: those of an append; InvalidRecord for a batch with a producer id.
        """
        now_ms, config = self._clock.now_ms(), self.config
        return [_staged(batch, config, now_ms) for batch in self._validated(batches, now_ms)]

    def _validated(self, batches: Buffer, now_ms: int) -> list[ScannedBatch]:
        return validate_batches(batches, self.config, now_ms, with_records=self._checks_records)

    def begin_epoch(self) -> None:
        """Begins the leader epoch at the log's end, if it has not begun.

        The attributes of attached batches do not have it.
        """
        tail, epoch = self._tail, self._leader_epoch
        end = tail.accounted_end
        if epoch > tail.epochs.latest and tail.epochs.assign(epoch, end):
            self._jobs.add(MetaJob(end, (LeaderEpoch(epoch, end),)))

    def account_attached(self, batches: Sequence[BatchAttributes]) -> None:
        """Accounts for attached batches as for appended ones. The caller holds the turn.

        Errors: Corrupt, UnsupportedVersion; Internal: they do not follow the batches before them.
        """
        tail, config, shift = self._tail, self.config, self.data_shift
        records = size_bytes = 0
        for batch in batches:
            metadata = decode_batch_metadata(batch.attributes)
            span, size, base = batch.record_count, metadata.size_bytes, batch.base_offset - shift
            if base != tail.accounted_end:
                raise Internal(f"a staged batch came to {base}, where {tail.accounted_end} follows")
            if tail.should_roll(span, size, metadata.max_timestamp_ms, config, self._jitter):
                self.roll()
            tail.account(base, span, metadata, config)
            records += span
            size_bytes += size
        self._metrics.attached(len(batches), records, size_bytes)

    def finish_attached(self, runs: int) -> None:
        """`runs`: calls of `account_attached` for one commit."""
        if self._is_checkpoint_due or runs >= ATTACHED_RUNS_MAX:
            self.checkpoint()

    @property
    def _is_checkpoint_due(self) -> bool:
        """A checkpoint holds all producers. It is due after as many batches at least, so that its
        cost per batch does not grow with their number."""
        tail = self._tail
        interval = self._environment.config.checkpoint_interval_batches
        return tail.batches_since_checkpoint >= max(interval, len(tail.producers))

    async def _take_turn(self, context: ProduceContext) -> None:
        """Calls wait for room one at a time, so that none is sequenced before an earlier one."""
        if context.deadline is None or not self.turn.locked():
            await self.turn.acquire()
            return
        try:
            async with asyncio.timeout(context.deadline - self._clock.monotonic()):
                await self.turn.acquire()
        except TimeoutError:
            raise Overloaded(
                f"appends to {self._partition} waited for room until the deadline; nothing was "
                "stored: retry with back-off"
            ) from None

    async def _append_one(
        self, batch: ScannedBatch, context: ProduceContext, first_base: int | None = None
    ) -> asyncio.Future[LogAppendInfo]:
        self._lifecycle.check_open()
        try:
            reservation = await self._data.reserve(
                len(batch.view), AppendContext(deadline=context.deadline, trace_id=context.trace_id)
            )
        except STREAM_LOST as error:
            self._lifecycle.fail(error)
            raise
        try:
            self._lifecycle.check_open()
            return await self._sequence(batch, reservation, context, first_base)
        finally:
            reservation.release()

    async def _append_all(
        self, batches: Sequence[ScannedBatch], context: ProduceContext
    ) -> asyncio.Future[LogAppendInfo]:
        """Reserves room for one batch at a time: holding some while waiting for more could block
        all appends."""
        last = await self._append_one(batches[0], context)
        base = self._tail.end_offset - batches[0].header.record_count
        for position, batch in enumerate(batches[1:], 1):
            try:
                last = await self._append_one(batch, context, base)
            except StreamlogError as error:
                raise OutcomeUnknown(
                    f"{position} of {len(batches)} batches were sequenced, then: {error}"
                ) from error
        return last

    async def _sequence(
        self,
        batch: ScannedBatch,
        reservation: Reservation,
        context: ProduceContext,
        first_base: int | None,
    ) -> asyncio.Future[LogAppendInfo]:
        """Awaits nothing, except the stream's error when it refuses the batch."""
        now_ms = self._clock.now_ms()
        header, config, tail = batch.header, self.config, self._tail
        if header.producer_id >= 0:
            original = self._original(header, now_ms)
            if original is not None:
                return self._duplicate(original.base_offset, original.last_offset)
        is_stamped = config.message_timestamp_type == LOG_APPEND_TIME
        stamp = now_ms if is_stamped else header.max_timestamp_ms
        span, size = header.last_offset_delta + 1, len(batch.view)
        if tail.should_roll(span, size, stamp, config, self._jitter):
            self.roll()
        base, epoch = tail.end_offset, self._leader_epoch
        if is_stamped:
            parts = placed_at_append_time(batch.view, base, epoch, now_ms)
        else:
            parts = placed(batch.view, base, epoch)
        metadata = BatchMetadata.of(
            header, leader_epoch=epoch, append_time_ms=now_ms, max_timestamp_ms=stamp
        )
        durable = self._data.append(
            RecordBatch(
                span,
                header.base_timestamp_ms,
                parts,
                encode_batch_metadata(metadata),
                placed_crc32c(parts),
            ),
            AppendContext(trace_id=context.trace_id, reservation=reservation),
        )
        if tail.end_offset != base + span:
            await self._refused(durable)
        begins_epoch = tail.account(base, span, metadata, config)
        pending = PendingAppend(base, base + span, durable, tail.active, stamp)
        future = pending.wait(
            LogAppendInfo(
                base if first_base is None else first_base,
                base + span - 1,
                now_ms if is_stamped else -1,
                self._visibility.log_start_offset,
            )
        )
        self._acks.push(pending)
        if begins_epoch:
            self._jobs.add(MetaJob(base + span, (LeaderEpoch(epoch, base),)))
        if self._is_checkpoint_due:
            self.checkpoint()
        self._metrics.appended(span, size)
        return future

    def _original(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        """As ProducerStateManager.check, and counts refusals."""
        try:
            return self._tail.producers.check(header, now_ms)
        except QuotaExceeded:
            self._environment.metrics.producers_refused.inc()
            raise

    async def _refused(self, durable: Awaitable[object]) -> None:
        """Raises why the stream did not sequence an append."""
        try:
            await durable
        except STREAM_LOST as error:
            self._lifecycle.fail(error)
            raise
        raise Internal(f"{self._partition}: the stream took a batch and did not move its end")

    def _duplicate(self, base: int, last: int) -> asyncio.Future[LogAppendInfo]:
        """Answers a retry with the original's offsets, when the original is durable."""
        self._metrics.duplicates.inc()
        info = LogAppendInfo(base, last, -1, self._visibility.log_start_offset, is_duplicate=True)
        pending = self._acks.find(base)
        if pending is not None:
            return pending.wait(info)
        future: asyncio.Future[LogAppendInfo] = asyncio.get_running_loop().create_future()
        future.set_result(info)
        return future


def _staged(batch: ScannedBatch, config: TopicConfig, now_ms: int) -> RecordBatch:
    header = batch.header
    if header.producer_id >= 0:
        raise InvalidRecord(
            "a staged batch has no producer id: the commit is what happens once; encode it without"
        )
    is_stamped = config.message_timestamp_type == LOG_APPEND_TIME
    if is_stamped:
        parts = placed_at_append_time(batch.view, 0, NO_LEADER_EPOCH, now_ms)
    else:
        parts = placed(batch.view, 0, NO_LEADER_EPOCH)
    metadata = BatchMetadata.of(
        header,
        leader_epoch=NO_LEADER_EPOCH,
        append_time_ms=now_ms,
        max_timestamp_ms=now_ms if is_stamped else header.max_timestamp_ms,
    )
    span = header.last_offset_delta + 1
    return RecordBatch(
        span, header.base_timestamp_ms, parts, encode_batch_metadata(metadata), placed_crc32c(parts)
    )
