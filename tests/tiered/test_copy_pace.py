"""Copies give way to appends and readers of the newest records, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import LogSegmentData, RemoteLogSegmentMetadata
from streamlog.tiered.config import RemoteLogConfig
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
        return await super().copy_log_segment_data(metadata, data._replace(log_segment=_Sent()))


class _Sent:
    size_bytes = 0
    path = None

    async def read(self, position: int, length: int) -> bytes:
        return b""


@asynccontextmanager
async def closed_segments(
    slowness: float, interval_ms: int
) -> AsyncIterator[tuple[TieredLogUnderTest, BusyNode]]:
    clock, tree = LateClock(slowness), TornTree(SeededRandom(3))
    config = RemoteLogConfig(task_interval_ms=interval_ms)
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
        async with closed_segments(1.0, 30_000) as (t, node):
            async with node.foreground():
                pass
            assert await copied_in(t, node) < 0.5

    run(body)


@pytest.mark.parametrize(
    ("interval_ms", "least_s", "most_s"),
    [(30_000, 0.8, 1.5), (1000, 0.3, 0.9)],
    ids=["at the least rate", "within the time until the next run"],
)
def test_on_a_busy_node_copies_are_spread_over_a_part_of_the_time_until_the_next_run(
    interval_ms: int, least_s: float, most_s: float
) -> None:
    expected_s = SEGMENTS * SEGMENT_BYTES / RATE

    async def body() -> None:
        async with closed_segments(1.1, interval_ms) as (t, node), node.foreground():
            taken_s = await copied_in(t, node)
            assert least_s * expected_s < taken_s < most_s * expected_s

    run(body)
