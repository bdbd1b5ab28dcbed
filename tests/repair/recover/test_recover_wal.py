"""wal=disk: metadata was rebuilt, and a WAL holds what neither it nor the store knows of."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from streamlog.engine.replay.after_recovery import ReplayDecision, WalExtent, decide
from streamlog.errors import Corrupt, StreamNotFound, WalPending
from streamlog.format.object.footer import TRAILER_BYTES
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import CommitEntry, Recovery, StreamRow, Tenure
from streamlog.model.batch import OpenStreamOptions, StreamState
from streamlog.runtime.buffers import Buffer
from tests.repair.cluster import append, run
from tests.repair.disk_cluster import DiskCluster, payloads
from tests.support.replacing import replace_method


def test_a_stream_younger_than_the_checkpoint_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node() as engine:
            await engine.metadata.checkpoint()
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"a", b"b")
        await cluster.rebuild_metadata()
        # It is cut short before anything is in the store, then goes on.
        for number in range(2):
            async with cluster.disk_node() as engine:
                assert await payloads(engine, stream.stream_id) == [b"a", b"b"] + [b"c"] * number
                again = await engine.streams.open_stream(stream.stream_id)
                await append(again, b"c")
        async with cluster.disk_node(crash=False) as engine:
            assert await payloads(engine, stream.stream_id) == [b"a", b"b", b"c", b"c"]
        await cluster.is_clean()

    run(scenario)


def test_more_streams_than_a_commit_record_takes_come_back(tmp_path: Path) -> None:
    """A record takes 37, and an object, which names its streams, more than 45."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        cluster.config = replace(cluster.config, metadata=MetadataConfig(record_bytes_max=1 << 10))
        async with cluster.disk_node() as engine:
            await engine.metadata.checkpoint()
            streams = [await engine.streams.create_and_open_stream() for _ in range(45)]
            for stream in streams:
                await append(stream, b"a")
        await cluster.rebuild_metadata()
        async with cluster.disk_node(crash=False) as engine:
            for stream in streams:
                assert await payloads(engine, stream.stream_id) == [b"a"]

    run(scenario)


def test_a_stream_that_was_destroyed_after_the_rebuild_stays_so(tmp_path: Path) -> None:
    """A crash lets the WAL forget what it released; its appends are there again at the start."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node() as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"a")
        await cluster.rebuild_metadata()
        async with cluster.disk_node() as engine:
            shutil.copytree(tmp_path / "wal1", tmp_path / "disk")
            assert await payloads(engine, stream.stream_id) == [b"a"]
            await engine.streams.delete_stream(stream.stream_id)
        shutil.rmtree(tmp_path / "wal1")
        (tmp_path / "disk").rename(tmp_path / "wal1")
        async with cluster.disk_node() as engine:
            with pytest.raises(StreamNotFound):
                await engine.streams.open_stream(stream.stream_id)

    run(scenario)


def test_a_stream_that_is_closed_in_the_checkpoint_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node() as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"a")
            await engine.streams.close_stream(stream.stream_id)
            await engine.metadata.checkpoint()
            await append(await engine.streams.open_stream(stream.stream_id), b"b")
        await cluster.rebuild_metadata()
        async with cluster.disk_node(crash=False) as engine:
            assert await payloads(engine, stream.stream_id) == [b"a", b"b"]
        await cluster.is_clean()

    run(scenario)


async def moved_since_the_checkpoint(cluster: DiskCluster) -> int:
    """A stream of node 1 in rebuilt metadata, whose last append lies in node 2's WAL."""
    async with cluster.disk_node(1) as engine:
        stream = await engine.streams.create_and_open_stream()
        await append(stream, b"a")
        await engine.streams.close_stream(stream.stream_id)
        await engine.metadata.checkpoint()
        async with cluster.disk_node(2) as other:
            await append(await other.streams.open_stream(stream.stream_id), b"b")
    await cluster.rebuild_metadata()
    return stream.stream_id


