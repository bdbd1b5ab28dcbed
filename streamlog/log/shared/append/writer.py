"""Appends to one log: batches are validated, sequenced and given to the data stream, in turn.

Nothing is awaited between the reservation of room and the sequencing of a batch, so that producer
state, offset and stream agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

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
from streamlog.log.api.abstract_log import (
    AppendOutcome,
    LogAppend,
    LogAppendInfo,
    ProduceContext,
)
from streamlog.log.api.topic_config import LOG_APPEND_TIME, TopicConfig
from streamlog.log.partition.ack_queue import PendingAppend
from streamlog.log.partition.batch_metadata import (
    NO_LEADER_EPOCH,
    LogBatchMetadata,
    decode_batch_metadata,
    encode_batch_metadata,
)
from streamlog.log.partition.log_validator import validate_batches
from streamlog.log.partition.producer_state_entry import ProducerBatch
from streamlog.log.shared.append.run import RunBatch, RunSequencer
from streamlog.log.shared.durable.meta_jobs import MetaJob
from streamlog.log.shared.meta.codec import LeaderEpoch
from streamlog.log.shared.parts import LogParts
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.batch import AppendContext, BatchAttributes, RecordBatch, Reservation
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.turn import Turn

ATTACHED_RUNS_MAX = 32
"""Runs of attached batches after which a checkpoint is due: without it the next open would read the
index of as many objects, and do so for each partition that a commit came to."""

STREAM_LOST = (Fenced, StreamNotFound)
"""Errors of a stream that this log no longer holds. They fail the log: its owner opens it anew."""


class LogWriter:
    """It sequences appends, rolls segments and takes checkpoints. It does not acknowledge."""

    def __init__(self, parts: LogParts, config: TopicConfig) -> None:
        environment = parts.environment
        self.config = config
        self._partition = parts.partition
        self._data = parts.streams.data
        self._txn = parts.streams.txn
        self.leader_epoch = parts.streams.meta.stream.stream_epoch
        self._tail = parts.tail
        self._acks = parts.acks
        self._jobs = parts.jobs
        self._lifecycle = parts.lifecycle
        self._visibility = parts.visibility
        self._environment = environment
        self._clock = environment.clock
        self._metrics = environment.metrics.of_topic(parts.partition.topic)
        self.turn = Turn()
        """Held by the one call that appends, or attaches."""
        self.jitter = environment.random.random()
        self._checks_records = environment.config.checks_records
        self._runs = RunSequencer(parts, self)

    async def append(self, batches: Buffer, context: ProduceContext) -> Awaitable[LogAppendInfo]:
        """As AbstractLog.append."""
        now_ms = self._clock.now_ms()
        validated = self._validated(batches, now_ms)
        if len(validated) == 1:
            outcomes = self._append_run([RunBatch(validated[0], context.trace_id)], now_ms)
            if outcomes is not None:
                outcome = outcomes[0]
                if isinstance(outcome, StreamlogError):
                    raise outcome
                return outcome
        return await self._append_in_turn(validated, context)

    async def append_many(self, appends: Sequence[LogAppend]) -> Sequence[AppendOutcome]:
        """As AbstractLog.append_many: as one run where that can be, or one after another."""
        now_ms = self._clock.now_ms()
        validated: list[list[ScannedBatch] | StreamlogError] = []
        run: list[RunBatch | StreamlogError] = []
        for one in appends:
            try:
                batches = self._validated(one.batches, now_ms)
            except StreamlogError as error:
                # What is younger than a batch that is sent again has to come behind it.
                behind = len(appends) - len(validated) if error.is_retryable else 1
                validated += [error] * behind
                run += [error] * behind
                if error.is_retryable:
                    break
                continue
            validated.append(batches)
            if len(batches) == 1:
                run.append(RunBatch(batches[0], one.context.trace_id))
        if len(run) == len(appends):
            try:
                outcomes = self._append_run(run, now_ms)
            except StreamlogError as error:
                return [error] * len(appends)
            if outcomes is not None:
                return outcomes
        outcomes = []
        for batches_or_error, one in zip(validated, appends, strict=True):
            if isinstance(batches_or_error, StreamlogError):
                outcomes.append(batches_or_error)
                continue
            try:
                outcomes.append(await self._append_in_turn(batches_or_error, one.context))
            except StreamlogError as error:
                if error.is_retryable:
                    return outcomes + [error] * (len(appends) - len(outcomes))
                outcomes.append(error)
        return outcomes

    def _append_run(
        self, run: Sequence[RunBatch | StreamlogError], now_ms: int
    ) -> list[AppendOutcome] | None:
        """As RunSequencer.try_append, if no earlier call waits for its turn. Awaits nothing."""
        if not self.turn.is_free or not self._lifecycle.is_open:
            return None
        return self._runs.try_append(run, now_ms)

    async def _append_in_turn(
        self, validated: Sequence[ScannedBatch], context: ProduceContext
    ) -> Awaitable[LogAppendInfo]:
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
        self.jitter = self._environment.random.random()
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
        tail, epoch = self._tail, self.leader_epoch
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
            if tail.should_roll(span, size, metadata.max_timestamp_ms, config, self.jitter):
                self.roll()
            tail.account(base, span, metadata, config)
            records += span
            size_bytes += size
        self._metrics.appended(len(batches), records, size_bytes)

    def finish_attached(self, runs: int) -> None:
        """`runs`: calls of `account_attached` for one commit."""
        if self.is_checkpoint_due or runs >= ATTACHED_RUNS_MAX:
            self.checkpoint()

    @property
    def is_checkpoint_due(self) -> bool:
        """A checkpoint holds all producers. It is due after as many batches at least, so that its
        cost per batch does not grow with their number."""
        tail = self._tail
        interval = self._environment.config.checkpoint_interval_batches
        return tail.batches_since_checkpoint >= max(interval, len(tail.producers))

    async def _take_turn(self, context: ProduceContext) -> None:
        """Calls wait for room one at a time, so that none is sequenced before an earlier one."""
        if context.deadline is None or self.turn.is_free:
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
            original = self.original(header, now_ms)
            if original is not None:
                return self.duplicate(original, self._acks.find(original.base_offset))
        is_stamped = config.message_timestamp_type == LOG_APPEND_TIME
        stamp = now_ms if is_stamped else header.max_timestamp_ms
        span, size = header.last_offset_delta + 1, len(batch.view)
        if tail.should_roll(span, size, stamp, config, self.jitter):
            self.roll()
        base, epoch = tail.end_offset, self.leader_epoch
        if is_stamped:
            parts = placed_at_append_time(batch.view, base, epoch, now_ms)
        else:
            parts = placed(batch.view, base, epoch)
        metadata = LogBatchMetadata.of(
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
        pending = PendingAppend(base, base + span, tail.active, stamp)
        future = pending.wait(
            LogAppendInfo(
                base if first_base is None else first_base,
                base + span - 1,
                now_ms if is_stamped else -1,
                self._visibility.log_start_offset,
            )
        )
        self._acks.push(pending, durable)
        if begins_epoch:
            self._jobs.add(MetaJob(base + span, (LeaderEpoch(epoch, base),)))
        if self.is_checkpoint_due:
            self.checkpoint()
        self._metrics.appended(1, span, size)
        return future

    def original(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
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

    def duplicate(
        self, original: ProducerBatch, pending: PendingAppend[SharedLogSegment] | None
    ) -> asyncio.Future[LogAppendInfo]:
        """Answers a retry with the original's offsets, when the original is durable.

        `pending`: the original, unless it is durable.
        """
        self._metrics.duplicates.inc()
        info = LogAppendInfo(
            original.base_offset,
            original.last_offset,
            -1,
            self._visibility.log_start_offset,
            is_duplicate=True,
        )
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
    metadata = LogBatchMetadata.of(
        header,
        leader_epoch=NO_LEADER_EPOCH,
        append_time_ms=now_ms,
        max_timestamp_ms=now_ms if is_stamped else header.max_timestamp_ms,
    )
    span = header.last_offset_delta + 1
    return RecordBatch(
        span, header.base_timestamp_ms, parts, encode_batch_metadata(metadata), placed_crc32c(parts)
    )
