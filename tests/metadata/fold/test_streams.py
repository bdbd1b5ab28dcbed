"""Opening, transferring and taking over streams."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import (
    Conflict,
    Invalid,
    MetadataUnavailable,
    StreamFenced,
    StreamNotFound,
    TenureFenced,
    WalPending,
)
from streamlog.metadata.interface import CommitEntry, StreamEpoch
from streamlog.metadata.session import MetadataSession
from streamlog.model.batch import StreamState
from tests.metadata.scripted_kv import ScriptedKV, moves
from tests.metadata.world import World, append, create, ranges_of


async def closed(metadata: MetadataSession, *streams: int) -> None:
    rows = [metadata.stream(s) for s in streams]
    closes = [StreamEpoch(row.stream_id, row.epoch) for row in rows if row is not None]
    await metadata.commit(CommitEntry(closes=closes))


def test_a_closed_stream_opens_elsewhere_at_its_end() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            object_id = await append(a, stream, 7)
            with pytest.raises(Conflict, match="node 1"):
                await b.open_streams([(stream, None)])
            await closed(a, stream)
            (row,) = await b.open_streams([(stream, None)])
            assert (row.epoch, row.end, row.holder, row.state) == (2, 7, b.tenure, StreamState.OPEN)
            assert await ranges_of(b, stream) == [(0, 7, object_id)]
            await append(b, stream, 1)
            with pytest.raises(Conflict):
                await a.open_streams([(stream, None)])

    asyncio.run(main())


def test_epochs() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = moves
        metadata = await world.open(kv=kv)
        (stream,) = await create(metadata)
        (row,) = await metadata.open_streams([(stream, 1)])
        assert row.epoch == 1
        assert not kv.sent  # the same tenure's own epoch: no transaction
        (row,) = await metadata.open_streams([(stream, 8)])
        assert row.epoch == 8
        (row,) = await metadata.open_streams([(stream, None)])
        assert row.epoch == 9
        assert len(kv.sent) == 2
        for low in (1, 8):
            with pytest.raises(StreamFenced) as caught:
                await metadata.open_streams([(stream, low)])
            assert caught.value.fields["epoch"] == 9
        await closed(metadata, stream)
        with pytest.raises(StreamFenced):
            await metadata.open_streams([(stream, 9)])
        with pytest.raises(StreamNotFound):
            await metadata.open_streams([(stream, 10), (stream + 1, None)])
        with pytest.raises(Invalid):
            await metadata.open_streams([(stream, 10), (stream, 11)])
        for epoch in (-1, 1 << 31, 1 << 32, 1 << 64):
            with pytest.raises(Invalid):
                await metadata.open_streams([(stream, epoch)])
        (other,) = await create(metadata)
        (row,) = await metadata.open_streams([(other, (1 << 31) - 1)])
        (row,) = await metadata.open_streams([(other, None)])
        await metadata.checkpoint()
        assert row.epoch == 1 << 31
        row_now = metadata.stream(stream)
        assert row_now is not None
        assert row_now.epoch == 9  # nothing moved
        await append(metadata, (await create(metadata))[0], 2)
        await metadata.close(drained=True)

    asyncio.run(main())


def test_a_commit_in_flight_comes_before_a_reopen_or_is_stripped() -> None:
    """A reopen by the holder raises its own gen: rows of the old epoch are stripped."""

    async def main() -> None:
        async with World().tenure() as metadata:
            (stream,) = await create(metadata)
            one = asyncio.ensure_future(append(metadata, stream, 3))
            (row,) = await metadata.open_streams([(stream, None)])
            await one
            assert row.epoch == 2
            assert row.end in (0, 3)
            now = metadata.stream(stream)
            assert now is not None
            assert now.end == row.end

    asyncio.run(main())


def test_all_streams_pass_to_the_next_tenure_of_the_node() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure() as first:
            a, b, c = await create(first, 3)
            await append(first, a, 2)
            await closed(first, b)
            await first.commit(CommitEntry(destroys=[StreamEpoch(c, 1)]))
        second = await world.open()
        assert [row.holder for row in second.streams()] == [first.tenure] * 2
        assert await second.take_over_previous(frozenset()) == [first.tenure]
        assert await second.take_over_previous(frozenset()) == []
        rows = second.streams()
        assert [(r.stream_id, r.epoch, r.state.name, r.end) for r in rows] == [
            (a, 2, "OPEN", 2),
            (b, 2, "CLOSED", 0),
        ]
        assert {r.holder for r in rows} == {second.tenure}
        await second.close(drained=True)

    asyncio.run(main())


@pytest.mark.parametrize("drained", [True, False])
def test_a_disk_tenure_that_is_not_drained_needs_its_wal(drained: bool) -> None:
    async def main() -> None:
        world = World()
        first = await world.open(wal_mode="disk")
        (stream,) = await create(first)
        await append(first, stream, 2)
        await first.close(drained=drained)
        async with world.tenure(2) as other:
            if drained:
                (row,) = await other.open_streams([(stream, None)])
                assert row.epoch == 2
            else:
                with pytest.raises(WalPending, match="node 1"):
                    await other.open_streams([(stream, None)])
        second = await world.open(wal_mode="disk")
        if not drained:
            with pytest.raises(WalPending, match="accept the loss"):
                await second.take_over_previous(frozenset())
            assert await second.take_over_previous(frozenset({first.tenure})) == [first.tenure]
        await second.close(drained=True)

    asyncio.run(main())


def test_data_loss_can_be_accepted() -> None:
    async def main() -> None:
        world = World()
        first = await world.open(wal_mode="disk")
        a, b = await create(first, 2)
        await first.close(drained=False)
        async with world.tenure(2) as other:
            await other.open_streams([(a, None)], accept_data_loss=True)
        second = await world.open(wal_mode="disk")
        await second.take_over_previous(frozenset(), accept_data_loss=True)
        row = second.stream(b)
        assert row is not None
        assert row.holder == second.tenure
        await second.close(drained=True)

    asyncio.run(main())


def test_a_crashed_tenure_is_sealed_by_its_successor() -> None:
    async def main() -> None:
        world = World()
        first = await world.open()
        (stream,) = await create(first)
        object_id = await append(first, stream, 4)
        await first.kill()
        async with world.tenure() as second:
            assert second.tenure.node_epoch == first.tenure.node_epoch + 1
            assert await ranges_of(second, stream) == [(0, 4, object_id)]

    asyncio.run(main())


def test_a_live_tenure_is_not_taken_over() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            with pytest.raises(Conflict, match="lease"):
                await b.take_over(a.tenure)
            await b.seal(a.tenure, even_if_alive=True)
            await b.take_over(a.tenure)
            row = b.stream(stream)
            assert row is not None
            assert (row.holder, row.epoch) == (b.tenure, 2)
            with pytest.raises(TenureFenced):
                await append(a, stream, 1)

    asyncio.run(main())


def test_a_tenure_does_not_take_a_stream_from_itself() -> None:
    """A slow take finds that its own tenure has opened the stream meanwhile.

    A new epoch would cut off what the engine acknowledged out of its WAL since.
    """

    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            (taken,) = await b.take_streams([(stream, None)])
            assert (taken.holder, taken.epoch) == (b.tenure, 2)
            await append(b, stream, 3)
            (again,) = await b.take_streams([(stream, None)])
            assert (again.holder, again.epoch, again.end) == (b.tenure, 2, 3)
            (raised,) = await b.take_streams([(stream, 5)])
            assert raised.epoch == 5

    asyncio.run(main())


@pytest.mark.parametrize("plan", [["lost"], ["dropped"], ["late"], ["away", "lost"]])
def test_a_transfer_with_an_unknown_outcome_happens_once(plan: list[str]) -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = moves
        async with world.tenure(1) as a:
            (stream,) = await create(a)
            await closed(a, stream)
            b = await world.open(2, kv=kv)
            kv.plan = list(plan)
            (row,) = await b.open_streams([(stream, None)])
            assert (row.epoch, row.holder) == (2, b.tenure)
            assert not any(await kv.land())
            await append(b, stream, 1)
            await b.close(drained=True)

    asyncio.run(main())


def test_a_transfer_that_was_checkpointed_before_its_answer_is_recognised() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = moves
        async with world.tenure(1) as a:
            (stream,) = await create(a)
            await closed(a, stream)
            b = await world.open(2, kv=kv)
            kv.plan = ["lost", "hold"]
            opening = asyncio.ensure_future(b.open_streams([(stream, None)]))
            await kv.held.wait()
            await a.checkpoint()  # deletes m/a/1
            kv.released.set()
            (row,) = await opening
            assert (row.epoch, row.holder) == (2, b.tenure)
            await b.close(drained=True)

    asyncio.run(main())


def test_opening_gives_up_when_the_metadata_store_is_away() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = moves
        metadata = await world.open(kv=kv, operation_timeout_ms=20)
        (stream,) = await create(metadata)
        kv.plan = ["away"] * 10_000
        with pytest.raises(MetadataUnavailable) as caught:
            await metadata.open_streams([(stream, None)])
        assert caught.value.has_no_side_effects
        kv.plan = ["dropped"] * 10_000
        with pytest.raises(MetadataUnavailable) as caught:
            await metadata.open_streams([(stream, None)])
        assert not caught.value.has_no_side_effects
        kv.plan = []
        (row,) = await metadata.open_streams([(stream, None)])
        assert row.epoch == 2
        await metadata.close(drained=True)

    asyncio.run(main())


def test_streams_are_listed_by_id() -> None:
    async def main() -> None:
        async with World().tenure() as metadata:
            streams = await create(metadata, 5)
            assert [r.stream_id for r in metadata.streams()] == streams
            assert [r.stream_id for r in metadata.streams(after=streams[1], limit=2)] == streams[
                2:4
            ]
            assert metadata.streams(after=streams[-1]) == []
            more = await metadata.allocate_stream_ids(70_000)
            assert len(set(more + streams)) == 70_005
            assert 0 not in more

    asyncio.run(main())


def test_two_processes_of_one_node_seal_each_other() -> None:
    async def main() -> None:
        world = World()
        first, second = await asyncio.gather(world.open(), world.open())
        assert first.tenure != second.tenure
        older, newer = sorted((first, second), key=lambda m: m.tenure)
        with pytest.raises(TenureFenced):
            await create(older)
        await create(newer)
        await older.close(drained=True)
        await newer.close(drained=True)

    asyncio.run(main())