def test_a_stream_that_moved_since_the_checkpoint_goes_on_where_its_wal_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        stream_id = await moved_since_the_checkpoint(cluster)
        async with cluster.disk_node(2, crash=False) as engine:
            assert await payloads(engine, stream_id) == [b"a", b"b"]
        await cluster.is_clean()

    run(scenario)


@pytest.mark.parametrize("is_longer", [False, True])
def test_appends_whose_place_was_taken_are_not_released_silently(
    tmp_path: Path, is_longer: bool
) -> None:
    """Another node opened the stream first and went on: past them, or not as far."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        stream_id = await moved_since_the_checkpoint(cluster)
        expected = [b"a"]
        async with cluster.disk_node(1) as engine:
            stream = await engine.streams.open_stream(stream_id)
            if is_longer:
                expected += [b"c", b"d"]
                await append(stream, b"c", b"d")
                await engine.drain()
        for _ in range(2):
            with pytest.raises(WalPending, match=f"stream {stream_id}, offsets 1 to 2"):
                async with cluster.disk_node(2):
                    pass
        async with cluster.disk_node(2, accept_data_loss=True):
            pass
        async with cluster.disk_node(2), cluster.disk_node(1) as engine:
            assert await payloads(engine, stream_id) == expected

    run(scenario)


async def rebuilt_without_a_beginning(cluster: DiskCluster) -> int:
    """The stream of which the WAL has the end alone."""
    async with cluster.disk_node() as engine:
        stream = await engine.streams.create_and_open_stream()
        await append(stream, b"a")
        await engine.drain()
        objects = [info.key for info in (await cluster.store.list("data/")).objects]
        # What a frame says of the release is durable with the next group.
        await append(stream, b"b")
    await cluster.store.delete(objects)
    await cluster.rebuild_metadata()
    return stream.stream_id


def test_a_stream_whose_beginning_is_lost_is_not_released_silently(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        stream_id = await rebuilt_without_a_beginning(cluster)
        with pytest.raises(WalPending, match=r"offsets 1 to 2.*only its end"):
            async with cluster.disk_node():
                pass
        async with cluster.disk_node(accept_data_loss=True) as engine:
            with pytest.raises(StreamNotFound):
                await engine.streams.open_stream(stream_id)

    run(scenario)


def test_a_recovery_that_starts_from_the_checkpoint_of_another_knows_no_more(
    tmp_path: Path,
) -> None:
    """That checkpoint knows deletions after the first recovery, and none before it."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        await rebuilt_without_a_beginning(cluster)
        async with cluster.disk_node(2) as engine:
            await engine.metadata.checkpoint()
        await cluster.rebuild_metadata()
        with pytest.raises(WalPending, match=r"offsets 1 to 2.*only its end"):
            async with cluster.disk_node():
                pass

    run(scenario)


