"""Readers far behind the end of a log in local files give way to others, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest

import streamlog
from streamlog.errors import Closed
from streamlog.model.partition import TopicPartition
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run
from streamlog.testing.torn_folder import TornTree
from streamlog.unified.read.catch_up_reader import NEAR_BYTES
from tests.support.busy_clock import BusyClock
from tests.support.busy_node import MIB, RATE, BusyNode, busy_node
from tests.unified.harness import HeldOffload, UnifiedLogUnderTest, unified_log

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BATCH_BYTES = 256 << 10
OLD_BATCHES = 64
BATCHES = OLD_BATCHES + NEAR_BYTES // BATCH_BYTES
CONFIGS = {
    "log.type": "unified",
    "internal.segment.bytes": str(8 * MIB),
    "max.message.bytes": str(8 * MIB),
}
FOREGROUND_GONE_S = 0.3


class FarBehind:
    """A log of 48 MiB; its first 16 are far from its end."""

    def __init__(self, t: UnifiedLogUnderTest, node: BusyNode) -> None:
        self.t, self.log, self.node = t, t.log, node

    async def read(self, size_bytes: int) -> float:
        """Seconds of reading so much of the first 8 MiB, again and again."""
        began, seen, offset = self.node.clock.monotonic(), 0, 0
        while seen < size_bytes:
            fetched = await self.log.fetch(offset, 8 * MIB)
            seen += fetched.size_bytes
            offset = fetched.next_offset if fetched.next_offset < OLD_BATCHES // 2 else 0
        return self.node.clock.monotonic() - began


@asynccontextmanager
async def far_behind(slowness: float = 1.0) -> AsyncIterator[FarBehind]:
    tree = TornTree(SeededRandom(3))
    async with (
        busy_node(clock=BusyClock(slowness)) as node,
        unified_log(lambda: tree, CONFIGS, throttle=node.throttle) as t,
    ):
        value = bytes(BATCH_BYTES - 100)
        for _ in range(BATCHES):
            await append(t.log, encoded([value]))
        await asyncio.sleep(FOREGROUND_GONE_S)
        yield FarBehind(t, node)


def test_without_foreground_io_a_reader_far_behind_is_not_throttled() -> None:
    async def body() -> None:
        async with far_behind() as data:
            assert await data.read(256 * MIB) < 0.1
            assert not (await data.log.fetch(0, 8 * MIB)).is_paced
            assert data.node.metric("bytes_total") == 0

    run(body)


def test_beside_foreground_io_a_reader_far_behind_gets_pieces_at_a_growing_rate() -> None:
    async def body() -> None:
        async with far_behind() as data, data.node.foreground():
            fetched = await data.log.fetch(0, 8 * MIB)
            assert fetched.is_paced
            assert MIB - BATCH_BYTES < fetched.size_bytes < MIB + BATCH_BYTES
            seconds = await data.read(64 * MIB)
            assert 1.0 < seconds < 64 * MIB / RATE, "the rate grows while the loop is on time"
            assert await data.read(64 * MIB) < seconds

    run(body)


def test_readers_near_the_end_and_appends_do_not_wait_for_those_far_behind() -> None:
    async def body() -> None:
        async with far_behind(1.1) as data:
            readers = [asyncio.ensure_future(data.read(1 << 40)) for _ in range(20)]
            loop = asyncio.get_running_loop()
            for _ in range(100):
                began = loop.time()
                await append(data.log, encoded([b"x"]))
                newest = await data.log.fetch(data.log.high_watermark - 1, MIB)
                near = await data.log.fetch(data.log.high_watermark - 100, 8 * MIB)
                assert loop.time() == began
                assert not newest.is_paced
                assert not near.is_paced
                assert newest.size_bytes
                assert near.size_bytes
                await asyncio.sleep(0.01)
            assert data.node.metric("waiting") > 10
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)

    run(body)


def test_reads_of_the_newest_records_are_foreground_io() -> None:
    async def body() -> None:
        async with far_behind() as data:
            assert not (await data.log.fetch(0, 8 * MIB)).is_paced
            await asyncio.create_task(data.log.fetch(data.log.high_watermark - 1, MIB))
            assert (await data.log.fetch(0, 8 * MIB)).is_paced
            await asyncio.sleep(FOREGROUND_GONE_S)
            # A reader that is near the end, and has not reached it, throttles nobody.
            await asyncio.create_task(data.log.fetch(data.log.high_watermark - 100, 8 * MIB))
            assert not (await data.log.fetch(0, 8 * MIB)).is_paced

    run(body)


def test_a_partition_that_would_wait_is_left_out_where_others_have_data() -> None:
    async def body() -> None:
        async with far_behind(1.1) as data, data.node.foreground():
            began = asyncio.get_running_loop().time()
            first = await data.log.fetch(0, 8 * MIB)
            second = await data.log.fetch(8, 8 * MIB, min_one_batch=False)
            assert first.size_bytes
            assert (second.size_bytes, second.is_paced) == (0, True)
            assert asyncio.get_running_loop().time() == began

    run(body)


def test_a_batch_that_is_larger_than_a_piece_has_room_by_the_whole_read() -> None:
    async def body() -> None:
        async with far_behind(1.1) as data, data.node.foreground():
            await append(data.log, encoded([bytes(4 * MIB)]))
            large = data.log.high_watermark - 1
            for _ in range(BATCHES):
                await append(data.log, encoded([bytes(BATCH_BYTES - 100)]))
            await asyncio.sleep(FOREGROUND_GONE_S)
            fetched = await data.log.fetch(large, 8 * MIB, min_one_batch=False)
            assert fetched.is_paced
            assert (fetched.batches, fetched.next_offset) == (1, large + 1)

    run(body)


def test_a_read_that_waits_ends_by_its_deadline_and_with_its_log() -> None:
    async def body() -> None:
        async with far_behind(1.1) as data, data.node.foreground():
            clock = data.node.clock
            await data.log.fetch(0, 8 * MIB)
            began = clock.monotonic()
            late = await data.log.fetch(0, 8 * MIB, deadline=began + 0.05)
            assert (late.size_bytes, late.is_paced) == (0, True)
            assert clock.monotonic() - began < 0.07
            waiting = [asyncio.ensure_future(data.log.fetch(16, MIB)) for _ in range(3)]
            await asyncio.sleep(0.01)
            await data.log.close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, Closed) for result in results)

    run(body)


class OffloadWithoutReads(HeldOffload):
    """Has no threads for reads."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        assert lane is not Lane.READ, fn
        return await super().run(lane, fn, *args)


