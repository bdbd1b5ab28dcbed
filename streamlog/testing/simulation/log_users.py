"""What producers and consumers do to partitions in a history.

1. Each partition has one idempotent producer that keeps at most `IN_FLIGHT_MAX` batches unanswered.
2. After a failure, and on every new node, it sends all unanswered batches again, in order.
3. A consumer reads every record in order, over all nodes; another one reads here and there.
4. Records are deleted from the front now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from streamlog.codec.batch import Producer, ScannedBatch, scan
from streamlog.codec.records import decode, encode_values
from streamlog.errors import (
    AlreadyExists,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StreamlogError,
    UnknownTopicOrPartition,
)
from streamlog.log.abstract import (
    AbstractLog,
    Isolation,
    LogFetch,
    ProduceContext,
    TopicPartition,
)
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.node import Node
from streamlog.testing.simulation.users import PASSING, care, take_over_holder, together
from streamlog.testing.simulation.verdict import (
    PartitionModel,
    SeenBatch,
    SentBatch,
    Violation,
)
from streamlog.testing.simulation.world import World

TOPIC = "simulated"
SETTINGS = {"internal.segment.bytes": "1500", "index.interval.bytes": "300"}
"""Segments roll, and the time index grows, within the seconds of one history."""
FIRST_TIMESTAMP_MS = 1_700_000_000_000
IN_FLIGHT_MAX = 5
TRIED_AGAIN = (*PASSING, UnknownTopicOrPartition)
"""A client tries these again: at this node, or at the one that leads next."""


class PartitionUser:
    """Everything that happens to one partition."""

    def __init__(self, world: World, partition: TopicPartition, partitions: int) -> None:
        self.world = world
        self.partition = partition
        self.model = PartitionModel(str(partition))
        self._partitions = partitions
        self._random = world.fork()
        self._tally = world.tally
        self._producer_id: int | None = None
        self._next_sequence = 0
        self._position = 0
        self._epoch_max = 0

    def caretaker(self) -> Coroutine[Any, Any, None]:
        return care(self.world, self._random, self._session, str(self.partition))

    async def _session(self, node: Node) -> None:
        """Works on the partition at this node until it fails there."""
        epoch = 0
        try:
            log = await self._log(node)
            epoch = log.leader_epoch
            self._epoch_max = max(self._epoch_max, epoch)
            await together(
                [
                    self._produce(node, log),
                    self._read_on(log),
                    self._read_some(log),
                    self._delete_some(log),
                    self._leave(log),
                ]
            )
        except TRIED_AGAIN as error:
            self.world.trace.add("log-failed", node.name, self.model.name, type(error).__name__)
            await asyncio.sleep(0.2 + 0.4 * self._random.random())
        except OutOfOrderSequence:
            # A leader that was replaced and does not know it yet lacks what its successor has.
            if epoch == self._epoch_max:
                raise
            self.world.trace.add("stale-leader", node.name, self.model.name, epoch)

    async def _log(self, node: Node) -> AbstractLog:
        """Errors: those that are tried again."""
        logs = node.engine.logs
        if logs.topic(self.partition.topic) is None:
            try:
                await logs.create_topic(self.partition.topic, self._partitions, SETTINGS)
                self._tally.count("create topic")
            except AlreadyExists:
                pass
        log = await logs.log(self.partition)
        if self._producer_id is None:
            producer_id, _ = await logs.init_producer_id()
            if self._producer_id is None:
                self._producer_id = producer_id
        return log

    async def _leave(self, log: AbstractLog) -> None:
        """The client connects anew after a while; some roll the segment as a farewell."""
        await asyncio.sleep(2 + 8 * self._random.random())
        if self._random.random() < 0.3:
            self._tally.count("roll")
            await log.roll()

    def _make(self, random: SeededRandom) -> None:
        assert self._producer_id is not None
        count = 1 + int(random.random() * 4)
        first = self._next_sequence
        encoded = encode_values(
            [b"%d" % (first + i) for i in range(count)],
            timestamp_ms=FIRST_TIMESTAMP_MS + first,
            producer=Producer(self._producer_id, 0, first),
        )
        batch = SentBatch(first, count, bytes(encoded.data))
        self._next_sequence += count
        self.model.sent.append(batch)
        self.model.unanswered.append(batch)

    async def _produce(self, node: Node, log: AbstractLog) -> None:
        model = self.model
        while True:
            await asyncio.sleep(0.2 * self._random.random())
            while len(model.unanswered) < 1 + int(self._random.random() * IN_FLIGHT_MAX):
                self._make(self._random)
            if self._random.random() < 0.05 and model.sent:
                # A client that did not hear an answer that came: sent again, stored once.
                old = [batch for batch in model.sent[-IN_FLIGHT_MAX:] if batch.base_offset]
                await self._send(node, log, old)
            await self._send(node, log, list(model.unanswered))

    async def _send(self, node: Node, log: AbstractLog, batches: list[SentBatch]) -> None:
        """Sends all, then takes the answers in order; the first failure ends it."""
        pending = []
        failure: StreamlogError | None = None
        context = ProduceContext(deadline=self.world.now + 20)
        for batch in batches:
            self._tally.count("produce")
            try:
                pending.append((batch, await log.append(batch.data, context)))
            except TRIED_AGAIN as error:
                failure = error
                break
        for batch, answer in pending:
            try:
                info = await answer
            except TRIED_AGAIN as error:
                failure = failure or error
                continue
            self.world.trace.add(
                "produced", node.name, self.model.name, batch.base_sequence, info.base_offset
            )
            self.model.acknowledge(batch, info.base_offset)
        if failure is not None:
            raise failure

    async def _read_on(self, log: AbstractLog) -> None:
        """Reads everything once, in order, over all nodes."""
        while True:
            await asyncio.sleep(0.4 * self._random.random())
            start = self._position = max(self._position, log.log_start_offset)
            if start < log.high_watermark:
                end = await self._fetch(log, start)
                self._position = max(self._position, end)

    async def _read_some(self, log: AbstractLog) -> None:
        while True:
            await asyncio.sleep(0.4 * self._random.random())
            low, high = log.log_start_offset, log.high_watermark
            await self._fetch(log, low + int(self._random.random() * (high - low + 1)))

    async def _fetch(self, log: AbstractLog, start: int) -> int:
        self._tally.count("consume")
        try:
            fetched = await log.fetch(start, 4096)
        except OffsetOutOfRange:
            if start >= max(log.log_start_offset, self.model.start_asked):
                raise
            return start
        except OffsetNotAvailable:
            return start
        return self.model.read(batches_in(fetched), start)

    async def _delete_some(self, log: AbstractLog) -> None:
        while True:
            await asyncio.sleep(1 + 4 * self._random.random())
            low, high = log.log_start_offset, log.high_watermark
            before = low + int(self._random.random() * (high - low) * 0.5)
            self.model.start_asked = max(self.model.start_asked, before)
            self._tally.count("delete records")
            start = await log.delete_records(before)
            self.model.start = max(self.model.start, start)

    async def check(self, node: Node) -> None:
        """All is calm: what is unanswered is sent again; then everything is read."""
        model, log = self.model, await log_at_last(node, self._log)
        while model.unanswered:
            await self._send(node, log, list(model.unanswered))
        found: list[SeenBatch] = []
        start = offset = log.log_start_offset
        if start < model.start:
            raise Violation(f"{model.name}: starts at {start}, {model.start} was acknowledged")
        while offset < log.high_watermark:
            batches = batches_in(await log.fetch(offset, 1 << 16))
            self._tally.count("consume")
            if not batches:
                raise Violation(f"{model.name}: nothing at {offset} below {log.high_watermark}")
            offset = model.read(batches, offset)
            found += batches
        model.finish(start, found)
        await self._check_timestamps(log, found, start)

    async def _check_timestamps(self, log: AbstractLog, found: list[SeenBatch], start: int) -> None:
        """Every batch has a timestamp of its own, and is found by it."""
        for batch in found[:: max(1, len(found) // 4)]:
            timestamp_ms = FIRST_TIMESTAMP_MS + batch.base_sequence
            at = await log.offset_for_timestamp(timestamp_ms, Isolation.READ_UNCOMMITTED)
            self._tally.count("look up time")
            if at.offset != max(batch.base_offset, start):
                raise Violation(f"{self.model.name}: {batch} was looked up, {at} was found")


def batches_in(fetched: LogFetch) -> list[SeenBatch]:
    """Every record of every batch is decoded, its CRC checked."""
    return [
        SeenBatch(
            batch.header.base_offset,
            batch.header.base_sequence,
            tuple(int(bytes(value or b"-1")) for _, _, _, value, _ in decode(batch.view)),
        )
        for batch in batches_of(fetched)
    ]


def batches_of(fetched: LogFetch) -> list[ScannedBatch]:
    """As they lie in the answer; their CRCs are checked."""
    return scan(b"".join(fetched.parts))


async def log_at_last(node: Node, opening: Any) -> AbstractLog:
    """The log, once the leases of its dead holders have ended."""
    while True:
        try:
            log: AbstractLog = await opening(node)
            return log
        except TRIED_AGAIN:
            for row in node.engine.metadata.streams():
                await take_over_holder(node, row.stream_id)
            await asyncio.sleep(0.5)
