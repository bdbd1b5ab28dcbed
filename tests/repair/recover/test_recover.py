"""Metadata is lost and rebuilt from the object store: what was acknowledged is there."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import streamlog
from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.errors import AlreadyExists, Corrupt, ForeignCluster, Invalid, StoreUnavailable
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.kv import Key
from streamlog.objectstore.keys import data_key
from streamlog.repair.findings import FindingKind, Severity
from streamlog.repair.recover import handover
from streamlog.repair.recover.recover import RecoverOptions, recover
from streamlog.repair.wal.folder import ClusterUrls, look
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.wal.config import WalConfig
from streamlog.wiring import open_metadata_store, open_object_store
from tests.repair.cluster import Cluster, append, consume, partition, produce, read, recovered, run
from tests.support.log_insides import factory_of
from tests.support.replacing import replace_method


@dataclass
class Written:
    """The contents of a cluster before it lost its metadata."""

    partitions: list[bytes]
    """The bytes of the partitions of topic t."""
    old_stream: int
    """Trimmed to 3; its last append came after the checkpoint."""
    new_stream: int
    """Made after the checkpoint, as was the topic `later`."""


async def written_and_lost(
    cluster: Cluster, *, crash: bool = True, checkpoint: str = "some"
) -> Written:
    """`checkpoint`: none, some, or deleted from the store."""
    async with cluster.node(crash=crash) as engine:
        await engine.logs.create_topic("t", 3, {"retention.ms": "77000"})
        logs = [await partition(engine, "t", number) for number in range(3)]
        for number in range(4):
            await produce(logs[number % 2], b"first %d" % number)
        old = await engine.streams.create_and_open_stream(
            CreateStreamOptions(tags={"name": "mine"})
        )
        await append(old, *(b"%d" % number for number in range(5)))
        await old.trim(3)
        if checkpoint != "none":
            await engine.metadata.checkpoint()
        await append(old, b"after")
        await produce(logs[0], b"after the checkpoint")
        new = await engine.streams.create_and_open_stream(CreateStreamOptions())
        await append(new, b"made after it")
        await engine.logs.create_topic("later", 1)
        await produce(await partition(engine, "later"), b"x", b"y")
        contents = [await consume(one) for one in logs]
    if checkpoint == "deleted":
        files = (await cluster.store.list("checkpoint/")).objects
        await cluster.store.delete([info.key for info in files])
    cluster.lose_metadata()
    return Written(contents, old.stream_id, new.stream_id)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("checkpoint", ["none", "some", "deleted"])
def test_all_that_was_acknowledged_comes_back(crash: bool, checkpoint: str) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        written = await written_and_lost(cluster, crash=crash, checkpoint=checkpoint)
        report = await recovered(cluster)
        assert report.counts["partitions"] == 4
        await cluster.is_clean()
        async with cluster.node() as engine:
            topic = engine.logs.topic("t")
            assert topic is not None
            assert (topic.partitions, dict(topic.configs)) == (3, {"retention.ms": "77000"})
            logs = [await partition(engine, "t", number) for number in range(3)]
            assert [await consume(one) for one in logs] == written.partitions
            old = await engine.streams.open_stream(written.old_stream)
            content = await read(old)
            assert {3: b"3", 4: b"4", 5: b"after"}.items() <= content.items()
            if checkpoint == "some":
                assert old.start_offset == 3
            new = await engine.streams.open_stream(written.new_stream)
            assert await read(new) == {0: b"made after it"}
            assert (await consume(await partition(engine, "later"))).count(b"x") == 1

    run(scenario)


@pytest.mark.parametrize("checkpoint", ["none", "some", "deleted"])
def test_a_recovered_cluster_is_written_on(checkpoint: str) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        written = await written_and_lost(cluster, checkpoint=checkpoint)
        await recovered(cluster)
        async with cluster.node() as engine:
            await append(await engine.streams.open_stream(written.old_stream), b"more")
            for number in range(3):
                log = await partition(engine, "t", number)
                end = log.high_watermark
                assert await produce(log, b"again") == end
            await engine.logs.create_topic("another", 1)
        await cluster.is_clean()
        async with cluster.node() as engine:
            old = await engine.streams.open_stream(written.old_stream)
            assert (await read(old))[6] == b"more"

    run(scenario)


def test_a_stray_file_with_the_last_of_all_ids_is_in_nobodys_way() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"a")
        await cluster.store.put(data_key((1 << 64) - 1), [b"no object"])
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match="--accept-data-loss"):
            await recovered(cluster)
        await recovered(cluster, accept_data_loss=True)
        async with cluster.node() as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            await append(stream, b"b")
            assert await read(stream) == {0: b"a", 1: b"b"}

    run(scenario)


def test_a_node_does_not_start_without_its_metadata() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await written_and_lost(cluster)
        with pytest.raises(ForeignCluster):
            async with cluster.node():
                raise AssertionError("a node started without its metadata")

    run(scenario)


def test_a_dry_run_of_a_recovery_counts_the_same_and_writes_nothing() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await written_and_lost(cluster)
        dry = await recovered(cluster, dry_run=True)
        assert not (await cluster.kv.range(b"\0", b"\xff")).kvs
        assert dry.counts == (await recovered(cluster)).counts

    run(scenario)


def test_the_wait_for_nodes_on_the_old_metadata_shows_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "WAIT_TOLD_EVERY_MS", 10)
    told: list[int] = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "seconds waited for nodes on the old metadata to stop":
            told.append(total)

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            await engine.logs.create_topic("t", 1)
        cluster.lose_metadata()
        await recover(
            cluster.kv,
            cluster.store,
            clock=cluster.clock,
            random=cluster.random,
            offload=cluster.offload,
            options=RecoverOptions(grace_ms=45),
            progress=progress,
        )

    run(scenario)
    assert told == [1] * 5


def test_metadata_can_be_lost_again_and_again() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            stream_id = stream.stream_id
        expected: dict[int, bytes] = {}
        for number in range(4):
            async with cluster.node(1 + number % 2, crash=number % 2 == 0) as engine:
                if number:
                    stream = await engine.streams.open_stream(stream_id)
                    await append(stream, b"%d" % number)
                    expected[len(expected)] = b"%d" % number
                    if number != 2:
                        await engine.metadata.checkpoint()
                else:
                    await engine.metadata.checkpoint()
            cluster.lose_metadata()
            await recovered(cluster)
        await cluster.is_clean()
        async with cluster.node() as engine:
            assert await read(await engine.streams.open_stream(stream_id)) == expected

    run(scenario)


def test_an_object_that_was_stored_and_never_committed_gives_way_to_a_later_epoch() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"one")
            stream_id, metadata = stream.stream_id, engine.metadata
            sent = asyncio.Event()

            async def never(_entry: Any) -> Any:
                sent.set()
                await asyncio.get_running_loop().create_future()

            replace_method(metadata, "commit", never)
            under_way = asyncio.ensure_future(append(stream, b"lost"))
            await sent.wait()
            under_way.cancel()
        async with cluster.node(2) as engine:
            await engine.metadata.seal(next(iter(await _other(engine))), even_if_alive=True)
            stream = await engine.streams.open_stream(stream_id)
            await append(stream, b"two", b"three")
            await engine.kill()
        await _no_checkpoints(cluster)
        cluster.lose_metadata()
        await recovered(cluster)
        async with cluster.node() as engine:
            payloads = await read(await engine.streams.open_stream(stream_id))
            assert payloads == {0: b"one", 1: b"two", 2: b"three"}
        await cluster.is_clean()

    run(scenario)


async def _other(engine: Any) -> list[Any]:
    rows = engine.metadata.streams()
    return [row.holder for row in rows if row.holder != engine.metadata.tenure]


async def _no_checkpoints(cluster: Cluster) -> None:
    files = (await cluster.store.list("checkpoint/")).objects
    await cluster.store.delete([info.key for info in files])


class FailingKV(MemoryKVStore):
    """Fails its n-th transaction, counted from 1, and all that follow."""

    def __init__(self, cluster: Cluster, fails_at: int) -> None:
        super().__init__(cluster.clock)
        self.left = fails_at

    async def txn(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left <= 0:
            raise StoreUnavailable("killed", operation="test")
        return await super().txn(*args, **kwargs)


def test_a_recovery_that_was_cut_short_is_done_again() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 40)
            log = await partition(engine, "t", 7)
            await produce(log, b"kept")
            expected = await consume(log)
        for fails_at in range(1, 10):
            kv = cluster.kv = FailingKV(cluster, fails_at)
            (failure,) = await asyncio.gather(recovered(cluster), return_exceptions=True)
            kv.left = 1 << 30
            if not isinstance(failure, BaseException):
                break
            assert isinstance(failure, StoreUnavailable)
            with pytest.raises(ForeignCluster):
                async with cluster.node():
                    raise AssertionError("a node started on half of the metadata")
            await recovered(cluster)
        assert 3 < fails_at < 9
        await cluster.is_clean()
        async with cluster.node() as engine:
            assert await consume(await partition(engine, "t", 7)) == expected

    run(scenario)


def test_metadata_in_use_is_not_replaced_unless_told_to() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        with pytest.raises(Invalid, match=r"nothing to recover"):
            await recovered(cluster)
        async with cluster.node() as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"a")
            await engine.kv.put_kv(Key(b"mine"), b"value")
            stream_id = stream.stream_id
        with pytest.raises(AlreadyExists, match="--overwrite"):
            await recovered(cluster)
        await recovered(cluster, overwrite=True)
        async with cluster.node() as engine:
            assert await read(await engine.streams.open_stream(stream_id)) == {0: b"a"}
            assert await engine.kv.get_kv(Key(b"mine")) is None
        other = Cluster(random=SeededRandom(6))
        async with other.node():
            pass
        cluster.kv = other.kv
        with pytest.raises(ForeignCluster):
            await recovered(cluster, overwrite=True)

    run(scenario)


def test_an_unreadable_object_stops_recovery_unless_the_loss_is_accepted() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"a")
            (first,) = [row.object for row in await engine.metadata.locate(stream.stream_id, 0, 1)]
            await append(stream, b"b")
            stream_id = stream.stream_id
        await _no_checkpoints(cluster)
        key = data_key(first.object_id)
        await cluster.store.put(key, [b"garbage" * 100])
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match="--accept-data-loss"):
            await recovered(cluster)
        assert not (await cluster.kv.range(b"\0", b"\xff")).kvs
        dry = await recovered(cluster, dry_run=True)
        assert [one.key for one in dry.of_kind(FindingKind.OBJECT_CORRUPT)] == [key]
        await recovered(cluster, accept_data_loss=True)
        async with cluster.node() as engine:
            assert await read(await engine.streams.open_stream(stream_id)) == {1: b"b"}
        # What could not be read is still there, and told.
        assert key in {finding.key for finding in (await cluster.fsck()).findings}

    run(scenario)


def test_a_node_replays_its_log_into_recovered_metadata(tmp_path: Path) -> None:
    """wal=disk: what was acknowledged and not uploaded is in the node's own folder."""

    async def scenario() -> None:
        clock, offload, random = SystemClock(), ThreadOffload(), SeededRandom(3)
        url = f"local://{tmp_path}"
        wal = WalConfig(wal_bytes_max=8 << 20, file_bytes=1 << 20)
        config = StreamEngineConfig(upload=UploadConfig(upload_interval_ms=10**9), wal=wal)
        async with streamlog.open(url, wal="disk", config=config) as engine:
            await engine.logs.create_topic("t", 1)
            log = await partition(engine, "t")
            await produce(log, b"uploaded")
            await engine.drain()
            await produce(log, b"in the log alone")
            expected = await consume(log)
            young = await engine.streams.create_and_open_stream()
            await append(young, b"young")
            await engine.kill()
        shutil.rmtree(tmp_path / "meta")
        kv = await open_metadata_store(None, url, clock, offload)
        store = await open_object_store(url, config, clock, random, offload, CollectorRegistry())
        await recover(kv, store, clock=clock, random=random, offload=offload)
        await store.close()
        await kv.close()
        # `streamlog wal show` knows what a start will bring back.
        seen = await look(tmp_path / "wal", ClusterUrls(url, None), config)
        assert [s.state for s in seen.streams if s.stream_id == young.stream_id] == ["pending"]
        async with streamlog.open(url, wal="disk", config=config) as engine:
            assert await read(await engine.streams.open_stream(young.stream_id)) == {0: b"young"}
            log = await partition(engine, "t")
            assert await consume(log) == expected
            assert await produce(log, b"next") == 2
        await offload.close()

    run(scenario)


