"""Other nodes retire tenures, take streams or write checkpoints during a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamlog.errors import Conflict, MetadataUnavailable, TenureFenced, WalPending
from streamlog.kvstore.interface import (
    Compare,
    KVStore,
    Operation,
    Put,
    TxnResult,
)
from streamlog.metadata.interface import CommitEntry, StreamEpoch, Tenure
from streamlog.metadata.journal import follower
from streamlog.metadata.keys import checkpoint, fence, late_deletes
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.session import MetadataSession
from tests.metadata.scripted_kv import ScriptedKV, checkpoints, moves, writes
from tests.metadata.world import World, append, create, ranges_of
from tests.support.deaf_kv import DeafKV
from tests.support.metadata_insides import follower_of
from tests.support.object_ids import give_up_id, take_id

PREFIX = prefix_of("test")


@asynccontextmanager
async def deaf(world: World, node_id: int, **more: Any) -> AsyncIterator[tuple[DeafKV, Any]]:
    """A node whose watches can be held up."""
    kv = DeafKV(more.pop("kv", world.kv))
    metadata = await world.open(node_id, kv=kv, **more)
    try:
        yield kv, metadata
    finally:
        await metadata.kill()


async def retire(by: MetadataSession, tenure: Tenure) -> None:
    """Seals and retires the tenure, and takes its streams. `by` sweeps without a delay."""
    await by.seal(tenure, even_if_alive=True)
    await by.take_over(tenure)
    await create(by)  # something to checkpoint
    await by.checkpoint()
    for orphans in await by.orphan_candidates():
        await by.orphans_deleted(orphans)
    assert await by._keys.kv.get(fence.key(PREFIX, tenure)) is None


async def close_stream(metadata: MetadataSession, stream_id: int) -> None:
    row = metadata.stream(stream_id)
    assert row is not None
    await metadata.commit(CommitEntry(closes=[StreamEpoch(stream_id, row.epoch)]))


def test_a_tenure_retired_before_it_saw_its_seal_is_fenced_at_its_commit() -> None:
    async def main() -> None:
        world = World()
        async with deaf(world, 1) as (kv, slow), world.tenure(2, orphan_resweep_ms=0) as other:
            (stream,) = await create(slow)
            object_id = await append(slow, stream, 2)
            kv.hears.clear()
            await retire(other, slow.tenure)
            with pytest.raises(TenureFenced):
                await append(slow, stream, 1)
            assert slow.is_fenced
            assert isinstance(await slow.wait_failed(), TenureFenced)
            assert await ranges_of(other, stream) == [(0, 2, object_id)]

    asyncio.run(main())


def test_a_tenure_retired_before_it_saw_its_seal_opens_no_streams() -> None:
    async def main() -> None:
        world = World()
        async with (
            deaf(world, 1) as (kv, slow),
            world.tenure(2, orphan_resweep_ms=0) as other,
            world.tenure(3) as third,
        ):
            (stream,) = await create(third)
            await close_stream(third, stream)
            await slow.catch_up()
            kv.hears.clear()
            await retire(other, slow.tenure)
            with pytest.raises(TenureFenced):
                await slow.open_streams([(stream, None)])
            assert slow.is_fenced
            row = other.stream(stream)
            assert row is not None
            assert (row.holder, row.epoch) == (third.tenure, 1)

    asyncio.run(main())


@pytest.mark.parametrize("is_closed", [True, False])
def test_opening_a_stream_whose_known_holder_was_retired_checks_its_new_holder(
    is_closed: bool,
) -> None:
    async def main() -> None:
        world = World()
        async with (
            deaf(world, 1) as (kv, slow),
            world.tenure(2, orphan_resweep_ms=0) as other,
            world.tenure(3) as gone,
        ):
            (stream,) = await create(gone)
            object_id = await append(gone, stream, 2)
            await slow.catch_up()
            kv.hears.clear()
            await retire(other, gone.tenure)
            if is_closed:
                await close_stream(other, stream)
            opening = asyncio.ensure_future(slow.open_streams([(stream, None)]))
            await asyncio.wait([opening], timeout=0.01)
            assert not opening.done()  # it waits to hear who holds the stream now
            kv.hears.set()
            if is_closed:
                (row,) = await opening
                assert (row.holder, row.epoch, row.end) == (slow.tenure, 3, 2)
                assert await ranges_of(slow, stream) == [(0, 2, object_id)]
            else:
                with pytest.raises(Conflict, match="node 2"):
                    await opening

    asyncio.run(main())


def test_a_holder_that_is_retired_while_its_stream_is_opened() -> None:
    async def main() -> None:
        world = World()
        scripted = ScriptedKV(world.kv)
        scripted.matches = moves
        async with (
            world.tenure(1, kv=scripted) as opener,
            world.tenure(2, orphan_resweep_ms=0) as other,
            world.tenure(3) as gone,
        ):
            (stream,) = await create(gone)
            await append(gone, stream, 2)
            await close_stream(gone, stream)
            scripted.plan = ["hold"]
            opening = asyncio.ensure_future(opener.open_streams([(stream, None)]))
            await scripted.held.wait()
            await retire(other, gone.tenure)
            scripted.released.set()
            (row,) = await opening
            assert (row.holder, row.epoch, row.end) == (opener.tenure, 3, 2)
            assert len(scripted.sent) == 2

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before the look", "while it is taken"])
def test_a_tenure_that_another_node_retires_is_not_taken_over(when: str) -> None:
    async def main() -> None:
        world = World()
        first = await world.open(1)
        (stream,) = await create(first)
        await append(first, stream, 2)
        await first.kill()
        async with deaf(world, 1) as (kv, second), world.tenure(2, orphan_resweep_ms=0) as other:
            kv.hears.clear()

            async def retire_first() -> None:
                await retire(other, first.tenure)
                kv.hears.set()

            if when == "before the look":
                await retire_first()
                assert await second.take_over_previous(frozenset()) == []
            else:
                taken = await second.take_over_previous(frozenset(), before_taking=retire_first)
                assert taken == []
            row = second.stream(stream)
            assert row is not None
            assert row.holder == other.tenure

    asyncio.run(main())


def test_a_dead_nodes_streams_are_not_taken_without_its_wal() -> None:
    async def main() -> None:
        world = World()
        dead = await world.open(1, wal_mode="disk")
        (stream,) = await create(dead)
        await append(dead, stream, 2)
        await dead.kill()
        async with world.tenure(2) as other:
            await other.seal(dead.tenure, even_if_alive=True)
            with pytest.raises(WalPending, match="node 1"):
                await other.take_over(dead.tenure)
            row = other.stream(stream)
            assert row is not None
            assert row.holder == dead.tenure
            await other.take_over(dead.tenure, accept_data_loss=True)
            row = other.stream(stream)
            assert row is not None
            assert (row.holder, row.end) == (other.tenure, 2)

    asyncio.run(main())


def test_a_list_of_late_deletes_that_changed_meanwhile_is_written_again() -> None:
    """Until the list is written, the ids stay orphans: the floor does not pass them."""

    async def main() -> None:
        world = World()
        scripted = ScriptedKV(world.kv)
        scripted.matches = writes("o")
        async with world.tenure(1, kv=scripted) as metadata:
            object_id = await take_id(metadata)
            give_up_id(metadata, object_id)
            (orphans,) = await metadata.orphan_candidates()
            scripted.plan = ["refused"]
            with pytest.raises(MetadataUnavailable, match="late deletes changed"):
                await metadata.orphans_deleted(orphans)
            assert await metadata.orphan_candidates() == [orphans]
            await metadata.orphans_deleted(orphans)
            assert await metadata.orphan_candidates() == []
            kv = await world.kv.get(late_deletes.key(PREFIX, metadata.tenure))
            assert kv is not None
            assert late_deletes.decode(kv.value) == (object_id,)

    asyncio.run(main())


def test_only_the_latest_transfers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenure that opens streams for months keeps a bounded number of request ids."""

    async def main() -> None:
        monkeypatch.setattr(follower, "OWN_TRANSFERS_MAX", 3)
        async with World().tenure() as metadata:
            (stream,) = await create(metadata)
            for _ in range(5):
                await metadata.open_streams([(stream, None)])
            request_ids = [
                follower_of(metadata).own_transfer(metadata.tenure, gen) for gen in range(1, 6)
            ]
            assert request_ids[:2] == [None, None]
            assert None not in request_ids[2:]
            await append(metadata, stream, 1)

    asyncio.run(main())


