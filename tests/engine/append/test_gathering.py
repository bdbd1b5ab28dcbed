"""wal=disk: a small group waits a moment for callers that were answered just now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.engine.append.group_commit import (
    GATHER_BYTES_MAX,
    SLOW_SYNC_S,
    STILL_TURNS_MAX,
)
from streamlog.format.entry import StreamEntry
from streamlog.model.stream import Stream
from tests.engine.harness import World, batch, sent
from tests.engine.remote import run
from tests.support.replacing import replace_method

TURNS_TO_AN_ANSWER = 5
"""Of a caller on the other side of a socket, whose next request comes later than the answer."""


class Groups:
    """Sizes of the groups that were written. A write takes half a millisecond of virtual time."""

    def __init__(self) -> None:
        self.world = World("disk", is_virtual=True)
        self.sizes: list[int] = []

        async def append(entries: Sequence[StreamEntry], known_failures: int) -> int:
            self.sizes.append(len(entries))
            await asyncio.sleep(SLOW_SYNC_S / 2)
            return await original(entries, known_failures)

        assert self.world.wal is not None
        original = self.world.wal.append
        replace_method(self.world.wal, "append", append)


async def caller(stream: Stream, appends: int, payload: bytes = b"a") -> None:
    """Appends again some turns after each answer."""
    for _ in range(appends):
        await stream.append(batch(payload))
        for _ in range(TURNS_TO_AN_ANSWER):
            await asyncio.sleep(0)


def test_callers_that_came_apart_share_one_group() -> None:
    async def scenario() -> None:
        groups = Groups()
        async with groups.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            first = [asyncio.ensure_future(caller(stream, 10)) for _ in range(3)]
            while not groups.sizes:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0)
            second = [asyncio.ensure_future(caller(stream, 10)) for _ in range(2)]
            await asyncio.gather(*first, *second)
            assert groups.sizes[0] == 3
            assert groups.sizes[1:10] == [5] * 9
            assert sum(groups.sizes) == 50

    run(scenario)


def test_a_lone_caller_waits_once_for_those_who_left_and_then_no_more() -> None:
    async def scenario() -> None:
        groups = Groups()
        async with groups.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            await asyncio.gather(*(caller(stream, 1) for _ in range(5)))
            turns: list[int] = []
            for _ in range(3):
                append, turn, written = sent(stream.append(batch(b"a"))), 0, len(groups.sizes)
                while len(groups.sizes) == written:
                    await asyncio.sleep(0)
                    turn += 1
                turns.append(turn)
                await append
            assert groups.sizes == [5, 1, 1, 1]
            assert turns[0] - turns[1] == STILL_TURNS_MAX
            assert turns[1] == turns[2]

    run(scenario)


def test_a_large_group_does_not_wait() -> None:
    async def scenario() -> None:
        groups = Groups()
        async with groups.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            large = bytes(GATHER_BYTES_MAX)
            first = [asyncio.ensure_future(caller(stream, 4, large)) for _ in range(3)]
            while not groups.sizes:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0)
            second = [asyncio.ensure_future(caller(stream, 4, large)) for _ in range(2)]
            await asyncio.gather(*first, *second)
            assert groups.sizes[:4] == [3, 2, 3, 2]

    run(scenario)
