"""The way of appends into one log: they are validated, and sequenced at once where that can be.

1. Room is reserved for all batches of a run at once. If there is none, or calls wait for it, or the
   stream does not take the batches now, nothing has changed, and they go one by one
   (WaitingAppends), which waits, or says why.
2. Batch after batch gets its place (BatchPlacer). One that is refused, or sent again, takes none.
3. The stream gets the batches that are left in one call, and the queue of acks one answer to await.

Nothing is awaited in a run, and from the first batch that is accounted for, nothing may fail: a run
that the stream refuses all the same fails the log, whose provisional state is ahead of its data
then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Sequence
from operator import attrgetter
from typing import NamedTuple

from streamlog.codec.batch import ScannedBatch
from streamlog.errors import Internal, StreamlogError
from streamlog.log.api.abstract_log import (
    AppendOutcome,
    LogAppend,
    LogAppendInfo,
    ProduceContext,
)
from streamlog.log.partition.ack_queue import PendingAppend
from streamlog.log.partition.batch_metadata import NO_LEADER_EPOCH
from streamlog.log.partition.conditions.append_conditions import AppendConditions, refused_after
from streamlog.log.partition.log_validator import validate_batches, validate_staged
from streamlog.log.partition.producer_state_entry import ProducerBatch
from streamlog.log.partition.record_keys import check_keys
from streamlog.log.shared.append.waiting import WaitingAppends
from streamlog.log.shared.parts import LogParts
from streamlog.log.shared.placing import BatchPlacer, placed_batch
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.batch import RecordBatch, Reservation
from streamlog.model.run import AppendsRuns
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane

KEYS_INLINE_BYTES = 8 << 10
"""Plain batches up to this size are looked through for keys on the event loop, in about 0.5 ms."""
_BASE_OFFSET = attrgetter("base_offset")


class ValidAppend(NamedTuple):
    """What one call appends: its batches, of which there is at least one.

    `has_unseen_keys`: the topic is compacted, and nobody has looked yet whether all records have a
    key, because that takes long.
    """

    batches: Sequence[ScannedBatch]
    context: ProduceContext
    has_unseen_keys: bool


class _Run:
    """The batches that have their places, and are not in the stream yet."""

    __slots__ = ("pending", "records", "size_bytes", "trace_ids")

    def __init__(self) -> None:
        self.records: list[RecordBatch] = []
        self.pending: list[PendingAppend[SharedLogSegment]] = []
        self.trace_ids: list[str] = []
        self.size_bytes = 0

    def find(self, base_offset: int) -> PendingAppend[SharedLogSegment] | None:
        """A run may have thousands of batches, and all of them may be there twice."""
        at = bisect_left(self.pending, base_offset, key=_BASE_OFFSET)
        found = self.pending[at] if at < len(self.pending) else None
        return found if found is not None and found.base_offset == base_offset else None

    def refuse(self, error: StreamlogError) -> None:
        for pending in self.pending:
            pending.refuse(error)


class LogWriter:
    """It sequences appends. It does not acknowledge. Its caller has just found the log open."""

    def __init__(
        self,
        parts: LogParts,
        placer: BatchPlacer,
        waiting: WaitingAppends,
        conditions: AppendConditions,
    ) -> None:
        data = parts.streams.data
        self._stream = data if isinstance(data, AppendsRuns) else None
        self._partition = parts.partition
        self._tail = parts.tail
        self._acks = parts.acks
        self._lifecycle = parts.lifecycle
        self._clock = parts.environment.clock
        self._metrics = parts.environment.metrics.of_topic(parts.partition.topic)
        self._checks_records = parts.environment.config.checks_records
        self._record_bytes_max = parts.environment.config.decoded_bytes_max
        self._offload = parts.environment.offload
        self._placer = placer
        self._waiting = waiting
        self._conditions = conditions

    async def append(self, batches: Buffer, context: ProduceContext) -> Awaitable[LogAppendInfo]:
        """As AbstractLog.append."""
        if context.condition is not None:
            context.condition.check()
        now_ms = self._clock.now_ms()
        validated = self._validated(batches, context, now_ms)
        outcomes = self._try_run([validated], now_ms)
        if outcomes is None:
            outcomes = [await self._append_in_turn(validated)]
        (outcome,) = outcomes
        if isinstance(outcome, StreamlogError):
            raise outcome
        return outcome

    async def append_many(self, appends: Sequence[LogAppend]) -> Sequence[AppendOutcome]:
        """As AbstractLog.append_many: as one run where that can be, or one after another.

        What is younger than a batch that is sent again has to come behind it: behind a retryable
        error nothing is tried any more, and all that is left gets this error.
        """
        now_ms = self._clock.now_ms()
        validated = self._validated_in_order(appends, now_ms)
        try:
            outcomes = self._try_run(validated, now_ms)
        except StreamlogError as error:
            return [error] * len(appends)
        if outcomes is None:
            outcomes = await self._one_after_another(validated)
        return outcomes + outcomes[-1:] * (len(appends) - len(outcomes))

    def _validated_in_order(
        self, appends: Sequence[LogAppend], now_ms: int
    ) -> list[ValidAppend | StreamlogError]:
        """Each append, or why it is refused, up to the first retryable error."""
        validated: list[ValidAppend | StreamlogError] = []
        for batches, context in appends:
            try:
                if context.condition is not None:
                    context.condition.check()
                validated.append(self._validated(batches, context, now_ms))
            except StreamlogError as error:
                validated.append(error)
                if error.is_retryable:
                    break
        return validated

    async def _one_after_another(
        self, appends: Sequence[ValidAppend | StreamlogError]
    ) -> list[AppendOutcome]:
        """The outcome of each append, up to the first retryable error."""
        outcomes: list[AppendOutcome] = []
        for one in appends:
            if isinstance(one, StreamlogError):
                outcomes.append(one)
                continue
            try:
                outcomes.append(await self._append_in_turn(one))
            except StreamlogError as error:
                outcomes.append(error)
                if error.is_retryable:
                    break
        return outcomes

    async def _append_in_turn(self, one: ValidAppend) -> AppendOutcome:
        check = self._check_keys if one.has_unseen_keys else None
        return await self._waiting.append(one.batches, one.context, check)

    async def _check_keys(self, batches: Sequence[ScannedBatch]) -> None:
        """As check_keys. In the turn of the append: no later one passes it."""
        config, most = self._placer.config, self._record_bytes_max
        if self._offload is None:
            check_keys(batches, config, most)
        else:
            await self._offload.run(Lane.CPU, check_keys, batches, config, most)

    def to_stage(self, batches: Buffer, producer: tuple[int, int] | None) -> list[RecordBatch]:
        """Batches without offsets and leader epoch; log-append time is now. Burns CPU.

        Errors: those of `validate_staged`.
        """
        now_ms, config = self._clock.now_ms(), self._placer.config
        valid = validate_staged(
            batches, config, now_ms, producer, with_records=self._checks_records
        )
        if self._placer.needs_keys:
            check_keys(valid, config, self._record_bytes_max)
        return [placed_batch(batch, 0, NO_LEADER_EPOCH, config, now_ms)[0] for batch in valid]

    def _validated(self, batches: Buffer, context: ProduceContext, now_ms: int) -> ValidAppend:
        config = self._placer.config
        valid = validate_batches(batches, config, now_ms, with_records=self._checks_records)
        if not self._placer.needs_keys:
            return ValidAppend(valid, context, has_unseen_keys=False)
        is_small = len(batches) <= KEYS_INLINE_BYTES
        if not is_small or any(batch.header.codec for batch in valid):
            return ValidAppend(valid, context, has_unseen_keys=True)
        check_keys(valid, config, self._record_bytes_max)
        return ValidAppend(valid, context, has_unseen_keys=False)

    def _try_run(
        self, appends: Sequence[ValidAppend | StreamlogError], now_ms: int
    ) -> list[AppendOutcome] | None:
        """One outcome for each; an error is its own outcome. None: append batch by batch."""
        stream, tail = self._stream, self._tail
        if stream is None or not self._waiting.turn.is_free:
            return None
        if tail.accounted_end != tail.end_offset:
            # Only a medium that sequences an append later than its call, against its contract, can
            # come here. A run's headers are made for the accounted end: they would be stored wrong.
            return None
        sizes: list[int] = []
        for one in appends:
            if isinstance(one, ValidAppend):
                if len(one.batches) > 1 or one.has_unseen_keys:
                    return None
                sizes.append(len(one.batches[0].view))
        if not sizes:
            return None
        reservation = stream.try_reserve_run(sizes)
        if reservation is None:
            return None
        try:
            return self._append_run(stream, appends, reservation, now_ms)
        finally:
            reservation.release()

    def _append_run(
        self,
        stream: AppendsRuns,
        appends: Sequence[ValidAppend | StreamlogError],
        reservation: Reservation,
        now_ms: int,
    ) -> list[AppendOutcome]:
        outcomes: list[AppendOutcome] = []
        run, tail, placer = _Run(), self._tail, self._placer
        first = tail.accounted_end
        try:
            for one in appends:
                if isinstance(one, StreamlogError):
                    outcomes.append(one)
                    continue
                batch = one.batches[0]
                try:
                    original = placer.original(batch.header, now_ms)
                except StreamlogError as error:
                    outcomes.append(error)
                    continue
                if original is not None:
                    outcomes.append(self._duplicate(run, original))
                    continue
                base = tail.accounted_end
                condition = one.context.condition
                if condition is not None:
                    refusal = self._conditions.refusal(condition, base)
                    if refusal is not None:
                        last = run.pending[-1] if run.pending else self._acks.last
                        outcomes.append(refused_after(refusal, last))
                        continue
                record, metadata = placer.place(batch, base, now_ms)
                pending, answer = placer.account(base, record.record_count, metadata)
                run.records.append(record)
                run.pending.append(pending)
                run.trace_ids.append(one.context.trace_id)
                run.size_bytes += metadata.size_bytes
                outcomes.append(answer)
            if not run.records:
                return outcomes
            ack = stream.append_run(run.records, reservation, run.trace_ids)
            if tail.end_offset != tail.accounted_end:
                raise Internal(
                    f"{self._partition}: the stream took a run up to {tail.accounted_end} and "
                    f"ends at {tail.end_offset}"
                )
        except BaseException as error:
            failure = error if isinstance(error, StreamlogError) else self._bug(error)
            run.refuse(failure)
            self._lifecycle.fail(failure)
            raise
        self._acks.push_run(run.pending, ack)
        if placer.is_checkpoint_due:
            placer.checkpoint()
        self._metrics.appended(len(run.records), tail.accounted_end - first, run.size_bytes)
        return outcomes

    def _duplicate(self, run: _Run, original: ProducerBatch) -> Awaitable[LogAppendInfo]:
        base = original.base_offset
        pending = self._acks.find(base)
        if pending is None:
            pending = run.find(base)
        return self._placer.duplicate(original, pending)

    def _bug(self, error: BaseException) -> Internal:
        return Internal(f"{self._partition}: an append failed by a bug: {error!r}")