@pytest.mark.parametrize("values", [["2000"], ["2000", "3000"], ["2000", "1000"]])
def test_settings_altered_just_before_a_stop_are_there_after_a_recovery(values: list[str]) -> None:
    """Open partitions heard of them by background work, which the stop cancelled."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            await engine.logs.create_topic("t", 1, {"retention.ms": "1000"})
            await produce(await partition(engine, "t"), b"kept")
            for value in values:
                # The log hears of all but the last value, and has no time to write them.
                await asyncio.sleep(0)
                await engine.logs.alter_topic_configs("t", set={"retention.ms": value})
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert not report.by_severity[Severity.ERROR], report.findings
        async with cluster.node() as engine:
            topic = engine.logs.topic("t")
            assert topic is not None
            assert dict(topic.configs) == {"retention.ms": values[-1]}

    run(scenario)


@pytest.mark.parametrize("left", [[0, 1], [1]])
def test_streams_of_a_failed_topic_creation_are_not_taken_for_the_topic(
    left: list[int],
) -> None:
    """Two nodes create the topic at once: the streams of the one that comes second are younger."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 2, {"retention.ms": "77000"})
            logs = [await partition(engine, "t", number) for number in range(2)]
            await produce(logs[0], b"kept")
            expected = [await consume(one) for one in logs]
            attempt = TopicIdentity("t", cluster.random.uuid(), "second")
            factory = factory_of(engine.logs)
            await factory.create(attempt, left, TopicConfig())
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert not report.by_severity[Severity.ERROR], report.findings
        assert any("has no records" in str(one) for one in report.findings)
        async with cluster.node() as engine:
            topic = engine.logs.topic("t")
            assert topic is not None
            assert (topic.partitions, dict(topic.configs)) == (2, {"retention.ms": "77000"})
            logs = [await partition(engine, "t", number) for number in range(2)]
            assert [await consume(one) for one in logs] == expected
            # The names are usable, and so the attempt's streams are in nobody's way.
            assert await produce(logs[0], b"more") == 1

    run(scenario)


