"""Recovery and fsck of buckets with something in them that nobody expects."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.object.footer import ObjectFooter, ObjectIdentity
from streamlog.metadata.checkpoint.trailer import MAGIC, MAGIC_1, encode_trailer, read_trailer
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import ObjectRow, Tenure
from streamlog.metadata.keys import checkpoint as checkpoint_key
from streamlog.metadata.keys import id_block
from streamlog.metadata.keys.checkpoint import CheckpointPointer, FileRef
from streamlog.metadata.ownership.registration import COMPACTOR
from streamlog.model.batch import CreateStreamOptions
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.repair.findings import FindingKind, Severity
from streamlog.repair.recover.resolve import Piece, Row, resolve
from streamlog.repair.recover.streams import WINDOW_IDS, _Footers
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.rand import SeededRandom
from tests.repair.cluster import Cluster, append, read, recovered, run
from tests.support.metadata_insides import follower_of

BLOCK = 1 << 20
NAMED = CheckpointPointer(7, {}, FileRef(Tenure(1, 1), 2, 100, 50, 1), None)


@pytest.mark.parametrize("payload", [b"SLA breach report, 17 items", b"SL\x02\0" + b"\0" * 60])
def test_records_that_begin_like_a_meta_entry_are_records(payload: bytes) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, payload)
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert not report.findings
        async with cluster.node() as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            assert await read(stream) == {0: payload}

    run(scenario)


def test_another_clusters_checkpoint_is_left_out() -> None:
    """Taken for one's own, it would call all objects dead."""

    async def scenario() -> None:
        cluster, other = Cluster(), Cluster(random=SeededRandom(9))
        async with cluster.node(1, crash=True) as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"first")
            await engine.metadata.checkpoint()
            await append(stream, b"second")
        async with other.node(7, crash=True) as engine:
            theirs = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(theirs, *(b"x" for _ in range(10)))
            await theirs.trim(10)
            await engine.metadata.checkpoint()
        for info in (await other.store.list("checkpoint/")).objects:
            await cluster.store.put(info.key, [bytes(await other.store.get(info.key))])
        cluster.lose_metadata()
        report = await recovered(cluster)
        (finding,) = report.findings
        assert (finding.kind, finding.severity) == (FindingKind.OBJECT_FOREIGN, Severity.WARNING)
        async with cluster.node() as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            assert await read(stream) == {0: b"first", 1: b"second"}

    run(scenario)


def test_the_end_of_a_checkpoint_names_its_cluster() -> None:
    async def scenario() -> None:
        store, clock = MemoryObjectStore(SystemClock()), SystemClock()
        assert NAMED.delta is not None
        value = checkpoint_key.encode(NAMED)
        old = value + len(value).to_bytes(4, "little") + MAGIC_1
        new = encode_trailer(NAMED, "mine")

        async def read_back(content: bytes) -> CheckpointPointer | None:
            assert NAMED.delta is not None
            await store.put(NAMED.delta.name, [b"delta", content])
            (info,) = (await store.list("checkpoint/")).objects
            assert info.modified_ms <= clock.now_ms()
            return await read_trailer(store, info, "mine")

        assert await read_back(old) == NAMED
        assert await read_back(new) == NAMED
        for at in range(len(new) - len(MAGIC)):
            damaged = bytearray(new)
            damaged[at] ^= 4
            with pytest.raises((Corrupt, UnsupportedVersion)):
                await read_back(bytes(damaged))

    run(scenario)


