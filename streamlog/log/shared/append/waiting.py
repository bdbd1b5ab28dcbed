"""Appends that may have to wait: batch by batch, each for its turn and for room.

Room is reserved for one batch at a time: holding some while waiting for more could block all
appends. Nothing is awaited between the reservation of room and the sequencing of a batch, so that
producer state, offset and stream agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

from streamlog.codec.batch import CONTROL, ScannedBatch
from streamlog.errors import (
    Fenced,
    Internal,
    OffsetConflict,
    OutcomeUnknown,
    Overloaded,
    StreamlogError,
    StreamNotFound,
    TokenMismatch,
)
from streamlog.log.api.abstract_log import (
    AppendOutcome,
    LogAppendInfo,
    ProduceContext,
    TransactionMarker,
)
from streamlog.log.partition.conditions.append_conditions import AppendConditions, refused_after
from streamlog.log.shared.parts import LogParts
from streamlog.log.shared.placing import BatchPlacer
from streamlog.model.batch import AppendContext, Reservation
from streamlog.runtime.concurrency.turn import Turn

STREAM_LOST = (Fenced, StreamNotFound)
"""Errors of a stream that this log no longer holds. They fail the log: its owner opens it anew."""


class WaitingAppends:
    """Calls wait for room one at a time, so that none is sequenced before an earlier one."""

    def __init__(self, parts: LogParts, placer: BatchPlacer, conditions: AppendConditions) -> None:
        self._partition = parts.partition
        self._data = parts.streams.data
        self._tail = parts.tail
        self._acks = parts.acks
        self._lifecycle = parts.lifecycle
        self._clock = parts.environment.clock
        self._metrics = parts.environment.metrics.of_topic(parts.partition.topic)
        self._placer = placer
        self._conditions = conditions
        self.turn = Turn()
        """Held by the one call that appends, or attaches."""

    async def append(
        self,
        batches: Sequence[ScannedBatch],
        context: ProduceContext,
        check: Callable[[Sequence[ScannedBatch]], Awaitable[None]] | None = None,
    ) -> AppendOutcome:
        """Sequences the batches, of which there is at least one. Errors: those of an append, and of
        `check`, which looks at the batches first.

        An append whose condition does not hold has its refusal as the outcome.
        """
        await self._take_turn(context)
        try:
            if check is not None:
                await check(batches)
            first, *others = batches
            try:
                answer = await self._append_one(first, context)
            except (OffsetConflict, TokenMismatch) as refusal:
                return refused_after(refusal, self._acks.last)
            base = self._tail.end_offset - first.header.record_count
            for position, batch in enumerate(others, 1):
                try:
                    answer = await self._append_one(batch, context, base)
                except StreamlogError as error:
                    raise OutcomeUnknown(
                        f"{position} of {len(batches)} batches were sequenced, then: {error}"
                    ) from error
            return answer
        finally:
            self.turn.release()

    async def append_marker(
        self, batch: ScannedBatch, marker: TransactionMarker, context: ProduceContext
    ) -> asyncio.Future[LogAppendInfo]:
        """Sequences a control batch that this log has made. Errors: as AbstractLog.append_marker,
        of the first await."""
        await self._take_turn(context)
        try:
            return await self._append_one(batch, context, marker=marker)
        finally:
            self.turn.release()

    async def _take_turn(self, context: ProduceContext) -> None:
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
        self,
        batch: ScannedBatch,
        context: ProduceContext,
        first_base: int | None = None,
        marker: TransactionMarker | None = None,
    ) -> asyncio.Future[LogAppendInfo]:
        """The log may end or fail while this waits, for its turn as well as for room."""
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
            if marker is not None:
                self._tail.producers.check_marker(marker, self._clock.now_ms())
            return await self._sequence(batch, reservation, context, first_base)
        finally:
            reservation.release()

    async def _sequence(
        self,
        batch: ScannedBatch,
        reservation: Reservation,
        context: ProduceContext,
        first_base: int | None,
    ) -> asyncio.Future[LogAppendInfo]:
        """Awaits nothing, except the stream's error when it refuses the batch."""
        now_ms = self._clock.now_ms()
        placer, tail = self._placer, self._tail
        is_marker = batch.header.attributes & CONTROL
        original = None if is_marker else placer.original(batch.header, now_ms)
        if original is not None:
            return placer.duplicate(original, self._acks.find(original.base_offset))
        base = tail.end_offset
        if context.condition is not None and first_base is None:
            refusal = self._conditions.refusal(context.condition, base)
            if refusal is not None:
                raise refusal
        record, metadata = placer.place(batch, base, now_ms)
        durable = self._data.append(
            record, AppendContext(trace_id=context.trace_id, reservation=reservation)
        )
        span = record.record_count
        if tail.end_offset != base + span:
            await self._refused(durable)
        pending, answer = placer.account(base, span, metadata, first_base)
        self._acks.push(pending, durable)
        if placer.is_checkpoint_due:
            placer.checkpoint()
        self._metrics.appended(1, span, metadata.size_bytes)
        return answer

    async def _refused(self, durable: Awaitable[object]) -> NoReturn:
        """Raises why the stream did not sequence an append."""
        try:
            await durable
        except STREAM_LOST as error:
            self._lifecycle.fail(error)
            raise
        raise Internal(f"{self._partition}: the stream took a batch and did not move its end")
