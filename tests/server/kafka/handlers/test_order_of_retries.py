"""Idempotent producers over a node that loses logs and opens none for a while: whatever happens,
each record is there once, in order.

A `Client` does what librdkafka does: five batches of a partition under way, those that were refused
are sent again in order, before new ones. It fails where the oldest batch is out of sequence: there
librdkafka takes it for delivered, and nobody has it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

import pytest

from streamlog.codec.batch import BatchProducer, scan, sequence_after
from streamlog.codec.records import encode_values
from streamlog.errors import StoreUnavailable
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log import AbstractLog
from streamlog.log.manager import LogManager
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.server.kafka.call import Reply
from streamlog.testing.basic_streams import BasicStreamClient
from tests.log.cluster import cluster
from tests.server.kafka.handlers.produce_world import (
    NEWEST_WITH_NAMES,
    ProduceWorld,
    call,
    only,
    produce_request,
    response_of,
    world_over,
)
from tests.support.replacing import replace_method

PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))
UNDER_WAY_MAX = 5
SENT_AGAIN = {
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_LEADER_OR_FOLLOWER,
    KafkaError.REQUEST_TIMED_OUT,
}


class ToPartition:
    """A producer's batches of one partition, by number."""

    def __init__(self, count: int) -> None:
        self.to_send = deque(range(count))
        self.under_way: set[int] = set()
        self.left = set(range(count))

    def take(self) -> int | None:
        if not self.to_send or len(self.under_way) == UNDER_WAY_MAX:
            return None
        number = self.to_send.popleft()
        self.under_way.add(number)
        return number

    def answered(self, number: int, code: KafkaError) -> None:
        self.under_way.discard(number)
        if code is KafkaError.NONE:
            self.left.discard(number)
            return
        is_oldest = number == min(self.left)
        assert code in SENT_AGAIN or (
            code is KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_oldest
        ), f"batch {number}: {code}"
        self.to_send = deque(sorted((number, *self.to_send)))


class Client:
    """One connection: requests in order, answers in order."""

    def __init__(self, world: ProduceWorld, random: Random, producer_id: int) -> None:
        self.producer_id = producer_id
        self.count = random.randint(5, 30)
        self.partitions = [ToPartition(self.count) for _ in PARTITIONS]
        self._first = random.choice((0, 2**31 - 7))
        self._world = world
        self._random = random
        self._begun: asyncio.Queue[tuple[int, int, Reply]] = asyncio.Queue()
        self._may_send = asyncio.Event()

    def sequences(self) -> list[int]:
        return [sequence_after(self._first, number) for number in range(self.count)]

    def has_ended(self) -> bool:
        return not any(one.left for one in self.partitions)

    async def send(self) -> None:
        queue: deque[tuple[int, int]] = deque()
        while not self.has_ended():
            for partition, one in enumerate(self.partitions):
                while (number := one.take()) is not None:
                    queue.append((partition, number))
            if not queue:
                self._may_send.clear()
                await self._may_send.wait()
                continue
            taken = [queue.popleft() for _ in range(min(len(queue), self._random.randint(1, 6)))]
            replies = await self._world.produce.produce_many(
                [
                    (call(NEWEST_WITH_NAMES), produce_request(self._batch(number), partition=to))
                    for to, number in taken
                ]
            )
            for (partition, number), reply in zip(taken, replies, strict=True):
                self._begun.put_nowait((partition, number, reply))
            await asyncio.sleep(0)

    async def read(self) -> None:
        while not self.has_ended():
            partition, number, reply = await self._begun.get()
            code = KafkaError(only(await response_of(reply)).error_code)
            self.partitions[partition].answered(number, code)
            self._may_send.set()

    def _batch(self, number: int) -> bytes:
        producer = BatchProducer(self.producer_id, 0, sequence_after(self._first, number))
        return bytes(encode_values([b"v"], timestamp_ms=1000, producer=producer).data)


class Faults:
    def __init__(self, logs: LogManager, client: BasicStreamClient, random: Random) -> None:
        self._logs = logs
        self._client = client
        self._random = random
        self._is_away = False
        open_log = logs.log

        async def opened(partition: TopicPartition) -> AbstractLog:
            await self._steps(10)
            if self._is_away:
                raise StoreUnavailable("the store is away; retry with back-off")
            return await open_log(partition)

        replace_method(logs, "log", opened)

    async def run(self) -> None:
        while True:
            await self._steps(30)
            await self._random.choice((self._hold, self._release, self._lose_log, self._turn))()

    async def _steps(self, most: int) -> None:
        for _ in range(self._random.randint(1, most)):
            await asyncio.sleep(0)

    async def _hold(self) -> None:
        """Nothing becomes durable for a while, so that there is something to lose."""
        self._client.hold()
        await self._steps(30)
        if self._random.random() < 0.5:
            await self._lose_log()
        self._client.release()

    async def _release(self) -> None:
        self._client.release()

    async def _lose_log(self) -> None:
        partition = self._random.choice(PARTITIONS)
        if self._logs.open_log(partition) is not None:
            data = self._logs.describe_partition(partition).storage_ids["data"]
            await self._client.open_stream(data, OpenStreamOptions())

    async def _turn(self) -> None:
        self._is_away = not self._is_away


async def stored(log: AbstractLog, producer_id: int) -> list[int]:
    found = await log.fetch(0, 1 << 24)
    batches = scan(b"".join(found.parts))
    return [one.header.base_sequence for one in batches if one.header.producer_id == producer_id]


@pytest.mark.parametrize("seed", range(30))
def test_every_record_is_there_once_and_in_order(seed: int) -> None:
    async def main() -> None:
        random = Random(seed)
        async with cluster() as made:
            logs = await made.node()
            await logs.create_topic("t", len(PARTITIONS))
            opened = logs.log
            world = world_over(logs, clock=made.clock)
            client = made.running[0][1]
            assert isinstance(client, BasicStreamClient)
            faults = asyncio.create_task(Faults(logs, client, random).run())
            clients = [Client(world, random, number) for number in range(random.randint(1, 3))]
            async with asyncio.timeout(60):
                await asyncio.gather(
                    *(one.send() for one in clients), *(one.read() for one in clients)
                )
            faults.cancel()
            await asyncio.wait({faults})
            for partition in PARTITIONS:
                log = await opened(partition)
                for one in clients:
                    assert await stored(log, one.producer_id) == one.sequences()
            assert len(world.service.unanswered) == 0

    asyncio.run(main())
