"""Backups: whole or refused; a restore loses nothing that was acknowledged after the backup."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.engine.cluster import read_cluster_id
from streamlog.errors import AlreadyExists, Corrupt, ForeignCluster, UnsupportedVersion
from streamlog.kvstore.interface import OPERATIONS_MAX, Put, StoredKeyValue
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import TopicConfig
from streamlog.metadata.keys.space import prefix_of
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.kv import Key
from streamlog.repair.backup.file import (
    CHUNK_BYTES_MAX,
    Backup,
    BackupHead,
    decode,
    encode_end,
    encode_head,
    encode_keys,
)
from streamlog.repair.findings import Severity
from streamlog.runtime.rand import SeededRandom
from tests.repair.cluster import (
    Cluster,
    append,
    backed_up,
    consume,
    partition,
    produce,
    read,
    restored,
    run,
)

HEAD = BackupHead("c1", 77, 1234)
SMALL = (
    encode_head(HEAD)
    + encode_keys([StoredKeyValue(b"k", b"value", 5, 9), StoredKeyValue(b"u/x", b"", 6, 6)])
    + encode_end()
)


def test_a_file_comes_back_as_it_was() -> None:
    assert decode(SMALL, "f") == Backup(
        HEAD, [StoredKeyValue(b"k", b"value", 5, 9), StoredKeyValue(b"u/x", b"", 6, 6)]
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_found(data: st.DataObject) -> None:
    flipped = bytearray(SMALL)
    if data.draw(st.booleans()):
        del flipped[data.draw(st.integers(0, len(SMALL) - 1)) :]
    else:
        bit = data.draw(st.integers(0, 8 * len(SMALL) - 1))
        flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt):
        decode(bytes(flipped), "f")


def test_a_chunk_that_would_fill_the_memory_is_refused() -> None:
    bomb = encode_keys([StoredKeyValue(b"k", bytes(CHUNK_BYTES_MAX + 1), 1, 1)])
    with pytest.raises(Corrupt, match="too large"):
        decode(encode_head(HEAD) + bomb + encode_end(), "f")


def test_a_newer_version_is_refused_by_name() -> None:
    from streamlog.codec.crc import crc32c

    start = SMALL[:8] + b"\x02\x00" + SMALL[10:12]
    newer = start + crc32c(start).to_bytes(4, "little") + SMALL[16:]
    with pytest.raises(UnsupportedVersion, match=r"backup f has version 2.*newer release"):
        decode(newer, "f")


@pytest.mark.parametrize("checkpoints_after", [False, True])
def test_nothing_that_was_acknowledged_after_the_backup_is_lost(checkpoints_after: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("kept", 2)
            log = await partition(engine, "kept")
            await produce(log, b"before")
            stream = await engine.streams.create_and_open_stream(
                CreateStreamOptions(tags={"name": "x"})
            )
            await append(stream, *(b"%d" % number for number in range(10)))
            await stream.trim(4)
            await engine.metadata.checkpoint()
            await append(stream, b"10")
            content = await backed_up(cluster)
            await append(stream, b"11", b"12")
            await produce(log, b"after")
            await engine.logs.create_partitions("kept", 3)
            await produce(await partition(engine, "kept", 2), b"in a new partition")
            await engine.logs.create_topic("new", 1)
            await produce(await partition(engine, "new"), b"n")
            if checkpoints_after:
                await engine.metadata.checkpoint()
                await stream.trim(6)
                await engine.metadata.checkpoint()
                await append(stream, b"13")
            expected = await consume(log)
            stream_id, start, end = stream.stream_id, stream.start_offset, stream.confirm_offset
        cluster.lose_metadata()
        await restored(cluster, content)
        await cluster.is_clean()
        async with cluster.node() as engine:
            assert await consume(await partition(engine, "kept")) == expected
            assert (await partition(engine, "kept", 2)).high_watermark == 1
            assert (await partition(engine, "new")).high_watermark == 1
            stream = await engine.streams.open_stream(stream_id)
            assert (stream.start_offset, stream.confirm_offset) == (start, end)
            assert await read(stream) == {n: b"%d" % n for n in range(start, end)}
            await append(stream, b"more")
        await cluster.is_clean()

    run(scenario)


def test_keys_that_are_smaller_than_their_headers_fill_a_chunk_too() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node():
            cluster_id = await read_cluster_id(cluster.kv)
        assert cluster_id is not None
        before = len((await backed_up(cluster)).kvs)
        names = [
            prefix_of(cluster_id) + b"u/%c/" % namespace + number.to_bytes(2, "big")
            for namespace in b"abc"
            for number in range(50_000)
        ]
        for low in range(0, len(names), OPERATIONS_MAX):
            puts = [Put(name, b"\1") for name in names[low : low + OPERATIONS_MAX]]
            await cluster.kv.txn((), puts)
        assert len((await backed_up(cluster)).kvs) == before + len(names)

    run(scenario)


@pytest.mark.parametrize("checkpoint_after", [False, True])
def test_topics_and_values_are_those_of_the_backup(checkpoint_after: bool) -> None:
    """Topics that were deleted later stay deleted, where a checkpoint tells of it."""

    async def scenario() -> None:
        cluster = Cluster()
        configs = {"retention.ms": "1000000", "retention.bytes": "99999"}
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("kept", 2, configs)
            await engine.logs.create_topic("deleted", 1)
            await engine.kv.put_kv(Key(b"user"), b"value")
            content = await backed_up(cluster)
            await engine.kv.put_kv(Key(b"later"), b"lost")
            await engine.logs.delete_topic("deleted")
            if checkpoint_after:
                await engine.metadata.checkpoint()
        cluster.lose_metadata()
        report = await restored(cluster, content)
        assert report.counts["values_from_backup"] == 1
        async with cluster.node() as engine:
            value = await engine.kv.get_kv(Key(b"user"))
            assert value is not None
            assert value.data == b"value"
            assert await engine.kv.get_kv(Key(b"later")) is None
            topic = engine.logs.topic("kept")
            assert topic is not None
            assert (topic.partitions, dict(topic.configs)) == (2, configs)
            assert (engine.logs.topic("deleted") is None) is checkpoint_after

    run(scenario)


def test_a_restore_neither_replaces_metadata_nor_writes_in_a_dry_run() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            content = await backed_up(cluster)
        with pytest.raises(AlreadyExists):
            await restored(cluster, content)
        cluster.lose_metadata()
        await restored(cluster, content, dry_run=True)
        assert not (await cluster.kv.range(b"\0", b"\xff")).kvs

    run(scenario)


def test_a_backup_of_another_cluster_is_refused() -> None:
    async def scenario() -> None:
        cluster, other = Cluster(), Cluster(random=SeededRandom(9))
        async with other.node():
            content = await backed_up(other)
        async with cluster.node():
            pass
        cluster.lose_metadata()
        with pytest.raises(ForeignCluster, match="backup is of cluster"):
            await restored(cluster, content)

    run(scenario)


FOR_EVER, A_DAY, A_WEEK = "-1", "86400000", "604800000"


@pytest.mark.parametrize(
    ("before", "after", "restored_to"),
    [
        ({}, {"retention.ms": FOR_EVER}, {"retention.ms": FOR_EVER}),
        ({"retention.ms": A_DAY}, {}, {"retention.ms": A_WEEK}),
        ({"retention.ms": FOR_EVER}, {"retention.ms": A_DAY}, {"retention.ms": FOR_EVER}),
        ({"retention.bytes": "5000000"}, {}, {"retention.bytes": "-1"}),
        ({}, {"retention.bytes": "5000000"}, {}),
        ({"cleanup.policy": "compact,delete"}, {}, {"cleanup.policy": "delete"}),
        ({}, {"cleanup.policy": "compact,delete"}, {}),
        (
            {"cleanup.policy": "compact"},
            {},
            {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"},
        ),
    ],
)
def test_of_settings_that_delete_the_value_counts_that_deletes_less(
    before: dict[str, str], after: dict[str, str], restored_to: dict[str, str]
) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            await engine.logs.create_topic("altered", 1, before)
            await partition(engine, "altered")
            content = await backed_up(cluster)
            await engine.logs.alter_topic_configs("altered", set=after, is_replacing=True)
        cluster.lose_metadata()
        dry = await restored(cluster, content, dry_run=True)
        report = await restored(cluster, content)
        told = [one for one in report.findings if one.severity is Severity.WARNING]
        assert [one.detail for one in dry.findings] == [one.detail for one in report.findings]
        if restored_to == before:
            assert not told
        else:
            (finding,) = told
            assert "altered" in finding.detail
            assert all(f"{name}={value}" in finding.detail for name, value in restored_to.items())
        async with cluster.node() as engine:
            topic = engine.logs.topic("altered")
            assert topic is not None
            assert dict(topic.configs) == restored_to

    run(scenario)


@pytest.mark.parametrize("topic_made", ["before the backup", "after it"])
def test_settings_of_brokers_in_a_backup_delete_nothing_that_newer_ones_keep(
    topic_made: str,
) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        setting = "log.retention.ms"
        async with cluster.node() as engine:
            await engine.logs.alter_broker_configs(None, lambda _: {setting: A_DAY})
            if topic_made == "before the backup":
                await engine.logs.create_topic("by-default", 1)
            content = await backed_up(cluster)
            await engine.logs.alter_broker_configs(None, lambda _: {setting: FOR_EVER})
            if topic_made == "after it":
                await engine.logs.create_topic("by-default", 1)
            await partition(engine, "by-default")
        cluster.lose_metadata()
        report = await restored(cluster, content)
        assert ("by-default" in str(report.findings)) is (topic_made == "before the backup")
        async with cluster.node() as engine:
            assert engine.logs.broker_configs.of(None) == {setting: A_DAY}
            topic = engine.logs.topic("by-default")
            assert topic is not None
            assert topic.configs["retention.ms"] == FOR_EVER

    run(scenario)


def test_what_nodes_give_topics_by_their_own_settings_is_no_newer_setting() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        defaults = TopicConfig(retention_ms=int(FOR_EVER))
        cluster.logs = LogConfig(topic_defaults=defaults)
        async with cluster.node() as engine:
            await engine.logs.create_topic("by-default", 1)
            await partition(engine, "by-default")
            content = await backed_up(cluster)
        cluster.lose_metadata()
        report = await restored(cluster, content, topic_defaults=defaults)
        assert report.is_clean
        async with cluster.node() as engine:
            topic = engine.logs.topic("by-default")
            assert topic is not None
            assert not topic.configs

    run(scenario)
