"""Gives appends their offsets: the one place where a stream's next offset moves.

1. Without room in the Budget the append waits; nothing about it is decided yet.
2. Conditions (expected_next_offset, fencing token) are tested against the provisional tail. A
   refusal is answered only when everything before it is confirmed: else it would reveal data that
   may still vanish.
3. A sequenced batch keeps its offsets. It is written until that succeeds or the stream is lost; a
   caller whose deadline passes meanwhile gets OutcomeUnknown.
4. A run is appended only where each of its batches could be at once: with room for all of them, and
   without a barrier, a condition or a deadline. Everything else goes batch by batch.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from streamlog.codec.crc import crc32c_parts
from streamlog.engine.append.budget import Budget, BudgetReservation, Waiter
from streamlog.engine.append.group import Sink
from streamlog.engine.append.queued_append import QueuedAppend
from streamlog.engine.config import AppendConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.stream_core import ErrorFactory, StreamAppend, StreamCore
from streamlog.errors import (
    Closed,
    DeadlinePassed,
    Invalid,
    MessageTooLarge,
    OffsetConflict,
    OutcomeUnknown,
    Overloaded,
    StreamlogError,
    TokenMismatch,
)
from streamlog.format.entry import StreamEntry
from streamlog.model.batch import (
    AppendContext,
    AppendResult,
    Priority,
    RecordBatch,
    Reservation,
)
from streamlog.model.batch_limits import check_condition, check_deadline, refusal_of
from streamlog.model.numbers import OFFSET_MAX, checked_int
from streamlog.runtime.buffers import parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.run_ack import RunAck

EXPIRY_INTERVAL_S = 0.05
"""How late a deadline may be enforced: each check passes over all unconfirmed appends."""
RUN_BASE_MAX = OFFSET_MAX >> 1
"""Where a run may begin: its batches cannot reach the last offset of a stream."""


class Sequencer:
    """Sequences the appends of all streams of one engine into its sink."""

    def __init__(
        self,
        config: AppendConfig,
        budget: Budget,
        sink: Sink,
        clock: Clock,
        metrics: EngineMetrics,
        on_append: Callable[[], None],
    ) -> None:
        self._config = config
        self._on_append = on_append
        self._budget = budget
        self._sink = sink
        self._clock = clock
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = math.inf
        self.stop: ErrorFactory | None = None
        """Set when the engine has stopped: every append fails."""
        self.drain_error: ErrorFactory | None = None
        """Set while the engine drains: new appends fail, queued ones go on."""
        self.admission_error: ErrorFactory | None = None
        """Set while the WAL cannot be written: appends without a reservation fail."""

    @property
    def batch_bytes_max(self) -> int:
        """Largest payload of one append."""
        return self._config.batch_bytes_max

    def append(
        self, core: StreamCore, batch: RecordBatch, context: AppendContext
    ) -> asyncio.Future[AppendResult]:
        """As Stream.append."""
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        append = StreamAppend(core, batch, context, future)
        reservation = context.reservation
        refusal = self._check(append)
        if refusal is not None:
            if reservation is not None:
                reservation.release()
            future.set_exception(refusal)
        elif reservation is not None:
            if not isinstance(reservation, BudgetReservation):
                raise Invalid("the reservation is of another Stream implementation")
            reservation.use(append.charge)
            self._sequence(append)
        elif self._budget.try_take(append.charge):
            self._sequence(append)
        else:
            self._metrics.queued_appends.inc()
            queued = QueuedAppend(append, self._budget, self._sequence)
            queued.wait_for_room(self._delay_s(context.deadline))
        return future

    async def reserve(
        self, core: StreamCore, size_bytes: int, context: AppendContext
    ) -> Reservation:
        """As Stream.reserve."""
        stop = self.stop or core.stop or self.drain_error or self.admission_error
        if stop is not None:
            raise stop()
        size_bytes = checked_int("size_bytes", size_bytes, 0, OFFSET_MAX)
        check_deadline(context.deadline)
        charge = size_bytes + self._config.batch_overhead_bytes
        reservation = BudgetReservation(self._budget, size_bytes, charge)
        if self._budget.try_take(charge):
            return reservation
        future: asyncio.Future[None] = self._loop.create_future()

        def granted() -> None:
            if future.done():
                reservation.release()
            else:
                future.set_result(None)

        def refused(error: StreamlogError) -> None:
            if not future.done():
                future.set_exception(error)

        waiter = Waiter(charge, granted, refused)
        self._metrics.queued_appends.inc()
        self._budget.wait(waiter, context.priority, self._delay_s(context.deadline))
        try:
            await future
        except BaseException:
            # Room that was granted just before the cancellation belongs to no other call.
            if future.done() and not future.cancelled() and future.exception() is None:
                reservation.release()
            self._budget.give_up(waiter)
            raise
        return reservation

    def try_reserve_run(self, core: StreamCore, sizes: Sequence[int]) -> Reservation | None:
        """As AppendsRuns.try_reserve_run."""
        config, budget = self._config, self._budget
        if (
            not sizes
            or max(sizes) > config.batch_bytes_max
            or self.admission_error is not None
            or core.next > RUN_BASE_MAX
            or self._refusal(core) is not None
        ):
            return None
        size_bytes = sum(sizes)
        charge = size_bytes + len(sizes) * config.batch_overhead_bytes
        # Above the bound one oversized batch may go alone, and no run.
        if charge > budget.bound_bytes or not budget.try_take(charge):
            return None
        return BudgetReservation(budget, size_bytes, charge)

    def append_run(
        self,
        core: StreamCore,
        batches: Sequence[RecordBatch],
        reservation: Reservation,
        trace_ids: Sequence[str],
    ) -> RunAck:
        """As AppendsRuns.append_run."""
        if not isinstance(reservation, BudgetReservation):
            raise Invalid("the reservation is of another Stream implementation")
        if len(trace_ids) != len(batches):
            raise Invalid(f"{len(trace_ids)} trace ids for {len(batches)} batches")
        sizes = self._checked_sizes(core, batches)
        overhead = self._config.batch_overhead_bytes
        size_bytes = sum(sizes)
        reservation.use(size_bytes + len(sizes) * overhead)
        self._on_append()
        run = RunAck()
        stream_id, epoch, base = core.stream_id, core.epoch, core.next
        entries: list[StreamEntry] = []
        appends: list[StreamAppend] = []
        made = StreamEntry._make
        for batch, size, trace_id in zip(batches, sizes, trace_ids, strict=True):
            count, timestamp_ms, parts, attributes, crc = batch
            if crc is None:
                crc = crc32c_parts(parts)
            entry = made((stream_id, epoch, base, count, timestamp_ms, parts, attributes, crc))
            entries.append(entry)
            appends.append(StreamAppend.of_run(core, entry, size, size + overhead, trace_id, run))
            base += count
        core.next = base
        core.tail.push_run(entries, size_bytes)
        self._sink.add_run(appends, size_bytes)
        return run

    def raise_barrier(self, core: StreamCore) -> None:
        """Appends to the stream wait, in order, until `lift_barrier`."""
        core.append_barrier = {}

    def lift_barrier(self, core: StreamCore) -> None:
        """Sequences the appends that wait.

        The barrier stays up meanwhile: an append that is refused here releases room, and an append
        that gets this room was called later than those that still wait.
        """
        waiting = core.append_barrier
        if waiting is None:
            return
        try:
            while waiting:
                queued = next(iter(waiting))
                del waiting[queued]
                queued.proceed()
        finally:
            core.append_barrier = None
            core.progressed()

    def fail_lost_appends(self) -> None:
        """Fails the unconfirmed appends of streams that were lost."""
        for group in self._sink.unconfirmed():
            for append in group.items:
                if append.core.stop is not None:
                    append.fail(append.core.stop)

    def close(self, refused: ErrorFactory, sequenced: ErrorFactory) -> None:
        """Fails all appends: with `refused` those not sequenced, with `sequenced` the others."""
        self.stop = refused
        self._budget.refuse_all(refused)
        if self._timer is not None:
            self._timer.cancel()
        for group in self._sink.unconfirmed():
            for append in group.items:
                append.fail(sequenced)

    def _check(self, append: StreamAppend) -> StreamlogError | None:
        """Why the append is refused; or None, and then it is measured. Every encoder accepts a
        batch that passes here."""
        core, batch, context = append.core, append.batch, append.context
        stop = self.stop or core.stop or self.drain_error
        if stop is None and context.reservation is None:
            stop = self.admission_error
        if stop is not None:
            return stop()
        if core.is_closing:
            return _closing(core)
        refusal = refusal_of(batch)
        if refusal is not None:
            return refusal
        deadline = context.deadline
        if deadline is not None and math.isnan(deadline):
            return Invalid("the deadline is not a number (nan); give seconds, or None to wait")
        if context.expected_next_offset is not None or context.fencing_token is not None:
            try:
                check_condition(context)
            except Invalid as error:
                return error
        size_bytes = parts_size(batch.parts)
        if size_bytes > self._config.batch_bytes_max:
            return _too_large(size_bytes, self._config.batch_bytes_max)
        append.size_bytes = size_bytes
        append.charge = size_bytes + self._config.batch_overhead_bytes
        return None

    def _refusal(self, core: StreamCore) -> StreamlogError | None:
        """Why no run can be appended to the stream now."""
        stop = self.stop or core.stop or self.drain_error
        if stop is not None:
            return stop()
        if core.is_closing:
            return _closing(core)
        if core.append_barrier is not None:
            return Overloaded(
                "appends to the stream wait behind a staged commit or a change of its fencing "
                "token; nothing was stored: retry with back-off"
            )
        return None

    def _checked_sizes(self, core: StreamCore, batches: Sequence[RecordBatch]) -> list[int]:
        """Payload bytes of each batch of a run. Errors: why it cannot be appended."""
        refusal = self._refusal(core)
        if refusal is not None:
            raise refusal
        sizes: list[int] = []
        most, end = self._config.batch_bytes_max, core.next
        for batch in batches:
            refusal = refusal_of(batch)
            if refusal is not None:
                raise refusal
            size_bytes = parts_size(batch.parts)
            if size_bytes > most:
                raise _too_large(size_bytes, most)
            sizes.append(size_bytes)
            end += batch.record_count
        if not sizes:
            raise Invalid("a run without batches; append at least one")
        if end > OFFSET_MAX:
            raise _no_offsets_left(end - core.next, core.next)
        return sizes

    def _sequence(self, append: StreamAppend) -> None:
        if append.core.append_barrier is None:
            self._sequence_now(append)
            return
        queued = QueuedAppend(append, self._budget, self._sequence_now)
        queued.wait_at_barrier(self._delay_s(append.context.deadline))

    def _sequence_now(self, append: StreamAppend) -> None:
        """The stream has no barrier, or has lifted it."""
        if append.context.priority is not Priority.BACKGROUND:
            self._on_append()
        core, batch, context = append.core, append.batch, append.context
        base = core.next
        end = base + batch.record_count
        expected = context.expected_next_offset
        if expected is not None and expected != base:
            conflict = f"the next offset is {base}, not {expected}"
            self._refuse(append, OffsetConflict(conflict, expected=expected, actual=base))
            return
        token = context.fencing_token
        if token is not None and token != core.token:
            self._refuse(append, TokenMismatch("the stream has another token"))
            return
        if end > OFFSET_MAX:
            self._refuse(append, _no_offsets_left(batch.record_count, base))
            return
        append.entry = entry = StreamEntry(
            core.stream_id,
            core.epoch,
            base,
            batch.record_count,
            batch.base_timestamp_ms,
            batch.parts,
            batch.attributes,
            crc32c_parts(batch.parts) if batch.payload_crc32c is None else batch.payload_crc32c,
        )
        core.next = end
        core.tail.push(entry, append.size_bytes)
        self._sink.add(append)
        deadline = context.deadline
        if deadline is not None and deadline < self._timer_deadline:
            self._arm(deadline)

    def _refuse(self, append: StreamAppend, error: StreamlogError) -> None:
        """Releases the charge, and answers with `error` once everything sequenced so far is
        confirmed."""
        self._budget.release(append.charge)
        core, future = append.core, append.future
        assert future is not None
        confirmed = core.wait_for(core.next, error)
        timer: asyncio.TimerHandle | None = None

        def forget(_: asyncio.Future[AppendResult]) -> None:
            if timer is not None:
                timer.cancel()
            core.forget(confirmed)

        def answer(done: asyncio.Future[None]) -> None:
            reason = done.exception()
            if reason is not None and not future.done():
                future.set_exception(reason)

        def expire() -> None:
            if not future.done():
                future.set_exception(
                    DeadlinePassed("the append was not stored; appends before it are under way")
                )

        confirmed.add_done_callback(answer)
        # Also when the caller cancels: the confirmation may take as long as the store is away.
        future.add_done_callback(forget)
        delay_s = self._delay_s(append.context.deadline)
        if delay_s is not None and not confirmed.done():
            timer = self._loop.call_later(max(0.0, delay_s), expire)

    def _delay_s(self, deadline: float | None) -> float | None:
        return None if deadline is None else deadline - self._clock.monotonic()

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_deadline = deadline
        self._timer = self._loop.call_later(
            max(0.0, deadline - self._clock.monotonic()), self._expire
        )

    def _expire(self) -> None:
        """Answers every append whose deadline has passed. Its batch stays sequenced."""
        self._timer = None
        self._timer_deadline = math.inf
        now = self._clock.monotonic()
        following = math.inf
        for group in self._sink.unconfirmed():
            for append in group.items:
                deadline, future = append.context.deadline, append.future
                if deadline is None or future is None or future.done():
                    continue
                if deadline <= now:
                    future.set_exception(
                        OutcomeUnknown(
                            "the append is not durable yet and may still become so; "
                            "retry only if a duplicate does no harm"
                        )
                    )
                else:
                    following = min(following, deadline)
        if following < math.inf:
            self._arm(max(following, now + EXPIRY_INTERVAL_S))


def _closing(core: StreamCore) -> Closed:
    return Closed(f"stream {core.stream_id} is being closed; open it again to append")


def _too_large(size_bytes: int, most_bytes: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"a batch of {size_bytes} bytes; at most {most_bytes} (batch_bytes_max): split it",
        size_bytes=size_bytes,
        max_bytes=most_bytes,
    )


def _no_offsets_left(record_count: int, base: int) -> Invalid:
    return Invalid(
        f"{record_count} records from offset {base} on would end past {OFFSET_MAX}, the last "
        "offset of a stream; append to a new stream"
    )
