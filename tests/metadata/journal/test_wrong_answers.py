"""A tenure whose metadata store gives answers, or holds values, that break the protocol.

The cause may be a bug, or a store that was edited by hand or set back. The tenure acknowledges
nothing, tells waiting callers why, and keeps what was committed before.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from streamlog.errors import (
    Closed,
    Corrupt,
    Internal,
    MetadataUnavailable,
    RevisionCompacted,
    StreamlogError,
)
from streamlog.kvstore.interface import Delete, KVStore, Put, RangeResult
from streamlog.metadata.checkpoint import loader
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import checkpoint, fence, head
from streamlog.metadata.keys.checkpoint import CheckpointPointer
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.session import MetadataSession
from tests.metadata.scripted_kv import ScriptedKV, SlowLeases, checkpoints, writes
from tests.metadata.world import World, append, create, ranges_of
from tests.support.metadata_insides import fold_of

PREFIX = prefix_of("test")
WAIT_S = 60


async def fence_of(world: World, tenure: Tenure) -> fence.Fence | None:
    kv = await world.kv.get(fence.key(PREFIX, tenure))
    return None if kv is None else fence.decode(kv.value)


async def set_fence(world: World, tenure: Tenure, value: fence.Fence) -> None:
    await world.kv.txn([], [Put(fence.key(PREFIX, tenure), fence.encode(value))])


async def set_head(world: World, tenure: Tenure, seq: int) -> None:
    await world.kv.txn([], [Put(head.key(PREFIX, tenure), head.encode(seq))])


async def failure_of(metadata: MetadataSession) -> StreamlogError:
    async with asyncio.timeout(WAIT_S):
        return await metadata.wait_failed()


# commits


def test_a_commit_that_can_never_succeed_ends_the_tenure_with_the_reason() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        metadata = await world.open(kv=kv)
        (stream,) = await create(metadata)
        kv.plan = ["bug"]
        with pytest.raises(Internal, match="bug in the metadata store"):
            await append(metadata, stream, 1)
        assert "bug in the metadata store" in str(await failure_of(metadata))
        with pytest.raises(Internal, match="bug in the metadata store"):
            await create(metadata)
        assert len(kv.sent) == 2  # the stream's, and the one that failed
        await metadata.kill()
        async with world.tenure() as again:
            assert await ranges_of(again, stream) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("head_at", "message"),
    [(7, "another process commits under this tenure"), (0, "refused without a reason")],
)
def test_a_head_that_this_tenure_did_not_write_acknowledges_nothing(
    head_at: int, message: str
) -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        (stream,) = await create(metadata)
        object_id = await append(metadata, stream, 2)
        await set_head(world, metadata.tenure, head_at)
        with pytest.raises(Internal, match=message):
            await append(metadata, stream, 1)
        assert message in str(await failure_of(metadata))
        await metadata.kill()
        async with world.tenure() as again:
            assert await ranges_of(again, stream) == [(0, 2, object_id)]

    asyncio.run(main())


def test_a_refusal_without_a_reason_acknowledges_nothing() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        metadata = await world.open(kv=kv)
        (stream,) = await create(metadata)
        kv.plan = ["refused"]
        with pytest.raises(Internal, match="refused without a reason"):
            await append(metadata, stream, 1)
        await metadata.kill()

    asyncio.run(main())


def test_more_stream_ids_than_a_call_may_ask_for_are_refused() -> None:
    async def main() -> None:
        async with World().tenure() as metadata:
            for count in (0, -1, (1 << 20) + 1):
                with pytest.raises(Internal, match="stream ids"):
                    await metadata.allocate_stream_ids(count)
            assert len(await metadata.allocate_stream_ids(3)) == 3

    asyncio.run(main())


# registration and lease


def test_a_registration_that_is_always_overtaken_gives_up() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = writes("n")
        kv.plan = ["refused"] * 10_000
        with pytest.raises(MetadataUnavailable, match="overtaken each time"):
            await world.open(kv=kv, operation_timeout_ms=20)
        kv.plan = []
        await (await world.open(kv=kv)).close(drained=True)

    asyncio.run(main())


def test_a_registration_whose_lease_always_ends_before_it_gives_up() -> None:
    async def main() -> None:
        world = World()
        kv = SlowLeases(world.kv)
        kv.is_slow = True
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(MetadataUnavailable, match="overtaken each time"):
                await world.open(kv=kv, operation_timeout_ms=20)
        kv.is_slow = False
        await (await world.open(kv=kv)).close(drained=True)

    asyncio.run(main())


class NoLease:
    """Leases cannot be kept, for good."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def keep_alive(self, lease_id: int) -> None:
        raise Internal("a bug in the metadata store")


