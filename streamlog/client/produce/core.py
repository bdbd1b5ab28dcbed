"""The producer without its I/O: which message goes out next, and what an answer changes. Pure.

    caller          core
    append       →  Accumulator
    next_message ←  one batch of each partition that has one to send, ≤ 32 messages under way
    answered, connection_lost, expire → PartitionSequencer → take_done → callers' results
    identity_request, identity_granted, identity_refused: producer id and epoch

The blocking and the asyncio producer drive the same core; the blocking one holds its lock around
each call.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from streamlog.client.produce.accumulator import (
    Accumulator,
    PartitionQueue,
    TopicMetadata,
    TopicQueues,
)
from streamlog.client.produce.batches import PendingBatch, Run
from streamlog.client.produce.identity import NEVER, IdentityRequests
from streamlog.client.produce.messages import (
    MESSAGE_OVERHEAD,
    Message,
    message_limit,
    more_than_a_message,
    results_of,
)
from streamlog.client.produce.routing import PartitionRecords, queue_for
from streamlog.client.produce.splitting import bytes_max_of, is_too_large
from streamlog.client.produce.state import PartitionState
from streamlog.client.produce.wire import ACKS_ALL, ACKS_NONE
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.settings import (
    BYTES_IN_FLIGHT_MAX,
    LINGERING_MESSAGES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_TARGET,
    MESSAGES_IN_FLIGHT_MAX,
    ProducerSettings,
)
from streamlog.client.transactions.manager import TransactionManager
from streamlog.client.transactions.requests import TransactionRequest
from streamlog.codec.records import Headers, record_bytes_max
from streamlog.errors import (
    Closed,
    InconsistentTopicId,
    Internal,
    Invalid,
    OutcomeUnknown,
    StreamlogError,
    Unavailable,
    UnknownTopicId,
)
from streamlog.runtime.buffers import Buffer
from streamlog.v1support.errors import from_proto

log = logging.getLogger(__name__)

RECORD_OVERHEAD = 100
"""Upper bound on a record's bytes beside its key, value and headers."""
_ALONE = Unavailable("the message was larger than the server takes; sent again alone")
_RECORD_TYPES = {bytes, bytearray, memoryview, type(None)}


def _size(data: Buffer | None) -> int:
    return 0 if data is None else len(data)


def _is_contiguous(data: Buffer | None) -> bool:
    return not isinstance(data, memoryview) or data.c_contiguous


