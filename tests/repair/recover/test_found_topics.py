"""Several topics of one name, several streams for one partition, and partitions that are lost."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from streamlog.errors import Conflict, Corrupt
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.partition import TopicPartition
from streamlog.repair.findings import RepairReport, Severity
from streamlog.wiring import OpenEngine
from tests.repair.cluster import Cluster, consume, partition, produce, recovered, run
from tests.repair.remnants import lose_checkpoints, lose_objects
from tests.support.log_insides import factory_of, streams_of


def told(report: RepairReport, severity: Severity) -> list[str]:
    return [one.detail for one in report.findings if one.severity is severity]


def meta_of(log: AbstractLog) -> int:
    return streams_of(log).meta.stream.stream_id


def next_millisecond(cluster: Cluster) -> None:
    """Segments that are opened from now on are younger than those before."""
    now_ms = cluster.clock.now_ms()
    while cluster.clock.now_ms() == now_ms:
        pass


async def make_second(engine: OpenEngine, number: int) -> int:
    """The streams of a call that adds the partition to `t` as well, and comes second."""
    topic = engine.logs.topic("t")
    assert topic is not None
    attempt = TopicIdentity("t", UUID(topic.topic_id), "second")
    (handle,) = await factory_of(engine.logs).create(attempt, [number], TopicConfig())
    return handle


async def append_to(engine: OpenEngine, number: int, handle: int) -> None:
    log = await factory_of(engine.logs).open(
        TopicPartition("t", number), handle, TopicConfig(), lambda _log, _error: None
    )
    await produce(log, b"in nobody's partition")
    await log.close()


def test_partitions_that_were_added_twice_at_once_keep_their_records() -> None:
    """The streams of the call that came second are younger, and are as good as deleted."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            add = engine.logs.create_partitions
            results = await asyncio.gather(add("t", 2), add("t", 2), return_exceptions=True)
            assert [type(one) for one in results if isinstance(one, BaseException)] == [Conflict]
            log = await partition(engine, "t", 1)
            await produce(log, b"precious")
            content = await consume(log)
            second = await make_second(engine, 1)
            assert second > meta_of(log)
        await lose_checkpoints(cluster)
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert not told(report, Severity.ERROR)
        assert any(f"{second}, which has no records" in one for one in told(report, Severity.NOTE))
        await cluster.is_clean()
        async with cluster.node() as engine:
            log = await partition(engine, "t", 1)
            assert await consume(log) == content
            assert await produce(log, b"more") == 1

    run(scenario)


def test_a_second_stream_of_a_partition_that_has_records_is_an_error() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            log = await partition(engine, "t")
            second = await make_second(engine, 0)
            await append_to(engine, 0, second)
            await produce(log, b"kept")
            next_millisecond(cluster)
            await log.roll()
            content, first = await consume(log), meta_of(log)
            assert first < second
        await lose_checkpoints(cluster)
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match="two meta streams with records"):
            await recovered(cluster)
        report = await recovered(cluster, accept_data_loss=True)
        (error,) = told(report, Severity.ERROR)
        assert f"the records of {second} are left without a name" in error
        async with cluster.node() as engine:
            assert await consume(await partition(engine, "t")) == content

    run(scenario)


def test_a_topic_that_another_node_made_anew_is_the_one_that_comes_back() -> None:
    """Its streams have lower ids than those of the topic that had the name before."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(1, crash=True) as first, cluster.node(2, crash=True) as second:
            await first.logs.create_topic("other", 1)
            await second.logs.create_topic("t", 1)
            log = await partition(second, "t")
            await produce(log, b"old life")
            old = meta_of(log)
            next_millisecond(cluster)
            await second.logs.delete_topic("t")
            # The first node reads that the name is free.
            await first.metadata.seal(second.metadata.tenure, even_if_alive=True)
            await first.logs.create_topic("t", 1)
            log = await partition(first, "t")
            await produce(log, b"new life")
            content = await consume(log)
            assert meta_of(log) < old
        await lose_checkpoints(cluster)
        cluster.lose_metadata()
        report = await recovered(cluster)
        (warning,) = told(report, Severity.WARNING)
        assert "topic t was deleted and made again" in warning
        assert "by the clocks of the nodes" in warning
        async with cluster.node() as engine:
            assert await consume(await partition(engine, "t")) == content

    run(scenario)


def test_a_topic_keeps_its_number_of_partitions_when_the_last_ones_are_lost() -> None:
    """Keys stay with their partitions. Tags in the checkpoint tell of those that are lost."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 2)
            await engine.logs.create_partitions("t", 4)
            logs = [await partition(engine, "t", number) for number in range(4)]
            for log in logs:
                await produce(log, b"record")
            content = await consume(logs[1])
            metas = {meta_of(log) for log in logs[2:]}
            await engine.metadata.checkpoint()
        await lose_objects(cluster, lambda runs: bool(metas & runs.keys()))
        cluster.lose_metadata()
        report = await recovered(cluster, accept_data_loss=True)
        assert any(
            "topic t has 4 partitions, of which [2, 3] are lost" in one
            for one in told(report, Severity.ERROR)
        )
        async with cluster.node() as engine:
            topic = engine.logs.topic("t")
            assert topic is not None
            assert topic.partitions == 4
            assert await consume(await partition(engine, "t", 1)) == content

    run(scenario)
