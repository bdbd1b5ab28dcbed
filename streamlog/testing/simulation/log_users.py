"""What producers and consumers do to partitions in a history.

1. Each partition has one idempotent producer that keeps at most `IN_FLIGHT_MAX` batches unanswered.
2. After a failure, and on every new node, it sends all unanswered batches again, in order.
3. In the end every batch is there exactly once, in order, at its acknowledged offset.
4. What a consumer read at an offset is there for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamlog.codec.batch import BatchHeader, Producer, scan
from streamlog.codec.records import encode_values
from streamlog.errors import (
    AlreadyExists,
    Fenced,
    OutcomeUnknown,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.log.abstract import AbstractLog, Isolation, ProduceContext, TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.model import Violation
from streamlog.testing.simulation.users import Tally

if TYPE_CHECKING:
    from streamlog.testing.simulation.node import Node, World

TOPIC = "simulated"
SETTINGS = {"segment.bytes": "1500", "index.interval.bytes": "300"}
"""Segments roll, and the time index grows, within the seconds of one history."""
FIRST_TIMESTAMP_MS = 1_700_000_000_000
IN_FLIGHT_MAX = 5
RETRIED = (Unavailable, OutcomeUnknown, Fenced)
"""A client tries these again: at this node, or at the one that leads next."""


@dataclass
class SentBatch:
    """One produced batch; `data` is sent unchanged every time."""

    base_sequence: int
    record_count: int
    data: bytes
    base_offset: int | None = None


@dataclass
class ProducerModel:
    """An idempotent producer and what it was told."""

    producer_id: int
    sent: list[SentBatch] = field(default_factory=list)
    unanswered: deque[SentBatch] = field(default_factory=deque)
    next_sequence: int = 0

    def make(self, random: SeededRandom) -> SentBatch:
        count = 1 + int(random.random() * 4)
        values = [b"%d" % (self.next_sequence + i) for i in range(count)]
        encoded = encode_values(
            values,
            timestamp_ms=FIRST_TIMESTAMP_MS + self.next_sequence,
            producer=Producer(self.producer_id, 0, self.next_sequence),
        )
        batch = SentBatch(self.next_sequence, count, bytes(encoded.data))
        self.next_sequence += count
        self.sent.append(batch)
        self.unanswered.append(batch)
        return batch


@dataclass
class PartitionModel:
    """What was acknowledged and seen of one partition."""

    partition: TopicPartition
    producer: ProducerModel | None = None
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def acknowledge(self, batch: SentBatch, base_offset: int) -> None:
        if batch.base_offset is None:
            batch.base_offset = base_offset
        if batch.base_offset != base_offset:
            raise Violation(
                f"{self.partition}: sequence {batch.base_sequence} was acknowledged at "
                f"{batch.base_offset}, then at {base_offset}"
            )

    def see(self, header: BatchHeader) -> None:
        what = (header.base_sequence, header.crc)
        known = self.seen.setdefault(header.base_offset, what)
        if known != what:
            raise Violation(f"{self.partition}: {what} at {header.base_offset}, before {known}")

    def finish(self, found: list[BatchHeader]) -> None:
        """`found`: every batch of the partition once all is answered."""
        sent = self.producer.sent if self.producer is not None else []
        sequences = [header.base_sequence for header in found]
        if sequences != [batch.base_sequence for batch in sent]:
            raise Violation(
                f"{self.partition}: sent {[b.base_sequence for b in sent]}, is {sequences}"
            )
        for header, batch in zip(found, sent, strict=True):
            if header.base_offset != batch.base_offset:
                raise Violation(
                    f"{self.partition}: {batch.base_sequence} is at {header.base_offset}"
                )
            self.see(header)
        there = {header.base_offset for header in found}
        if not set(self.seen) <= there:
            raise Violation(f"{self.partition}: {set(self.seen) - there} was seen and has gone")


class LogUsers:
    """The producers and consumers of one history."""

    def __init__(self, world: World, tally: Tally, partitions: int) -> None:
        self._world = world
        self._tally = tally
        self._random = world.fork()
        self._partitions = [PartitionModel(TopicPartition(TOPIC, i)) for i in range(partitions)]
        self._connected: list[asyncio.Task[None]] = []

    def connect(self, node: Node) -> list[Coroutine[Any, Any, None]]:
        """The clients leave the node that they were on, and work on this one."""
        for task in self._connected:
            task.cancel()
        self._connected = []
        return [
            work
            for partition in self._partitions
            for work in (self._produce(node, partition), self._consume(node, partition))
        ]

    def connected(self, task: asyncio.Task[None]) -> None:
        self._connected.append(task)

    async def delete(self, node: Node) -> None:
        """Deletes the topic."""
        await self._log(node, self._partitions[0])
        await node.engine.logs.delete_topic(TOPIC)

    async def check(self, node: Node) -> None:
        """All is calm: what is unanswered is sent again; then everything is read."""
        for model in self._partitions:
            log = await self._log(node, model)
            while model.producer is not None and model.producer.unanswered:
                await self._send(node, log, model, model.producer, list(model.producer.unanswered))
            found: list[BatchHeader] = []
            offset = log.log_start_offset
            while offset < log.high_watermark:
                fetched = await log.fetch(offset, 1 << 16)
                for batch in scan(b"".join(fetched.parts)):
                    if batch.header.base_offset != offset:
                        raise Violation(f"{model.partition}: gap at {offset}: {batch.header}")
                    found.append(batch.header)
                    offset = batch.header.next_offset
            model.finish(found)
            await _check_timestamps(log, found)

    async def _log(self, node: Node, model: PartitionModel) -> AbstractLog:
        while True:
            try:
                await node.engine.logs.create_topic(TOPIC, len(self._partitions), SETTINGS)
            except AlreadyExists:
                break
            except RETRIED:
                await asyncio.sleep(0.5)
        while True:
            try:
                log = await node.engine.logs.log(model.partition)
                if model.producer is None:
                    producer_id, _ = await node.engine.logs.init_producer_id()
                    model.producer = model.producer or ProducerModel(producer_id)
                return log
            except (*RETRIED, UnknownTopicOrPartition):
                # A topic whose creation a crash cut off is finished in the background.
                await asyncio.sleep(0.5)

    async def _produce(self, node: Node, model: PartitionModel) -> None:
        log = await self._log(node, model)
        producer = model.producer
        assert producer is not None
        while True:
            await asyncio.sleep(0.2 * self._random.random())
            while len(producer.unanswered) < 1 + int(self._random.random() * IN_FLIGHT_MAX):
                producer.make(self._random)
                self._tally.count("produce")
            try:
                await self._send(node, log, model, producer, list(producer.unanswered))
            except RETRIED as error:
                node.world.trace.add(node.world.loop, "produce-failed", type(error).__name__)
                await asyncio.sleep(0.2)
                log = await self._log(node, model)

    async def _send(
        self,
        node: Node,
        log: AbstractLog,
        model: PartitionModel,
        producer: ProducerModel,
        batches: list[SentBatch],
    ) -> None:
        """Sends all, then takes the answers in order; the first failure ends it."""
        pending = []
        failure: StreamlogError | None = None
        context = ProduceContext(deadline=node.world.loop.time() + 20)
        for batch in batches:
            try:
                pending.append((batch, await log.append(batch.data, context)))
            except RETRIED as error:
                failure = error
                break
        for batch, answer in pending:
            try:
                info = await answer
            except RETRIED as error:
                failure = failure or error
                continue
            node.world.trace.add(
                node.world.loop, "produced", f"{model.partition} {batch.base_sequence}"
            )
            model.acknowledge(batch, info.base_offset)
            if batch in producer.unanswered:
                producer.unanswered.remove(batch)
        if failure is not None:
            raise failure

    async def _consume(self, node: Node, model: PartitionModel) -> None:
        log = await self._log(node, model)
        while True:
            await asyncio.sleep(0.4 * self._random.random())
            low, high = log.log_start_offset, log.high_watermark
            offset = low + int(self._random.random() * (high - low + 1))
            self._tally.count("consume")
            try:
                fetched = await log.fetch(offset, 4096)
            except RETRIED as error:
                node.world.trace.add(node.world.loop, "consume-failed", type(error).__name__)
                log = await self._log(node, model)
                continue
            for batch in scan(b"".join(fetched.parts)):
                model.see(batch.header)


async def _check_timestamps(log: AbstractLog, found: list[BatchHeader]) -> None:
    """Every batch has a timestamp of its own, and is found by it."""
    for header in found[:: max(1, len(found) // 10)]:
        at = await log.offset_for_timestamp(header.base_timestamp_ms, Isolation.READ_UNCOMMITTED)
        if at.offset != header.base_offset:
            raise Violation(f"{log.topic_partition}: {header} was looked up, {at} was found")