class OvertakenKV:
    """While `overtakes`, another node names a checkpoint just before this one does."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.overtakes = False
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        if self.overtakes and checkpoints((compares, then)):
            self.count += 1
            key = checkpoint.key(PREFIX)
            named = await self._kv.get(key)
            assert named is not None
            await self._kv.txn([], [Put(key, named.value)])
        return await self._kv.txn(compares, then, otherwise)


def test_a_checkpoint_that_is_always_overtaken_gives_up_and_loses_nothing() -> None:
    async def main() -> None:
        world = World()
        kv = OvertakenKV(world.kv)
        metadata = await world.open(1, kv=kv)
        (stream,) = await create(metadata)
        async with world.tenure(2) as other:
            await other.checkpoint()
            await metadata.catch_up()
            object_id = await append(metadata, stream, 3)
            kv.overtakes = True
            with pytest.raises(MetadataUnavailable, match="overtaken 5 times"):
                await metadata.checkpoint()
            kv.overtakes = False
            assert kv.count == 5
            assert await ranges_of(metadata, stream) == [(0, 3, object_id)]
            files = {one.key for one in (await world.store.list("checkpoint/")).objects}
            assert len(files) == 1  # files of the refused attempt are deleted
            await metadata.checkpoint()
            assert await ranges_of(metadata, stream) == [(0, 3, object_id)]
        await metadata.close(drained=True)
        async with world.tenure(1) as again:
            assert await ranges_of(again, stream) == [(0, 3, object_id)]

    asyncio.run(main())