def test_a_lease_that_can_never_be_kept_ends_the_tenure_with_the_reason() -> None:
    """Other nodes would take it for dead, so it must end."""

    async def main() -> None:
        world = World()
        metadata = await world.open(kv=NoLease(world.kv), lease_ttl_ms=100)
        assert "bug in the metadata store" in str(await failure_of(metadata))
        with pytest.raises(Internal, match="bug in the metadata store"):
            await create(metadata)
        await metadata.kill()

    asyncio.run(main())


# fences


def test_streams_of_a_holder_without_a_fence_are_not_transferred() -> None:
    async def main() -> None:
        world = World()
        first = await world.open(1)
        (stream,) = await create(first)
        object_id = await append(first, stream, 3)
        await first.kill()
        async with world.tenure(2) as other:
            await world.kv.txn([], [Delete(fence.key(PREFIX, first.tenure))])
            with pytest.raises(Internal, match="holds streams and has no fence"):
                await other.open_streams([(stream, None)])
            await create(other)  # after the deletion, which is folded on return
            # Its mark stays, so that none of its records is folded a second time.
            assert fold_of(other).mark(first.tenure).seq == 2
            await other.checkpoint()
            assert await ranges_of(other, stream) == [(0, 3, object_id)]
            second = await world.open(1)
            assert fold_of(second).mark(first.tenure).seq == 2
            with pytest.raises(Internal, match="holds streams and has no fence"):
                await second.take_over_previous(frozenset())
            await second.kill()

    asyncio.run(main())


def test_an_unsealed_earlier_tenure_is_sealed_with_the_transfer_of_its_streams() -> None:
    async def main() -> None:
        world = World()
        first = await world.open()
        (stream,) = await create(first)
        await first.kill()
        second = await world.open()
        sealed = await fence_of(world, first.tenure)
        assert sealed is not None
        await set_fence(world, first.tenure, replace(sealed, is_live=True, sealed_ms=0))
        assert await second.take_over_previous(frozenset()) == [first.tenure]
        now = await fence_of(world, first.tenure)
        assert now is not None
        assert not now.is_live
        assert now.sealed_ms > 0
        row = second.stream(stream)
        assert row is not None
        assert row.holder == second.tenure
        await second.close(drained=True)

    asyncio.run(main())


@pytest.mark.parametrize("what", ["head", "live"])
def test_a_tenure_with_an_unfolded_head_or_fence_is_not_retired(what: str) -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as first:
            (stream,) = await create(first)
        async with world.tenure(2, orphan_resweep_ms=0) as other:
            await other.open_streams([(stream, None)])
            await other.checkpoint()
            (orphans,) = await other.orphan_candidates()
            assert orphans.is_final
            before = await fence_of(world, first.tenure)
            assert before is not None
            if what == "head":
                await set_head(world, first.tenure, 99)
            else:
                await set_fence(world, first.tenure, replace(before, is_live=True))
            await other.orphans_deleted(orphans)
            assert await fence_of(world, first.tenure) is not None
            await set_head(world, first.tenure, 1)
            await set_fence(world, first.tenure, before)
            await other.orphans_deleted(orphans)
            assert await fence_of(world, first.tenure) is None

    asyncio.run(main())


