"""A partition that is slow to open delays a request no longer than its timeout."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamlog import errors
from streamlog.model.located import OffsetWindow
from streamlog.model.partition import TopicPartition
from streamlog.server.context import RequestContext, allow_all
from streamlog.server.metrics import ServerMetrics, TopicTraffic
from streamlog.server.services.admin import AdminService
from streamlog.server.services.locating import LocateService
from streamlog.settings.limits import LimitsConfig
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto
from tests.engine.remote import LoopClock, virtually
from tests.support.empty_log import EmptyLog
from tests.support.log_insides import factory_of
from tests.support.replacing import replace_method
from tests.support.running_node import RunningNode, running_node
from tests.support.server_fakes import FakeLogs
from tests.support.server_harness import batch, with_limits


def produce_request(partition: int, timeout_ms: int = 30_000) -> log_pb2.ProduceRequest:
    part = log_pb2.ProducePartition(partition=partition, record_batches=batch(b"v"))
    topic = log_pb2.ProduceTopic(topic="t", partitions=[part])
    return log_pb2.ProduceRequest(topics=[topic], timeout_ms=timeout_ms)


def delete_request(partition: int, timeout_ms: int = 30_000) -> log_pb2.DeleteRecordsRequest:
    part = log_pb2.DeleteRecordsPartition(partition=partition, offset=1)
    topic = log_pb2.DeleteRecordsTopic(topic="t", partitions=[part])
    return log_pb2.DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)


def fetch_request(*partitions: int) -> log_pb2.FetchRequest:
    parts = [log_pb2.FetchPartition(partition=partition) for partition in partitions]
    return log_pb2.FetchRequest(topics=[log_pb2.FetchTopic(topic="t", partitions=parts)])


def offsets_request(partition: int) -> log_pb2.ListOffsetsRequest:
    part = log_pb2.ListOffsetsPartition(partition=partition, timestamp_ms=-1)
    topic = log_pb2.ListOffsetsTopic(topic="t", partitions=[part])
    return log_pb2.ListOffsetsRequest(topics=[topic])


def epoch_request(partition: int) -> log_pb2.OffsetsForLeaderEpochRequest:
    part = log_pb2.OffsetsForLeaderEpochPartition(partition=partition, leader_epoch=1)
    topic = log_pb2.OffsetsForLeaderEpochTopic(topic="t", partitions=[part])
    return log_pb2.OffsetsForLeaderEpochRequest(topics=[topic])


def error_of(response: Any) -> errors.StreamlogError | None:
    [part] = response.topics[0].partitions
    return from_proto(part.error) if part.HasField("error") else None


async def pipelined(node: RunningNode, *requests: log_pb2.ProduceRequest) -> list[Any]:
    """The error of each response, or None, in order."""
    stream = node.log.ProduceStream()
    for request in requests:
        await stream.write(log_pb2.ProduceStreamRequest(request=request))
    await stream.done_writing()
    errors_found: list[Any] = []
    async for answer in stream:
        errors_found += [error_of(single.response) for single in answer.answers]
    return errors_found


def test_requests_end_at_their_timeout_while_a_partition_opens() -> None:
    """Once they waited as long as the open did, and a pipelined one held up all behind it."""

    async def main() -> None:
        async with running_node() as node, asyncio.timeout(60):
            new = admin_pb2.NewTopic(name="t", partitions=2)
            await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))
            assert error_of(await node.log.Produce(produce_request(1))) is None
            assert node.node.engine is not None
            factory = factory_of(node.node.engine.logs)
            real, may_open, opens = factory.open, asyncio.Event(), 0

            async def slow(*args: Any) -> Any:
                nonlocal opens
                opens += 1
                await may_open.wait()
                return await real(*args)

            replace_method(factory, "open", slow)
            refused = [
                error_of(await node.log.Produce(produce_request(0, timeout_ms=1))),
                error_of(await node.log.DeleteRecords(delete_request(0, timeout_ms=1))),
            ]
            late, other = await pipelined(
                node, produce_request(0, timeout_ms=1), produce_request(1)
            )
            assert other is None
            for error in (*refused, late):
                assert type(error) is errors.DeadlinePassed
                assert error.is_retryable
                assert error.has_no_side_effects
            waiting = asyncio.ensure_future(node.log.Produce(produce_request(0)))
            may_open.set()
            assert error_of(await waiting) is None
            assert error_of(await node.log.DeleteRecords(delete_request(0))) is None
            assert opens == 1, "an open is shared, and goes on without those who gave up"

    asyncio.run(main())


def test_look_ups_end_at_their_timeout_while_a_partition_opens() -> None:
    """Without a deadline of the client they once waited for as long as the store was away."""

    async def main() -> None:
        async with running_node(limits__open_wait_ms=1) as node, asyncio.timeout(60):
            new = admin_pb2.NewTopic(name="t", partitions=2)
            await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))
            assert error_of(await node.log.Produce(produce_request(1))) is None
            assert node.node.engine is not None
            factory = factory_of(node.node.engine.logs)
            real, may_open, opens = factory.open, asyncio.Event(), 0

            async def slow(*args: Any) -> Any:
                nonlocal opens
                opens += 1
                await may_open.wait()
                return await real(*args)

            replace_method(factory, "open", slow)
            refused = [
                error_of(await node.log.Fetch(fetch_request(0), timeout=30)),
                error_of(await node.log.ListOffsets(offsets_request(0), timeout=30)),
                error_of(await node.log.OffsetsForLeaderEpoch(epoch_request(0), timeout=30)),
            ]
            both = await node.log.Fetch(fetch_request(0, 1), timeout=30)
            opening, opened = both.topics[0].partitions
            assert opened.high_watermark == 1
            assert opened.record_batches, "what is open is read meanwhile"
            for error in (*refused, from_proto(opening.error)):
                assert type(error) is errors.DeadlinePassed
                assert error.is_retryable
                assert "t-0" in error.message
                assert "object store" in error.message
            may_open.set()
            assert error_of(await node.log.Produce(produce_request(0))) is None
            fetched = await node.log.Fetch(fetch_request(0), timeout=30)
            assert error_of(fetched) is None
            assert opens == 1, "an open is shared, and goes on without those who gave up"

    asyncio.run(main())


class SlowLogs(FakeLogs):
    """No partition is open; each opens `open_s` after it was asked for."""

    staged = None

    def __init__(self, open_s: float) -> None:
        super().__init__()
        self._open_s = open_s

    def open_log(self, partition: TopicPartition) -> None:
        return None

    async def log(self, partition: TopicPartition) -> Any:
        await asyncio.sleep(self._open_s)
        return EmptyLog()


def test_a_description_of_many_partitions_waits_once_for_all_of_them() -> None:
    registry = CollectorRegistry()
    admin = AdminService(
        SlowLogs(3600),
        with_limits(open_wait_ms=10_000),
        node_id=1,
        clock=LoopClock(),
        authorize=allow_all,
        metrics=ServerMetrics(registry),
        topic_metrics=TopicTraffic(registry, lambda _: True),
        auto_create=lambda: False,
    )

    async def scenario() -> None:
        deadline = admin.open_deadline(RequestContext())
        for topic in ("a", "b"):
            described = await admin.partitions(topic, 100, deadline)
            assert {type(partition.error) for partition in described} == {errors.DeadlinePassed}
        earlier = asyncio.get_running_loop().time() + 3
        assert admin.open_deadline(RequestContext(deadline=earlier)) == earlier

    assert virtually(scenario) == pytest.approx(10)


def test_partitions_whose_records_are_looked_for_open_side_by_side() -> None:
    class Metadata:
        async def catch_up(self) -> int:
            return 1

    locating = LocateService(
        SlowLogs(1),
        Metadata(),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        authorize=allow_all,
        limits=LimitsConfig(),
    )

    async def scenario() -> None:
        windows = [OffsetWindow("t", partition, 0, 5) for partition in range(64)]
        async with aclosing(locating.locate(RequestContext(), windows)) as parts:
            assert len([part async for part in parts]) == 1

    assert virtually(scenario) == pytest.approx(2)