def test_a_topic_that_was_made_anew_and_has_records_is_the_one_that_comes_back() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 2)
            await produce(await partition(engine, "t"), b"old")
            await engine.metadata.checkpoint()
            kept = {key: await cluster.store.get(key) for key in await _data_keys(cluster)}
            await engine.logs.delete_topic("t")
            await engine.logs.create_topic("t", 1)
            log = await partition(engine, "t")
            await produce(log, b"new")
            expected = await consume(log)
        cluster.lose_metadata()
        # The deletion is newer than the checkpoint, and the bucket still has the objects.
        for key, data in kept.items():
            await cluster.store.put(key, [data])
        await recovered(cluster)
        async with cluster.node() as engine:
            topic = engine.logs.topic("t")
            assert topic is not None
            assert topic.partitions == 1
            assert await consume(await partition(engine, "t")) == expected

    run(scenario)


async def _data_keys(cluster: Cluster) -> list[str]:
    return [info.key for info in (await cluster.store.list("data/")).objects]


def test_settings_of_brokers_are_lost_and_the_report_says_so() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            await engine.logs.alter_broker_configs(None, lambda _: {"log.retention.ms": "-1"})
            await engine.logs.create_topic("t", 1)
            await partition(engine, "t")
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert report.is_clean
        assert any("set at run time for brokers" in line for line in report.repaired)
        async with cluster.node() as engine:
            assert engine.logs.broker_configs.of(None) == {}
            topic = engine.logs.topic("t")
            assert topic is not None
            assert topic.configs["retention.ms"] == "-1"

    run(scenario)
