"""Calls to a log manager, some of them cancelled, while everything that they use changes.

Topics come and go, leaders change, streams are taken over, and the KV store answers late, with an
error, or loses the answer. Afterwards every call has returned, the manager works and closes, and
room and streams are given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import Internal, MetadataUnavailable, OutcomeUnknown, StreamlogError
from streamlog.log.api.abstract_log import MAX_TIMESTAMP, AbstractLog, Isolation
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories, LogKind
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.manager import LogManager
from streamlog.log.shared.shared_log import SharedLog
from streamlog.log.shared.shared_logs import SharedLogFactory
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.memory_streams import MemoryMedium

TOPICS = ("a", "b", "c")
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in range(2)]
CALLS = 600
ROOM_BYTES = 3000
CONFIG = LogConfig(meta_compaction_bytes=2000, checkpoint_interval_batches=3)


class Turns:
    """Lets other tasks run, some times more and some times less."""

    def __init__(self, random: Random) -> None:
        self._random = random

    async def pass_by(self) -> None:
        for _ in range(self._random.randrange(5)):
            await asyncio.sleep(0)

    def late(self, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            await self.pass_by()
            return await work(*arguments)

        return call


class TroubledKV:
    """A KVClient that answers late and, while `is_troubled`, with errors or not at all."""

    def __init__(self, kv: Any, random: Random, turns: Turns) -> None:
        self._kv = kv
        self._random = random
        self._turns = turns
        self.is_troubled = False

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._kv, name)
        if name == "watch_kv":
            return work

        async def call(*arguments: Any, **options: Any) -> Any:
            await self._turns.pass_by()
            fails = self.is_troubled and self._random.random() < 0.03
            if fails and (name.startswith(("get", "list")) or self._random.random() < 0.5):
                raise MetadataUnavailable("away")
            answer = await work(*arguments, **options)
            if fails:
                raise OutcomeUnknown("the answer was lost")
            await self._turns.pass_by()
            return answer

        return call


class Calls:
    """Random calls to one manager."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.turns = Turns(self.random)
        self.medium = MemoryMedium()
        for name in ("create", "append", "update", "remove"):
            setattr(self.medium, name, self.turns.late(getattr(self.medium, name)))
        self.kv = TroubledKV(self.medium.kv, self.random, self.turns)
        clock = ManualClock()
        self.client = self.medium.client(clock, budget_bytes=ROOM_BYTES)
        self.leadership = Leadership(1)
        metrics = LogMetrics(CollectorRegistry())
        self.environment = LogEnvironment(clock, SeededRandom(seed), CONFIG, metrics)
        self.bugs: list[BaseException] = []

    async def open(self) -> None:
        factory = SharedLogFactory(self.client, self.environment)
        factories = LogFactories({LogKind.SHARED: factory})
        self.logs = await LogManager.open(factories, self.kv, self.environment, self.leadership)

    async def one(self) -> None:
        work = self.random.choices(
            [self.change_a_topic, self.change_a_leader, self.take_a_stream, self.commit, self.use],
            [10, 3, 5, 8, 74],
        )[0]
        try:
            await work()
        except StreamlogError as error:
            if isinstance(error, Internal):
                self.bugs.append(error)
        except Exception as error:  # noqa: BLE001 - any other is a bug
            self.bugs.append(error)

    async def change_a_topic(self) -> None:
        topic, logs = self.random.choice(TOPICS), self.logs
        match self.random.randrange(4):
            case 0 | 1:
                await logs.create_topic(topic, 2, {"internal.segment.bytes": "300"})
            case 2:
                await logs.delete_topic(topic)
            case 3:
                value = str(self.random.randrange(10**6))
                await logs.alter_topic_configs(topic, set={"retention.ms": value})

    async def change_a_leader(self) -> None:
        leader = self.random.choice([1, 1, 2, None])
        await self.leadership.assign(self.random.choice(PARTITIONS), leader)

    async def take_a_stream(self) -> None:
        log = await self.log()
        assert isinstance(log, SharedLog)
        stream_id = self.random.choice(log.stream_ids)
        await self.client.open_stream(stream_id, OpenStreamOptions())

    async def commit(self) -> None:
        """What a staged commit does with the logs, except attaching batches."""
        partitions = [p for p in PARTITIONS if self.random.random() < 0.5]
        logs = [await self.logs.log(partition) for partition in partitions]
        async with AsyncExitStack() as turns:
            held = []
            for log in logs:
                assert isinstance(log, SharedLog)
                held.append(await turns.enter_async_context(log.attaching()))
            await asyncio.gather(*(attaching.ready() for attaching in held))
            for attaching in held:
                attaching.show()

    async def use(self) -> None:
        kind = self.random.randrange(12)
        if kind == 0:
            await self.logs.retention_tick()
            return
        log = await self.log()
        match kind:
            case 1:
                await log.delete_records(-1)
            case 2:
                await log.roll()
            case 3:
                await log.wait_for(log.high_watermark, Isolation.READ_COMMITTED)
            case 4:
                await log.fetch(log.log_start_offset, 500)
            case 5:
                await log.offset_for_timestamp(MAX_TIMESTAMP, Isolation.READ_COMMITTED)
            case _:
                await append(log, encoded([b"x" * self.random.randrange(200)]))

    async def log(self) -> AbstractLog:
        return await self.logs.log(self.random.choice(PARTITIONS))

    async def answered(self, calls: list[asyncio.Task[None]]) -> None:
        """Returns when all calls have. Long polls need a topic, and a record."""
        while not all(call.done() for call in calls):
            await asyncio.gather(self.make_usable(), return_exceptions=True)
            for partition in PARTITIONS:
                await asyncio.gather(self.append_to(partition), return_exceptions=True)

    async def make_usable(self) -> None:
        """Every topic exists, and this node leads every partition."""
        for partition in PARTITIONS:
            await self.leadership.assign(partition, 1)
        await self.logs.repair()
        for topic in TOPICS:
            if self.logs.topic(topic) is None:
                await self.logs.create_topic(topic, 2)

    async def append_to(self, partition: TopicPartition) -> None:
        await append(await self.logs.log(partition), encoded([b"x"]))


@pytest.mark.parametrize("seed", range(12))
def test_every_call_is_answered_while_topics_leaders_and_streams_change(seed: int) -> None:
    async def main() -> None:
        calls = Calls(seed)
        await calls.open()
        calls.kv.is_troubled = True
        running = []
        for _ in range(CALLS):
            running.append(asyncio.ensure_future(calls.one()))
            await calls.turns.pass_by()
            if calls.random.random() < 0.25:
                calls.random.choice(running).cancel()
        calls.kv.is_troubled = False
        await asyncio.wait_for(calls.answered(running), 30)
        assert (calls.bugs, calls.logs.failure) == ([], None)
        await calls.make_usable()
        # The first append of a log whose meta stream was taken fails the log.
        await asyncio.gather(*map(calls.append_to, PARTITIONS), return_exceptions=True)
        await asyncio.gather(*map(calls.append_to, PARTITIONS))
        await calls.logs.delete_orphans()
        assert len(calls.medium.rows) == 4 * len(PARTITIONS)
        await asyncio.wait_for(calls.logs.close(), 30)
        assert calls.client.budget.used_bytes == 0
        await calls.client.stop()

    asyncio.run(main())
