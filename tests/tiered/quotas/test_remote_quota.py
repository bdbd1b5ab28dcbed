"""Quotas of the remote tier in virtual time: the rate over windows, waits, changes meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from streamlog.testing.simulation.world.loop import run
from streamlog.tiered.quotas.remote_quota import UNLIMITED, RemoteQuota, remote_quota
from tests.support.virtual_time import LoopClock

RATE = 1_000_000


def quota(rate: int = RATE, buckets: int = 61, reads_max: int = 10) -> RemoteQuota:
    return remote_quota("copy", rate, buckets, 1, LoopClock(), CollectorRegistry(), reads_max)


def now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(body: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await body()

    run(whole, limit_s=1e6)


async def copied_until(
    limits: RemoteQuota, sizes: Callable[[], int], tasks: int, length_s: float, copy_s: float = 0
) -> int:
    """Bytes of the segments that so many tasks began to copy, each copy in `copy_s`."""
    copied, end = 0, now() + length_s

    async def task() -> None:
        nonlocal copied
        while now() < end:
            size = sizes()
            assert await limits.before_segment(size, may_wait=True)
            if now() < end:
                copied += size
            await asyncio.sleep(copy_s)

    await asyncio.gather(*(task() for _ in range(tasks)))
    return copied


async def read(limits: RemoteQuota, deadline: float, size: int, read_s: float = 0) -> bool:
    if not await limits.until_room(deadline):
        return False
    with limits.reading() as may_read:
        assert may_read, "nothing came between"
        await asyncio.sleep(read_s)
        limits.record(size)
    return True


@pytest.mark.parametrize("tasks", [1, 10])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.4, 0.49, 0.5])
@pytest.mark.parametrize("buckets", [11, 61])
def test_the_rate_holds_over_windows_whatever_the_size_of_segments(
    tasks: int, share: float, buckets: int
) -> None:
    size = int(RATE * buckets * share)

    async def body() -> None:
        for windows in (3, 12):
            for copy_s in (0, buckets * share / 2):
                limits, length_s = quota(buckets=buckets), windows * buckets
                copied = await copied_until(limits, lambda: size, tasks, length_s, copy_s)
                # One segment may reach beyond the last window, and one bucket counts as a whole.
                assert RATE * length_s * 0.99 - size < copied <= RATE * (length_s + 1) + size
                if windows == 12 or share in (0.01, 0.5):
                    assert 0.95 <= copied / length_s / RATE <= 1.05

    in_virtual_time(body)


@pytest.mark.parametrize("share", [0.9, 1.5, 3])
def test_segments_that_are_too_large_are_above_the_quota_by_one_at_most(share: float) -> None:
    size = int(RATE * 61 * share)

    async def body() -> None:
        for tasks in (1, 10):
            copied = await copied_until(quota(), lambda: size, tasks, 610)
            assert RATE * 610 - size < copied <= RATE * 610 + size

    in_virtual_time(body)


def test_segments_that_come_now_and_then_get_the_quota() -> None:
    choose = random.Random(4)

    async def body() -> None:
        limits, copied, end = quota(), 0, now() + 61 * 40
        waiting: list[asyncio.Task[bool]] = []
        while now() < end:
            await asyncio.sleep(choose.random() * 20)
            size = choose.randrange(1, RATE * 30)
            waiting.append(asyncio.create_task(limits.before_segment(size, may_wait=True)))
            copied += size
        begun = end - 61 * 40
        assert await asyncio.gather(*waiting) == [True] * len(waiting)
        # More came than the quota lets in, so it was used all the time.
        assert copied > RATE * 61 * 40
        assert copied / (now() - begun) / RATE == pytest.approx(1, abs=0.05)

    in_virtual_time(body)


def test_a_run_that_copied_one_leaves_and_one_that_copied_none_waits() -> None:
    async def body() -> None:
        limits = quota()
        assert await limits.before_segment(RATE * 61, may_wait=True)
        begun = now()
        assert not await limits.before_segment(1, may_wait=False)
        assert now() == begun
        assert await limits.before_segment(1, may_wait=True)
        assert now() - begun == 61

    in_virtual_time(body)


def test_copies_go_in_the_order_in_which_they_came() -> None:
    async def body() -> None:
        limits, order = quota(), []
        limits.record(RATE * 10)

        async def copy(number: int) -> None:
            assert await limits.before_segment(RATE * 5, may_wait=True)
            order.append((number, now()))
            if number < 3:
                # Who has copied one may not overtake those in line.
                assert not await limits.before_segment(1, may_wait=False)

        begun = now()
        await asyncio.gather(*(copy(number) for number in range(4)))
        assert order == [(number, begun + 10 + 5 * number) for number in range(4)]

    in_virtual_time(body)


def test_a_read_waits_until_its_deadline_at_most() -> None:
    async def body() -> None:
        limits = quota()
        limits.record(RATE * 200)
        begun = now()
        assert not await read(limits, begun + 0.5, 1)
        assert now() - begun == pytest.approx(0.5)
        assert not await read(limits, begun, 1)
        # 200 seconds' worth are paid in 200 seconds, though the window is shorter.
        assert await read(limits, begun + 1000, 1)
        assert now() - begun == 200

    in_virtual_time(body)


@pytest.mark.parametrize("readers", [1, 10])
def test_reads_are_above_the_quota_by_those_under_way_at_most(readers: int) -> None:
    size = RATE // 2

    async def body() -> None:
        limits, begun, used = quota(buckets=11, reads_max=readers), now(), 0

        async def fetch() -> None:
            nonlocal used
            while now() < begun + 33:
                if await read(limits, now() + 0.5, size, 0.1):
                    used += size
                    # All but those that were let in together is paid.
                    assert used <= RATE * max(now() - begun, 1) + readers * size

        await asyncio.gather(*(fetch() for _ in range(100)))
        # At the end, too, so many may be under way; all the others were answered empty meanwhile.
        assert RATE * 33 * 0.95 <= used <= RATE * 33 * 1.01 + readers * size

    in_virtual_time(body)


def test_reads_without_a_quota_are_not_counted() -> None:
    async def body() -> None:
        limits, begun = quota(rate=UNLIMITED, reads_max=1), now()
        for _ in range(100):
            assert await limits.before_segment(1 << 40, may_wait=False)
        assert all(await asyncio.gather(*(read(limits, begun, 1 << 40, 1) for _ in range(50))))
        assert now() == begun + 1
        limits.set_rate(RATE)
        assert await read(limits, now(), 1)

    in_virtual_time(body)


def test_a_read_that_fails_makes_room() -> None:
    async def body() -> None:
        limits, begun = quota(reads_max=1), now()

        async def failing() -> None:
            with limits.reading() as may_read:
                assert may_read
                await asyncio.sleep(2)
                raise ConnectionError

        failed, was_read = await asyncio.gather(
            failing(), read(limits, begun + 3, 1), return_exceptions=True
        )
        assert isinstance(failed, ConnectionError)
        assert was_read is True
        assert now() == begun + 2

    in_virtual_time(body)


def test_a_change_wakes_those_who_wait_and_a_cancelled_one_takes_no_room() -> None:
    async def body() -> None:
        limits = quota(rate=1)
        limits.record(10_000)
        begun = now()
        waiting = [
            asyncio.ensure_future(limits.before_segment(1000, may_wait=True)) for _ in range(3)
        ]
        reading = asyncio.ensure_future(read(limits, begun + 100, 1000))
        await asyncio.sleep(5)
        assert not any(one.done() for one in (*waiting, reading))
        waiting[0].cancel()
        limits.set_rate(RATE)
        assert await asyncio.gather(*waiting[1:], reading) == [True] * 3
        assert now() - begun == 5
        # 13,000 are recorded: nothing of the one that was cancelled.
        limits.set_rate(1000)
        assert await limits.before_segment(1, may_wait=True)
        assert now() - begun == 13
        limits.set_rate(1)
        assert not await limits.before_segment(1, may_wait=False)
        limits.set_rate(UNLIMITED)
        assert await limits.before_segment(1 << 40, may_wait=False)

    in_virtual_time(body)


def test_a_lower_quota_holds_for_those_who_wait() -> None:
    async def body() -> None:
        limits, begun = quota(), now()
        limits.record(RATE * 20)
        waiting = asyncio.ensure_future(limits.before_segment(1, may_wait=True))
        await asyncio.sleep(10)
        limits.set_rate(RATE // 2)
        assert await waiting
        # Of 20 s at the earlier rate 10 are paid, and the rest takes twice as long; the window is
        # at or below the new quota after 40.
        assert now() - begun == 40

    in_virtual_time(body)


def test_waits_are_shown() -> None:
    async def body() -> None:
        registry = CollectorRegistry()
        limits = remote_quota("fetch", RATE, 2, 1, LoopClock(), registry)

        def metric(name: str) -> float | None:
            return registry.get_sample_value(f"streamlog_remote_fetch_{name}")

        assert metric("throttle_time_avg_ms") == metric("throttle_time_max_ms") == 0
        limits.record(RATE * 4)
        assert not await read(limits, now() + 0.25, 1)
        assert not await read(limits, now() + 0.75, 1)
        assert not await read(limits, now(), 1)
        assert metric("throttle_time_avg_ms") == pytest.approx(500)
        assert metric("throttle_time_max_ms") == pytest.approx(750)
        assert metric("throttles_total") == 3
        assert metric("quota_bytes_per_second") == RATE
        await asyncio.sleep(59.9)
        assert metric("throttle_time_avg_ms") == pytest.approx(750)
        await asyncio.sleep(1)
        assert metric("throttle_time_max_ms") == 0

    in_virtual_time(body)
