"""The window of the remote quotas: Kafka's own cases, the rate beside Kafka's, bounds, waits."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import pytest

from streamlog.tiered.quotas.byte_window import UNLIMITED, ByteWindow

RATE = 1_000_000


class Measured(Protocol):
    def record(self, size_bytes: int, now: float) -> None: ...

    def wait_s(self, now: float) -> float: ...


class KafkasSimpleRate:
    """SampledStat and SimpleRate as they stand in Kafka, with the waits of RLMCopyTask."""

    def __init__(self, rate: int, buckets: int) -> None:
        self._rate = rate
        self._buckets = buckets
        self._samples: list[list[int]] = []
        """[bytes, begin, last] of each, in milliseconds."""
        self._current = 0

    def record(self, size_bytes: int, now: float) -> None:
        now_ms = round(now * 1000)
        if now_ms - self._samples[self._current][1] >= 1000:
            self._current = (self._current + 1) % (self._buckets + 1)
            if self._current == len(self._samples):
                self._samples.append([0, now_ms, now_ms])
            self._samples[self._current] = [0, now_ms, now_ms]
        sample = self._samples[self._current]
        sample[0] += size_bytes
        sample[2] = now_ms

    def wait_s(self, now: float) -> float:
        now_ms = round(now * 1000)
        if not self._samples:
            self._samples.append([0, now_ms, now_ms])
        for index, (_, _, last_ms) in enumerate(self._samples):
            if now_ms - last_ms >= self._buckets * 1000:
                self._samples[index] = [0, now_ms, now_ms]
        elapsed_ms = max(now_ms - min(sample[1] for sample in self._samples), 1000)
        above = sum(sample[0] for sample in self._samples) - self._rate * elapsed_ms / 1000
        return min(max(above / self._rate, 0.001), 1) if above > 0 else 0


def copied(window: Measured, sizes: Callable[[], int], end_s: float) -> list[tuple[float, int]]:
    """(time, bytes) of segments that are copied without a pause, each in no time."""
    now, found = 0.0, []
    while now < end_s:
        wait_s = window.wait_s(now)
        now += wait_s
        if not wait_s:
            size = sizes()
            window.record(size, now)
            found.append((now, size))
    return found


def rate_over(segments: list[tuple[float, int]], length_s: float) -> float:
    """Quotas, from the first one's begin to that of the first one after the length."""
    end = next(at for at, (time, _) in enumerate(segments) if time >= length_s - 0.001)
    return sum(size for _, size in segments[:end]) / segments[end][0] / RATE


def test_kafkas_own_case_of_a_quota_that_is_exceeded() -> None:
    """RLMQuotaManagerTest.testQuotaExceeded."""
    window = ByteWindow(50, 11, 1, 0)
    assert window.wait_s(0) == 0
    window.record(500, 0)
    assert [window.wait_s(at) for at in (1, 9, 10)] == [9, 1, 0]


def test_kafkas_own_case_of_a_quota_that_is_changed() -> None:
    """RLMQuotaManagerTest.testQuotaUpdate."""
    window = ByteWindow(50, 11, 1, 0)
    window.record(51, 0)
    assert window.wait_s(0) > 0
    window.set_rate(60, 0)
    assert window.wait_s(0) == 0
    window.set_rate(40, 0)
    assert window.wait_s(0) > 0


@pytest.mark.parametrize("buckets", [2, 11, 61])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.3, 0.4, 0.49, 0.5, 0.9, 1.5, 3])
def test_the_rate_is_the_quota(share: float, buckets: int) -> None:
    size = int(RATE * buckets * share)
    segments = copied(ByteWindow(RATE, buckets, 1, 0), lambda: size, 20 * buckets)
    for windows in (3, 12):
        # At the begin one bucket counts as a whole.
        length_s = windows * buckets
        assert 0.999 < rate_over(segments, length_s) < 1.001 + 1 / length_s


def test_kafkas_rate_is_not() -> None:
    """The numbers of `byte_window.py`, and of the RFC."""

    def rate(share: float, windows: int, buckets: int = 61) -> float:
        size = int(RATE * buckets * share)
        segments = copied(KafkasSimpleRate(RATE, buckets), lambda: size, 20 * buckets)
        return round(rate_over(segments, windows * buckets), 2)

    assert rate(0.25, 12) == 1
    assert rate(0.49, 3) == 1.3
    assert [rate(share, 12) for share in (0.3, 0.49, 0.9, 1.5, 3)] == [1.17, 1.38, 1.72, 1.5, 3]
    assert [rate(share, 12, 11) for share in (0.3, 0.49, 0.9)] == [1.08, 1.26, 1.53]


