"""Metadata that a recovery made is lost, too: numbers are not given out a second time."""

from __future__ import annotations

from pathlib import Path

from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import encode_values
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.metadata.checkpoint.trailer import read_trailer
from streamlog.repair.findings import FindingKind
from tests.repair.cluster import Cluster, append, consume, partition, recovered, run
from tests.repair.disk_cluster import DiskCluster, payloads


async def produce_first(log: AbstractLog, producer: tuple[int, int], value: bytes) -> None:
    first = BatchProducer(*producer, base_sequence=0)
    batch = bytes(encode_values([value], timestamp_ms=1000, producer=first).data)
    await (await log.append(batch))


def test_producers_between_two_recoveries_have_ids_of_their_own() -> None:
    """Otherwise a producer's first batch would be taken for the first batch of another one."""

    async def scenario() -> None:
        cluster, ids = Cluster(), list[int]()
        for number in range(3):
            async with cluster.node(crash=True) as engine:
                if not number:
                    await engine.logs.create_topic("t", 1)
                log = await partition(engine, "t")
                producer = await engine.logs.init_producer_id()
                ids.append(producer[0])
                await produce_first(log, producer, b"producer %d" % number)
                assert b"producer %d" % number in await consume(log)
                await engine.metadata.checkpoint()
            cluster.lose_metadata()
            await recovered(cluster)
        assert ids == sorted(set(ids))

    run(scenario)


def test_a_wal_from_between_two_recoveries_is_older_than_the_second(tmp_path: Path) -> None:
    """Its node uploaded nothing in between, so that no object and no checkpoint tells of it."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node(crash=False) as engine:
            old = await engine.streams.create_and_open_stream()
            await append(old, b"a")
            await engine.drain()
            await engine.metadata.checkpoint()
        await cluster.rebuild_metadata()
        async with cluster.disk_node() as engine:
            await append(await engine.streams.open_stream(old.stream_id), b"b")
            new = await engine.streams.create_and_open_stream()
            await append(new, b"x")
            between = engine.metadata.tenure
        await cluster.rebuild_metadata()
        async with cluster.disk_node(2) as engine:
            other = await engine.streams.create_and_open_stream()
            assert other.stream_id > new.stream_id
        async with cluster.disk_node(crash=False) as engine:
            assert engine.metadata.tenure > between
            assert await payloads(engine, old.stream_id) == [b"a", b"b"]
            assert await payloads(engine, new.stream_id) == [b"x"]

    run(scenario)


def test_revisions_go_on_above_a_checkpoint_of_no_use() -> None:
    """The newest checkpoint is the right one, and one may be put back from a copy later on."""

    async def scenario() -> None:
        cluster, revision = Cluster(), 1 << 40
        async with cluster.node(crash=True) as engine:
            await cluster.kv.raise_revision(revision)
            await engine.streams.create_and_open_stream()
            await engine.metadata.checkpoint()
            cluster_id = engine.metadata.cluster_id
        for info in (await cluster.store.list("checkpoint/")).objects:
            named = await read_trailer(cluster.store, info, cluster_id)
            damaged = bytearray(await cluster.store.get(info.key))
            if named is not None and named.delta is not None:
                damaged[named.delta.tail_position] ^= 1
            await cluster.store.put(info.key, [damaged])
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert report.of_kind(FindingKind.CHECKPOINT_CORRUPT)
        assert report.revision > revision

    run(scenario)
