"""A node opens the logs of partitions that it leads, and closes them when it stops leading."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import Closed, NotLeader, StreamFenced
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories, LogKind
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.manager import LogManager
from streamlog.log.shared.shared_logs import SharedLogFactory
from streamlog.log.staged_logs import ManifestEntry
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.located import OffsetWindow
from streamlog.model.partition import TopicPartition
from streamlog.model.staging import AttachedRow, WriterState
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import SeededRandom
from streamlog.server.context import RequestContext, allow_all
from streamlog.server.metrics import ServerMetrics, TopicTraffic
from streamlog.server.services.admin import AdminService
from streamlog.server.services.locating import LocateService
from streamlog.settings import Settings
from streamlog.settings.limits import LimitsConfig
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded, read, refused
from streamlog.testing.memory_streams import MemoryMedium

PARTITION = TopicPartition("t", 0)
DAY_MS = 24 * 3_600_000


class Node:
    """A manager on the shared medium, with a view of its own of who leads."""

    def __init__(self, medium: MemoryMedium, clock: ManualClock, node_id: int) -> None:
        self.client = medium.client(clock)
        self.leadership = Leadership(node_id)
        metrics = LogMetrics(CollectorRegistry())
        self.environment = LogEnvironment(clock, SeededRandom(node_id), LogConfig(), metrics)
        self.factory = SharedLogFactory(self.client, self.environment)
        self._kv = medium.kv

    async def start(self) -> None:
        factories = LogFactories({LogKind.SHARED: self.factory})
        self.logs = await LogManager.open(factories, self._kv, self.environment, self.leadership)

    async def stop(self) -> None:
        await self.logs.close()
        await self.client.stop()


@asynccontextmanager
async def two_nodes():
    medium, clock = MemoryMedium(), ManualClock()
    nodes = [Node(medium, clock, 1), Node(medium, clock, 2)]
    for node in nodes:
        await node.start()
    yield (*nodes, clock)
    for node in nodes:
        await node.stop()


async def assign(nodes: tuple[Node, ...], leader: int | None) -> None:
    for node in nodes:
        await node.leadership.assign(PARTITION, leader)


def run(test) -> None:
    async def body() -> None:
        async with two_nodes() as (first, second, clock):
            await first.logs.create_topic("t", 1, {"retention.ms": str(DAY_MS)})
            await assign((first, second), 1)
            await test(first, second, clock)

    asyncio.run(body())


def test_a_partition_moves_with_its_leader_and_keeps_its_records():
    async def test(first, second, clock):
        log = await first.logs.log(PARTITION)
        await append(log, encoded([b"one"]))
        await assign((first, second), 2)
        assert (first.logs.leader_of(PARTITION), second.logs.leader_of(PARTITION)) == (2, 2)
        assert first.logs.open_log(PARTITION) is None
        with pytest.raises(Closed):
            await log.append(encoded([b"lost"]))
        moved = await second.logs.log(PARTITION)
        await append(moved, encoded([b"two"]))
        assert [record[3] for record in await read(moved)] == [b"one", b"two"]
        assert moved.leader_epoch > log.leader_epoch

    run(test)


def test_a_node_that_does_not_lead_names_the_leader_and_opens_nothing():
    async def test(first, second, clock):
        leading = await first.logs.log(PARTITION)
        with pytest.raises(NotLeader) as refused:
            await second.logs.log(PARTITION)
        assert refused.value.fields["leader_node"] == 1
        await append(leading, encoded([b"x"]))
        await assign((first, second), None)
        for node in (first, second):
            with pytest.raises(NotLeader, match="no leader"):
                await node.logs.log(PARTITION)

    run(test)


class StagedElsewhere:
    """Staged writes whose last commit came to one stream; no test gets further."""

    def __init__(self, stream_id: int) -> None:
        self._stream_id = stream_id

    def writer(self, writer_id: str) -> WriterState:
        return WriterState(0, 0, (AttachedRow(self._stream_id, 0, 1),))


def test_describing_locating_and_staged_writes_open_only_partitions_that_the_node_leads():
    async def test(first, second, clock):
        opened = await first.logs.log(PARTITION)
        second.logs.take_staged(StagedElsewhere(opened.stream_ids.data), partition_of)
        staged, locating = second.logs.staged, locate_service(second.logs)
        (described,) = await admin_service(second.logs, clock).partitions("t", 1, 10.0)
        assert (described.leader_node, type(described.error)) == (1, NotLeader)
        calls = [
            staged.status("writer"),
            staged.stage("writer", "1", {PARTITION: encoded([b"x"])}),
            staged.commit("writer", 1, [ManifestEntry(1, [PARTITION])]),
            located(locating, OffsetWindow("t", 0, 0, 1)),
        ]
        for call in calls:
            error = await refused(NotLeader, call)
            assert error.fields["leader_node"] == 1
        assert second.logs.open_log(PARTITION) is None
        await append(opened, encoded([b"x"]))

    async def partition_of(stream_id: int) -> TopicPartition:
        return PARTITION

    run(test)


def admin_service(logs: LogManager, clock: Clock) -> AdminService:
    registry = CollectorRegistry()
    return AdminService(
        logs,
        Settings(),
        node_id=2,
        clock=clock,
        authorize=allow_all,
        metrics=ServerMetrics(registry),
        topic_metrics=TopicTraffic(registry, lambda _: True),
        auto_create=lambda: False,
    )


def locate_service(logs: LogManager) -> LocateService:
    async def catch_up() -> int:
        return 1

    metadata: Any = SimpleNamespace(catch_up=catch_up)
    pins: Any = None
    return LocateService(logs, metadata, pins, authorize=allow_all, limits=LimitsConfig())


async def located(service: LocateService, window: OffsetWindow) -> None:
    async with aclosing(service.locate(RequestContext(), [window])) as parts:
        async for _ in parts:
            pass


def test_retention_opens_only_partitions_that_the_node_leads():
    async def test(first, second, clock):
        log = await first.logs.log(PARTITION)
        await append(log, encoded([b"x"], at_ms=clock.now_ms()))
        clock.advance(2 * DAY_MS)
        await second.logs.retention_tick()
        assert second.logs.open_log(PARTITION) is None
        assert log.log_start_offset == 0
        await first.logs.retention_tick()
        assert log.log_start_offset == 1

    run(test)


def test_leading_ends_only_when_an_open_under_way_is_closed():
    async def test(first, second, clock):
        opening, may_open = asyncio.Event(), asyncio.Event()
        real = first.factory.open

        async def slow(*arguments):
            opening.set()
            await may_open.wait()
            return await real(*arguments)

        first.factory.open = slow
        asking = asyncio.ensure_future(first.logs.log(PARTITION))
        await opening.wait()
        ending = asyncio.ensure_future(first.leadership.assign(PARTITION, 2))
        await asyncio.sleep(0)
        assert first.logs.leader_of(PARTITION) == 2
        assert not ending.done()
        may_open.set()
        await ending
        assert first.logs.open_log(PARTITION) is None
        with pytest.raises(NotLeader):
            await asking

    run(test)


def test_a_partition_that_was_created_and_never_opened_moves():
    async def test(first, second, clock):
        await assign((first, second), 2)
        moved = await second.logs.log(PARTITION)
        await append(moved, encoded([b"x"]))

    run(test)


def test_a_partition_whose_meta_stream_was_taken_alone_moves_as_a_whole():
    """A leader died while it took a dead node's partition, and that node's next process has what
    was left: nobody else could open it as long as that process lives."""

    async def test(first, second, clock):
        log = await first.logs.log(PARTITION)
        await append(log, encoded([b"one"]))
        ids = log.stream_ids
        await assign((first, second), None)
        for left in (ids.data, ids.txn):
            await first.client.open_stream(left, OpenStreamOptions())
            await second.client.open_stream(ids.meta, OpenStreamOptions())
            await assign((first, second), 2)
            moved = await second.logs.log(PARTITION)
            assert [record[3] for record in await read(moved)] == [b"one"]
            await assign((first, second), None)

    run(test)


def test_streams_that_are_left_of_many_partitions_are_listed_once():
    async def test(first, second, clock):
        partitions = [TopicPartition("many", number) for number in range(20)]
        await first.logs.create_topic("many", len(partitions), {})
        for partition in partitions:
            await first.leadership.assign(partition, 2)
            await second.logs.log(partition)
        listings = 0
        list_streams = first.client.list_streams

        async def counted(**options):
            nonlocal listings
            listings += options.get("after", 0) == 0
            return await list_streams(**options)

        first.client.list_streams = counted
        for _ in range(2):
            for partition in partitions:
                await first.leadership.assign(partition, 2)
        assert listings == 2

    run(test)


def test_a_partition_whose_log_failed_moves():
    async def test(first, second, clock):
        log = await first.logs.log(PARTITION)
        await append(log, encoded([b"one"]))
        meta = first.logs.describe_partition(PARTITION).storage_ids["meta"]
        await first.client.open_stream(meta, OpenStreamOptions())
        await refused(StreamFenced, log.roll())
        assert first.logs.open_log(PARTITION) is None
        await assign((first, second), 2)
        moved = await second.logs.log(PARTITION)
        assert [record[3] for record in await read(moved)] == [b"one"]

    run(test)


def test_a_caller_that_gives_up_and_asks_again_waits_for_the_end_of_leading():
    async def test(first, second, clock):
        log = await first.logs.log(PARTITION)
        first.client.hold()
        under_way = await log.append(encoded([b"one"]))
        given_up = asyncio.ensure_future(first.leadership.assign(PARTITION, 2))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        again = asyncio.ensure_future(assign((first, second), 2))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not again.done()
        first.client.release()
        await again
        assert (await under_way).base_offset == 0
        moved = await second.logs.log(PARTITION)
        assert [record[3] for record in await read(moved)] == [b"one"]

    run(test)
