"""Two nodes over one metadata store and one remote storage: one leads a partition, one follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import pairwise

import pytest

from streamlog.codec.batch import scan
from streamlog.errors import NotLeader, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.batch_reader import BatchRun
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import RemoteLogSegmentState
from streamlog.tiered.api.segments import TopicIdPartition
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.unified.unified_log import UnifiedLog
from streamlog.unified.unified_logs import UnifiedLogFactory
from tests.tiered.harness import PARTITION, TieredLogUnderTest, VirtualClock, tiered_log, values

ROUND_S = 30


class Follower(TieredLogUnderTest):
    """Has the leader's records in files of its own, as replication will bring them."""

    async def follow(self, leader: TieredLogUnderTest) -> None:
        self.kv, self.storage, self.plugin = leader.kv, leader.storage, leader.storage
        self.random = SeededRandom(2)
        self.topic_id = leader.topic_id
        await self.open_node()
        topic = TopicIdentity("t", leader.topic_id, "attempt")
        # Without tiers: as a leader, an empty log would be one that has lost its records.
        factory = UnifiedLogFactory(self.folder)
        (self.handle,) = await factory.create(topic, [0], self.topic_config)

        def failed(_log: AbstractLog, error: Exception) -> None:
            raise AssertionError(error)

        log = await factory.open(PARTITION, self.handle, self.topic_config, failed)
        assert isinstance(log, UnifiedLog)
        self.log = log
        await self.replicate(leader)
        await self.manager.on_leadership_change([], [log], {"t": leader.topic_id})

    async def replicate(self, leader: TieredLogUnderTest) -> None:
        """What the leader has, in the same batches, so that segments end at the same offsets."""
        while self.log.log_end_offset < leader.log.log_end_offset:
            fetched = await leader.log.fetch(self.log.log_end_offset, 1)
            (batch,) = scan(b"".join(fetched.parts))
            info = await append(self.log, bytes(batch.view))
            assert info.base_offset == batch.header.base_offset

    async def lead(self) -> None:
        await self.manager.on_leadership_change([self.log], [], {"t": self.topic_id})


@asynccontextmanager
async def both() -> AsyncIterator[tuple[TieredLogUnderTest, Follower]]:
    clock = VirtualClock()
    async with tiered_log(TornTree(SeededRandom(3)), {}, clock=clock) as leader:
        await fill(leader)
        config = RemoteLogConfig()
        follower = Follower(TornTree(SeededRandom(4)), {}, config, clock=clock)
        await follower.follow(leader)
        try:
            yield leader, follower
        finally:
            await follower.stop()


def run(test: Callable[[TieredLogUnderTest, Follower], Awaitable[None]]) -> None:
    async def body() -> None:
        async with both() as (leader, follower):
            await test(leader, follower)

    run_virtually(body)


async def fill(t: TieredLogUnderTest, count: int = 30) -> None:
    for _ in range(count):
        value = b"%06d" % t.log.log_end_offset * 16
        await append(t.log, encoded([value], at_ms=t.clock.now_ms()))


def test_a_follower_copies_and_deletes_nothing_and_learns_what_the_leader_copied() -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        await asyncio.sleep(3 * ROUND_S)
        listed = await leader.metadata.list_remote_log_segments(leader.partition)
        assert len(listed) == len(leader.storage.segments) > 3
        assert follower.log.copied_end_offset == leader.log.copied_end_offset > 0
        await follower.configure(local_retention_bytes="0")
        await follower.retain()
        assert follower.log.local_log_start_offset == leader.log.copied_end_offset
        assert await values(follower.log) == await values(leader.log)
        await leader.log.delete_records(leader.log.high_watermark)
        await asyncio.sleep(4 * ROUND_S)
        assert leader.storage.segments == {}
        assert follower.log.copied_end_offset == 0

    run(test)


def test_a_follower_that_leads_goes_on_where_the_leader_ended() -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        await asyncio.sleep(2 * ROUND_S)
        await leader.manager.on_leadership_change([], [leader.log], {"t": leader.topic_id})
        before = set(leader.storage.segments)
        await fill(leader)
        await follower.replicate(leader)
        await asyncio.sleep(4 * ROUND_S)
        assert set(leader.storage.segments) == before, "nobody leads"
        await follower.lead()
        await asyncio.sleep(1)
        assert before < set(leader.storage.segments), "it is due at once"
        listed = await follower.metadata.list_remote_log_segments(leader.partition)
        ends = [(one.start_offset, one.end_offset) for one in listed]
        assert all(end + 1 == start for (_, end), (start, _) in pairwise(ends))
        assert await values(follower.log) == await values(leader.log)

    run(test)


