"""A node gives free memory back once a large read is over, and not while it goes on."""

from __future__ import annotations

import asyncio

from streamlog.server.spare_memory import QUIET_BYTES, WORTH_BYTES, SpareMemory
from tests.engine.remote import InlineOffload


def given_back_after(reads: list[int]) -> list[int]:
    """The ticks (from 0) at which memory was given back, with so many bytes read before each."""
    total, given, tick = 0, [], 0

    async def main() -> None:
        nonlocal total, tick
        spare = SpareMemory(lambda: total, InlineOffload(), lambda: given.append(tick))
        for tick, read in enumerate(reads):  # noqa: B007 - the lambda sees it
            total += read
            await spare.tick()

    asyncio.run(main())
    return given


def test_memory_is_given_back_once_when_a_large_read_is_over() -> None:
    assert given_back_after([WORTH_BYTES, WORTH_BYTES, 0, 0, 0]) == [2]


def test_a_small_read_gives_nothing_back() -> None:
    assert given_back_after([QUIET_BYTES - 1] * 4 + [0, 0]) == []


def test_a_slow_read_gives_back_now_and_then() -> None:
    every = -(-WORTH_BYTES // (QUIET_BYTES - 1))
    assert given_back_after([QUIET_BYTES - 1] * (2 * every)) == [every - 1, 2 * every - 1]


def test_each_large_read_gives_memory_back() -> None:
    assert given_back_after([WORTH_BYTES, 0, 0, WORTH_BYTES, 1, 0]) == [1, 4]
