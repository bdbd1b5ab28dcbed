"""Sequencing and retries of an idempotent producer: a batch from its closing to its end.

Pure: no clock, no lock, no I/O; the caller passes the time in and carries out what comes back.

Invariants
1. `unanswered` of a partition is in sequence order; the batches in flight are a prefix of it,
   except where answers came out of order. From the oldest on at most 32 batches were sent, as many
   as the server remembers; those that are stored by now count too. So the server recognises the
   oldest one however often it is refused while later ones are taken.
2. After a failed attempt nothing is sent until all attempts under way are answered or lost; then
   all of `unanswered` goes out again in order with its old sequence numbers. So an attempt never
   overtakes an older one of the same batch, and the server tells repetitions from news.
3. A batch leaves `unanswered` without being stored only together with a new epoch for what
   follows, because its sequence numbers stay unused. Batches that may be stored never get new
   numbers: they are sent again with the old ones until they are stored or can never be, or they are
   failed with OutcomeUnknown. So nothing is stored twice.
4. A batch that may be stored can never be once a batch in front of it is refused for good (the
   server takes no number behind the gap). That the server waits for an older batch now says less:
   an attempt over a broken connection may arrive after that older batch.
5. While a new epoch is needed, the batches up to the last one that may be stored are sent with
   their old numbers, and none behind it. So no batch behind a gap of unknown outcome gets an
   attempt that would be stored once the gap is filled.
6. Until the first batch under an id and epoch is answered, no other one of the partition is sent:
   a server that does not know the producer takes any sequence, so a second batch could be stored
   although the first was refused. The same holds after a long silence.

    from           to               when
    RUNNING        DRAINING         an attempt failed, or a sequenced batch was given up
    DRAINING       RUNNING          nothing is in flight: send again after the back-off
    DRAINING       AWAITING_EPOCH   nothing is in flight, the sequence has a gap, and nothing left
                                    may be stored
    AWAITING_EPOCH RUNNING          a newer epoch is there: numbers start again at 0
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from enum import Enum
from itertools import islice

from streamlog.client.produce.batches import PendingBatch
from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.client.settings import (
    UNANSWERED_BATCHES_MAX,
    UNKNOWN_TOPIC_ATTEMPTS_MAX,
    ProducerSettings,
    backoff_s,
)
from streamlog.codec.batch import NO_PRODUCER, SEQUENCE_MAX, BatchProducer, sequence_after
from streamlog.errors import (
    InconsistentTopicId,
    Internal,
    OutcomeUnknown,
    OutOfOrderSequence,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)

log = logging.getLogger(__name__)

SEQUENCES = SEQUENCE_MAX + 1
FORGOTTEN_AFTER_S = 300.0
"""After such a silence the server may have forgotten the producer (log.producer_idle_ms_min is
600,000): one batch goes first, as under a new id. That costs one round trip."""


class PartitionState(Enum):
    RUNNING = "running"
    DRAINING = "draining"
    AWAITING_EPOCH = "awaiting epoch"


_TRANSITIONS = {
    PartitionState.RUNNING: {PartitionState.DRAINING},
    PartitionState.DRAINING: {PartitionState.RUNNING, PartitionState.AWAITING_EPOCH},
    PartitionState.AWAITING_EPOCH: {PartitionState.RUNNING},
}


class RetryDecision(Enum):
    """What follows a failed attempt of a batch."""

    RETRY = "send again with the same sequence"
    RENUMBER = "not stored, and its sequence is unusable: send again under a new epoch"
    FAIL = "give up"


def retry_decision(
    error: StreamlogError, *, wants_answer: bool, is_head: bool, may_be_stored: bool,
    unknown_topic_attempts: int,
) -> RetryDecision:  # fmt: skip
    """`is_head`: no older batch of the partition is unanswered."""
    if not wants_answer:
        return RetryDecision.FAIL
    if isinstance(error, OutOfOrderSequence):
        if not is_head:
            return RetryDecision.RETRY
        # The server has stored a later batch: stored now, this one would be out of order.
        is_behind = _is_ahead(error)
        return RetryDecision.FAIL if may_be_stored or is_behind else RetryDecision.RENUMBER
    if isinstance(error, InconsistentTopicId):
        # The topic is looked up again, and the batch sent with the new id.
        return RetryDecision.RETRY
    if isinstance(error, UnknownTopicOrPartition):
        if unknown_topic_attempts >= UNKNOWN_TOPIC_ATTEMPTS_MAX:
            return RetryDecision.FAIL
        return RetryDecision.RETRY
    if error.is_retryable or isinstance(error, OutcomeUnknown):
        return RetryDecision.RETRY
    return RetryDecision.FAIL


def _shows_gap(error: StreamlogError) -> bool:
    """The server waits for an older sequence. It looked for a repetition first: not stored yet."""
    distance = _distance(error)
    return distance is not None and distance > 0


def _is_ahead(error: StreamlogError) -> bool:
    """The server has stored this sequence, or a later one."""
    distance = _distance(error)
    return distance is not None and distance < 0


def _distance(error: StreamlogError) -> int | None:
    """How far the batch's sequence is behind (+) the one that the server waits for."""
    if not isinstance(error, OutOfOrderSequence):
        return None
    expected, actual = error.fields.get("expected"), error.fields.get("actual")
    if not isinstance(expected, int) or not isinstance(actual, int):
        return None
    # Sequences wrap around: the shorter way counts.
    return (actual - expected + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2


class PartitionSequencer:
    """The batches of one partition that have a place in the sequence."""

    __slots__ = (
        "_done",
        "_identity",
        "_is_known",
        "_next_sequence",
        "_settings",
        "_stored_at",
        "backoff_until",
        "failures",
        "in_flight",
        "needs_epoch",
        "retries",
        "state",
        "unanswered",
    )

    def __init__(self, settings: ProducerSettings, done: list[PendingBatch]) -> None:
        self._settings = settings
        self._done = done
        """Shared by all partitions: ended batches, whose waiters the caller notifies."""
        self._identity = NO_IDENTITY
        self._next_sequence = 0
        self._is_known = not settings.is_idempotent
        """The server has stored a batch under this identity, and remembers it."""
        self._stored_at = 0.0
        """When the last such answer came."""
        self.state = PartitionState.RUNNING
        self.unanswered: deque[PendingBatch] = deque()
        self.in_flight = 0
        self.needs_epoch = False
        self.backoff_until = 0.0
        self.failures = 0
        self.retries = 0

    @property
    def has_room(self) -> bool:
        """Whether a further batch may be sequenced."""
        return (
            self.state is PartitionState.RUNNING
            and not self.needs_epoch
            and len(self.unanswered) < (self._room if self._is_known else 1)
        )

    @property
    def _room(self) -> int:
        """How many batches, the oldest included, the server may get before that one's answer."""
        return UNANSWERED_BATCHES_MAX - (self.unanswered[0].stored_behind if self.unanswered else 0)

    def to_resend(self) -> PendingBatch | None:
        """The oldest batch that must be sent again; None where there is none, or it must wait."""
        if self.state is not PartitionState.RUNNING or self.in_flight == len(self.unanswered):
            return None
        if self.in_flight and not self._is_known:
            return None
        if self.in_flight >= self._room:
            # Splitting makes more of them than the server remembers.
            return None
        batch = next(batch for batch in self.unanswered if not batch.in_flight)
        return None if self.needs_epoch and self._waits_for_epoch(batch) else batch

    def _waits_for_epoch(self, batch: PendingBatch) -> bool:
        """Neither the batch nor a later one may be stored. Used only while a new epoch is due."""
        position = self.unanswered.index(batch)
        return not any(later.may_be_stored for later in islice(self.unanswered, position, None))

    def sequence(self, batch: PendingBatch, identity: ProducerIdentity, now: float) -> bool:
        """Gives a ready batch the next sequence numbers, and its bytes.

        False where it cannot be encoded: the batch has failed, and its numbers are free again.
        """
        if not self.unanswered and now - self._stored_at >= FORGOTTEN_AFTER_S:
            self._is_known = not self._settings.is_idempotent
        if identity != self._identity and not self.unanswered:
            self._take_identity(identity)
        next_sequence = self._next_sequence
        try:
            batch.encode(self._take_numbers(batch.record_count))
        except Exception as error:
            log.exception("a batch could not be encoded")
            self._next_sequence = next_sequence
            place = f"{batch.topic}-{batch.partition}"
            batch.fail(Internal(f"{place}: the batch could not be encoded: {error!r}"))
            self._done.append(batch)
            return False
        self.unanswered.append(batch)
        return True

    def topic_made_anew(self) -> None:
        """The new topic's partition knows no producer: one batch goes first, as under a new id."""
        self._is_known = not self._settings.is_idempotent

    def may_split(self, batch: PendingBatch, attempt: int) -> bool:
        """The server refused the batch for certain, and it has more than one record."""
        is_current = not batch.done and batch.attempt == attempt and batch.in_flight
        return (
            is_current
            and batch.record_count > 1
            and not batch.may_be_stored
            and self._settings.wants_answer
        )

    def replace(self, batch: PendingBatch, parts: list[PendingBatch]) -> None:
        """The parts go out instead of the refused batch, once everything in flight is answered.

        They share its sequence numbers, so later batches keep their own.
        """
        position = self.unanswered.index(batch)
        batches = list(self.unanswered)
        batches[position : position + 1] = parts
        self.unanswered = deque(batches)
        self.in_flight -= 1
        self.retries += 1
        self._drain()

    def drop_all(self) -> None:
        """Forgets the batches; nothing is sent afterwards."""
        self.unanswered.clear()
        self.in_flight = 0

    def start_anew(self) -> None:
        """For the next transaction, which has a newer epoch: forgets the batches of this one.

        What is late of them is refused by that epoch, or behind the transaction's abort.
        """
        self.drop_all()
        self.needs_epoch = False
        self.failures, self.backoff_until = 0, 0.0
        if self.state is not PartitionState.RUNNING:
            self._transition_to(PartitionState.RUNNING)

    def _take_identity(self, identity: ProducerIdentity) -> None:
        self._identity, self._next_sequence = identity, 0
        self._is_known = not self._settings.is_idempotent

    def _take_numbers(self, count: int) -> BatchProducer:
        if self._identity == NO_IDENTITY:
            return NO_PRODUCER
        producer = BatchProducer(*self._identity, self._next_sequence)
        self._next_sequence = sequence_after(self._next_sequence, count)
        return producer

    def sent(self, batch: PendingBatch) -> int:
        """Marks an attempt; returns its number."""
        batch.attempt += 1
        batch.in_flight = True
        self.in_flight += 1
        return batch.attempt

    def succeeded(
        self,
        batch: PendingBatch,
        attempt: int,
        base_offset: int,
        log_append_time_ms: int | None,
        now: float,
    ) -> None:
        if batch.done or batch.attempt != attempt or not batch.in_flight:
            return
        self.in_flight -= 1
        self.failures = 0
        self._is_known = True
        self._stored_at = now
        for older in self.unanswered:
            if older is batch:
                break
            older.stored_behind += 1
        self._leave(batch)
        batch.finish(base_offset, log_append_time_ms)
        self._done.append(batch)
        if self.needs_epoch:
            self._drain()
        self._finish_draining()

    def failed(self, batch: PendingBatch, attempt: int, error: StreamlogError, now: float) -> None:
        """One attempt failed, or its outcome is unknown."""
        if batch.done or batch.attempt != attempt or not batch.in_flight:
            return
        self.in_flight -= 1
        batch.in_flight = False
        batch.last_error = error
        is_head = self.unanswered[0] is batch
        if not error.has_no_side_effects:
            batch.may_be_stored = True
        elif is_head and _shows_gap(error):
            # The missing batch was stored once, or refused for good: it is not sent again.
            self._can_never_be_stored(self.unanswered)
        if isinstance(error, UnknownTopicOrPartition):
            batch.unknown_topic_attempts += 1
        decision = retry_decision(
            error,
            wants_answer=self._settings.wants_answer,
            is_head=is_head,
            may_be_stored=batch.may_be_stored,
            unknown_topic_attempts=batch.unknown_topic_attempts,
        )
        if decision is RetryDecision.FAIL:
            self.give_up(batch, _final(batch, error))
            return
        self.retries += 1
        if decision is RetryDecision.RENUMBER:
            self.needs_epoch = True
        if self.state is PartitionState.RUNNING:
            self.failures += 1
            self.backoff_until = now + backoff_s(
                self.failures, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms
            )
        self._drain()

    def expire(self, now: float) -> None:
        """Gives up sequenced batches whose delivery time is over."""
        while self.unanswered and self.unanswered[0].deadline <= now:
            batch = self.unanswered[0]
            limit_ms = self._settings.delivery_timeout_ms
            why = f"; the last attempt: {batch.last_error}" if batch.last_error else ""
            if batch.may_be_stored or batch.in_flight:
                error: StreamlogError = OutcomeUnknown(
                    f"{batch.topic}-{batch.partition}: no answer within {limit_ms} ms, so the "
                    f"batch may be stored or not{why}"
                )
                error.has_no_side_effects = False
            else:
                kind = type(batch.last_error) if batch.last_error else Unavailable
                error = kind(
                    f"{batch.topic}-{batch.partition}: not stored within {limit_ms} ms{why}",
                    **(batch.last_error.fields if batch.last_error else {}),
                )
            self.give_up(batch, error)

    def give_up(self, batch: PendingBatch, error: StreamlogError) -> None:
        """Fails a sequenced batch, and every later one whose outcome stays unknown with it.

        A later batch can be stored only behind this one, and once the epoch changes that cannot be
        learned any more. Where this batch is refused for good, later ones cannot be stored.
        """
        is_outcome_unknown = not error.has_no_side_effects
        position = self.unanswered.index(batch)
        later = list(self.unanswered)[position + 1 :]
        self._end(batch, error)
        if is_outcome_unknown:
            for other in later:
                if other.may_be_stored or other.in_flight:
                    follow = OutcomeUnknown(
                        f"{other.topic}-{other.partition}: it was sent behind a batch that got no "
                        "answer in time, so it may be stored or not"
                    )
                    self._end(other, follow)
        elif self._identity != NO_IDENTITY:
            self._can_never_be_stored(later)
        if self._identity != NO_IDENTITY:
            self.needs_epoch = True
        self._drain()

    def _can_never_be_stored(self, batches: Iterable[PendingBatch]) -> None:
        """Not with their current numbers: the numbers in front of them stay unused for ever."""
        if self._is_known:
            for batch in batches:
                batch.may_be_stored = False

    def _end(self, batch: PendingBatch, error: StreamlogError) -> None:
        if batch.in_flight:
            self.in_flight -= 1
        self._leave(batch)
        batch.fail(error)
        self._done.append(batch)

    def renumber(self, identity: ProducerIdentity) -> None:
        """Numbers the unanswered batches from 0 under a newer epoch, to be sent again."""
        if self.state is not PartitionState.AWAITING_EPOCH or identity == self._identity:
            return
        self._take_identity(identity)
        self.needs_epoch = False
        for batch in self.unanswered:
            batch.encode(self._take_numbers(batch.record_count))
        self._transition_to(PartitionState.RUNNING)

    def _leave(self, batch: PendingBatch) -> None:
        if self.unanswered[0] is batch:
            self.unanswered.popleft()
        else:
            self.unanswered.remove(batch)

    def _drain(self) -> None:
        if self.state is PartitionState.RUNNING:
            self._transition_to(PartitionState.DRAINING)
        self._finish_draining()

    def _finish_draining(self) -> None:
        if self.state is PartitionState.DRAINING and self.in_flight == 0:
            must_wait = self.needs_epoch and not any(b.may_be_stored for b in self.unanswered)
            self._transition_to(
                PartitionState.AWAITING_EPOCH if must_wait else PartitionState.RUNNING
            )

    def _transition_to(self, state: PartitionState) -> None:
        if state not in _TRANSITIONS[self.state]:
            raise AssertionError(f"{self.state} does not lead to {state}")
        self.state = state


def _final(batch: PendingBatch, error: StreamlogError) -> StreamlogError:
    """The caller's error: OutcomeUnknown where an earlier attempt may have stored the batch."""
    if batch.may_be_stored and error.has_no_side_effects:
        return OutcomeUnknown(
            f"{batch.topic}-{batch.partition}: an earlier attempt may have stored the batch; the "
            f"last one was refused: {error}"
        )
    return error