async def turned_over(leader: TieredLogUnderTest, follower: Follower) -> None:
    """More records, in both logs, and the time to copy them."""
    await fill(leader)
    await follower.replicate(leader)
    await asyncio.sleep(4 * ROUND_S)


def test_reassign_replica_expand() -> None:
    """ReassignReplicaExpandTest: a replica comes when the first segments are only remote."""

    async def body() -> None:
        clock = VirtualClock()
        async with tiered_log(TornTree(SeededRandom(3)), {}, clock=clock) as leader:
            await fill(leader)
            await leader.configure(local_retention_bytes="0")
            await asyncio.sleep(2 * ROUND_S)
            await leader.retain()
            assert leader.log.local_log_start_offset == leader.log.copied_end_offset > 0
            follower = Follower(TornTree(SeededRandom(4)), {}, RemoteLogConfig(), clock=clock)
            await follower.follow(leader)
            before = leader.log.copied_end_offset
            await turned_over(leader, follower)
            assert follower.log.copied_end_offset == leader.log.copied_end_offset > before
            assert await values(follower.log) == await values(leader.log)
            await follower.stop()

    run_virtually(body)


def test_reassign_replica_move() -> None:
    """ReassignReplicaMoveTest: another node has the partition, and the first one has it no more."""

    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        await asyncio.sleep(2 * ROUND_S)
        before = set(leader.storage.segments)
        await leader.manager.stop_partitions([PARTITION])
        await follower.lead()
        await turned_over(leader, follower)
        assert before < set(leader.storage.segments)
        assert follower.log.copied_end_offset > leader.log.copied_end_offset
        await follower.configure(local_retention_bytes="0")
        await follower.retain()
        assert list(await values(follower.log)) == list(range(60))

    run(test)


def test_reassign_replica_shrink() -> None:
    """ReassignReplicaShrinkTest: a replica goes, and what is remote stays, and grows."""

    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        await asyncio.sleep(2 * ROUND_S)
        before = set(leader.storage.segments)
        await follower.manager.stop_partitions([PARTITION])
        await follower.log.close()
        await fill(leader)
        await asyncio.sleep(4 * ROUND_S)
        assert before < set(leader.storage.segments)
        await leader.configure(local_retention_bytes="0")
        await leader.retain()
        assert list(await values(leader.log)) == list(range(60))

    run(test)


@pytest.mark.parametrize("hangs_in", ["copy", "copied"])
def test_a_copy_of_the_leader_before_is_deleted_by_the_next_ones_first_run(hangs_in: str) -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        begun, free = asyncio.Event(), asyncio.Event()

        async def hang(call: str) -> None:
            if call == hangs_in and not begun.is_set():
                begun.set()
                await free.wait()

        leader.storage.strike = hang
        await begun.wait()
        # The one before does not know yet that it leads no more.
        await follower.lead()
        await asyncio.sleep(ROUND_S)
        free.set()
        await asyncio.sleep(ROUND_S)
        await leader.manager.stop_partitions([PARTITION])
        await asyncio.sleep(2 * ROUND_S)
        # What both copied is there twice, and known; nothing else is there.
        known = KVRemoteLogMetadataManager(leader.kv)
        listed = await known.list_remote_log_segments(leader.partition)
        assert {one.state for one in listed} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
        assert {one.remote_log_segment_id.id for one in listed} == set(leader.storage.segments)
        assert follower.log.copied_end_offset > 0
        await follower.configure(local_retention_bytes="0")
        await follower.reopened()
        await follower.retain()
        assert await values(follower.log) == await values(leader.log)
        await follower.log.delete_records(follower.log.high_watermark)
        await asyncio.sleep(2 * ROUND_S)
        assert leader.storage.segments == {}

    run(test)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_stopped_partition_is_left_alone_or_deleted(deletes: bool) -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        await asyncio.sleep(2 * ROUND_S)
        copied = set(leader.storage.segments)
        assert copied
        await follower.manager.stop_partitions([PARTITION])
        await leader.manager.stop_partitions([PARTITION], deletes=deletes)
        await leader.manager.stop_partitions([PARTITION], deletes=deletes)
        await fill(leader)
        await asyncio.sleep(4 * ROUND_S)
        assert set(leader.storage.segments) == (set() if deletes else copied)

    run(test)


def test_the_managers_own_reads_are_those_of_the_tier() -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        await asyncio.sleep(2 * ROUND_S)
        manager, wanted = follower.manager, await values(leader.log)
        heard: list[BatchRun | StreamlogError] = []
        run = await manager.read(PARTITION, 3, 500)
        offsets = [one.end_offset - 1 for one in run.batches]
        assert offsets == list(range(3, 3 + len(offsets)))
        assert len(offsets) > 1
        await manager.async_read(PARTITION, 3, 500, heard.append)
        (same,) = heard
        assert isinstance(same, BatchRun)
        assert [one.end_offset - 1 for one in same.batches] == offsets
        assert set(offsets) <= set(wanted)
        await manager.stop_partitions([PARTITION])
        with pytest.raises(NotLeader):
            await manager.read(PARTITION, 3, 500)
        await manager.async_read(PARTITION, 3, 500, heard.append)
        assert isinstance(heard[-1], NotLeader)

    run(test)


