"""Plug-ins that do not end when they are cancelled, or make an error of it: as threads that hang on
a mounted folder, and as code that catches too much. And one that returns nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from streamlog.errors import Internal, StoreUnavailable
from streamlog.runtime.concurrency.cancellation import to_its_end
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded, refused
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.metadata.bounded import BoundedMetadataManager
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from tests.tiered import harness
from tests.tiered.harness import (
    BreakableStorage,
    TieredLogUnderTest,
    VirtualClock,
    filled_and_moved,
    tiered_log,
    values,
)

CONFIG = RemoteLogConfig(copy_timeout_ms=60_000)
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class NamedByOffset(BreakableStorage):
    """As plug-ins of the draft."""

    names_have_ids = False


async def filled(t: TieredLogUnderTest) -> dict[int, bytes]:
    """Several closed segments."""
    wanted: dict[int, bytes] = {}
    for number in range(40):
        value = b"%06d" % number * 16
        info = await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        wanted[info.base_offset] = value
    return wanted


@pytest.mark.parametrize("hanging", ["copy", "delete"])
def test_a_call_that_hangs_in_a_thread_is_told_while_it_is_waited_for(hanging: str) -> None:
    async def body() -> None:
        free = asyncio.Event()

        async def wait(call: str) -> None:
            if call == hanging:
                await to_its_end(free.wait())
            elif hanging == "delete" and call == "copied":
                raise OSError("what was copied has to be deleted")

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            wanted = await filled(t)
            t.storage.strike = wait
            await asyncio.sleep(300)
            (alarm,) = (one for one in t.manager.alarms() if "do not end" in one)
            doing = {"copy": "copying", "delete": "deleting"}[hanging]
            assert alarm.startswith("remote_storage: ")
            assert doing in alarm
            t.storage.strike = lambda _: None
            free.set()
            await asyncio.sleep(300)
            assert t.manager.alarms() == []
            await t.configure(local_retention_bytes="0")
            await t.retain()
            assert t.log.local_log_start_offset > 0
            assert await values(t.log) == wanted

    run_virtually(body)


def test_a_manager_ends_in_its_time_beside_a_call_that_never_does() -> None:
    async def body() -> None:
        free, began = asyncio.Event(), asyncio.Event()

        async def deaf(call: str) -> None:
            began.set()
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    continue

        loop = asyncio.get_running_loop()
        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            await filled(t)
            t.storage.strike = deaf
            await began.wait()
            stopped = loop.time()
        assert loop.time() - stopped <= 30
        free.set()
        await asyncio.sleep(1)

    run_virtually(body)


def test_a_task_ends_with_its_log_although_the_plug_in_makes_an_error_of_it() -> None:
    async def body() -> None:
        began = asyncio.Event()
        calls: list[str] = []

        async def catches_all(call: str) -> None:
            calls.append(call)
            began.set()
            try:
                await asyncio.Event().wait()
            except BaseException as error:
                raise OSError("no connection") from error

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            await filled(t)
            t.storage.strike = catches_all
            await began.wait()
            await t.log.close()
            await asyncio.sleep(600)
            del calls[:]
            await asyncio.sleep(3600)
            assert calls == [], "nobody copies for a log that has ended"
            t.storage.strike = lambda _: None
            await t.open()

    run_virtually(body)


def test_a_copy_that_never_ends_is_left_behind_and_its_partition_goes_on() -> None:
    """What the thread that hangs may still write is deleted when it ends, and not before."""

    async def body() -> None:
        free = asyncio.Event()
        hanging: list[str] = []

        async def first_copy_hangs(call: str) -> None:
            if call == "copied" and not hanging:
                hanging.append(call)
                await to_its_end(free.wait())

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            t.storage.strike = first_copy_hangs
            wanted = await filled(t)
            await asyncio.sleep(600)
            closed = [one for one in t.log.segments if not one.is_active]
            assert t.log.copied_end_offset == closed[-1].end_offset, "all but one copy was made"
            listed = await t.metadata.list_remote_log_segments(t.partition)
            (left,) = (one for one in listed if one.state is _DELETING)
            assert left.remote_log_segment_id.id in t.storage.segments, "it may still write"
            assert len(listed) == len(closed) + 1
            (alarm,) = t.manager.alarms()
            assert "1 calls do not end" in alarm
            await t.configure(local_retention_bytes="0", retention_bytes="1500")
            await asyncio.sleep(60)
            await t.retain()
            assert t.log.log_start_offset > 0, "the whole log expires meanwhile"
            assert await values(t.log, t.log.log_start_offset) == {
                offset: value
                for offset, value in wanted.items()
                if offset >= t.log.log_start_offset
            }
            free.set()
            await asyncio.sleep(60)
            assert left.remote_log_segment_id.id not in t.storage.segments
            listed = await t.metadata.list_remote_log_segments(t.partition)
            assert {one.remote_log_segment_id.id for one in listed} == set(t.storage.segments)
            assert t.manager.alarms() == []

    run_virtually(body)


def test_a_copy_under_a_name_that_the_next_one_has_too_is_waited_for() -> None:
    """A deletion of what it left would take the next one's, in the next life at the latest."""

    async def body() -> None:
        free = asyncio.Event()
        copies: list[str] = []

        async def copies_hang(call: str) -> None:
            if call == "copied":
                copies.append(call)
                await to_its_end(free.wait())

        tree, clock, storage = TornTree(SeededRandom(3)), VirtualClock(), NamedByOffset()
        async with tiered_log(tree, {}, CONFIG, storage, clock) as t:
            storage.strike = copies_hang
            await filled(t)
            await asyncio.sleep(3600)
            assert len(copies) == 1
            assert any("1 calls do not end" in one for one in t.manager.alarms())
            free.set()
            await asyncio.sleep(120)
            assert t.log.copied_end_offset > 0
            assert t.manager.alarms() == []

    run_virtually(body)