def test_a_damaged_checkpoint_may_have_told_of_trims() -> None:
    """A shared object keeps the beginning of a stream that was trimmed since."""

    async def scenario() -> None:
        collector = CollectorConfig(deletion_delay_ms=0, collect_interval_ms=10**9)
        cluster = Cluster(config=StreamEngineConfig(collector=collector))
        async with cluster.node(crash=True) as engine:
            options = [CreateStreamOptions()] * 2
            stream, other = await engine.streams.create_and_open_streams(options)
            await asyncio.gather(append(stream, b"0"), append(other, b"kept"))
            await append(stream, *(b"%d" % number for number in range(1, 20)))
            await stream.trim(15)
            await engine.metadata.checkpoint()
            await engine.collector.tick()
            await append(stream, b"20")
        for info in (await cluster.store.list("checkpoint/")).objects:
            whole = bytes(await cluster.store.get(info.key))
            await cluster.store.put(info.key, [whole[: len(whole) // 2]])
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match="taken for trimmed"):
            await recovered(cluster)
        await recovered(cluster, accept_data_loss=True)
        async with cluster.node() as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            assert list(await read(stream)) == list(range(15, 21))

    run(scenario)


@pytest.mark.parametrize("bytes_left", [0, 20])
def test_a_checkpoint_whose_base_was_cut_short_is_left_out(bytes_left: int) -> None:
    """Once, recovery ended with Invalid, and only deleting the file by hand helped."""

    async def scenario() -> None:
        cluster = Cluster(config=StreamEngineConfig(metadata=MetadataConfig(delta_bytes_min=0)))
        async with cluster.node(crash=True) as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"0", b"1")
            await engine.metadata.checkpoint()
            base = follower_of(engine.metadata).state.levels.base
            await append(stream, b"2")
        assert base is not None
        whole = bytes(await cluster.store.get(base.ref.name))
        await cluster.store.put(base.ref.name, [whole[:bytes_left]])
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert len(report.of_kind(FindingKind.CHECKPOINT_CORRUPT)) == 1
        async with cluster.node() as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            assert await read(stream) == {0: b"0", 1: b"1", 2: b"2"}

    run(scenario)


@pytest.mark.parametrize("lost_bytes", [0, 1, 20, 100])
def test_the_end_of_a_checkpoint_that_only_a_recovery_reads_is_checked(lost_bytes: int) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"0")
            await engine.metadata.checkpoint()
        (info,) = (await cluster.store.list("checkpoint/")).objects
        whole = bytes(await cluster.store.get(info.key))
        damaged = bytearray(whole[: len(whole) - lost_bytes])
        if not lost_bytes:
            damaged[-1] ^= 1
        await cluster.is_clean()
        await cluster.store.put(info.key, [bytes(damaged)])
        (finding,) = (await cluster.fsck()).findings
        assert (finding.kind, finding.key) == (FindingKind.CHECKPOINT_TRAILER, info.key)
        assert finding.severity is Severity.WARNING
        # The metadata is right, so repairs go on.
        stray = checkpoint_key.folder(Tenure(1, 1)) + "1000"
        await cluster.store.put(stray, [b"?"])
        assert (await cluster.fsck(repair=True)).repaired == ["deleted 1 checkpoint files"]
        assert not (await cluster.store.list(stray)).objects
        async with cluster.node() as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            await append(stream, b"1")
            await engine.metadata.checkpoint()
        await cluster.is_clean()

    run(scenario)


def test_a_checkpoint_whose_list_of_objects_is_damaged_is_a_finding_and_nothing_is_deleted() -> (
    None
):
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"0")
            await engine.metadata.checkpoint()
            delta = follower_of(engine.metadata).state.levels.delta
        assert delta is not None
        orphan = data_key(2 << id_block.OBJECTS.block_bits)
        await cluster.store.put(orphan, [b"?"])
        damaged = bytearray(await cluster.store.get(delta.ref.name))
        damaged[delta.object_bytes(0, 1)[0] + 12] ^= 1
        await cluster.store.put(delta.ref.name, [bytes(damaged)])
        report = await cluster.fsck(repair=True)
        last = report.of_kind(FindingKind.CHECKPOINT_CORRUPT)[-1]
        assert (last.severity, last.key) == (Severity.ERROR, delta.ref.name)
        assert "streamlog recover" in last.advice
        assert report.repaired == ["deleted nothing: the metadata is not to be trusted"]
        assert (await cluster.store.list(orphan)).objects

    run(scenario)


def test_without_the_checkpoint_the_largest_part_is_kept() -> None:
    rows = [Row(1, 0, 10, 1), Row(1, 20, 24, 3), Row(1, 30, 31, 4)]

    def kept(certain: int, *, trims_are_lost: bool) -> list[Piece]:
        return resolve(
            None, rows, lambda _: True, lambda i: i == certain, trims_are_lost=trims_are_lost
        ).pieces

    assert kept(0, trims_are_lost=False) == [Piece(0, 10, 1)]
    assert kept(0, trims_are_lost=True) == [Piece(0, 10, 1)]
    assert kept(3, trims_are_lost=False) == [Piece(20, 24, 3)]
    assert kept(3, trims_are_lost=True) == [Piece(20, 24, 3)]
    assert kept(4, trims_are_lost=True) == [Piece(30, 31, 4)]


def _footers(node_id: int, *object_ids: int) -> _Footers:
    footers = _Footers()
    for object_id in object_ids:
        identity = ObjectIdentity("c", node_id, 1, object_id)
        footers.add(ObjectFooter(identity, ObjectRow(object_id, 1, 1, 1, 1), []))
    return footers


def test_a_window_is_counted_through_a_tenures_blocks() -> None:
    last, first, later = 2 * BLOCK - 1, 9 * BLOCK, 9 * BLOCK + WINDOW_IDS
    assert not _footers(1, last, first).is_certain(last)
    assert not _footers(1, last, first + WINDOW_IDS - 2).is_certain(last)
    footers = _footers(1, later, last, first)
    assert [footers.is_certain(one) for one in (last, first, later)] == [True, True, False]


def test_a_compactor_copies_only_committed_data() -> None:
    assert _footers(1 | COMPACTOR, BLOCK).is_certain(BLOCK)