def deaf_once(t: TieredLogUnderTest) -> tuple[asyncio.Event, asyncio.Event]:
    """The first copy hears no cancellation; events: it has begun, it may end."""
    begun, free = asyncio.Event(), asyncio.Event()

    async def hang(call: str) -> None:
        if call == "copy" and not begun.is_set():
            begun.set()
            while not free.is_set():
                with suppress(asyncio.CancelledError):
                    await free.wait()

    t.storage.strike = hang
    return begun, free


def test_a_partition_that_stops_while_its_role_changes_is_copied_no_more() -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        manager, ids = leader.manager, {"t": leader.topic_id}
        begun, free = deaf_once(leader)
        await begun.wait()
        changes = [
            asyncio.ensure_future(manager.on_leadership_change(leaders, followers, ids))
            for leaders, followers in (([], [leader.log]), ([leader.log], []))
        ]
        await asyncio.sleep(1)
        stops = [asyncio.ensure_future(manager.stop_partitions([PARTITION])) for _ in range(2)]
        await asyncio.sleep(1)
        assert not any(stop.done() for stop in stops), "a copy is still written"
        free.set()
        await asyncio.gather(*changes, *stops)
        before = set(leader.storage.segments)
        await fill(leader)
        await asyncio.sleep(4 * ROUND_S)
        assert set(leader.storage.segments) == before

    run(test)


@pytest.mark.parametrize("leads_again", [False, True])
def test_a_log_that_ends_while_its_role_changes_is_tiered_when_it_is_opened_again(
    leads_again: bool,
) -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        begun, free = deaf_once(leader)
        await begun.wait()
        logs = [leader.log]
        change = asyncio.ensure_future(
            leader.manager.on_leadership_change(
                logs if leads_again else [], logs, {"t": leader.topic_id}
            )
        )
        await asyncio.sleep(1)
        await leader.log.close()
        free.set()
        with pytest.raises(StreamlogError) if leads_again else nullcontext():
            await change
        await leader.open()
        await asyncio.sleep(3 * ROUND_S)
        assert leader.manager.alarms() == []
        assert leader.log.copied_end_offset > 0

    run(test)


def test_a_node_leads_again_what_it_had_stopped() -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        await asyncio.sleep(2 * ROUND_S)
        await leader.manager.stop_partitions([PARTITION])
        before = leader.log.copied_end_offset
        await fill(leader)
        await leader.manager.on_leadership_change([leader.log], [], {"t": leader.topic_id})
        await asyncio.sleep(2 * ROUND_S)
        assert leader.log.copied_end_offset > before > 0
        assert len(await values(leader.log)) == leader.log.log_end_offset

    run(test)


def test_two_changes_of_a_role_come_one_after_the_other() -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        manager, ids = leader.manager, {"t": leader.topic_id}
        begun, free = deaf_once(leader)
        await begun.wait()
        follows = asyncio.ensure_future(manager.on_leadership_change([], [leader.log], ids))
        await asyncio.sleep(1)
        leads = asyncio.ensure_future(manager.on_leadership_change([leader.log], [], ids))
        await asyncio.sleep(1)
        assert not leads.done(), "the copy before is still written"
        free.set()
        await asyncio.gather(follows, leads)
        await asyncio.sleep(2 * ROUND_S)
        assert leader.log.copied_end_offset > 0

    run(test)


def test_a_partition_that_stops_is_cleaned_up_no_more() -> None:
    async def test(leader: TieredLogUnderTest, follower: Follower) -> None:
        begun, free, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def delete_left_overs(partition: TopicIdPartition, until_ms: int) -> int:
            begun.set()
            while not free.is_set():
                with suppress(asyncio.CancelledError):
                    await free.wait()
            ended.set()
            return 0

        leader.storage.delete_left_overs = delete_left_overs  # type: ignore[method-assign]
        await asyncio.sleep(2 * ROUND_S)
        purge = asyncio.ensure_future(leader.manager.purge(lambda _: "t"))
        await begun.wait()
        stop = asyncio.ensure_future(leader.manager.stop_partitions([PARTITION]))
        await asyncio.sleep(1)
        assert not stop.done(), "the plug-in may still delete what the next leader copies"
        free.set()
        await asyncio.gather(stop, purge)
        assert ended.is_set()

    run(test)