@pytest.mark.parametrize("max_bytes", [1, 64 << 10])
def test_who_looks_at_the_newest_record_needs_no_thread(max_bytes: int) -> None:
    """Wherever its last read ended: the active segment's index is in memory."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, CONFIGS, offload=OffloadWithoutReads()) as t:
            for number in range(40):
                await append(t.log, encoded([b"%d" % number * 20_000] * 2))
                fetched = await t.log.fetch(t.log.high_watermark - 1, max_bytes)
                assert fetched.next_offset == t.log.high_watermark

    run(body)


def test_appends_to_a_shared_topic_have_readers_of_a_unified_one_give_way(tmp_path: Path) -> None:
    """One throttle for all kinds of logs, as an engine is put together."""

    async def body() -> None:
        async with streamlog.open(
            f"local://{tmp_path}/objects",
            meta=f"rocksdb://{tmp_path}/meta",
            wal="object",
            log_dir=tmp_path / "logs",
        ) as engine:
            await engine.logs.create_topic("shared", 1)
            await engine.logs.create_topic("unified", 1, {"log.type": "unified"})
            shared = await engine.logs.log(TopicPartition("shared", 0))
            unified = await engine.logs.log(TopicPartition("unified", 0))
            large = encoded([bytes(MIB - 100)])
            for _ in range(NEAR_BYTES // MIB + 8):
                await append(unified, large)

            async def far_read(*, is_beside_appends: bool) -> bool:
                deadline = engine.clock.monotonic() + 60
                while engine.clock.monotonic() < deadline:
                    if is_beside_appends:
                        # Its ack may come later than the throttle remembers it.
                        answer = await shared.append(encoded([b"x"]))
                    fetched = await unified.fetch(0, 4 * MIB)
                    if is_beside_appends:
                        await answer
                    if fetched.is_paced == is_beside_appends:
                        return fetched.size_bytes <= MIB
                raise AssertionError("readers and appends do not share a throttle")

            assert not await far_read(is_beside_appends=False)
            assert await far_read(is_beside_appends=True)
            name = "streamlog_engine_catch_up_bytes_total"
            assert (engine.registry.get_sample_value(name) or 0) > 0

    asyncio.run(body())
