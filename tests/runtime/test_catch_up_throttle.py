"""The line of the throttle in virtual time: deadlines, kept places, turns that nobody claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamlog.runtime.concurrency.catch_up_throttle import CatchUpLimits, ReadGrant
from streamlog.testing.simulation.world.loop import run
from tests.support.busy_node import LIMITS, MIB, BusyNode, busy_node


class Line:
    """Reads in line beside foreground I/O."""

    def __init__(self, node: BusyNode) -> None:
        self.clock, self.throttle, self.metric = node.clock, node.throttle, node.metric

    async def read(
        self, place: object = None, wait_s: float | None = None, size: int = MIB
    ) -> ReadGrant:
        """One read that uses all it may."""
        deadline = None if wait_s is None else self.clock.monotonic() + wait_s
        async with self.throttle.admitted(size, place=place, deadline=deadline) as grant:
            grant.used_bytes = grant.bytes_max
        return grant

    async def fill(self) -> None:
        """Takes what may be read at once, so that the next read waits."""
        while self.throttle.admits_now:
            await self.read()


@asynccontextmanager
async def busy_line(limits: CatchUpLimits = LIMITS) -> AsyncIterator[Line]:
    async with busy_node(limits) as node, node.foreground():
        yield Line(node)


def test_readers_that_wait_for_less_than_a_turn_are_all_served_in_order() -> None:
    async def body() -> None:
        async with busy_line() as node:
            served = [0] * 20

            async def reader(number: int) -> None:
                while True:
                    grant = await node.read(place=(number, served[number]), wait_s=0.5)
                    served[number] += grant.is_admitted

            tasks = [asyncio.ensure_future(reader(number)) for number in range(20)]
            await asyncio.sleep(20)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # Each waits 2.5 s for a turn, and gives up five times meanwhile.
            assert max(served) - min(served) <= 2
            assert 20 * 8 * 0.9 < sum(served) < 22 * 8 + 5

    run(body)


def test_a_read_without_a_place_that_gives_up_leaves_the_line() -> None:
    async def body() -> None:
        async with busy_line() as node:
            await node.fill()
            grants = await asyncio.gather(*[node.read(wait_s=0.01) for _ in range(50)])
            assert not any(grant.is_admitted for grant in grants)
            assert all(grant.bytes_max == 0 for grant in grants)
            began = node.clock.monotonic()
            assert (await node.read()).is_paced
            assert node.clock.monotonic() - began < 0.2

    run(body)


def test_a_turn_that_nobody_claims_is_charged_to_nobody() -> None:
    async def body() -> None:
        async with busy_line() as node:
            await node.fill()
            lost = [node.read(place=number, wait_s=0.001) for number in range(8)]
            assert not any(grant.is_admitted for grant in await asyncio.gather(*lost))
            charged = node.metric("bytes_total")
            await asyncio.sleep(10)
            assert node.metric("bytes_total") == charged
            began = node.clock.monotonic()
            await node.read()
            await node.read()
            assert node.clock.monotonic() - began < 0.2
            # A reader that comes back that late has a new place.
            await node.fill()
            assert not (await node.read(place=3, wait_s=0.01)).is_admitted

    run(body)


def test_a_turn_that_came_meanwhile_is_there_at_once() -> None:
    async def body() -> None:
        async with busy_line() as node:
            await node.fill()
            assert not (await node.read(place="here", wait_s=0.001)).is_admitted
            await asyncio.sleep(1)
            await node.fill()
            began = node.clock.monotonic()
            grant = await node.read(place="here", wait_s=0.0, size=MIB // 4)
            assert grant.is_admitted
            assert grant.bytes_max == MIB // 4
            assert node.clock.monotonic() - began < 0.001

    run(body)


def test_two_reads_of_one_place_get_a_turn_each() -> None:
    async def body() -> None:
        async with busy_line() as node:
            await node.fill()
            before = node.metric("bytes_total")
            grants = await asyncio.gather(node.read(place=1), node.read(place=1))
            assert grants[0] is not grants[1]
            assert node.metric("bytes_total") - before == 2 * MIB

    run(body)


@pytest.mark.parametrize("place", [None, "here"])
def test_a_cancelled_read_leaves_the_line(place: str | None) -> None:
    async def body() -> None:
        async with busy_line() as node:
            await node.fill()
            readers = [asyncio.ensure_future(node.read(place=place)) for _ in range(100)]
            await asyncio.sleep(0.02)
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
            began = node.clock.monotonic()
            await node.read(place=place)
            assert node.clock.monotonic() - began < 0.2

    run(body)


def test_a_kept_place_waits_no_longer_than_the_bound() -> None:
    async def body() -> None:
        limits = CatchUpLimits(MIB, MIB, 0.5, 2000)
        async with busy_line(limits) as node:
            await node.fill()
            others = [asyncio.ensure_future(node.read()) for _ in range(100)]
            await asyncio.sleep(0.001)
            began = node.clock.monotonic()
            while not (await node.read(place="here", wait_s=0.3)).is_admitted:
                assert node.clock.monotonic() - began < 2.2
            assert node.clock.monotonic() - began > 1
            await asyncio.gather(*others)

    run(body)


def test_a_place_that_was_kept_gets_everything_when_the_foreground_is_gone() -> None:
    async def body() -> None:
        async with busy_line() as node:
            await node.fill()
            assert not (await node.read(place="here", wait_s=0.001, size=64 * MIB)).is_admitted
            node.throttle.close()
            grant = await node.read(place="here", size=64 * MIB)
            assert grant.bytes_max == 64 * MIB
            assert not grant.is_paced

    run(body)


def test_a_read_in_line_does_not_give_way_to_what_its_own_task_did_last() -> None:
    async def body() -> None:
        async with busy_node() as node:
            line = Line(node)
            async with node.foreground():
                await line.fill()
            await asyncio.sleep(0.2)
            node.throttle.note_foreground_io()
            await line.fill()
            began = node.clock.monotonic()
            # Those of others are a quarter of a second ago before it is its turn.
            assert not (await line.read(size=8 * MIB)).is_paced
            assert node.clock.monotonic() - began < 0.1
            node.throttle.note_foreground_io()
            assert node.throttle.admits_now

    run(body)