class ProducerCore:
    """All topics and messages of one producer. It owns no thread, lock or connection."""

    def __init__(self, settings: ProducerSettings, server: str = "the server") -> None:
        self.settings = settings
        self._server = server
        self.accumulator = Accumulator(settings)
        self._identity = IdentityRequests(settings)
        self._unreachable = "it could not be reached"
        """Why nothing is sent while no message is under way."""
        self.stale_topics: dict[TopicQueues, None] = {}
        """Topics to look up again: the server says that they were deleted or made anew."""
        self._messages: dict[int, Message] = {}
        self._next_correlation_id = 1
        self._bytes_in_flight = 0
        self._message_bytes_max = MESSAGE_BYTES_MAX
        """Upper bound on a message of several batches."""
        self.acks = ACKS_ALL if settings.wants_answer else ACKS_NONE
        self.transactional_id = settings.transactional_id.encode()
        self.transactions: TransactionManager | None = None
        if self.transactional_id:
            self.transactions = TransactionManager(
                settings, server, give_up=self._give_up, granted=self._identity.granted
            )
        self.records_acked = 0
        self.batches_acked = 0
        self.bytes_sent = 0
        self.messages_sent = 0
        self.duplicates = 0
        self.records_failed = 0

    # -- topics

    def refreshed(self, topic: TopicQueues, metadata: TopicMetadata | None, now: float) -> None:
        """Takes over a repeated look-up of a topic.

        None: it failed, and the metadata stay as they are.
        """
        if metadata is None:
            topic.loaded_at = now
        else:
            self.accumulator.update_topic(topic.name, metadata, now)

    # -- appending

    def append(
        self,
        topic: TopicQueues,
        partition: int | None,
        record: tuple[int, Buffer | None, Buffer | None, Headers],
        now: float,
    ) -> PendingBatch | None:
        """Puts (timestamp, key, value, headers) into a batch, a new one where the open one is full.

        None: no room in memory; nothing was taken. Errors: MessageTooLarge, those of encoding the
        record, UnknownTopicOrPartition as `extend`; then nothing was taken either.
        """
        accumulator = self.accumulator
        queue = queue_for(topic, partition)
        if queue.open is not None:
            if queue.open.append(*record):
                return queue.open
            accumulator.close_open(queue, is_full=True)
            if partition is None:
                queue = topic.sticky
                if queue.open is not None:
                    return self.append(topic, partition, record, now)
        size = accumulator.record_limit(topic, *record[1:])
        batch = accumulator.new_batch(queue, size, now)
        if batch is not None:
            batch.append(*record)
            accumulator.open_batch(queue, batch)
        return batch

    def extend(
        self,
        topic: TopicQueues,
        records: PartitionRecords,
        timestamp_ms: int,
        start: int,
        now: float,
    ) -> Run | None:
        """Puts values[start:] into one batch, as many as fit. None: no room; nothing was taken.

        For a list that passed `check_sizes`. A limit that was lowered since then is left to the
        server, which refuses only the record: here it would end the call with a part of the list
        taken. Errors: UnknownTopicOrPartition, where the topic was made anew without the partition.
        """
        accumulator = self.accumulator
        partition, places, values, keys = records
        while True:
            queue = queue_for(topic, partition)
            batch = queue.open
            if batch is None:
                key = None if keys is None else keys[start]
                size = record_bytes_max(key, values[start], [])
                batch = accumulator.new_batch(queue, size, now)
                if batch is None:
                    return None
            builder = batch.builder
            if builder is None:
                raise AssertionError("an open batch has a builder")
            first = builder.record_count
            taken = builder.extend(values, timestamp_ms=timestamp_ms, keys=keys, start=start)
            if queue.open is None:
                accumulator.open_batch(queue, batch)
            if start + taken < len(values):
                accumulator.close_open(queue, is_full=True)
            if taken:
                return Run(batch, first, taken, places[start : start + taken])

    def check_sizes(
        self,
        topic: TopicQueues,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None,
    ) -> None:
        """Checks a list before any of it is taken. Errors: TypeError, Invalid, MessageTooLarge."""
        for column in (values, keys or ()):
            kinds = set(map(type, column))
            wrong = kinds - _RECORD_TYPES
            if wrong:
                raise TypeError(f"keys and values are bytes or None, not {wrong.pop().__name__}")
            if memoryview in kinds and not all(map(_is_contiguous, column)):
                raise TypeError("keys and values are contiguous; a view with steps is not")
        if keys is not None and len(keys) != len(values):
            raise Invalid(f"{len(keys)} keys for {len(values)} values; give one each")
        longest = max(values, key=_size, default=None)
        key = max(keys, key=_size, default=None) if keys else None
        limit = min(topic.batch_bytes_max, self.settings.buffer_memory_bytes)
        if _size(longest) + _size(key) + RECORD_OVERHEAD > limit:
            for index, value in enumerate(values):
                self.accumulator.record_limit(topic, keys[index] if keys else None, value, [])

    # -- sending

    def next_message(self, now: float) -> Message | None:
        """The message to send now; None when there is nothing, or too much is under way."""
        if not self._may_send:
            return None
        active = self.accumulator.active
        parts: list[tuple[PartitionQueue, PendingBatch, int]] = []
        pieces: list[tuple[bytes, int, Buffer]] = []
        size = 0
        for queue in list(active):
            if parts and size + queue.next_bytes > self._message_bytes_max:
                continue
            batch = self._next_batch(queue, now)
            if batch is None:
                if queue.is_idle:
                    del active[queue]
                continue
            parts.append((queue, batch, queue.sequencer.sent(batch)))
            data = batch.data or b""
            pieces.append((queue.topic.head, queue.partition, data))
            size += len(data)
            del active[queue]
            active[queue] = None
            if size >= MESSAGE_BYTES_TARGET:
                break
        if not parts:
            return None
        message = Message(self._next_correlation_id, parts, pieces, size, now)
        self._next_correlation_id += 1
        self._messages[message.correlation_id] = message
        self._bytes_in_flight += size
        self.bytes_sent += size
        self.messages_sent += 1
        return message

    def _next_batch(self, queue: PartitionQueue, now: float) -> PendingBatch | None:
        if not self._may_send_to(queue):
            return None
        sequencer = queue.sequencer
        sequencer.renumber(self._identity.current)
        if now < sequencer.backoff_until:
            return None
        batch = sequencer.to_resend()
        if batch is not None or not sequencer.has_room:
            return batch
        if not queue.ready:
            if not (self._may_linger_out and self.accumulator.is_due(queue, now)):
                return None
            self.accumulator.close_open(queue, is_full=False)
            if not queue.ready:
                return None
        while queue.ready:
            batch = queue.ready.popleft()
            if sequencer.sequence(batch, self._identity.current, now):
                return batch
        return None

    @property
    def _may_send(self) -> bool:
        """Another message may go out. Else an answer, or the producer id, is awaited."""
        return (
            len(self._messages) < MESSAGES_IN_FLIGHT_MAX
            and self._bytes_in_flight < BYTES_IN_FLIGHT_MAX
            and (self._identity.is_known or not self.settings.is_idempotent)
        )

    def _may_send_to(self, queue: PartitionQueue) -> bool:
        """A partition takes batches of a transaction only once it is part of that."""
        transactions = self.transactions
        return transactions is None or transactions.may_send_to((queue.topic.name, queue.partition))

    @property
    def _may_linger_out(self) -> bool:
        """A batch that is not full may be sent because of its age."""
        return len(self._messages) < LINGERING_MESSAGES_MAX or self.accumulator.is_short_of_room

    def wake_at(self, now: float, *, can_send: bool) -> float:
        """When the core has something to do, if no event comes before.

        `can_send`: there is a connection, so that ends of lingering and back-off count. They do not
        where nothing could be sent then: the caller would wake up again and again in vain.
        """
        wake = NEVER
        can_send = can_send and self._may_send
        for queue in self.accumulator.active:
            sequencer = queue.sequencer
            if sequencer.unanswered:
                wake = min(wake, sequencer.unanswered[0].deadline)
            if queue.ready:
                wake = min(wake, queue.ready[0].deadline)
            may_send = can_send and self._may_send_to(queue)
            if may_send and sequencer.state is PartitionState.RUNNING:
                if sequencer.backoff_until > now:
                    wake = min(wake, sequencer.backoff_until)
                elif self._may_linger_out and sequencer.has_room:
                    wake = min(wake, self.accumulator.linger_ends_at(queue))
            elif queue.open is not None:
                wake = min(wake, queue.open.deadline)
        return wake

    @property
    def has_work(self) -> bool:
        """There is a batch that is not done."""
        return bool(self.accumulator.active)

    @property
    def records_under_way(self) -> int:
        """Records that are neither stored nor failed."""
        return sum(
            batch.record_count if batch.builder is None else batch.builder.record_count
            for queue in self.accumulator.active
            for batch in queue.batches()
        )

    def warn_when_dropped(self, owner: object) -> None:
        """Logs how many records are lost when the owner is dropped, or the program ends."""
        weakref.finalize(owner, self.warn_of_unsent)

    def warn_of_unsent(self) -> None:
        count = self.records_under_way
        if count:
            log.warning(
                "a producer was never closed, and %d of its records are not known to be stored: "
                "call close(), or use it in `with`, so that the program waits for them",
                count,
            )

    @property
    def in_flight_messages(self) -> int:
        return len(self._messages)

    def oldest_sent_at(self) -> float:
        """When the oldest message without an answer was sent."""
        message = next(iter(self._messages.values()), None)
        return NEVER if message is None else message.sent_at

    # -- answers

    def answered(self, answers: Iterable[Any], now: float) -> None:
        """Takes ProduceStreamAnswers. Errors: Internal for an answer to no message under way."""
        # An older break of a connection explains nothing any more.
        self._unreachable = "it gave no answer in time"
        for answer in answers:
            self._answered(answer, now)

    def _answered(self, response: Any, now: float) -> None:
        message = self._messages.get(response.correlation_id)
        if message is None:
            raise Internal(f"the server answered the unknown request {response.correlation_id}")
        results = results_of(message, response)
        del self._messages[response.correlation_id]
        self._bytes_in_flight -= message.size_bytes
        if response.HasField("error"):
            error = from_proto(response.error)
            for queue, batch, attempt in message.parts:
                queue.sequencer.failed(batch, attempt, error, now)
            return
        for (queue, batch, attempt), result in zip(message.parts, results, strict=True):
            if result.HasField("error"):
                self._refused(queue, batch, attempt, from_proto(result.error), now)
                continue
            if batch.done:
                # Given up meanwhile, and counted as that.
                continue
            stamp = result.log_append_time_ms if result.HasField("log_append_time_ms") else None
            base = result.base_offset if self.settings.wants_answer else -1
            self.batches_acked += 1
            self.records_acked += batch.record_count
            self.duplicates += result.duplicate
            queue.sequencer.succeeded(batch, attempt, base, stamp, now)

    def _refused(
        self,
        queue: PartitionQueue,
        batch: PendingBatch,
        attempt: int,
        error: StreamlogError,
        now: float,
    ) -> None:
        """The server stored nothing of the batch. A batch too large goes out again in parts."""
        if isinstance(error, UnknownTopicId | InconsistentTopicId):
            self.stale_topics[queue.topic] = None
        if is_too_large(error):
            limit = bytes_max_of(error)
            if limit is not None:
                queue.topic.limit_batches(limit)
            if queue.sequencer.may_split(batch, attempt):
                try:
                    parts = self.accumulator.split(batch, limit)
                except Exception:
                    log.exception("a batch that is too large could not be split")
                else:
                    queue.sequencer.replace(batch, parts)
                    return
        queue.sequencer.failed(batch, attempt, error, now)

    def connection_lost(self, error: StreamlogError, now: float) -> None:
        """Every message under way may be stored, except one that is too large.

        Such a message ends the stream before the server reads it, and would end the next stream.
        """
        messages, self._messages = self._messages, {}
        self._bytes_in_flight = 0
        lost = OutcomeUnknown(f"the connection broke before the answer came: {error}")
        self._unreachable = str(error)
        limit = message_limit(error, messages.values())
        if limit is not None:
            self._message_bytes_max = min(self._message_bytes_max, limit)
        for message in messages.values():
            for queue, batch, attempt in message.parts:
                size = len(batch.data or b"")
                if limit is None or message.size_bytes + MESSAGE_OVERHEAD <= limit:
                    queue.sequencer.failed(batch, attempt, lost, now)
                elif size + MESSAGE_OVERHEAD <= limit:
                    queue.sequencer.failed(batch, attempt, _ALONE, now)
                else:
                    self._refused(queue, batch, attempt, more_than_a_message(size, limit), now)

    def expire(self, now: float) -> None:
        """Gives up batches that have waited longer than the delivery timeout."""
        for queue in list(self.accumulator.active):
            queue.sequencer.expire(now)
            opened = queue.open
            if opened is not None and opened.deadline <= now:
                self.accumulator.close_open(queue, is_full=False)
            while queue.ready and queue.ready[0].deadline <= now:
                self._fail_unsent(queue, queue.ready.popleft(), now)
            if queue.is_idle:
                self.accumulator.active.pop(queue)
        if self.transactions is not None:
            self.transactions.expire(now)

    def _fail_all_unsent(self, now: float) -> None:
        self.accumulator.close_all()
        for queue in self.accumulator.active:
            while queue.ready:
                self._fail_unsent(queue, queue.ready.popleft(), now)

    def _fail_unsent(self, queue: PartitionQueue, batch: PendingBatch, now: float) -> None:
        refusal = self._identity.refusal
        if self.transactions is not None:
            refusal = self.transactions.last_refusal
        kind = Unavailable if refusal is None else type(refusal)
        cause = self._unsent_because(queue, now) if refusal is None else refusal
        limit_ms = self.settings.delivery_timeout_ms
        batch.fail(
            kind(
                f"{batch.topic}-{batch.partition}: not sent to {self._server} "
                f"(delivery_timeout_ms = {limit_ms}): {cause}"
            )
        )
        self.accumulator.done.append(batch)

    def _unsent_because(self, queue: PartitionQueue, now: float) -> str:
        messages = list(self._messages.values())
        own = [m for m in messages if any(part[0] is queue for part in m.parts)]
        oldest = next(iter(own or messages), None)
        if oldest is None:
            return self._unreachable
        silent_s = now - oldest.sent_at
        return f"it waited behind a message that has had no answer for {silent_s:.1f} s"

    def abandon(self, why: StreamlogError | None = None) -> None:
        """Fails all batches that are not done; nothing is sent afterwards.

        `why`: the failure that ended the producer; None: it was closed. Does not rely on the
        sequencers' invariants, which a bug may have broken: every waiter has to wake up.
        """
        why = why or Closed("the producer was closed")
        if self.transactions is not None:
            self.transactions.abandon(why)
        batches = {
            batch: None
            for topic in self.accumulator.topics.values()
            for queue in topic.queues
            for batch in queue.drop_all()
        }
        for message in self._messages.values():
            batches.update((batch, None) for _, batch, _ in message.parts)
        self._messages = {}
        self._bytes_in_flight = 0
        self.accumulator.active.clear()
        for batch in batches:
            if not batch.done:
                batch.fail(_given_up(batch, why))
                self.accumulator.done.append(batch)

    def after_fork(self, why: StreamlogError) -> None:
        """In the child process: what is under way is the parent's."""
        if self.transactions is not None:
            self.transactions.after_fork(why)
        self.abandon(why)

    def take_done(self) -> list[PendingBatch]:
        ended = self.accumulator.take_done()
        if self.transactions is not None:
            for batch in ended:
                if batch.error is not None:
                    self.transactions.batch_failed(batch.error)
            # The other batches of its transaction, which are given up.
            ended += self.accumulator.take_done()
        self.records_failed += sum(
            batch.record_count for batch in ended if batch.error and batch.parts is None
        )
        return ended

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and what is under way now."""
        accumulator = self.accumulator
        sequencers = [
            queue.sequencer for topic in accumulator.topics.values() for queue in topic.queues
        ]
        return {
            "records_acked": self.records_acked,
            "records_failed": self.records_failed,
            "batches_acked": self.batches_acked,
            "duplicates": self.duplicates,
            "messages_sent": self.messages_sent,
            "bytes_sent": self.bytes_sent,
            "retries": sum(sequencer.retries for sequencer in sequencers),
            "messages_in_flight": len(self._messages),
            "buffered_bytes": accumulator.charged_bytes,
            "partitions_active": len(accumulator.active),
            "producer_id": self._identity.current.producer_id,
            "producer_epoch": self._identity.current.epoch,
        }

    # -- identity

    def identity_request(self, now: float) -> ProducerIdentity | None:
        """The identity to send with InitProducerId (NO_IDENTITY: a new one); None: not now."""
        if not self.settings.is_idempotent or self.transactions is not None:
            return None
        self._look_for_gaps()
        return self._identity.request(now) if self.has_work else None

    def identity_wake_at(self) -> float:
        is_needed = self.settings.is_idempotent and self.has_work and self.transactions is None
        return self._identity.wake_at() if is_needed else NEVER

    def _look_for_gaps(self) -> None:
        """Renews the identity where a partition waits for a newer epoch than the current one."""
        if not self._identity.is_known:
            return
        for queue in self.accumulator.active:
            if queue.sequencer.state is PartitionState.AWAITING_EPOCH:
                queue.sequencer.renumber(self._identity.current)
                if queue.sequencer.state is PartitionState.AWAITING_EPOCH:
                    self._identity.renew()
                    return

    def identity_granted(self, identity: ProducerIdentity) -> None:
        self._identity.granted(identity)

    def identity_refused(self, error: StreamlogError, now: float) -> None:
        if self._identity.refused(error, now):
            self._fail_all_unsent(now)

    # -- transactions

    def transaction_request(self, now: float) -> TransactionRequest | None:
        """The call to make to the transaction's coordinator; None: not now.

        Called after `take_done`, so that no failed batch is overlooked.
        """
        transactions = self.transactions
        if transactions is None or self.accumulator.done:
            return None
        active = list(self.accumulator.active)
        for queue in active:
            if queue.sequencer.needs_epoch:
                # Which comes with the next transaction only.
                transactions.batch_failed(_sequence_lost(queue))
                break
        partitions = [(queue.topic.name, queue.partition) for queue in active]
        return transactions.request(now, partitions, has_incomplete=self.has_work)

    def transaction_wake_at(self, now: float) -> float:
        return NEVER if self.transactions is None else self.transactions.wake_at(now)

    def check_sending(self) -> None:
        """For what opens a batch. Errors: as of TransactionManager.check_sending."""
        if self.transactions is not None:
            self.transactions.check_sending()

    def _give_up(self, why: StreamlogError) -> None:
        """Fails every batch that is not done: they are of a transaction that is not committed."""
        for queue in list(self.accumulator.active):
            for batch in queue.drop_all():
                batch.fail(type(why)(f"{batch.topic}-{batch.partition}: {why}", **why.fields))
                self.accumulator.done.append(batch)
        self.accumulator.active.clear()
        for topic in self.accumulator.topics.values():
            for queue in topic.queues:
                queue.sequencer.start_anew()


def _sequence_lost(queue: PartitionQueue) -> StreamlogError:
    batch = next(iter(queue.sequencer.unanswered), None)
    place = f"{queue.topic.name}-{queue.partition}"
    last = None if batch is None else batch.last_error
    return last or OutcomeUnknown(f"{place}: the order of the records was lost")


def _given_up(batch: PendingBatch, why: StreamlogError) -> StreamlogError:
    place = f"{batch.topic}-{batch.partition}"
    if batch.may_be_stored or batch.in_flight:
        return OutcomeUnknown(f"{place}: {why} before the answer came")
    return type(why)(f"{place}: {why}")
