"""A producer's core against a model of a node, in virtual time, with faults drawn from a seed.

The partitions keep their producers in the real ProducerStateManager. The model is worse than a
quiet network: a broken connection may go on delivering what was written to it, behind what later
connections deliver; appends become durable later, and a log that is given up forgets those that are
not; answers and producer ids get lost; refusals hit single batches in the middle.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from streamlog.client.produce.accumulator import TopicMetadata
from streamlog.client.produce.batches import PendingBatch
from streamlog.client.produce.core import ProducerCore
from streamlog.client.produce.messages import Message
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.settings import ProducerSettings
from streamlog.codec.batch import scan
from streamlog.codec.records import decode
from streamlog.errors import (
    Internal,
    InvalidRecord,
    MessageTooLarge,
    OutcomeUnknown,
    Overloaded,
    StreamlogError,
    Unavailable,
)
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.partition.producer_state_manager import ProducerLimits, ProducerStateManager
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import to_proto

TOPIC = "t"
DELIVERY_TIMEOUT_MS = 1000
LIMITS = ProducerLimits(expiration_ms=1 << 40)


@dataclass
class ModelPartition:
    """Batches in offset order; those from `durable` on are lost with the log object."""

    batches: list[bytes] = field(default_factory=list)
    durable: int = 0
    producers: ProducerStateManager = field(default_factory=lambda: ProducerStateManager(LIMITS))
    end_offset: int = 0

    def append(self, data: bytes) -> tuple[int, int]:
        """(offset, batches that must be durable for the answer). Errors: as of `check`."""
        (batch,) = scan(data)
        original = self.producers.check(batch.header, 0)
        if original is not None:
            return original.base_offset, len(self.batches)
        self.batches.append(data)
        return self._account(data), len(self.batches)

    def _account(self, data: bytes) -> int:
        (batch,) = scan(data)
        header, base = batch.header, self.end_offset
        metadata = LogBatchMetadata.of(header, leader_epoch=0, append_time_ms=0, max_timestamp_ms=0)
        self.producers.account(base, header.record_count, metadata)
        self.end_offset += header.record_count
        return base

    def reopen(self) -> None:
        """As a new log object, or a new process, finds it."""
        del self.batches[self.durable :]
        self.producers, self.end_offset = ProducerStateManager(LIMITS), 0
        for data in self.batches:
            self._account(data)

    def forget_producers(self) -> None:
        """As after log.producer_idle_ms_min and more."""
        self.producers = ProducerStateManager(LIMITS)

    def values(self) -> list[int]:
        return [int(record[3] or b"") for data in self.batches for record in decode(data)]


@dataclass
class _Part:
    partition: int
    data: bytes
    record_count: int


@dataclass
class _Answer:
    """`results`: partition, how many batches must be durable before, offset or error."""

    correlation_id: int
    results: list[tuple[int, int, int | StreamlogError]]


@dataclass
class Connection:
    requests: deque[tuple[int, list[_Part]]] = field(default_factory=deque)
    answers: deque[_Answer] = field(default_factory=deque)


class ProducerModel:
    """`run` drives it; `check` says what was promised."""

    def __init__(self, seed: int, *, partitions: int = 2) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.refusals = self.random.choice((0.02, 0.12, 0.3))
        self.refuse_next: deque[StreamlogError | None] | None = None
        """What becomes of the next batches; None: drawn."""
        settings = ProducerSettings(
            linger_ms=0,
            batch_size_bytes=300,
            batch_size_max_bytes=300,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            retry_backoff_ms=5,
            retry_backoff_max_ms=50,
        )
        self.core = ProducerCore(settings)
        self.topic = self.core.accumulator.update_topic(TOPIC, TopicMetadata(partitions), 0.0)
        self.partitions = [ModelPartition() for _ in range(partitions)]
        self.connection: Connection | None = None
        self.broken: list[Connection] = []
        self.sent: list[tuple[int, PendingBatch, int]] = []
        self.asking: ProducerIdentity | None = None
        self.next_id = 0

    # -- one step each

    def send(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            self.send_one(self.random.randrange(len(self.partitions)))

    def send_one(self, partition: int = 0) -> None:
        value = b"%06d" % len(self.sent)
        batch = self.core.append(self.topic, partition, (0, None, value, []), self.now)
        assert batch is not None
        assert batch.builder is not None
        self.sent.append((partition, batch, batch.builder.record_count - 1))

    def write(self, messages_max: int = 6) -> None:
        connection = self.opened()
        for _ in range(messages_max):
            message = self.core.next_message(self.now)
            if message is None:
                return
            connection.requests.append((message.correlation_id, _parts(message)))

    def opened(self) -> Connection:
        if self.connection is None:
            self.connection = Connection()
        return self.connection

    def break_connection(self) -> None:
        if self.connection is None:
            return
        if self.random.random() < 0.7:
            self.broken.append(self.connection)
        self.lose_connection()

    def lose_connection(self) -> Connection:
        """The connection, whose requests may still be served."""
        connection, self.connection = self.connection, None
        assert connection is not None
        self.core.connection_lost(Unavailable("broken"), self.now)
        return connection

    def serve(self, connection: Connection) -> None:
        if not connection.requests:
            return
        correlation_id, parts = connection.requests.popleft()
        answer = _Answer(correlation_id, [])
        for part in parts:
            answer.results.append(self._append(part))
        connection.answers.append(answer)

    def _append(self, part: _Part) -> tuple[int, int, int | StreamlogError]:
        refusal = self._refusal(part)
        if refusal is not None:
            return part.partition, 0, refusal
        try:
            offset, needs = self.partitions[part.partition].append(part.data)
        except StreamlogError as error:
            return part.partition, 0, error
        if self.refuse_next is None and self.random.random() < 0.03:
            return part.partition, 0, OutcomeUnknown("not durable in time")
        return part.partition, needs, offset

    def _refusal(self, part: _Part) -> StreamlogError | None:
        if self.refuse_next is not None:
            return self.refuse_next.popleft() if self.refuse_next else None
        chance = self.random.random()
        if chance < self.refusals:
            return Overloaded("full")
        if chance < self.refusals + 0.02:
            return InvalidRecord("refused")
        if chance < self.refusals + 0.04 and part.record_count > 1:
            return MessageTooLarge("large", size_bytes=len(part.data), max_bytes=150)
        return None

    def answer(self) -> None:
        connection = self.connection
        if connection is None or not connection.answers:
            return
        answer = connection.answers[0]
        if any(
            needs > self.partitions[partition_index].durable
            for partition_index, needs, _ in answer.results
        ):
            return
        connection.answers.popleft()
        out = log_pb2.ProduceStreamAnswer(correlation_id=answer.correlation_id)
        topic = out.response.topics.add(topic=TOPIC)
        for partition, _, result in answer.results:
            part = topic.partitions.add(partition=partition)
            if isinstance(result, StreamlogError):
                part.error.CopyFrom(to_proto(result))
            else:
                part.base_offset = result
        self.core.answered([out], self.now)

    def make_durable(self) -> None:
        for partition in self.partitions:
            partition.durable = self.random.randint(partition.durable, len(partition.batches))

    def give_up_log(self) -> None:
        """What was sequenced and is not durable is gone; its answers say that it is unknown."""
        partition_index = self.random.randrange(len(self.partitions))
        durable = self.partitions[partition_index].durable
        self.partitions[partition_index].reopen()
        for connection in (self.connection, *self.broken):
            for answer in connection.answers if connection else ():
                answer.results = [
                    (place, 0, OutcomeUnknown("given up"))
                    if place == partition_index and needs > durable
                    else (place, needs, result)
                    for place, needs, result in answer.results
                ]

    def ask_identity(self) -> None:
        if self.asking is None:
            self.asking = self.core.identity_request(self.now)
            return
        identity, self.asking = self.asking, None
        if self.refuse_next is None and self.random.random() < 0.2:
            errors = (Unavailable("lost"), Internal("broken off"))
            self.core.identity_refused(self.random.choice(errors), self.now)
        elif identity.producer_id < 0:
            self.next_id += 1
            self.core.identity_granted(ProducerIdentity(self.next_id, 0))
        else:
            self.core.identity_granted(ProducerIdentity(identity.producer_id, identity.epoch + 1))

    def pass_time(self, seconds: float = 0.0) -> None:
        self.now += seconds or self.random.choice((0.001, 0.01, 0.1, 0.3))
        self.core.expire(self.now)

    # -- all of it

    def run(self, steps: int) -> None:
        actions = {
            self.send: 10,
            self._write_some: 20,
            self.break_connection: self.random.choice((1, 4)),
            self._serve_current: 20,
            self._serve_broken: self.random.choice((2, 12)),
            self.answer: 20,
            self.make_durable: 15,
            self.give_up_log: self.random.choice((0, 1)),
            self.ask_identity: 15,
            self.pass_time: self.random.choice((2, 8)),
        }
        chosen = self.random.choices(list(actions), list(actions.values()), k=steps)
        for action in chosen:
            action()
            self.core.take_done()
        self.finish()
        while any(connection.requests for connection in self.broken):
            self._serve_broken()

    def finish(self) -> None:
        """Until each record is stored or has failed."""
        steps = (
            self.ask_identity,
            self.write,
            self._serve_current,
            self.make_durable,
            self.answer,
            self.pass_time,
        )
        while self.core.has_work:
            for step in steps:
                step()
            self.core.take_done()

    def serve_all(self, connection: Connection) -> None:
        """Its requests, and their answers where it is not broken."""
        while connection.requests:
            self.serve(connection)
        for partition in self.partitions:
            partition.durable = len(partition.batches)
        while connection is self.connection and connection.answers:
            self.answer()

    def error_of(self, number: int) -> StreamlogError | None:
        _, batch, index = self.sent[number]
        return batch.error_of(index)

    def _write_some(self) -> None:
        self.write(self.random.randint(1, 6))

    def _serve_current(self) -> None:
        if self.connection is not None:
            self.serve(self.connection)

    def _serve_broken(self) -> None:
        if self.broken:
            self.serve(self.random.choice(self.broken))

    def check(self) -> None:
        """Each partition has its records in the order of `send`, each once; those that were
        acknowledged at their offsets, and none that was refused for sure."""
        stored = [partition.values() for partition in self.partitions]
        for partition_index, values in enumerate(stored):
            wrong = [pair for pair in pairwise(values) if pair[0] >= pair[1]]
            assert not wrong, f"partition {partition_index}: {wrong} in {values}"
        for number, (partition, batch, index) in enumerate(self.sent):
            error = batch.error_of(index)
            if error is None:
                offset = batch.metadata(index, 0).offset
                assert stored[partition][offset] == number, (number, offset)
            elif error.has_no_side_effects:
                assert number not in stored[partition], (number, error)


def _parts(message: Message) -> list[_Part]:
    return [
        _Part(queue.partition, bytes(batch.data or b""), batch.record_count)
        for queue, batch, _ in message.parts
    ]
