"""Batches of a remote segment that were changed where no CRC covers them, or on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import accumulate

import pytest

from streamlog.codec.batch import scan
from streamlog.errors import Corrupt
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_folder import TornTree
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