def test_copies_that_never_end_take_a_bounded_number_of_threads() -> None:
    async def body() -> None:
        free = asyncio.Event()
        under_way = 0

        async def all_hang(call: str) -> None:
            nonlocal under_way
            under_way += 1
            await to_its_end(free.wait())
            under_way -= 1

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            wanted = await filled(t)
            t.storage.strike = all_hang
            await asyncio.sleep(24 * 3600)
            assert under_way == 2, "one is left behind, and one is waited for"
            t.storage.strike = lambda _: None
            free.set()
            await asyncio.sleep(300)
            assert await values(t.log) == wanted
            assert t.manager.alarms() == []
            listed = await t.metadata.list_remote_log_segments(t.partition)
            assert {one.remote_log_segment_id.id for one in listed} == set(t.storage.segments)

    run_virtually(body)


def test_the_data_of_a_deleted_topic_waits_for_a_copy_that_does_not_end() -> None:
    async def body() -> None:
        free = asyncio.Event()

        async def first_copy_hangs(call: str) -> None:
            if call == "copied" and not free.is_set():
                await to_its_end(free.wait())

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            t.storage.strike = first_copy_hangs
            await filled(t)
            await asyncio.sleep(300)
            await t.log.close()
            await t.factory.remove(t.handle)
            await asyncio.sleep(600)
            assert await t.metadata.deleted_partitions(), "the copy may still write"
            free.set()
            async with asyncio.timeout(120):
                await t.manager.deletions_done()
            assert t.storage.segments == {}

    run_virtually(body)


def test_reads_that_never_end_leave_the_places_of_others() -> None:
    async def body() -> None:
        free = asyncio.Event()
        hanging = 0

        async def first_reads_hang(call: str) -> None:
            nonlocal hanging
            if call == "fetch" and hanging < 2:
                hanging += 1
                await to_its_end(free.wait())

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        config = RemoteLogConfig(reader_tasks=2)
        async with tiered_log(tree, {}, config, clock=clock) as t:
            wanted = await filled(t)
            await asyncio.sleep(60)
            await t.configure(local_retention_bytes="0")
            await t.retain()
            start = t.log.local_log_start_offset
            assert start > 0
            t.storage.strike = first_reads_hang
            for offset in (0, start - 1):
                assert (await t.log.fetch(offset, 100)).size_bytes == 0
            assert hanging == 2
            await asyncio.sleep(120)
            assert await values(t.log) == wanted
            assert any("2 calls do not end" in one for one in t.manager.alarms())
            free.set()

    run_virtually(body)


