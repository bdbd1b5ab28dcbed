"""Partitions under a producer and consumers.

1. Each partition has one idempotent producer that keeps at most `IN_FLIGHT_MAX` batches unanswered.
2. After a failure, and on every new node, it sends all unanswered batches again, in order.
3. One consumer reads every record in order, over all nodes; another reads random ranges.
   At times they go to the log in one call, once the log knows the producer.
4. At times the producer comes back under the next epoch, sends a batch that skips sequence numbers,
   or a batch under the epoch before: these two must be refused.
5. Records are deleted from the front at times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

from streamlog.codec.batch import BatchProducer, ScannedBatch, scan
from streamlog.codec.records import decode, encode_values
from streamlog.errors import (
    AlreadyExists,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    StreamlogError,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import (
    AbstractLog,
    Isolation,
    LogAppend,
    LogAppendInfo,
    LogFetch,
    ProduceContext,
)
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.checker import (
    PartitionModel,
    SeenBatch,
    SentBatch,
    Violation,
)
from streamlog.testing.simulation.workloads.streams import (
    PASSING,
    check_attached,
    run_sessions,
    take_over_holder,
    together,
)
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

TOPIC = "simulated"
SETTINGS = {"internal.segment.bytes": "1500", "index.interval.bytes": "300"}
"""Segments roll, and the time index grows, within the seconds of one history."""
SKIPPED = 7
"""How many sequence numbers a wrong batch skips."""
BOGUS = [b"-1"]
"""The record of a batch that must be refused."""
FIRST_TIMESTAMP_MS = 1_700_000_000_000
IN_FLIGHT_MAX = 5
RUN_RATE = 0.5
"""How often batches are sent in one call."""
TRIED_AGAIN = (*PASSING, UnknownTopicOrPartition)
"""A client retries after these, at this node or at the next leader."""


_Sequenced = tuple[list[tuple[SentBatch, Awaitable[LogAppendInfo]]], StreamlogError | None]
"""Batches that have their places, with their answers; why the others have none."""


class PartitionWorkload:
    """All clients of one partition."""

    def __init__(self, world: World, partition: TopicPartition, partitions: int) -> None:
        self.world = world
        self.partition = partition
        self.model = PartitionModel(str(partition))
        self._partitions = partitions
        self._random = world.fork()
        self._tally = world.tally
        self._producer_id: int | None = None
        self._producer_epoch = 0
        self._next_sequence = 0
        """Counted through all epochs of the producer, as in record values and in the model."""
        self._epoch_firsts = [0]
        """By producer epoch: the count at which it began; its own sequence is 0 there."""
        self._position = 0
        self._epoch_max = 0
        self._producer_known_to: AbstractLog | None = None
        """The log that has acknowledged a batch, and so takes none that skips sequences."""

    def sessions(self) -> Coroutine[Any, Any, None]:
        return run_sessions(self.world, self._random, self._session, str(self.partition))

    def recovered(self) -> None:
        """The metadata was rebuilt from the bucket."""
        self.model.recovered()
        self._epoch_max = 0

    async def _session(self, node: SimulationNode) -> None:
        """Uses the partition at this node until a call fails."""
        epoch = 0
        try:
            with self.world.waiting(node, f"open of {self.partition}"):
                log = await self._log(node)
            epoch = log.leader_epoch
            check_attached(node)
            self._epoch_max = max(self._epoch_max, epoch)
            await together(
                [
                    self._produce(node, log),
                    self._read_on(node, log),
                    self._read_some(node, log),
                    self._delete_some(node, log),
                    self._leave(node, log),
                ]
            )
        except TRIED_AGAIN as error:
            self.world.trace.add("log-failed", node.name, self.model.name, type(error).__name__)
            await asyncio.sleep(0.2 + 0.4 * self._random.random())
        except OutOfOrderSequence:
            # A leader that was replaced and does not know it yet lacks its successor's batches.
            if epoch == self._epoch_max and not node.is_detached:
                raise
            self.world.trace.add("stale-leader", node.name, self.model.name, epoch)

    async def _log(self, node: SimulationNode) -> AbstractLog:
        """Errors: TRIED_AGAIN."""
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

    async def _leave(self, node: SimulationNode, log: AbstractLog) -> None:
        """Ends the session after a while; some clients roll the segment first."""
        await asyncio.sleep(2 + 8 * self._random.random())
        await self.world.until_ending()
        if self._random.random() < 0.3:
            self._tally.count("roll")
            with self.world.waiting(node, f"roll of {self.partition}"):
                await log.roll()

    def _make(self, random: SeededRandom) -> None:
        assert self._producer_id is not None
        count = 1 + int(random.random() * 4)
        first = self._next_sequence
        encoded = encode_values(
            [b"%d" % (first + i) for i in range(count)],
            timestamp_ms=FIRST_TIMESTAMP_MS + first,
            producer=BatchProducer(self._producer_id, self._producer_epoch, self._sequence(first)),
        )
        batch = SentBatch(first, count, bytes(encoded.data))
        self._next_sequence += count
        self.model.sent.append(batch)
        self.model.unanswered.append(batch)

    async def _produce(self, node: SimulationNode, log: AbstractLog) -> None:
        model = self.model
        while True:
            await asyncio.sleep(0.2 * self._random.random())
            while len(model.unanswered) < 1 + int(self._random.random() * IN_FLIGHT_MAX):
                self._make(self._random)
            if self._random.random() < 0.05 and model.sent:
                # A client may resend after a lost answer: the batch is stored once.
                old = [
                    batch
                    for batch in model.sent[-IN_FLIGHT_MAX:]
                    if batch.base_offset and self._sequence(batch.base_sequence) >= 0
                ]
                await self._send(node, log, old)
            await self._send(node, log, list(model.unanswered))
            await self._misbehave(node, log)

    async def _misbehave(self, node: SimulationNode, log: AbstractLog) -> None:
        """Once all batches are acknowledged: begins the next epoch, or sends a wrong batch."""
        random, first = self._random.random, self._next_sequence
        if random() < 0.04:
            if self.model.unanswered:
                return  # a session at another node, beside this one, has made more
            self._producer_epoch += 1
            self._epoch_firsts.append(first)
            self._tally.count("producer epoch")
        elif self._sequence(first) == 0:
            return  # without a batch of this epoch the broker cannot tell a wrong sequence
        elif random() < 0.04:
            await self._refused(node, log, self._producer_epoch, self._sequence(first) + SKIPPED)
        elif random() < 0.04 and self._producer_epoch > 0:
            await self._refused(node, log, self._producer_epoch - 1, self._sequence(first))

    def _sequence(self, count: int) -> int:
        """The sequence of a record in the producer's current epoch; < 0: in an epoch before."""
        return count - self._epoch_firsts[self._producer_epoch]

    async def _refused(
        self, node: SimulationNode, log: AbstractLog, epoch: int, sequence: int
    ) -> None:
        assert self._producer_id is not None
        self._tally.count("refused produce")
        expected = OutOfOrderSequence if epoch == self._producer_epoch else ProducerFenced
        producer = BatchProducer(self._producer_id, epoch, sequence)
        encoded = encode_values(BOGUS, timestamp_ms=FIRST_TIMESTAMP_MS, producer=producer)
        context = ProduceContext(deadline=self.world.now + 20)
        try:
            with self.world.waiting(node, f"refused produce to {self.partition}"):
                info = await (await log.append(bytes(encoded.data), context))
        except (OutOfOrderSequence, ProducerFenced) as error:
            check_attached(node)
            if epoch < self._producer_epoch and isinstance(error, ProducerFenced):
                return  # another session, beside this one, may have begun the epoch that fences
            # A leader that was replaced and does not know it yet may only know an older epoch.
            is_stale = log.leader_epoch < self._epoch_max
            if not isinstance(error, expected) and not is_stale:
                raise Violation(
                    f"{self.model.name}: {producer} was refused by {type(error).__name__}"
                ) from error
            return
        check_attached(node)
        raise Violation(f"{self.model.name}: {producer} was acknowledged at {info.base_offset}")

    async def _send(self, node: SimulationNode, log: AbstractLog, batches: list[SentBatch]) -> None:
        """Sends all batches, then awaits the answers in order; the first failure ends it."""
        if self._producer_known_to is log and self._random.random() < RUN_RATE:
            pending, failure = await self._sequence_run(node, log, batches)
        else:
            pending, failure = await self._sequence_each(node, log, batches)
        for batch, answer in pending:
            try:
                with self.world.waiting(node, f"answer of {self.partition}"):
                    info = await answer
            except TRIED_AGAIN as error:
                failure = failure or error
                continue
            check_attached(node)
            self.world.trace.add(
                "produced", node.name, self.model.name, batch.base_sequence, info.base_offset
            )
            self.model.acknowledge(batch, info.base_offset)
            self._producer_known_to = log
        if failure is not None:
            raise failure

    async def _sequence_each(
        self, node: SimulationNode, log: AbstractLog, batches: list[SentBatch]
    ) -> _Sequenced:
        """One call for each batch, up to the first failure."""
        pending: list[tuple[SentBatch, Awaitable[LogAppendInfo]]] = []
        context = ProduceContext(deadline=self.world.now + 20)
        for batch in batches:
            self._tally.count("produce")
            try:
                with self.world.waiting(node, f"produce to {self.partition}"):
                    pending.append((batch, await log.append(batch.data, context)))
            except TRIED_AGAIN as error:
                return pending, error
        return pending, None

    async def _sequence_run(
        self, node: SimulationNode, log: AbstractLog, batches: list[SentBatch]
    ) -> _Sequenced:
        """All batches in one call. What follows a batch that was not taken is out of order."""
        pending: list[tuple[SentBatch, Awaitable[LogAppendInfo]]] = []
        failure: StreamlogError | None = None
        context = ProduceContext(deadline=self.world.now + 20)
        self._tally.count("produce run")
        with self.world.waiting(node, f"produce a run to {self.partition}"):
            outcomes = await log.append_many([LogAppend(batch.data, context) for batch in batches])
        for batch, outcome in zip(batches, outcomes, strict=True):
            if not isinstance(outcome, StreamlogError):
                pending.append((batch, outcome))
            elif failure is None:
                if not isinstance(outcome, TRIED_AGAIN):
                    raise outcome
                failure = outcome
        return pending, failure

    async def _read_on(self, node: SimulationNode, log: AbstractLog) -> None:
        """Reads every record once, in order, over all nodes."""
        while True:
            await asyncio.sleep(0.4 * self._random.random())
            start = self._position = max(self._position, log.log_start_offset)
            if start < log.high_watermark:
                end = await self._fetch(node, log, start)
                self._position = max(self._position, end)

    async def _read_some(self, node: SimulationNode, log: AbstractLog) -> None:
        while True:
            await asyncio.sleep(0.4 * self._random.random())
            low, high = log.log_start_offset, log.high_watermark
            await self._fetch(node, log, low + int(self._random.random() * (high - low + 1)))

    async def _fetch(self, node: SimulationNode, log: AbstractLog, start: int) -> int:
        self._tally.count("consume")
        try:
            with self.world.waiting(node, f"fetch of {self.partition} at {start}"):
                fetched = await log.fetch(start, 4096)
        except OffsetOutOfRange:
            if start >= max(log.log_start_offset, self.model.start_asked):
                raise
            return start
        except OffsetNotAvailable:
            return start
        check_attached(node)
        return self.model.read(batches_in(fetched, self._epoch_firsts), start)

    async def _delete_some(self, node: SimulationNode, log: AbstractLog) -> None:
        while True:
            await asyncio.sleep(1 + 4 * self._random.random())
            low, high = log.log_start_offset, log.high_watermark
            before = low + int(self._random.random() * (high - low) * 0.5)
            self.model.start_asked = max(self.model.start_asked, before)
            self._tally.count("delete records")
            with self.world.waiting(node, f"deletion of {self.partition} below {before}"):
                start = await log.delete_records(before)
            check_attached(node)
            self.model.start = max(self.model.start, start)

    async def check(self, node: SimulationNode) -> None:
        """After healing: resends unanswered batches, then reads everything."""
        model, log = self.model, await log_at_last(node, self._log)
        while model.unanswered:
            await self._send(node, log, list(model.unanswered))
        seen: list[SeenBatch] = []
        start = offset = log.log_start_offset
        if start < model.start:
            raise Violation(f"{model.name}: starts at {start}, {model.start} was acknowledged")
        while offset < log.high_watermark:
            batches = batches_in(await log.fetch(offset, 1 << 16), self._epoch_firsts)
            self._tally.count("consume")
            if not batches:
                raise Violation(f"{model.name}: nothing at {offset} below {log.high_watermark}")
            offset = model.read(batches, offset)
            seen += batches
        model.finish(start, seen)
        await self._check_timestamps(log, seen, start)

    async def _check_timestamps(self, log: AbstractLog, seen: list[SeenBatch], start: int) -> None:
        """A look-up by the timestamp of a batch finds the batch; timestamps are unique."""
        for batch in seen[:: max(1, len(seen) // 4)]:
            timestamp_ms = FIRST_TIMESTAMP_MS + batch.base_sequence
            result = await log.offset_for_timestamp(timestamp_ms, Isolation.READ_UNCOMMITTED)
            self._tally.count("look up time")
            if result.offset != max(batch.base_offset, start):
                raise Violation(f"{self.model.name}: {batch} was looked up, {result} was found")


def batches_in(fetched: LogFetch, epoch_firsts: Sequence[int]) -> list[SeenBatch]:
    """Decodes every record and checks CRCs. Sequences are counted through all epochs of the
    producer; `epoch_firsts[epoch]` is the count at which an epoch began."""
    return [
        SeenBatch(
            batch.header.base_offset,
            epoch_firsts[batch.header.producer_epoch] + batch.header.base_sequence,
            tuple(int(bytes(value or b"-1")) for _, _, _, value, _ in decode(batch.view)),
        )
        for batch in batches_of(fetched)
    ]


def batches_of(fetched: LogFetch) -> list[ScannedBatch]:
    """The batches of an answer; CRCs are checked."""
    return scan(b"".join(fetched.parts))


async def log_at_last(node: SimulationNode, opening: Any) -> AbstractLog:
    """The log, once the leases of its dead holders have ended."""
    while True:
        try:
            log: AbstractLog = await opening(node)
            return log
        except TRIED_AGAIN:
            for row in node.engine.metadata.streams():
                await take_over_holder(node, row.stream_id)
            await asyncio.sleep(0.5)
