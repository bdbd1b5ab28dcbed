"""Copies give way to appends and readers of the newest records, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from streamlog.log.api.tiering import LocalSegmentFiles
from streamlog.objectstore.interface import SendRate
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
FOREGROUND_GONE_S = 0.3
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


async def _copy(pace: CopyPace, segment: _Zeros, piece_bytes: int = MIB) -> None:
    """As plug-ins do: the indexes, then the log."""
    index = _Zeros(1)
    with pace.copy(segment) as paced:
        files = paced.of(LocalSegmentFiles(segment, index, index, index, index, b""))
        for one in (files.offset_index, files.time_index, files.producer_snapshot):
            await one.read(0, 1)
        position = 0
        while position < segment.size_bytes:
            position += len(await files.log_segment.read(position, piece_bytes))


@asynccontextmanager
async def closed_segments(
    slowness: float, spread_ms: int, **configs: str
) -> AsyncIterator[tuple[TieredLogUnderTest, BusyNode]]:
    clock, tree = LateClock(slowness), TornTree(SeededRandom(3))
    config = RemoteLogConfig(copy_spread_ms=spread_ms)
    async with (
        busy_node(clock=clock) as node,
        tiered_log(tree, CONFIGS | configs, config, PiecewiseStorage(), clock, node.throttle) as t,
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
    [(60_000, 3.0, 4.2), (1000, 0.8, 1.1), (0, 0, 0.1)],
    ids=["at the least rate", "within their time", "at once"],
)
def test_on_a_busy_node_copies_are_spread_over_the_time_that_they_have(
    spread_ms: int, least_s: float, most_s: float
) -> None:
    """At the least rate the segments take two seconds, and their indexes, of which each counts as
    a MiB, two more."""
    assert SEGMENTS * SEGMENT_BYTES == 2 * RATE

    async def body() -> None:
        async with closed_segments(1.1, spread_ms) as (t, node), node.foreground():
            assert least_s <= await copied_in(t, node) < most_s

    run(body)


def test_what_may_not_be_copied_yet_hurries_nothing() -> None:
    """Of four segments one may go; with all of them it would have half of the time."""

    async def body() -> None:
        async with closed_segments(1.1, 1000) as (t, node), node.foreground():
            behind = sum(one.size_bytes for one in t.log.segments[1:])
            await t.configure(remote_copy_lag_ms="-1", remote_copy_lag_bytes=str(behind))
            began = node.clock.monotonic()
            await t.copy()
            assert (
                t.manager.highest_offset(t.log.topic_partition) + 1 == t.log.segments[0].end_offset
            )
            assert 0.6 < node.clock.monotonic() - began < 1.0

    run(body)


def test_a_copy_that_a_quota_lets_in_is_spread_over_half_of_the_time_until_the_next_one() -> None:
    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 1.0)
            pace.set_quota(8 * MIB)
            pace.note_waiting([_Zeros(1024 * MIB)])
            began = node.clock.monotonic()
            await _copy(pace, _Zeros(16 * MIB))
            assert 0.9 < node.clock.monotonic() - began < 1.3

    run(body)


def test_copies_take_no_turns_of_readers_that_catch_up() -> None:
    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 60.0)
            pace.note_waiting([_Zeros(1024 * MIB)])
            copies = [
                asyncio.ensure_future(_copy(pace, _Zeros(64 * MIB), 4 * MIB)) for _ in range(10)
            ]
            read, began = 0, node.clock.monotonic()
            while read < 4 * RATE:
                async with node.throttle.admitted(MIB) as grant:
                    read += grant.bytes_max
                    grant.used_bytes = grant.bytes_max
            assert node.clock.monotonic() - began < 4.5
            for one in copies:
                one.cancel()
            await asyncio.wait(copies)

    run(body)


def test_what_waits_behind_other_partitions_is_due_within_the_same_time() -> None:
    """Each run alone has time enough, all of them one after another have not."""

    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 1.0)
            waiting = [_Zeros(2 * MIB)] * 8
            pace.note_waiting(waiting)

            async def copier() -> None:
                while waiting:
                    await _copy(pace, waiting.pop())

            began = node.clock.monotonic()
            await asyncio.gather(copier(), copier())
            assert 0.7 < node.clock.monotonic() - began < 1.1

    run(body)


def test_a_run_between_two_rounds_is_due_within_its_time() -> None:
    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 1.0)
            began = node.clock.monotonic()
            await _copy(pace, _Zeros(16 * MIB))
            assert 0.7 < node.clock.monotonic() - began < 1.1

    run(body)


def test_what_was_copied_at_full_speed_is_no_debt() -> None:
    async def body() -> None:
        async with busy_node() as node:
            pace = CopyPace(node.throttle, node.clock, 60.0)
            await _copy(pace, _Zeros(1024 * MIB), 4 * MIB)
            async with node.foreground():
                began = node.clock.monotonic()
                await _copy(pace, _Zeros(MIB))
                assert node.clock.monotonic() - began < 1

    run(body)


def test_copies_under_way_keep_their_time_when_the_quota_is_lowered() -> None:
    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 10.0)
            began = node.clock.monotonic()
            copies = [asyncio.ensure_future(_copy(pace, _Zeros(256 * MIB))) for _ in range(4)]
            await asyncio.sleep(1)
            pace.set_quota(MIB)
            await asyncio.gather(*copies)
            # The last ones have their own time; the others have left theirs.
            assert node.clock.monotonic() - began < 25

    run(body)


def test_a_large_copy_beside_many_small_ones_has_its_time() -> None:
    """Turn by turn it would get as much as each of them, and take two minutes."""

    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 10.0)

            async def copy_small_ones() -> None:
                while True:
                    await _copy(pace, _Zeros(MIB))

            copiers = [asyncio.ensure_future(copy_small_ones()) for _ in range(9)]
            began = node.clock.monotonic()
            await _copy(pace, _Zeros(256 * MIB))
            assert node.clock.monotonic() - began < 11
            for one in copiers:
                one.cancel()
            await asyncio.wait(copiers)

    run(body)


def test_a_copy_that_was_held_up_elsewhere_does_not_hurry() -> None:
    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 10.0)
            segment, index = _Zeros(256 * MIB), _Zeros(1)
            with pace.copy(segment) as paced:
                log = paced.of(
                    LocalSegmentFiles(segment, index, index, index, index, b"")
                ).log_segment
                await log.read(0, MIB)
                await asyncio.sleep(5)
                began, position = node.clock.monotonic(), MIB
                while position < segment.size_bytes // 2:
                    position += len(await log.read(position, MIB))
            assert node.clock.monotonic() - began > 4

    run(body)


@pytest.mark.parametrize("size_bytes", [0, 100])
def test_a_small_file_counts_as_one_request_however_much_is_asked_of_it(size_bytes: int) -> None:
    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 60.0)
            small = _Zeros(size_bytes)
            began = node.clock.monotonic()
            with pace.copy(small) as paced:
                files = paced.of(LocalSegmentFiles(small, small, small, small, small, b""))
                await files.offset_index.read(0, 64 * MIB)
                await files.log_segment.read(0, 64 * MIB)
            assert node.clock.monotonic() - began < 0.5

    run(body)


def test_an_index_comes_as_a_whole_beside_others() -> None:
    """Whoever wrote a plug-in may take it with one read."""

    async def body() -> None:
        async with busy_node() as node, node.foreground():
            pace = CopyPace(node.throttle, node.clock, 60.0)
            index = _Zeros(3 * MIB)
            with pace.copy(index) as paced:
                files = paced.of(LocalSegmentFiles(index, index, index, index, index, b""))
                assert len(await files.time_index.read(0, 3 * MIB)) == 3 * MIB
                assert 0 < len(await files.log_segment.read(0, 3 * MIB)) < MIB

    run(body)


def test_bodies_are_spread_beside_others_and_not_without_them() -> None:
    async def body() -> None:
        rate = SendRate()
        async with busy_node() as node:
            pace = CopyPace(node.throttle, node.clock, 60.0, rate)
            async with node.foreground():
                await _copy(pace, _Zeros(MIB))
                assert 0 < rate.bytes_per_s < math.inf
            await asyncio.sleep(FOREGROUND_GONE_S)
            await _copy(pace, _Zeros(MIB))
            assert rate.bytes_per_s == math.inf

    run(body)
