"""Readers of the remote tier give way to appends and readers of the newest records, in virtual
time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlog
from streamlog.codec.batch import scan
from streamlog.log.api.abstract_log import Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.reading.chunks import ChunkConfig
from streamlog.unified.unified_log import UnifiedLog
from tests.support.busy_clock import BusyClock
from tests.support.busy_node import MIB, RATE, BusyNode, busy_node
from tests.support.turns import Turns
from tests.tiered.harness import TieredLogUnderTest, VirtualClock, tiered_log
from tests.tiered.quotas.quota_node import quota_node

BATCH_BYTES = 256 << 10
BATCHES = 64
CONFIGS = {
    "internal.segment.bytes": str(4 * MIB),
    "index.interval.bytes": "4096",
    "local.retention.bytes": "0",
}
FOREGROUND_GONE_S = 0.3


class BusyTierClock(BusyClock, VirtualClock):
    """Of a tiered log on a node whose event loop is late."""


class RemoteReaders:
    """16 MiB in the remote tier alone, and who reads them."""

    def __init__(self, t: TieredLogUnderTest, node: BusyNode) -> None:
        self.t, self.node = t, node
        self.end = t.log.local_log_start_offset

    async def fetch(self, offset: int, deadline: float | None = None) -> LogFetch:
        return await self.t.log.fetch(offset, 8 * MIB, deadline=deadline)

    async def read(self, size_bytes: int, offset: int = 0) -> float:
        """Seconds of reading so much, from the start again and again."""
        began, seen = self.node.clock.monotonic(), 0
        while seen < size_bytes:
            fetched = await self.fetch(offset)
            seen += fetched.size_bytes
            offset = fetched.next_offset if fetched.next_offset < self.end else 0
        return self.node.clock.monotonic() - began


@asynccontextmanager
async def remote_readers(
    slowness: float = 1.0, config: RemoteLogConfig | None = None
) -> AsyncIterator[RemoteReaders]:
    clock, tree = BusyTierClock(slowness), TornTree(SeededRandom(3))
    async with (
        busy_node(clock=clock) as node,
        tiered_log(tree, CONFIGS, config, None, clock, node.throttle) as t,
    ):
        value = bytes(BATCH_BYTES - 100)
        for _ in range(BATCHES):
            await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        await t.log.roll()
        # Copies give way to appends, too.
        await asyncio.sleep(FOREGROUND_GONE_S)
        await t.copy()
        await t.retain()
        readers = RemoteReaders(t, node)
        assert readers.end >= BATCHES - 20
        yield readers


def test_without_foreground_io_a_remote_reader_is_not_throttled() -> None:
    async def body() -> None:
        async with remote_readers() as data:
            assert (await data.fetch(0)).size_bytes > 7 * MIB
            assert not (await data.fetch(0)).is_paced
            assert await data.read(256 * MIB) < 0.1
            assert data.node.metric("bytes_total") == 0

    run(body)


def test_beside_foreground_io_a_remote_reader_gets_pieces_at_a_growing_rate() -> None:
    async def body() -> None:
        async with remote_readers() as data, data.node.foreground():
            fetched = await data.fetch(0)
            assert fetched.is_paced
            assert MIB - BATCH_BYTES < fetched.size_bytes <= MIB
            seconds = await data.read(64 * MIB)
            assert 1.0 < seconds < 64 * MIB / RATE, "the rate grows while the loop is on time"
            assert await data.read(64 * MIB) < seconds

    run(body)


def test_on_a_busy_node_remote_readers_share_the_least_rate_and_no_one_is_left_out() -> None:
    async def body() -> None:
        async with remote_readers(1.1) as data, data.node.foreground():
            read = [0] * 10

            async def reader(number: int) -> None:
                offset = data.end * number // 10
                while True:
                    fetched = await data.fetch(offset)
                    read[number] += fetched.size_bytes
                    offset = fetched.next_offset if fetched.next_offset < data.end else 0

            tasks = [asyncio.ensure_future(reader(number)) for number in range(10)]
            await asyncio.sleep(20 / 1.1)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # A turn comes every 1.2 s, and a fetch waits for half a second of it.
            assert 0.8 * RATE < sum(read) / 20 < 1.1 * RATE
            assert max(read) - min(read) <= 4 * MIB

    run(body)


def test_a_remote_read_waits_no_longer_than_its_deadline() -> None:
    async def body() -> None:
        async with remote_readers(1.1) as data, data.node.foreground():
            began = data.t.clock.monotonic()
            fetches = await asyncio.gather(*[data.fetch(number) for number in range(40)])
            assert data.t.clock.monotonic() - began < 0.6
            late = [one for one in fetches if not one.size_bytes]
            assert len(late) > 20
            assert all(one.is_paced for one in late)
            now = data.t.clock.monotonic()
            fetched = await data.fetch(0, deadline=now)
            assert fetched.is_paced
            assert data.t.clock.monotonic() - now < 0.01

    run(body)


def test_remote_readers_without_quota_take_no_turns_of_those_who_could_read() -> None:
    length_s = 10

    async def body() -> None:
        clock, config = BusyTierClock(1.1), RemoteLogConfig(fetch_bytes_per_second=1)
        async with (
            busy_node(clock=clock) as node,
            quota_node(config, partitions=20, clock=clock, throttle=node.throttle) as t,
        ):
            await t.configure_all(local_retention_bytes="0")
            for log in t.logs:
                await t.fill(log, 1)
                await t.copy()
                t.log = log
                await t.retain()
                assert log.is_remote(0)
            t.tier_quotas.fetch.record(MIB)

            async def without_quota(log: UnifiedLog) -> None:
                while True:
                    fetched = await log.fetch(0, MIB)
                    assert (fetched.size_bytes, fetched.is_paced) == (0, True)

            async with node.foreground():
                readers = [asyncio.ensure_future(without_quota(log)) for log in t.logs]
                began, read = clock.monotonic(), 0
                while clock.monotonic() < began + length_s:
                    async with node.throttle.admitted(MIB) as grant:
                        grant.used_bytes = grant.bytes_max
                        read += grant.used_bytes
                for reader in readers:
                    reader.cancel()
                await asyncio.wait(readers)
            assert read / length_s > 0.9 * RATE

    run(body)


def test_when_the_foreground_is_gone_remote_readers_read_at_full_speed() -> None:
    async def body() -> None:
        async with remote_readers(1.1) as data:
            async with data.node.foreground():
                await asyncio.gather(*[data.fetch(number) for number in range(40)])
            await asyncio.sleep(FOREGROUND_GONE_S)
            began = data.node.clock.monotonic()
            fetches = await asyncio.gather(*[data.fetch(number) for number in range(40)])
            assert data.node.clock.monotonic() - began < 0.1
            assert not any(one.is_paced for one in fetches)

    run(body)


def test_appends_and_newest_records_of_the_same_log_do_not_wait() -> None:
    async def body() -> None:
        async with remote_readers(1.1) as data:
            readers = [asyncio.ensure_future(data.read(1 << 40)) for _ in range(10)]
            log = data.t.log
            for number in range(200):
                began = data.t.clock.monotonic()
                info = await append(log, encoded([b"%d" % number], at_ms=data.t.clock.now_ms()))
                fetched = await log.fetch(info.base_offset, MIB)
                assert data.t.clock.monotonic() == began
                assert not fetched.is_paced
                (batch,) = scan(b"".join(fetched.parts))
                assert batch.header.base_offset == info.base_offset
                await asyncio.sleep(0.01)
            assert data.node.metric("waiting") > 0
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)

    run(body)


def test_no_chunk_is_loaded_ahead_while_readers_give_way() -> None:
    async def body() -> None:
        async with remote_readers(1.1) as data:
            async with data.node.foreground():
                gets = data.t.storage.gets
                await data.fetch(0)
                assert data.t.storage.gets == gets + 1
            await asyncio.sleep(FOREGROUND_GONE_S)

    run(body)


def test_a_reader_alone_has_three_requests_under_way_and_many_have_half_of_the_memory() -> None:
    """A store answers a request after its latency, however few bytes it is for."""

    async def body() -> None:
        chunk_bytes = 2 * BATCH_BYTES
        memory_bytes = 10 * chunk_bytes
        config = RemoteLogConfig(
            # A fifth is for indexes.
            reads_kept_bytes=memory_bytes * 5 // 4,
            batch_bytes_max=BATCH_BYTES,
            chunks=ChunkConfig(chunk_bytes=chunk_bytes),
        )
        async with remote_readers(config=config) as data:
            under_way, most = 0, 0

            async def latency(call: str) -> None:
                nonlocal under_way, most
                under_way += call == "fetch"
                most = max(most, under_way)
                await asyncio.sleep(0.03)
                under_way -= call == "fetch"

            async def read(offset: int, pause_s: float = 0) -> None:
                for _ in range(12):
                    fetched = await data.t.log.fetch(offset, BATCH_BYTES)
                    offset = fetched.next_offset
                    await asyncio.sleep(pause_s)

            data.t.storage.strike = latency
            await read(0)
            assert most == 3
            readers, most = range(12, data.end - 12, 12), 0
            await asyncio.gather(*map(read, readers))
            # Beside those that readers wait for.
            assert len(readers) < most <= len(readers) + memory_bytes // chunk_bytes // 2
            gets = data.t.storage.gets
            await asyncio.gather(*(read(offset, 0.05) for offset in readers))
            # In so little memory some chunks go before they are read, but most do not.
            chunks = len(readers) * 12 * BATCH_BYTES // chunk_bytes
            assert data.t.storage.gets - gets < 2 * chunks

    run(body)


def test_a_look_up_by_time_that_walks_through_memory_gives_other_work_its_turns() -> None:
    batches = 12
    configs = {
        **CONFIGS,
        "internal.segment.bytes": str(16 * MIB),
        "index.interval.bytes": "1000000000",
    }

    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), configs) as t:
            now_ms = t.clock.now_ms()
            for number in range(batches):
                late_ms = number == batches - 1
                await append(t.log, encoded([bytes(MIB - 1000)], at_ms=now_ms + late_ms))
            await t.log.roll()
            await t.copy()
            await t.retain()
            assert t.log.local_log_start_offset == batches

            async def look_up() -> None:
                found = await t.log.offset_for_timestamp(now_ms + 1, Isolation.READ_UNCOMMITTED)
                assert found.offset == batches - 1

            await look_up()
            gets = t.storage.gets
            async with Turns() as others:
                await look_up()
            assert t.storage.gets == gets
            assert others.count >= batches

    asyncio.run(body())


def test_appends_to_a_shared_topic_have_remote_readers_give_way(tmp_path: Path) -> None:
    """One throttle for all kinds of logs, as an engine is put together."""

    async def body() -> None:
        async with streamlog.open(
            f"local://{tmp_path}/objects",
            meta=f"rocksdb://{tmp_path}/meta",
            wal="object",
            log_dir=tmp_path / "logs",
        ) as engine:
            assert engine.tiers is not None
            tiered = {
                "log.type": "unified",
                "remote.storage.enable": "true",
                "local.retention.bytes": "0",
            }
            await engine.logs.create_topic("shared", 1)
            await engine.logs.create_topic("tiered", 1, tiered)
            shared = await engine.logs.log(TopicPartition("shared", 0))
            log = await engine.logs.log(TopicPartition("tiered", 0))
            for _ in range(8):
                at_ms = engine.clock.now_ms()
                await append(log, encoded([bytes(MIB // 2 - 100)], at_ms=at_ms))
            await log.roll()
            await engine.tiers.run_tasks()
            await engine.logs.retention_tick()
            assert log.is_remote(0)
            await asyncio.sleep(FOREGROUND_GONE_S)
            alone = await log.fetch(0, 4 * MIB)
            assert not alone.is_paced
            assert alone.size_bytes > 3 * MIB
            deadline = engine.clock.monotonic() + 60
            while engine.clock.monotonic() < deadline:
                # The ack may come later than the throttle remembers the append.
                answer = await shared.append(encoded([b"x"]))
                fetched = await log.fetch(0, 4 * MIB)
                await answer
                if fetched.is_paced and fetched.size_bytes:
                    break
            assert fetched.is_paced
            assert 0 < fetched.size_bytes <= MIB

    asyncio.run(body())
