"""Producers that an open has found in the batches are remembered, and make room for others."""

from __future__ import annotations

import asyncio

from streamlog.log.api.config import LogConfig
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from tests.unified.harness import unified_log

PRODUCERS = 100


def sent(producer_id: int, sequence: int = 0) -> bytes:
    return encoded([b"x"], producer=(producer_id, 0, sequence))


def test_a_new_producer_has_room_after_a_crash() -> None:
    """When their batches came nobody knows: those that were silent for longest are forgotten."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        config = LogConfig(producer_ids_max=PRODUCERS)
        async with unified_log(lambda: tree, {}, config) as t:
            for number in range(PRODUCERS):
                await append(t.log, sent(number))
                t.clock.advance(60_000)
            await t.crashed()
            for number in range(PRODUCERS, PRODUCERS + 10):
                assert not (await append(t.log, sent(number))).is_duplicate
            for number in range(PRODUCERS - 10, PRODUCERS + 10):
                assert (await append(t.log, sent(number))).is_duplicate

    asyncio.run(body())


def test_batches_under_way_are_known_after_two_crashes() -> None:
    """The client may not have come through in between."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, {}) as t:
            for sequence in range(5):
                await append(t.log, sent(1, sequence))
            await t.crashed()
            t.clock.advance(1)
            await append(t.log, sent(2))
            await t.log.roll()
            await t.crashed()
            for sequence in range(5):
                assert (await append(t.log, sent(1, sequence))).is_duplicate

    asyncio.run(body())
