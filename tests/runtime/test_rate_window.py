"""The rolling window: Kafka's own figures, Kafka's samples as a model, and what holds for long."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.runtime.rate_window import RateWindow
from streamlog.testing.clocks import ManualClock

BOUND = 500.0


def kafkas(clock: ManualClock) -> RateWindow:
    """With the defaults of Kafka's quotas."""
    return RateWindow(clock, 11, 1)


def test_a_burst_asks_for_the_wait_that_kafka_computes() -> None:
    """ClientQuotaManagerTest.testQuotaViolation."""
    clock = ManualClock()
    window = kafkas(clock)
    for _ in range(10):
        window.record(400)
        clock.advance(1000)
        assert window.wait_s(BOUND) == 0
    clock.advance(500)
    window.record(2300)
    # (600 - 500) / 500 * 10.5 seconds, since the last second is half over.
    assert window.rate() == 600
    assert window.wait_s(BOUND) == pytest.approx(2.1)
    clock.advance(2100)
    for _ in range(10):
        window.record(400)
        clock.advance(1000)
    assert window.wait_s(BOUND) == 0, "the burst has rolled out of the window"


def test_a_silent_window_is_a_new_one() -> None:
    clock = ManualClock()
    window = kafkas(clock)
    assert window.rate() == 0
    assert window.is_empty()
    window.record(7_000_000)
    assert window.rate() == 700_000, "the first moment counts as ten seconds"
    clock.advance(10_999)
    assert not window.is_empty()
    clock.advance(1)
    assert window.is_empty()
    assert (window.rate(), window.wait_s(1)) == (0, 0)


def test_a_piece_counts_until_its_last_amount_is_out_of_the_window() -> None:
    clock = ManualClock()
    window = kafkas(clock)
    window.record(100)
    clock.advance(999)
    window.record(100)
    clock.advance(10_999)
    assert window.rate() == pytest.approx(200 / 11.998)
    clock.advance(1)
    assert window.rate() == 0


def test_after_the_wait_the_rate_is_the_bound() -> None:
    clock = ManualClock()
    window = kafkas(clock)
    for _ in range(12):
        window.record(BOUND)
        clock.advance(1000)
    window.record(3000)
    wait_s = window.wait_s(BOUND)
    clock.advance(round(wait_s * 1000))
    assert 0 < wait_s < 11
    assert window.rate() <= BOUND


def long_rate(share: float, bound: float = 1_000_000.0) -> float:
    """What a user gets for half an hour who waits as told, a window at most, before each amount of
    `share` of what a window may hold; as a multiple of the bound."""
    clock, duration_s = ManualClock(), 1800
    window = kafkas(clock)
    used = 0.0
    while clock.monotonic() < duration_s:
        window.record(bound * 11 * share)
        used += bound * 11 * share
        clock.advance(max(1, round(min(window.wait_s(bound), 11) * 1000)))
    return used / duration_s / bound


@pytest.mark.parametrize("share", [0.001, 0.05, 0.1, 0.2])
def test_who_waits_as_told_has_the_bound_as_its_rate(share: float) -> None:
    assert long_rate(share) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("share", [0.25, 0.5, 1, 2])
def test_amounts_that_fill_much_of_a_window_pass_the_bound_twice_at_most(share: float) -> None:
    """Kafka's samples forget all of such an amount at once, when the window is over."""
    assert 1 <= long_rate(share) <= 2.02


@dataclass
class Sample:
    started_ms: int
    last_ms: int
    value: float = 0.0


class KafkasSamples:
    """Kafka's SampledStat and Rate, line by line: a ring of samples that are reset in place."""

    def __init__(self, samples: int, sample_ms: int) -> None:
        self.count, self.sample_ms = samples, sample_ms
        self.ring: list[Sample] = []
        self.current = 0

    def record(self, value: float, now: int) -> None:
        if not self.ring:
            self.ring.append(Sample(now, now))
        elif now - self.ring[self.current].started_ms >= self.sample_ms:
            self.current = (self.current + 1) % (self.count + 1)
            if self.current >= len(self.ring):
                self.ring.append(Sample(now, now))
            else:
                self.ring[self.current] = Sample(now, now)
        sample = self.ring[self.current]
        sample.value += value
        sample.last_ms = now

    def rate(self, now: int) -> float:
        for at, sample in enumerate(self.ring):
            if now - sample.last_ms >= self.count * self.sample_ms:
                self.ring[at] = Sample(now, now)
        elapsed = now - min((sample.started_ms for sample in self.ring), default=now)
        missing = self.count - 1 - elapsed // self.sample_ms
        if missing > 0:
            elapsed += missing * self.sample_ms
        return sum(sample.value for sample in self.ring) * 1000 / max(elapsed, 1)


@given(
    st.integers(2, 12),
    st.integers(1, 2000),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 10**9)), max_size=80),
)
def test_rates_are_those_of_kafkas_samples(
    samples: int, sample_ms: int, steps: list[tuple[int, int]]
) -> None:
    clock = ManualClock()
    window, model = RateWindow(clock, samples, sample_ms / 1000), KafkasSamples(samples, sample_ms)
    for wait_ms, amount in steps:
        clock.advance(wait_ms)
        now = round(clock.monotonic() * 1000)
        assert window.rate() == pytest.approx(model.rate(now))
        window.record(amount)
        model.record(amount, now)
        assert window.rate() == pytest.approx(model.rate(now))
