"""Copies give way to appends and readers of the newest records, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import LogSegmentData, RemoteLogSegmentMetadata
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.copying.pace import CopyPace
from tests.support.busy_clock import BusyClock
from tests.support.busy_node import MIB, RATE, BusyNode, busy_node
from tests.tiered.harness import BreakableStorage, TieredLogUnderTest, VirtualClock, tiered_log

BATCH_BYTES = 256 << 10
SEGMENTS = 4
SEGMENT_BYTES = 4 * MIB
CONFIGS = {"internal.segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "4096"}


class LateClock(BusyClock, VirtualClock):
    """Of a tiered log on a node whose event loop may be late."""


class PiecewiseStorage(BreakableStorage):
    """Reads as those do that send a segment in pieces."""

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        log, position = data.log_segment, 0
        while position < log.size_bytes:
            position += len(await log.read(position, MIB))
        return await super().copy_log_segment_data(metadata, data._replace(log_segment=_Zeros()))


@dataclass
class _Zeros:
    size_bytes: int = 0
    path: None = None

    async def read(self, position: int, length: int) -> bytes:
        return bytes(min(length, self.size_bytes - position))


@asynccontextmanager
async def closed_segments(
    slowness: float, spread_ms: int
) -> AsyncIterator[tuple[TieredLogUnderTest, BusyNode]]:
    clock, tree = LateClock(slowness), TornTree(SeededRandom(3))
    config = RemoteLogConfig(copy_spread_ms=spread_ms)
    async with (
        busy_node(clock=clock) as node,
        tiered_log(tree, CONFIGS, config, PiecewiseStorage(), clock, node.throttle) as t,
    ):
        value = bytes(BATCH_BYTES - 100)
        while len(t.log.segments) <= SEGMENTS:
            await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        yield t, node


async def copied_in(t: TieredLogUnderTest, node: BusyNode) -> float:
    began = node.clock.monotonic()
    await t.copy()
    assert len([one for one in t.log.segments if not one.is_active]) == SEGMENTS
    assert t.log.segments[-2].end_offset == t.manager.highest_offset(t.log.topic_partition) + 1
    return node.clock.monotonic() - began


def test_on_a_node_with_nothing_else_to_do_a_copy_does_not_wait() -> None:
    async def body() -> None:
        async with closed_segments(1.0, 60_000) as (t, node):
            async with node.foreground():
                pass
            assert await copied_in(t, node) < 0.5

    run(body)


@pytest.mark.parametrize(
    ("spread_ms", "least_s", "most_s"),
    [(60_000, 1.6, 3.0), (1000, 0.9, 1.2), (0, 0, 0.1)],
    ids=["at the least rate", "within their time", "at once"],
)
def test_on_a_busy_node_copies_are_spread_over_the_time_that_they_have(
    spread_ms: int, least_s: float, most_s: float
) -> None:
    """At the least rate what is copied takes two seconds."""
    assert SEGMENTS * SEGMENT_BYTES == 2 * RATE

    async def body() -> None:
        async with closed_segments(1.1, spread_ms) as (t, node), node.foreground():
            assert least_s <= await copied_in(t, node) < most_s

    run(body)


def test_what_waits_behind_other_partitions_is_due_within_the_same_time() -> None:
    """Each run alone has time enough, all of them one after another have not."""
    partitions, size_bytes = 8, 2 * MIB

    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 1.0)
            pace.note_waiting(partitions * size_bytes)
            waiting = [pace.of(_Zeros(size_bytes)) for _ in range(partitions)]

            async def copier() -> None:
                while waiting:
                    file = waiting.pop()
                    with pace.run(size_bytes):
                        for position in range(0, size_bytes, MIB):
                            await file.read(position, MIB)

            began = node.clock.monotonic()
            await asyncio.gather(copier(), copier())
            assert 0.9 < node.clock.monotonic() - began < 1.2

    run(body)


def test_a_run_between_two_rounds_is_due_within_its_time() -> None:
    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 1.0)
            file, began = pace.of(_Zeros(16 * MIB)), node.clock.monotonic()
            with pace.run(file.size_bytes):
                for position in range(0, file.size_bytes, MIB):
                    await file.read(position, MIB)
            assert 0.9 < node.clock.monotonic() - began < 1.2

    run(body)