def test_an_empty_window_lets_in_one_bucket_and_the_rest_of_one_segment() -> None:
    window = ByteWindow(RATE, 61, 1, 0)
    segments = copied(window, lambda: RATE // 4 + 1, 10)
    assert sum(size for time, size in segments if time == 0) < 1.25 * RATE + 5
    assert max(b[0] - a[0] for a, b in pairwise(segments[4:])) < 0.26


def test_a_pause_within_the_window_may_be_used_at_once_and_is_paid_then() -> None:
    window = ByteWindow(RATE, 61, 1, 0)
    window.record(1, 0)
    window.record(59 * RATE, 60)
    assert window.wait_s(60) == 0
    window.record(RATE * 3, 60)
    # The record of time 0 is forgotten: the rest is measured from its own begin on.
    assert window.wait_s(62) == 60


@pytest.mark.parametrize("buckets", [1, 2, 11, 61])
@pytest.mark.parametrize("seed", range(3))
def test_any_window_has_at_most_what_is_allowed_and_one_segment(seed: int, buckets: int) -> None:
    choose, window = random.Random(seed), ByteWindow(RATE, buckets, 1, 0)
    now, recorded = 0.0, []
    for _ in range(1500):
        now = round(now + choose.choice((0, 0, 0.003, 0.1, 0.7, 3, 30, 100)) * choose.random(), 3)
        now = round(now + window.wait_s(now), 3)
        assert window.wait_s(now) == 0
        share = choose.choice((0.01, 0.5, 2))
        recorded.append((now, choose.randrange(1, int(RATE * buckets * share) + 2)))
        window.record(recorded[-1][1], now)
    for first in range(0, len(recorded), 5):
        begun, used = recorded[first][0], 0
        for time, size in recorded[first : first + 300]:
            # It is let in when all before it is paid: what it adds is the one segment.
            if time - begun > buckets + 1:
                assert used <= RATE * (time - begun + 2)
            used += size


@pytest.mark.parametrize("buckets", [1, 2, 11])
@pytest.mark.parametrize("seed", range(3))
def test_a_wait_is_neither_too_short_nor_too_long(seed: int, buckets: int) -> None:
    choose, window = random.Random(seed), ByteWindow(RATE, buckets, 1, 0)
    now, waits = 0.0, 0
    for _ in range(1000):
        now = round(now + choose.choice((0, 0.1, 0.7, 3, 30)) * choose.random(), 3)
        if choose.random() < 0.1:
            window.set_rate(choose.choice((RATE // 10, RATE, RATE * 10, UNLIMITED)), now)
        wait_s = window.wait_s(now)
        if wait_s > 0.002:
            waits += 1
            assert copy.deepcopy(window).wait_s(now + wait_s - 0.001) > 0
        now = round(now + wait_s, 3)
        assert window.wait_s(now) == 0
        window.record(choose.randrange(1, RATE * buckets), now)
    assert waits > 200


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_segments_of_any_size_get_the_quota(share: float) -> None:
    choose = random.Random(1)
    segments = copied(
        ByteWindow(RATE, 61, 1, 0), lambda: choose.randrange(1, int(RATE * 61 * share)), 61 * 40
    )
    assert rate_over(segments, 61 * 36) == pytest.approx(1, abs=0.01)


def test_a_lower_rate_makes_no_debt_of_what_the_higher_one_has_paid() -> None:
    window = ByteWindow(RATE, 11, 1, 0)
    for second in range(100):
        window.record(RATE, second)
    window.set_rate(10, 100)
    # As in Kafka: the window is above the new rate until the last of it is forgotten.
    assert window.wait_s(100) == 10
    assert window.wait_s(110) == 0
    window.record(100, 110)
    assert window.wait_s(110) == 10


def test_a_higher_rate_pays_as_if_it_had_held_before() -> None:
    window = ByteWindow(10, 11, 1, 0)
    window.record(1_000_000, 0)
    assert window.wait_s(50) == 100_000 - 50
    window.set_rate(100_000, 50)
    assert window.wait_s(50) == 0
    window.set_rate(10, 50)
    assert window.wait_s(50) == 0, "it is forgotten, and paid"


def test_a_debt_outlives_the_window_and_no_quota_forgets_it() -> None:
    window = ByteWindow(RATE, 11, 1, 0)
    window.record(200 * RATE, 0)
    assert [window.wait_s(at) for at in (5, 50, 150, 199.999, 200)] == [195, 150, 50, 0.001, 0]
    window.record(200 * RATE, 200)
    window.set_rate(UNLIMITED, 201)
    assert window.wait_s(201) == 0
    window.record(1 << 60, 201)
    window.set_rate(RATE, 202)
    assert window.wait_s(202) == 0