def test_appends_that_do_not_fit_can_be_given_up(tmp_path: Path) -> None:
    """The start of the stream's open end is lost with its object, and that loss was accepted."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node() as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"a")
            await engine.drain()
            await engine.metadata.checkpoint()
            before = {info.key for info in (await cluster.store.list("data/")).objects}
            await append(stream, b"b")
            await engine.drain()
            new = {info.key for info in (await cluster.store.list("data/")).objects} - before
            await append(stream, b"c")
        await cluster.store.delete(sorted(new))
        await cluster.rebuild_metadata()
        with pytest.raises(Corrupt, match="accept_data_loss"):
            async with cluster.disk_node():
                pass
        async with cluster.disk_node(accept_data_loss=True) as engine:
            assert await payloads(engine, stream.stream_id) == [b"a"]
            await append(await engine.streams.open_stream(stream.stream_id), b"d")
        async with cluster.disk_node() as engine:
            assert await payloads(engine, stream.stream_id) == [b"a", b"d"]

    run(scenario)


def test_a_node_that_the_rebuilt_metadata_forgot_gets_an_epoch_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node(1, crash=False) as engine:
            await engine.metadata.checkpoint()
        for _ in range(3):
            async with cluster.disk_node(7) as engine:
                stream = await engine.streams.create_and_open_stream()
                await append(stream, b"a")
                last = engine.metadata.tenure
        await cluster.rebuild_metadata()
        async with cluster.disk_node(7) as engine:
            assert engine.metadata.tenure > last
            assert await payloads(engine, stream.stream_id) == [b"a"]

    run(scenario)


async def taken_over_at_uncommitted_records(cluster: DiskCluster) -> int:
    """A stream in whose object node 1 stored two records and never committed them; at their offsets
    node 2 acknowledged other ones, in its WAL alone."""
    async with cluster.disk_node(1) as engine:
        stream = await engine.streams.create_and_open_stream()
        await append(stream, b"zero")
        await engine.drain()
        await engine.metadata.checkpoint()
        is_stored = asyncio.Event()

        async def never(_: CommitEntry) -> None:
            is_stored.set()
            await asyncio.Event().wait()

        replace_method(engine.metadata, "commit", never)
        await append(stream, b"A", b"B")
        draining = asyncio.create_task(engine.drain())
        await is_stored.wait()
        draining.cancel()
        first = engine.metadata.tenure
    async with cluster.disk_node(2) as engine:
        await engine.metadata.seal(first, even_if_alive=True)
        options = OpenStreamOptions(accept_data_loss=True)
        taken = await engine.streams.open_stream(stream.stream_id, options)
        assert taken.confirm_offset == 1
        await append(taken, b"v", b"w")
    return stream.stream_id


@pytest.mark.parametrize("opens", [0, 1, 2])
def test_appends_in_whose_place_are_uncommitted_records_are_not_released_silently(
    tmp_path: Path, opens: int
) -> None:
    """The rebuild takes the records for committed ones; another node may open the stream then, and
    each open raises its epoch."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        stream_id = await taken_over_at_uncommitted_records(cluster)
        await cluster.rebuild_metadata()
        for _ in range(opens):
            async with cluster.disk_node(3, crash=False) as engine:
                await engine.streams.open_stream(stream_id)
                await engine.streams.close_stream(stream_id)
        with pytest.raises(WalPending, match=f"stream {stream_id}, offsets 1 to 3"):
            async with cluster.disk_node(2):
                pass
        async with cluster.disk_node(2, accept_data_loss=True) as engine:
            assert await payloads(engine, stream_id) == [b"zero", b"A", b"B"]

    run(scenario)


async def taken_over_after_the_rebuild(cluster: DiskCluster, count: int) -> dict[int, bytes]:
    """Streams that node 2 has in its WAL and, all in one object, in the store. The metadata was
    rebuilt, and node 3 opened them since. The value is each one's only record."""
    folder, copy = cluster.folder / "wal2", cluster.folder / "copy"
    async with cluster.disk_node(2) as engine:
        contents = {}
        for number in range(count):
            stream = await engine.streams.create_and_open_stream()
            await append(stream, payload := b"%d" % number)
            contents[stream.stream_id] = payload
        shutil.copytree(folder, copy)
        await engine.drain()
    # A crash lets the WAL forget that it released the appends.
    shutil.rmtree(folder)
    copy.rename(folder)
    await cluster.rebuild_metadata()
    async with cluster.disk_node(3, crash=False) as engine:
        for stream_id in contents:
            await engine.streams.open_stream(stream_id)
            await engine.streams.close_stream(stream_id)
    return contents


@pytest.mark.parametrize("is_gone", [False, True])
def test_appends_whose_object_is_gone_or_damaged_can_be_given_up(
    tmp_path: Path, is_gone: bool
) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        (stream_id,) = await taken_over_after_the_rebuild(cluster, 1)
        (info,) = (await cluster.store.list("data/")).objects
        damaged = bytearray(await cluster.store.get(info.key))
        damaged[-TRAILER_BYTES - 1] ^= 1
        await cluster.store.delete([info.key])
        if not is_gone:
            await cluster.store.put(info.key, [bytes(damaged)])
        with pytest.raises(WalPending, match=f"stream {stream_id}, offsets 0 to 1"):
            async with cluster.disk_node(2):
                pass
        async with cluster.disk_node(2, accept_data_loss=True) as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"new")
            assert await payloads(engine, stream.stream_id) == [b"new"]

    run(scenario)


