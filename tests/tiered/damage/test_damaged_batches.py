"""Batches of a remote segment that were changed where no CRC covers them, or on their way; those of
a log with gaps are not damaged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from itertools import accumulate

import pytest

from streamlog.codec.batch import scan
from streamlog.errors import Corrupt
from streamlog.runtime.concurrency.catch_up_throttle import NO_THROTTLE, NoThrottle, ReadGrant
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.reading.chunks import ChunkConfig
from tests.tiered.harness import TieredLogUnderTest, filled_and_moved, tiered_log, values


def run(test: Callable[[TieredLogUnderTest, dict[int, bytes]], Awaitable[None]]) -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3))) as t:
            await test(t, await filled_and_moved(t, 40))

    asyncio.run(body())


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("by", [-1, 1])
def test_a_base_offset_that_was_changed_is_found(number: int, by: int) -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        second = (await t.metadata.list_remote_log_segments(t.partition))[1]
        files = t.storage.segments[second.remote_log_segment_id.id]
        good = files["LOG"]
        batches = [bytes(one.view) for one in scan(good)]
        at = [0, *accumulate(map(len, batches))][number]
        base = int.from_bytes(good[at : at + 8], "big")
        files["LOG"] = good[:at] + (base + by).to_bytes(8, "big") + good[at + 8 :]
        for offset in range(second.end_offset, second.start_offset, -1):
            with suppress(Corrupt):
                found = await values(t.log, offset)
                assert found == {one: wanted[one] for one in wanted if one >= offset}
        with pytest.raises(Corrupt, match="is damaged"):
            await values(t.log, second.start_offset)
        files["LOG"] = good
        t.clock.advance(1000)
        with suppress(Corrupt):
            # What is in memory is asked for again once it proves damaged.
            await values(t.log, second.start_offset)
        assert await values(t.log) == wanted

    run(test)


@pytest.mark.parametrize("byte", [*range(12), 23, 26, 80])
def test_bytes_that_were_changed_on_their_way_are_asked_for_again(byte: int) -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        first = (await t.metadata.list_remote_log_segments(t.partition))[0]
        files = t.storage.segments[first.remote_log_segment_id.id]
        good = files["LOG"]
        files["LOG"] = good[:byte] + bytes([good[byte] ^ 1]) + good[byte + 1 :]
        with pytest.raises(Corrupt, match="is damaged"):
            await t.log.fetch(0, 1000)
        files["LOG"] = good
        assert await values(t.log) == wanted

    run(test)


@pytest.mark.parametrize("byte", [8, 23, 80], ids=["length", "delta", "records"])
def test_the_batches_beside_one_that_was_changed_are_read(byte: int) -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        second = (await t.metadata.list_remote_log_segments(t.partition))[1]
        files = t.storage.segments[second.remote_log_segment_id.id]
        good = files["LOG"]
        at = [0, *accumulate(len(one.view) for one in scan(good))][3] + byte
        files["LOG"] = good[:at] + bytes([good[at] ^ 0x80]) + good[at + 1 :]
        changed = second.start_offset + 3
        for offset in range(second.start_offset, second.end_offset + 1):
            if offset == changed:
                with pytest.raises(Corrupt, match="is damaged"):
                    await t.log.fetch(offset, 1)
            else:
                assert (await t.log.fetch(offset, 1)).next_offset == offset + 1
        for offset in range(second.start_offset, changed):
            assert (await t.log.fetch(offset, 1 << 20)).next_offset == changed

    run(test)


def pair(number: int, at_ms: int) -> bytes:
    return encoded([b"%06d.%d" % (number, one) * 12 for one in range(2)], at_ms=at_ms)


@asynccontextmanager
async def moved_pairs() -> AsyncIterator[tuple[TieredLogUnderTest, dict[str, bytes], int]]:
    """A log of batches with two records each; the files of its first remote segment, whose chunks
    have two of them; and the bytes of each."""
    size = len(pair(0, 0))
    config = RemoteLogConfig(chunks=ChunkConfig(chunk_bytes=2 * size))
    async with tiered_log(TornTree(SeededRandom(3)), config=config) as t:
        for number in range(20):
            await append(t.log, pair(number, t.clock.now_ms()))
        await t.copy()
        await t.configure(local_retention_bytes="0")
        await t.retain()
        first = (await t.metadata.list_remote_log_segments(t.partition))[0]
        assert first.segment_size_bytes == 3 * size
        yield t, t.storage.segments[first.remote_log_segment_id.id], size


@pytest.mark.parametrize(("number", "by"), [(1, 1), (2, -1)])
def test_a_base_offset_that_was_changed_is_found_at_the_end_of_a_chunk(
    number: int, by: int
) -> None:
    async def body() -> None:
        async with moved_pairs() as (t, files, size):
            good, at = files["LOG"], number * size
            base = int.from_bytes(good[at : at + 8], "big")
            files["LOG"] = good[:at] + (base + by).to_bytes(8, "big") + good[at + 8 :]
            for before in range(number):
                fetched = await t.log.fetch(2 * before, 1)
                assert b"".join(fetched.parts) == good[before * size : (before + 1) * size]
            assert (await t.log.fetch(0, 1 << 20)).next_offset == 2 * number
            with pytest.raises(Corrupt, match="is damaged"):
                await t.log.fetch(2 * number, 1)

    asyncio.run(body())


@pytest.mark.parametrize("number", range(3))
def test_a_batch_that_seems_to_end_before_the_offset_is_not_passed_over(number: int) -> None:
    async def body() -> None:
        async with moved_pairs() as (t, files, size):
            good, last_delta_at = files["LOG"], number * size + 26
            files["LOG"] = good[:last_delta_at] + b"\0" + good[last_delta_at + 1 :]
            with pytest.raises(Corrupt, match="is damaged"):
                await t.log.fetch(2 * number + 1, 1)

    asyncio.run(body())


@pytest.mark.parametrize("byte", [8, 80], ids=["length", "records"])
def test_damage_in_the_store_is_loaded_anew_once_a_second(byte: int) -> None:
    """Many more would be asked for by a consumer that tries again at once, and each is a chunk."""
    calls: list[str] = []

    async def body() -> None:
        async with moved_pairs() as (t, files, size):
            good, at = files["LOG"], 2 * size + byte
            files["LOG"] = good[:at] + bytes([good[at] ^ 0x80]) + good[at + 1 :]
            t.storage.strike = calls.append

            async def read() -> None:
                for _ in range(5):
                    with pytest.raises(Corrupt, match="is damaged"):
                        await t.log.fetch(4, 1)
                    assert (await t.log.fetch(0, 1)).next_offset == 2

            await read()
            count = len(calls)
            await read()
            assert len(calls) == count
            t.clock.advance(1000)
            await read()
            assert 0 < len(calls) - count <= 3
            files["LOG"] = good
            t.clock.advance(1000)
            with pytest.raises(Corrupt, match="is damaged"):
                await t.log.fetch(4, 1)
            assert (await t.log.fetch(4, 1)).next_offset == 6

    asyncio.run(body())


class OneReadAtATime(NoThrottle):
    """As beside appends: an answer ends with its grant."""

    @asynccontextmanager
    async def admitted(
        self, max_bytes: int, *, place: Hashable = None, deadline: float | None = None
    ) -> AsyncIterator[ReadGrant]:
        yield ReadGrant(max_bytes, is_paced=True)


async def moved_with_gaps(t: TieredLogUnderTest, dropped: set[int]) -> dict[int, bytes]:
    """Values by offset of a log of 40 batches, all but the newest of them in the remote tier alone.
    Three of its segments lack those that are `dropped`, counted from their beginnings."""
    wanted: dict[int, bytes] = {}
    for number in range(40):
        value = b"%06d" % number * 16
        wanted[number] = value
        await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
    for old in t.log.segments[1:4]:
        replacement = await t.log.replace_segments([old])
        async for data in t.log.read_for_cleaning(old, old.base_offset):
            for one in scan(data):
                if one.header.base_offset - old.base_offset in dropped:
                    del wanted[one.header.base_offset]
                else:
                    await replacement.append(one.view)
        await replacement.commit()
    assert len(wanted) == 40 - 3 * len(dropped)
    assert await values(t.log) == wanted
    await t.copy()
    await t.configure(local_retention_bytes="0")
    await t.retain()
    return wanted


@pytest.mark.parametrize("throttle", [NO_THROTTLE, OneReadAtATime()], ids=["free", "throttled"])
@pytest.mark.parametrize("dropped", [{0}, {2}, {5}, {0, 1, 4, 5}, {1, 2, 3}])
def test_a_log_with_gaps_is_read_from_the_tier(dropped: set[int], throttle: NoThrottle) -> None:
    """One that was compacted before it was tiered."""

    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), throttle=throttle) as t:
            wanted = await moved_with_gaps(t, dropped)
            assert await values(t.log) == wanted
            for offset in reversed(range(t.log.local_log_start_offset)):
                fetched = await t.log.fetch(offset, 1)
                assert fetched.batches
                assert fetched.next_offset == min(one for one in wanted if one >= offset) + 1
                assert (await t.log.fetch(offset, 1000, min_one_batch=False)).batches

    asyncio.run(body())


class BusyBehindTheFirstRead(NoThrottle):
    """Appends begin once a read was admitted."""

    reads = 0

    @asynccontextmanager
    async def admitted(
        self, max_bytes: int, *, place: Hashable = None, deadline: float | None = None
    ) -> AsyncIterator[ReadGrant]:
        self.reads += 1
        yield ReadGrant(max_bytes, is_paced=self.reads > 1)


def test_records_that_are_here_wait_for_no_grant_behind_a_gap() -> None:
    async def body() -> None:
        throttle = BusyBehindTheFirstRead()
        async with tiered_log(TornTree(SeededRandom(3)), throttle=throttle) as t:
            wanted = await moved_with_gaps(t, {5})
            gap = min(set(range(40)) - wanted.keys())
            throttle.reads = 0
            fetched = await t.log.fetch(gap - 1, 1 << 20)
            assert (fetched.batches, fetched.is_paced) == (1, True)
            assert fetched.next_offset == gap + 1
            assert throttle.reads == 2

    asyncio.run(body())
