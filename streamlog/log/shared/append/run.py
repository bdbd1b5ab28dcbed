"""Appends of a run: batches that lie ready together get their places in one step.

1. Room is reserved for all of them at once. If there is none, or the stream does not take them now,
   nothing has changed, and the caller appends batch by batch, which waits, or says why.
2. Batch after batch, as for single appends: the producer's sequence, the segment, the new header,
   the attributes, the accounting. A batch that is refused, or sent again, takes no place.
3. The stream gets the batches that are left in one call, and the queue of acks one answer to await.

Nothing is awaited, and from the first batch that is accounted for, nothing may fail: a run that the
stream refuses all the same fails the log, whose provisional state is ahead of its data then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from streamlog.codec.batch import (
    BatchHeader,
    ScannedBatch,
    placed_at_append_time,
    placed_crc32c,
    placed_with_crc32c,
)
from streamlog.errors import Internal, StreamlogError
from streamlog.log.api.abstract_log import AppendOutcome, LogAppendInfo
from streamlog.log.api.topic_config import LOG_APPEND_TIME, TopicConfig
from streamlog.log.partition.ack_queue import PendingAppend
from streamlog.log.partition.batch_metadata import LogBatchMetadata, encode_batch_metadata
from streamlog.log.partition.producer_state_entry import ProducerBatch
from streamlog.log.shared.durable.meta_jobs import MetaJob
from streamlog.log.shared.meta.codec import LeaderEpoch
from streamlog.log.shared.parts import LogParts
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.batch import RecordBatch, Reservation
from streamlog.model.partition import TopicPartition
from streamlog.model.run import AppendsRuns


class RunBatch(NamedTuple):
    """A validated batch of a run."""

    batch: ScannedBatch
    trace_id: str


class SequencingState(Protocol):
    """What single appends and runs change alike: a LogWriter."""

    config: TopicConfig
    leader_epoch: int
    jitter: float

    @property
    def is_checkpoint_due(self) -> bool: ...
    def roll(self) -> None: ...
    def checkpoint(self) -> None: ...
    def original(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None: ...
    def duplicate(
        self, original: ProducerBatch, pending: PendingAppend[SharedLogSegment] | None
    ) -> Awaitable[LogAppendInfo]: ...


class _Run:
    """The batches that have their places, and are not in the stream yet."""

    __slots__ = ("pending", "records", "size_bytes", "trace_ids")

    def __init__(self) -> None:
        self.records: list[RecordBatch] = []
        self.pending: list[PendingAppend[SharedLogSegment]] = []
        self.trace_ids: list[str] = []
        self.size_bytes = 0

    def refuse(self, error: StreamlogError) -> None:
        for pending in self.pending:
            pending.refuse(error)


class RunSequencer:
    """It sequences runs. The caller sees to it that the turn is free."""

    def __init__(self, parts: LogParts, state: SequencingState) -> None:
        data = parts.streams.data
        self._data = data
        self._runs = data if isinstance(data, AppendsRuns) else None
        self._partition = parts.partition
        self._tail = parts.tail
        self._acks = parts.acks
        self._jobs = parts.jobs
        self._lifecycle = parts.lifecycle
        self._visibility = parts.visibility
        self._metrics = parts.environment.metrics.of_topic(parts.partition.topic)
        self._state = state

    def try_append(
        self, batches: Sequence[RunBatch | StreamlogError], now_ms: int
    ) -> list[AppendOutcome] | None:
        """One outcome for each; an error is its own outcome. None: append batch by batch."""
        tail = self._tail
        if self._runs is None or tail.accounted_end != tail.end_offset:
            return None
        sizes = [len(one.batch.view) for one in batches if isinstance(one, RunBatch)]
        if not sizes:
            return None
        reservation = self._runs.try_reserve_run(sizes)
        if reservation is None:
            return None
        try:
            return self._append(self._runs, batches, reservation, now_ms)
        finally:
            reservation.release()

    def _append(
        self,
        stream: AppendsRuns,
        batches: Sequence[RunBatch | StreamlogError],
        reservation: Reservation,
        now_ms: int,
    ) -> list[AppendOutcome]:
        outcomes: list[AppendOutcome] = []
        run, tail = _Run(), self._tail
        first = tail.accounted_end
        try:
            for one in batches:
                if isinstance(one, StreamlogError):
                    outcomes.append(one)
                    continue
                try:
                    original = self._original(one.batch, now_ms)
                except StreamlogError as error:
                    outcomes.append(error)
                    continue
                if original is not None:
                    outcomes.append(self._duplicate(run, original))
                    continue
                outcomes.append(self._place(run, one, now_ms))
            if not run.records:
                return outcomes
            ack = stream.append_run(run.records, reservation, run.trace_ids)
            if tail.end_offset != tail.accounted_end:
                raise Internal(
                    f"{self._partition}: the stream took a run up to {tail.accounted_end} and "
                    f"ends at {tail.end_offset}"
                )
        except BaseException as error:
            failure = error if isinstance(error, StreamlogError) else _bug(self._partition, error)
            run.refuse(failure)
            self._lifecycle.fail(failure)
            raise
        self._acks.push_run(run.pending, ack)
        if self._state.is_checkpoint_due:
            self._state.checkpoint()
        self._metrics.appended(len(run.records), tail.accounted_end - first, run.size_bytes)
        return outcomes

    def _original(self, batch: ScannedBatch, now_ms: int) -> ProducerBatch | None:
        header = batch.header
        return self._state.original(header, now_ms) if header.producer_id >= 0 else None

    def _duplicate(self, run: _Run, original: ProducerBatch) -> AppendOutcome:
        base = original.base_offset
        pending = self._acks.find(base)
        if pending is None:
            pending = next((one for one in run.pending if one.base_offset == base), None)
        return self._state.duplicate(original, pending)

    def _place(self, run: _Run, one: RunBatch, now_ms: int) -> AppendOutcome:
        """Gives the batch its place, and accounts for it."""
        state, tail, batch = self._state, self._tail, one.batch
        header, view = batch
        config, epoch = state.config, state.leader_epoch
        is_stamped = config.message_timestamp_type == LOG_APPEND_TIME
        stamp = now_ms if is_stamped else header.max_timestamp_ms
        span, size = header.last_offset_delta + 1, len(view)
        if tail.should_roll(span, size, stamp, config, state.jitter):
            state.roll()
        base = tail.accounted_end
        end = base + span
        if is_stamped:
            parts = placed_at_append_time(view, base, epoch, now_ms)
            crc = placed_crc32c(parts)
        else:
            parts, crc = placed_with_crc32c(batch, base, epoch)
        metadata = LogBatchMetadata.of(
            header, leader_epoch=epoch, append_time_ms=now_ms, max_timestamp_ms=stamp
        )
        attributes = encode_batch_metadata(metadata)
        run.records.append(RecordBatch(span, header.base_timestamp_ms, parts, attributes, crc))
        run.trace_ids.append(one.trace_id)
        run.size_bytes += size
        if tail.account(base, span, metadata, config):
            self._jobs.add(MetaJob(end, (LeaderEpoch(epoch, base),)))
        pending = PendingAppend(base, end, tail.active, stamp)
        run.pending.append(pending)
        return pending.wait(
            LogAppendInfo(
                base, end - 1, now_ms if is_stamped else -1, self._visibility.log_start_offset
            )
        )


def _bug(partition: TopicPartition, error: BaseException) -> Internal:
    return Internal(f"{partition}: an append failed by a bug: {error!r}")