def test_streams_of_one_object_are_told_by_one_read_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        contents = await taken_over_after_the_rebuild(cluster, 20)
        get, reads = cluster.store.get, list[str]()

        async def counting(key: str, start: int = 0, length: int | None = None) -> Buffer:
            reads.append(key)
            return await get(key, start, length)

        replace_method(cluster.store, "get", counting)
        async with cluster.disk_node(2) as engine:
            assert len([key for key in reads if key.startswith("data/")]) == 1
            for stream_id, payload in contents.items():
                assert await payloads(engine, stream_id) == [payload]

    run(scenario)


BEFORE, AFTER = Tenure(2, 1000), Tenure(2, 1001)
RECOVERY = Recovery(True, 0, 5, 1000, 1 << 30)


def row(holder: Tenure, epoch: int, end: int, state: StreamState = StreamState.OPEN) -> StreamRow:
    return StreamRow(9, epoch, holder, 0, end, state, b"", {})


def of_epochs(*epochs: int) -> WalExtent:
    """Appends of two records each, from offset 1 on."""
    extent = WalExtent(1, 1, epochs[0])
    for number, epoch in enumerate(epochs):
        extent.add(1 + 2 * number, 3 + 2 * number, epoch)
    return extent


Do = ReplayDecision


@pytest.mark.parametrize(
    ("extent", "stream", "is_held", "recovery", "decision"),
    [
        (WalExtent(0, 3, 1), None, False, RECOVERY, Do.CREATE),
        (WalExtent(1, 3, 1), None, False, RECOVERY, Do.DESTROYED),
        (
            WalExtent(1, 3, 1),
            None,
            False,
            replace(RECOVERY, knows_deletions=False),
            Do.BEGINNING_LOST,
        ),
        (
            WalExtent(1, 3, 1),
            None,
            False,
            replace(RECOVERY, from_revision=0),
            Do.BEGINNING_LOST,
        ),
        (WalExtent(1, 3, 1), row(BEFORE, 1001, 1), True, RECOVERY, Do.REPLAY),
        (
            WalExtent(1, 3, 1),
            row(BEFORE, 1001, 1, StreamState.CLOSED),
            True,
            RECOVERY,
            Do.OPEN,
        ),
        (
            WalExtent(1, 3, 1),
            row(BEFORE, 1001, 3, StreamState.CLOSED),
            True,
            RECOVERY,
            Do.REPLAY,
        ),
        (WalExtent(1, 3, 2), row(BEFORE, 1001, 1), False, RECOVERY, Do.OPEN),
        (WalExtent(1, 3, 2), row(BEFORE, 1001, 3), False, RECOVERY, Do.STORED),
        (WalExtent(1, 3, 2), row(BEFORE, 1003, 1), False, RECOVERY, Do.STORED),
        (WalExtent(1, 3, 2), row(AFTER, 1001, 3), False, RECOVERY, Do.CHECK_STORED),
        (of_epochs(2), row(BEFORE, 1002, 3), False, RECOVERY, Do.STORED),
        (of_epochs(2), row(BEFORE, 1001, 3), False, RECOVERY, Do.DISPLACED),
        (of_epochs(2, 3), row(BEFORE, 1001, 3), False, RECOVERY, Do.DISPLACED),
        (of_epochs(2, 3), row(BEFORE, 1002, 3), False, RECOVERY, Do.OPEN),
        (of_epochs(2, 3), row(BEFORE, 1002, 4), False, RECOVERY, Do.DISPLACED),
        (of_epochs(2), row(BEFORE, 1001, 3), True, RECOVERY, Do.DISPLACED),
        (of_epochs(2), row(BEFORE, 1001, 1), True, RECOVERY, Do.REPLAY),
        (of_epochs(2), replace(row(BEFORE, 1001, 2), start=2), True, RECOVERY, Do.REPLAY),
    ],
)
def test_the_decision_for_each_stream(
    extent: WalExtent,
    stream: StreamRow | None,
    is_held: bool,
    recovery: Recovery,
    decision: ReplayDecision,
) -> None:
    assert decide(extent, stream, recovery, is_held=is_held) is decision
