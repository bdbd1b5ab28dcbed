"""Sequencing and retries of an idempotent producer: what happens to a batch after it is closed.

Pure: no clock, no lock, no I/O; the caller passes the time in and carries out what comes back.

Invariants
1. `unanswered` of a partition is in sequence order; what is in flight is a prefix of it, but for
   answers that came out of order. At most 32, which is what the server remembers.
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
from streamlog.codec.batch import NO_PRODUCER, SEQUENCE_MAX, Producer, sequence_after
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
600,000): as under a new id, one batch goes first. It costs one round trip."""


class PartitionState(Enum):
    RUNNING = "running"
    DRAINING = "draining"
    AWAITING_EPOCH = "awaiting epoch"


_TRANSITIONS = {
    PartitionState.RUNNING: {PartitionState.DRAINING},
    PartitionState.DRAINING: {PartitionState.RUNNING, PartitionState.AWAITING_EPOCH},
    PartitionState.AWAITING_EPOCH: {PartitionState.RUNNING},
}


class Verdict(Enum):
    """What a failed attempt means for its batch."""

    RETRY = "send again with the same sequence"
    RENUMBER = "not stored, and its numbers are useless: send again under a new epoch"
    FAIL = "give up"


def judge(
    error: StreamlogError, *, wants_answer: bool, is_head: bool, may_be_stored: bool,
    unknown_topic_attempts: int,
) -> Verdict:  # fmt: skip
    """`is_head`: no older batch of the partition is unanswered."""
    if not wants_answer:
        return Verdict.FAIL
    if isinstance(error, OutOfOrderSequence):
        if not is_head:
            return Verdict.RETRY
        # A server that is ahead has stored a later batch: this one would come behind it.
        is_behind = _is_ahead(error)
        return Verdict.FAIL if may_be_stored or is_behind else Verdict.RENUMBER
    if isinstance(error, InconsistentTopicId):
        # The topic is looked up again, and the batch sent with the new id.
        return Verdict.RETRY
    if isinstance(error, UnknownTopicOrPartition):
        if unknown_topic_attempts >= UNKNOWN_TOPIC_ATTEMPTS_MAX:
            return Verdict.FAIL
        return Verdict.RETRY
    if error.is_retryable or isinstance(error, OutcomeUnknown):
        return Verdict.RETRY
    return Verdict.FAIL


def _shows_gap(error: StreamlogError) -> bool:
    """The server waits for an older sequence, and looked for a repetition first: not stored yet."""
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
        """Shared by all partitions: batches that ended, for the caller to notify."""
        self._identity = NO_IDENTITY
        self._next_sequence = 0
        self._is_known = not settings.is_idempotent
        """The server has stored a batch under this identity, and remembers it."""
        self._stored_at = 0.0
        """When the last answer said so."""
        self.state = PartitionState.RUNNING
        self.unanswered: deque[PendingBatch] = deque()
        self.in_flight = 0
        self.needs_epoch = False
        self.backoff_until = 0.0
        self.failures = 0
        self.retries = 0

    @property
    def has_room(self) -> bool:
        """A further batch may be sequenced."""
        return (
            self.state is PartitionState.RUNNING
            and not self.needs_epoch
            and len(self.unanswered) < (UNANSWERED_BATCHES_MAX if self._is_known else 1)
        )

    def to_resend(self) -> PendingBatch | None:
        """The oldest batch to be sent again."""
        if self.state is not PartitionState.RUNNING or self.in_flight == len(self.unanswered):
            return None
        if self.in_flight and not self._is_known:
            return None
        if self.in_flight >= UNANSWERED_BATCHES_MAX:
            # Splitting makes more of them than the server remembers.
            return None
        batch = next(batch for batch in self.unanswered if not batch.in_flight)
        return None if self.needs_epoch and self._waits_for_epoch(batch) else batch

    def _waits_for_epoch(self, batch: PendingBatch) -> bool:
        """Neither it nor a batch behind it may be stored. Asked for only where an epoch is due."""
        position = self.unanswered.index(batch)
        return not any(other.may_be_stored for other in islice(self.unanswered, position, None))

    def sequence(self, batch: PendingBatch, identity: ProducerIdentity, now: float) -> bool:
        """Gives a ready batch its place behind all others, and its bytes.

        False where it cannot be encoded: it has failed then, and its numbers are free again.
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
        """The new topic's partition knows no producer: as under a new id, one batch goes first."""
        self._is_known = not self._settings.is_idempotent

    def may_split(self, batch: PendingBatch, attempt: int) -> bool:
        """The batch was refused for sure, and has records that can be stored without the others."""
        is_current = not batch.done and batch.attempt == attempt and batch.in_flight
        return (
            is_current
            and batch.record_count > 1
            and not batch.may_be_stored
            and self._settings.wants_answer
        )

    def replace(self, batch: PendingBatch, parts: list[PendingBatch]) -> None:
        """The refused batch goes out again in parts, in its place, once all under way is answered.

        They have its sequence numbers, so what follows keeps its own.
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

    def _take_identity(self, identity: ProducerIdentity) -> None:
        self._identity, self._next_sequence = identity, 0
        self._is_known = not self._settings.is_idempotent

    def _take_numbers(self, count: int) -> Producer:
        if self._identity == NO_IDENTITY:
            return NO_PRODUCER
        producer = Producer(*self._identity, self._next_sequence)
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
        self._leave(batch)
        batch.finish(base_offset, log_append_time_ms)
        self._done.append(batch)
        if self.needs_epoch:
            self._drain()
        self._settle()

    def failed(self, batch: PendingBatch, attempt: int, error: StreamlogError, now: float) -> None:
        """One attempt came to nothing, or to nobody knows what."""
        if batch.done or batch.attempt != attempt or not batch.in_flight:
            return
        self.in_flight -= 1
        batch.in_flight = False
        batch.last_error = error
        is_head = self.unanswered[0] is batch
        if not error.has_no_side_effects:
            batch.may_be_stored = True
        elif is_head and _shows_gap(error):
            # What is missing was stored once, or refused for good: it is not sent again.
            self._can_never_be_stored(self.unanswered)
        if isinstance(error, UnknownTopicOrPartition):
            batch.unknown_topic_attempts += 1
        verdict = judge(
            error,
            wants_answer=self._settings.wants_answer,
            is_head=is_head,
            may_be_stored=batch.may_be_stored,
            unknown_topic_attempts=batch.unknown_topic_attempts,
        )
        if verdict is Verdict.FAIL:
            self.give_up(batch, _final(batch, error))
            return
        self.retries += 1
        if verdict is Verdict.RENUMBER:
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
        """Ends a sequenced batch without success, and every later one that may be stored.

        Later ones that may be stored could be stored only behind this one; nobody can learn it
        any more once the epoch changes. Where this one is refused for good, they cannot be.
        """
        is_open_question = not error.has_no_side_effects
        position = self.unanswered.index(batch)
        later = list(self.unanswered)[position + 1 :]
        self._end(batch, error)
        if is_open_question:
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
        """With the numbers that they have: those in front of them are left out for ever."""
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
        """A newer epoch is there: what is left goes out under it, numbered from 0."""
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
        self._settle()

    def _settle(self) -> None:
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
    """The error for the caller, honest about earlier attempts."""
    if batch.may_be_stored and error.has_no_side_effects:
        return OutcomeUnknown(
            f"{batch.topic}-{batch.partition}: an earlier attempt may have stored the batch; the "
            f"last one was refused: {error}"
        )
    return error
