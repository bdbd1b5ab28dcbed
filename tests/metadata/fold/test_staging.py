"""Staged objects in the metadata: staged, attached as a whole or not at all, dropped."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamlog.errors import Conflict, Invalid, StagedNotFound, StreamFenced, StreamlogError
from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.records.staged_entries import Stage
from streamlog.metadata.checkpoint.files import LevelFile
from streamlog.metadata.interface import (
    AttachEntry,
    CommitEntry,
    Committed,
    ObjectRow,
    StreamEpoch,
    TrimEntry,
    UnstageEntry,
)
from streamlog.metadata.session import MetadataSession
from tests.metadata.scripted_kv import ScriptedKV
from tests.metadata.world import World, append, create, ranges_of
from tests.support.metadata_insides import lookup_of
from tests.support.object_ids import take_id
from tests.support.replacing import replace_method


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    return run


async def stage(
    metadata: MetadataSession,
    *rows: tuple[int, int],
    writer: str = "w",
    attempt: str = "",
    expires_ms: int = 1 << 50,
) -> int:
    object_id = await take_id(metadata)
    row = ObjectRow(object_id, 1000, 900, 100, object_id & 0xFFFF)
    streams, counts = (array(kind, [r[i] for r in rows]) for i, kind in enumerate("QI"))
    one = Stage(row, writer, attempt or f"a{object_id}", expires_ms, streams, counts)
    await metadata.commit(CommitEntry(stages=[one]))
    return object_id


def attach_entry(
    metadata: MetadataSession,
    epoch: int,
    objects: Sequence[int],
    streams: Sequence[int],
    *,
    writer: str = "w",
    leader_epoch: int | None = None,
) -> CommitEntry:
    epochs = {}
    for stream_id in streams:
        row = metadata.stream(stream_id)
        epochs[stream_id] = row.epoch if row is not None else 1
    leaders = {} if leader_epoch is None else dict.fromkeys(streams, leader_epoch)
    return CommitEntry(attaches=[AttachEntry(writer, epoch, 5, objects, epochs, leaders)])


async def attach(metadata: MetadataSession, *given: Any, **named: Any) -> None:
    """As of attach_entry."""
    await metadata.commit(attach_entry(metadata, *given, **named))


async def unstage(metadata: MetadataSession, *objects: int) -> None:
    await metadata.commit(CommitEntry(unstages=[UnstageEntry(objects)]))


def end(metadata: MetadataSession, stream_id: int) -> int:
    row = metadata.stream(stream_id)
    assert row is not None
    return row.end


@asynccontextmanager
async def a_slow_and_a_quick_one() -> AsyncIterator[
    tuple[MetadataSession, MetadataSession, ScriptedKV]
]:
    """Two tenures of one world, and the metadata store as the first of them reaches it."""
    world = World()
    kv = ScriptedKV(world.kv)
    first = await world.open(1, kv=kv)
    await first.take_over_previous(frozenset())
    async with world.tenure(2) as second:
        yield first, second, kv
    await first.close(drained=True)


@asynccontextmanager
async def attaching(
    metadata: MetadataSession, kv: ScriptedKV, object_id: int, stream_id: int
) -> AsyncIterator[asyncio.Task[Committed]]:
    """Another change comes before the attach, which was planned without it."""
    kv.plan = ["hold"]
    entry = attach_entry(metadata, 1, [object_id], [stream_id])
    waiting = asyncio.create_task(metadata.commit(entry))
    await kv.held.wait()
    yield waiting
    kv.released.set()


@in_loop
async def test_attached_objects_follow_the_data_of_their_streams() -> None:
    world = World()
    async with world.tenure() as metadata:
        a, b = await create(metadata, 2)
        before = await append(metadata, a, 5)
        first = await stage(metadata, (a, 3), (b, 4))
        second = await stage(metadata, (a, 2))
        assert (end(metadata, a), end(metadata, b)) == (5, 0)
        await attach(metadata, 7, [second, first], [a, b], leader_epoch=9)
        after = await append(metadata, a, 1)
        expected = [(0, 5, before), (5, 7, second), (7, 10, first), (10, 11, after)]
        assert await ranges_of(metadata, a) == expected
        assert await ranges_of(metadata, b) == [(0, 4, first)]
        writer = metadata.staging.writers["w"]
        assert (writer.epoch, list(writer.starts), list(writer.ends)) == (7, [5, 0], [10, 4])
        assert not metadata.staging.staged
        for _ in range(2):
            row = await metadata.object(first)
            assert row is not None
            assert [tuple(p) for p in row.placements] == [(a, 7, 1, 9), (b, 0, 1, 9)]
            (live, *_) = await metadata.locate(b, 0, 4)
            assert live.object == row
            assert row in [one.row for one in await metadata.live_objects()]
            await metadata.checkpoint()
    # Every tenure loads the same from the checkpoint.
    async with world.tenure() as metadata:
        assert await ranges_of(metadata, a) == expected
        assert await metadata.object(first) == row
        assert metadata.staging.last_epoch("w") == 7


@in_loop
async def test_an_epoch_at_or_below_the_last_attached_one_changes_nothing() -> None:
    world = World()
    async with world.tenure() as metadata:
        (a,) = await create(metadata)
        await attach(metadata, 3, [await stage(metadata, (a, 1))], [a])
        revision = metadata.revision
        again = await stage(metadata, (a, 1))
        for epoch in (3, 2, 0):
            await attach(metadata, epoch, [again], [a])
        assert metadata.revision == revision + 1
        assert (end(metadata, a), set(metadata.staging.staged)) == (1, {again})
        # Two equal attaches at once count as one.
        entry = attach_entry(metadata, 4, [again], [a])
        await asyncio.gather(metadata.commit(entry), metadata.commit(entry))
        assert end(metadata, a) == 2
        # An empty commit is one, too.
        await attach(metadata, 5, [], [])
        assert metadata.staging.last_epoch("w") == 5


@in_loop
async def test_a_commit_that_does_not_fit_is_refused_whole() -> None:
    world = World()
    async with world.tenure() as metadata:
        a, b, c = await create(metadata, 3)
        both, gone = await stage(metadata, (a, 1), (b, 1)), await stage(metadata, (a, 1))
        other = await stage(metadata, (c, 1), writer="v")
        await unstage(metadata, gone)

        async def refused(error: type[StreamlogError], objects: list[int]) -> None:
            with pytest.raises(error):
                await attach(metadata, 1, objects, [a, b, c])

        await refused(StagedNotFound, [both, gone])
        await refused(StagedNotFound, [both, other])
        await refused(StagedNotFound, [both, 12345])
        await refused(Invalid, [both, both])
        entry = CommitEntry(attaches=[AttachEntry("w", 1, 5, [both], {a: 1, b: 2})])
        with pytest.raises(StreamFenced):
            await metadata.commit(entry)
        await metadata.commit(CommitEntry(destroys=[StreamEpoch(b, 1)]))
        await refused(Conflict, [both])
        assert end(metadata, a) == 0
        assert "w" not in metadata.staging.writers


@in_loop
async def test_a_tenure_that_lost_one_of_the_streams_attaches_nothing() -> None:
    world = World()
    async with world.tenure(1) as first, world.tenure(2) as second:
        a, b = await create(first, 2)
        both = await stage(first, (a, 1), (b, 1))
        await second.take_streams([(b, None)])
        with pytest.raises(StreamFenced):
            await attach(first, 1, [both], [a, b])
        with pytest.raises(StreamFenced):
            await attach(second, 1, [both], [a, b])
        await second.take_streams([(a, None)])
        await attach(second, 1, [both], [a, b])
        assert (end(second, a), end(second, b)) == (1, 1)


@in_loop
async def test_unstaged_objects_are_dead_and_attached_ones_stay() -> None:
    world = World()
    async with world.tenure() as metadata:
        (a,) = await create(metadata)
        kept, dropped = await stage(metadata, (a, 1)), await stage(metadata, (a, 1))
        await attach(metadata, 1, [kept], [a])
        await unstage(metadata, kept, dropped)
        await metadata.checkpoint()
        assert [dead.object_id for dead in metadata.dead_objects()] == [dropped]
        assert await metadata.object(dropped) is None
        assert await ranges_of(metadata, a) == [(0, 1, kept)]
        await unstage(metadata, kept)  # Nothing is left to commit: no record.
        assert (await metadata.compaction_point()).counter == 2


@in_loop
async def test_an_epoch_is_attached_once_by_any_node() -> None:
    """A driver that was started again may name other partitions, which another node leads."""
    async with a_slow_and_a_quick_one() as (first, second, kv):
        (a,), (b,) = await create(first), await create(second)
        one, other = await stage(first, (a, 1)), await stage(second, (b, 1))
        await second.catch_up()
        async with attaching(first, kv, one, a) as waiting:
            committed = await second.commit(attach_entry(second, 1, [other], [b]))
            assert committed.has_changed
        assert not (await waiting).has_changed
        assert (end(first, a), end(first, b)) == (0, 1)
        assert one in first.staging.staged


@in_loop
async def test_an_attach_that_an_unstage_overtook_is_planned_again() -> None:
    """Both were planned by the same fold: the later one must not win."""
    async with a_slow_and_a_quick_one() as (first, second, kv):
        (a,) = await create(first)
        one = await stage(first, (a, 1))
        await second.catch_up()
        async with attaching(first, kv, one, a) as waiting:
            await unstage(second, one)
        with pytest.raises(StagedNotFound):
            await waiting
        assert end(first, a) == 0


@in_loop
async def test_an_attach_that_a_compaction_overtook_is_sent_again() -> None:
    async with a_slow_and_a_quick_one() as (first, second, kv):
        (a,) = await create(first)
        one, other = await stage(first, (a, 1)), await stage(first, (a, 1))
        await second.catch_up()
        async with attaching(first, kv, one, a) as waiting:
            await unstage(second, other)
        await waiting
        assert await ranges_of(first, a) == [(0, 1, one)]


@in_loop
async def test_a_sealed_tenures_staged_objects_are_no_orphans() -> None:
    world = World()
    metadata = await world.open()
    (a,) = await create(metadata)
    staged, lost = await stage(metadata, (a, 1)), await take_id(metadata)
    await metadata.kill()
    async with world.tenure() as metadata:
        orphan_ids = [i for one in await metadata.orphan_candidates() for i in one.object_ids]
        assert lost in orphan_ids
        assert staged not in orphan_ids
        await attach(metadata, 1, [staged], [a])
        orphan_ids = [i for one in await metadata.orphan_candidates() for i in one.object_ids]
        assert staged not in orphan_ids


@in_loop
async def test_placements_are_dropped_with_their_object() -> None:
    world = World()
    async with world.tenure() as metadata:
        (a,) = await create(metadata)
        one = await stage(metadata, (a, 1))
        await attach(metadata, 1, [one], [a])
        await metadata.commit(CommitEntry(destroys=[StreamEpoch(a, 1)]))
        assert one in metadata.staging.attached
        await metadata.checkpoint()
        assert one not in metadata.staging.attached
    async with world.tenure() as metadata:
        assert not metadata.staging.attached


@in_loop
async def test_a_writer_is_forgotten_only_under_the_epoch_that_was_seen() -> None:
    world = World()
    async with world.tenure() as metadata:
        await attach(metadata, 1, [], [])
        await attach(metadata, 2, [], [])
        await metadata.commit(CommitEntry(unstages=[UnstageEntry([], [("w", 1)])]))
        assert metadata.staging.last_epoch("w") == 2
        await metadata.commit(CommitEntry(unstages=[UnstageEntry([], [("w", 2)])]))
        assert metadata.staging.last_epoch("w") == -1


@in_loop
async def test_an_object_that_dies_during_a_look_up_keeps_its_placements() -> None:
    """Otherwise its own offsets, from 0, would pass for those of the stream."""
    world = World()
    async with world.tenure() as metadata:
        (a,) = await create(metadata)
        await append(metadata, a, 5)
        one = await stage(metadata, (a, 10))
        await attach(metadata, 1, [one], [a], leader_epoch=9)
        await metadata.checkpoint()
    async with world.tenure() as metadata:
        reader = lookup_of(metadata)._reader
        read = reader.objects

        async def dies_before(level: LevelFile, block: int) -> ObjectColumns:
            replace_method(reader, "objects", read)
            row = metadata.stream(a)
            assert row is not None
            await metadata.commit(CommitEntry(trims=[TrimEntry(a, row.epoch, 15)]))
            await metadata.checkpoint()
            assert not metadata.staging.attached
            return await read(level, block)

        replace_method(reader, "objects", dies_before)
        (located,) = await metadata.locate(a, 5, 15)
        assert [tuple(place) for place in located.object.placements] == [(a, 5, 1, 9)]