def test_a_plug_in_that_cancels_its_own_call_has_failed() -> None:
    """As one does that awaits what somebody else has cancelled."""

    async def body() -> None:
        def cancels(call: str) -> None:
            if call == "fetch":
                raise asyncio.CancelledError

        async def close() -> None:
            ends.append("close")
            raise asyncio.CancelledError

        ends: list[str] = []
        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            wanted = await filled(t)
            await asyncio.sleep(100)
            await t.configure(local_retention_bytes="0")
            await t.retain()
            t.storage.strike = cancels
            with pytest.raises(StoreUnavailable, match="cancelled its own call"):
                await t.log.fetch(0, 1500)
            t.storage.strike = lambda _: None
            assert await values(t.log) == wanted
            t.metadata.close = t.storage.close = close  # type: ignore[method-assign]
        assert ends == ["close", "close"]

    run_virtually(body)


class SelfCancelling(KVRemoteLogMetadataManager):
    """The begin of the first deletion is cancelled by the plug-in itself."""

    is_struck = False

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        is_begin = metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_STARTED
        if is_begin and not self.is_struck:
            self.is_struck = True
            raise asyncio.CancelledError
        await super().put_remote_partition_delete_metadata(metadata)


def test_deletions_go_on_behind_a_plug_in_that_cancels_its_own_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        harness,
        "KVRemoteLogMetadataManager",
        lambda kv: BoundedMetadataManager(SelfCancelling(kv), 60_000),
    )

    async def body() -> None:
        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            await filled(t)
            await asyncio.sleep(100)
            assert t.storage.segments
            await t.manager.stop_partitions([harness.PARTITION], deletes=True)
            await asyncio.sleep(100)
            assert t.storage.segments == {}

    run_virtually(body)


def test_the_data_of_other_topics_does_not_wait_for_it() -> None:
    async def body() -> None:
        free, began = asyncio.Event(), asyncio.Event()

        async def copies_hang(call: str) -> None:
            if call == "copied":
                began.set()
                await to_its_end(free.wait())

        tree, clock, storage = TornTree(SeededRandom(3)), VirtualClock(), NamedByOffset()
        async with tiered_log(tree, {}, CONFIG, storage, clock) as t:
            storage.strike = copies_hang
            await filled(t)
            await began.wait()
            (begun,) = await t.metadata.list_remote_log_segments(t.partition)
            other = TopicIdPartition(UUID(int=7), "other", 0)
            segment = RemoteLogSegmentId(other, UUID(int=8))
            await t.metadata.add_remote_log_segment_metadata(
                replace(begun, remote_log_segment_id=segment)
            )
            await t.log.close()
            await t.factory.remove(t.handle)
            await t.manager.delete_partition(other.topic_partition, other.topic_id)
            await asyncio.sleep(600)
            assert await t.metadata.list_remote_log_segments(other) == []
            deleted = await t.metadata.deleted_partitions()
            assert [one.topic_id_partition for one in deleted] == [t.partition]
            free.set()
            # At once, and not with the next round.
            async with asyncio.timeout(CONFIG.task_interval_ms / 10_000):
                await t.manager.deletions_done()

    run_virtually(body)


class _Bytesless(BreakableStorage):
    """A plug-in with a bug."""

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes:
        return cast(bytes, None)


def test_a_plugin_that_returns_nothing_is_told_as_a_bug_and_not_as_the_nodes_end() -> None:
    async def body() -> None:
        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, clock=clock, plugin=_Bytesless()) as t:
            await filled_and_moved(t, 60)
            error = await refused(Internal, t.log.fetch(0, 1000))
            assert "NoneType" in str(error)
            (alarm,) = t.manager.alarms()
            assert "by a bug" in alarm

    run_virtually(body)