# checkpoints


def test_a_checkpoint_that_always_fails_leaves_the_state_intact() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = checkpoints
        metadata = await world.open(kv=kv)
        (stream,) = await create(metadata)
        object_id = await append(metadata, stream, 3)
        kv.plan = ["bug"]
        with pytest.raises(Internal, match="bug in the metadata store"):
            await metadata.checkpoint()
        assert len(kv.sent) == 1
        assert len(fold_of(metadata).generations) == 1
        await metadata.checkpoint()
        assert await ranges_of(metadata, stream) == [(0, 3, object_id)]
        assert len((await world.store.list("checkpoint/")).objects) == 1
        await metadata.close(drained=True)

    asyncio.run(main())


class ClosedToCompaction:
    """Refuses to compact old revisions as a store that was closed does."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def compact(self, revision: int) -> None:
        if self.is_closed:
            raise Closed("the metadata store was closed")
        await self._kv.compact(revision)


def test_a_checkpoint_whose_last_step_fails_is_in_use_all_the_same() -> None:
    async def main() -> None:
        world = World()
        kv = ClosedToCompaction(world.kv)
        metadata = await world.open(kv=kv)
        (stream,) = await create(metadata)
        await metadata.checkpoint()
        await append(metadata, stream, 3)
        kv.is_closed = True
        with pytest.raises(Closed, match="metadata store was closed"):
            await metadata.checkpoint()
        kv.is_closed = False
        assert len(fold_of(metadata).generations) == 1
        assert fold_of(metadata).newest.is_empty
        expected = await ranges_of(metadata, stream)
        assert [(start, end) for start, end, _ in expected] == [(0, 3)]
        await append(metadata, stream, 1)
        await metadata.checkpoint()
        assert len(await ranges_of(metadata, stream)) == 2
        assert len((await world.store.list("checkpoint/")).objects) == 1
        await metadata.close(drained=True)

    asyncio.run(main())


def test_a_checkpoint_file_that_is_named_and_gone_is_corrupt_and_named() -> None:
    """A node that uses the file finds it gone: in a look-up, not at opening."""

    async def main() -> None:
        world = World()
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            await append(metadata, stream, 3)
            await metadata.checkpoint()
            (file,) = (await world.store.list("checkpoint/")).objects
            await world.store.delete([file.key])
            with pytest.raises(Corrupt, match="the store does not have") as caught:
                await ranges_of(metadata, stream)
            assert caught.value.object_key == file.key

    asyncio.run(main())


def test_a_checkpoint_pointer_without_files_covers_nothing() -> None:
    async def main() -> None:
        world = World()
        empty = checkpoint.encode(CheckpointPointer(0, {}))
        await world.kv.txn([], [Put(checkpoint.key(PREFIX), empty)])
        async with world.tenure() as metadata:
            assert metadata.streams() == []
            assert metadata.object_count == 0
            (stream,) = await create(metadata)
            object_id = await append(metadata, stream, 3)
            await metadata.checkpoint()
        async with world.tenure() as again:
            assert await ranges_of(again, stream) == [(0, 3, object_id)]

    asyncio.run(main())


class AlwaysCompacted:
    """A KV store whose reads at a revision come too late."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        if revision is None:
            return await self._kv.range(start, end, limit=limit)
        self.reads += 1
        raise RevisionCompacted("compacted meanwhile", oldest=revision + 1)


def test_an_opening_that_is_always_overtaken_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(loader, "START_OVER_MAX", 3)
        world = World()
        kv = AlwaysCompacted(world.kv)
        with pytest.raises(MetadataUnavailable, match="changed 3 times"):
            await world.open(kv=kv, operation_timeout_ms=1)
        assert kv.reads >= 3
        await (await world.open()).close(drained=True)

    asyncio.run(main())
