"""Quotas of the remote tier in virtual time: the rate over windows, waits, changes meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from streamlog.testing.simulation.world.loop import run
from streamlog.tiered.quotas.byte_window import ByteWindow
from streamlog.tiered.quotas.remote_quota import UNLIMITED, RemoteQuota, remote_quota
from tests.support.virtual_time import LoopClock

RATE = 1_000_000


def quota(rate: int = RATE, buckets: int = 61) -> RemoteQuota:
    return remote_quota("copy", rate, buckets, 1, LoopClock(), CollectorRegistry())


def now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(body: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await body()

    run(whole, limit_s=1e6)


async def copied_until(limits: RemoteQuota, size: int, tasks: int, end_s: float) -> int:
    """Bytes that so many tasks copied, each segment in no time."""
    copied = 0

    async def task() -> None:
        nonlocal copied
        while now() < end_s:
            assert await limits.before_segment(size, may_wait=True)
            if now() < end_s:
                copied += size

    await asyncio.gather(*(task() for _ in range(tasks)))
    return copied


@pytest.mark.parametrize("tasks", [1, 10])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.4, 0.5])
@pytest.mark.parametrize("buckets", [2, 11, 61])
def test_the_rate_holds_over_windows_whatever_the_size_of_segments(
    tasks: int, share: float, buckets: int
) -> None:
    size = int(RATE * buckets * share)

    async def body() -> None:
        for windows in (3, 12):
            begun = now()
            copied = await copied_until(
                quota(buckets=buckets), size, tasks, begun + windows * buckets
            )
            allowed = RATE * windows * buckets
            # One segment may end behind the last window.
            assert allowed - size < copied <= allowed + size
            if share <= 0.1 or windows > 10:
                assert 0.95 <= copied / allowed <= 1.05

    in_virtual_time(body)


def test_any_window_has_at_most_what_is_allowed_and_one_segment() -> None:
    async def body() -> None:
        choose = random.Random(5)
        window = ByteWindow(RATE, 11, 1, 0)
        at, recorded = 0.0, []
        for _ in range(4000):
            at += choose.choice((0, 0.1, 0.7, 3, 30)) * choose.random()
            wait_s = window.wait_s(at)
            if wait_s:
                assert window.wait_s(at + wait_s * 0.98) > 0
                at += wait_s
                assert window.wait_s(at + 1e-9) == 0
            size = choose.randrange(1, RATE * 6)
            window.record(size, at)
            recorded.append((at, size))
        largest = max(size for _, size in recorded)
        for begin, _ in recorded[::7]:
            inside = sum(size for time, size in recorded if begin <= time < begin + 10)
            assert inside <= RATE * 11 + largest

    in_virtual_time(body)


def test_a_run_that_copied_one_leaves_and_one_that_copied_none_waits() -> None:
    async def body() -> None:
        limits = quota()
        assert await limits.before_segment(RATE * 61, may_wait=True)
        begun = now()
        assert not await limits.before_segment(1, may_wait=False)
        assert now() == begun
        assert await limits.before_segment(1, may_wait=True)
        assert 60 <= now() - begun <= 61

    in_virtual_time(body)


def test_a_read_waits_until_its_deadline_at_most() -> None:
    async def body() -> None:
        limits = quota()
        limits.record(RATE * 200)
        begun = now()
        assert not await limits.until_below(begun + 0.5)
        assert now() - begun == pytest.approx(0.5)
        assert not await limits.until_below(begun)
        # 200 seconds' worth are paid in 200 seconds, to the bucket.
        assert await limits.until_below(begun + 1000)
        assert 200 - 61 <= now() - begun <= 200

    in_virtual_time(body)


def test_a_change_wakes_those_who_wait_and_a_cancelled_one_takes_no_room() -> None:
    async def body() -> None:
        limits = quota(rate=1)
        limits.record(10_000)
        begun = now()
        waiting = [
            asyncio.ensure_future(limits.before_segment(1000, may_wait=True)) for _ in range(3)
        ]
        await asyncio.sleep(5)
        assert not any(one.done() for one in waiting)
        waiting[0].cancel()
        limits.set_rate(RATE)
        assert await asyncio.gather(*waiting[1:]) == [True, True]
        assert now() - begun == 5
        limits.set_rate(1)
        assert not await limits.before_segment(1, may_wait=False)
        limits.set_rate(UNLIMITED)
        for _ in range(100):
            assert await limits.before_segment(1 << 40, may_wait=False)

    in_virtual_time(body)


def test_waits_are_shown() -> None:
    async def body() -> None:
        registry = CollectorRegistry()
        limits = remote_quota("fetch", RATE, 2, 1, LoopClock(), registry)
        limits.record(RATE * 4)
        assert not await limits.until_below(now() + 0.25)
        assert not await limits.until_below(now() + 0.75)

        def metric(name: str) -> float | None:
            return registry.get_sample_value(f"streamlog_remote_fetch_{name}")

        assert metric("throttle_time_avg_ms") == pytest.approx(500)
        assert metric("throttle_time_max_ms") == pytest.approx(750)
        assert metric("throttles_total") == 2
        assert metric("quota_bytes_per_second") == RATE

    in_virtual_time(body)
