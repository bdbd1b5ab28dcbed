"""Quotas in force: whose they are, what a charge throttles, and what many client ids cost."""

from __future__ import annotations

import asyncio
import logging

import pytest

from streamlog.errors import Invalid, QuotaExceeded
from streamlog.server.limits.quotas import client_quotas
from streamlog.server.limits.quotas.limited_client import WAITING_MAX, LimitedClient
from streamlog.server.limits.quotas.quota_values import (
    NO_QUOTAS,
    QuotaKind,
    QuotaValues,
    check,
    parsed,
    written,
)
from streamlog.testing.clocks import ManualClock
from streamlog.testing.simulation.world.loop import run
from tests.server.quotas.scenes import WINDOW_S, QuotaScene, StoredQuotasOfTest
from tests.support.virtual_time import LoopClock


def test_a_client_without_quotas_is_not_measured() -> None:
    scene = QuotaScene(ManualClock())
    assert scene.quotas.of("a") is None
    scene.quotas.set("a", QuotaValues(produce=1))
    assert scene.quotas.of("b") is None
    scene.quotas.set("a", NO_QUOTAS)
    assert scene.quotas.of("a") is None


def test_each_quota_is_the_clients_own_or_else_the_defaults() -> None:
    scene = QuotaScene(ManualClock())
    scene.quotas.set(None, QuotaValues(produce=1, fetch=2))
    scene.quotas.set("own", QuotaValues(fetch=20, request=30))
    assert scene.limited("own").values == QuotaValues(1, 20, 30)
    assert scene.limited("other").values == QuotaValues(1, 2, None)
    assert scene.limited("").values == QuotaValues(1, 2, None), "a client without an id"
    scene.quotas.set(None, QuotaValues(request=3))
    assert scene.limited("own").values == QuotaValues(None, 20, 30)
    assert scene.limited("other").values == QuotaValues(None, None, 3)
    scene.quotas.set("own", NO_QUOTAS)
    assert scene.limited("own").values == QuotaValues(None, None, 3)
    scene.quotas.set(None, NO_QUOTAS)
    assert scene.quotas.of("own") is scene.quotas.of("other") is None


def test_a_new_value_counts_at_once_for_what_was_used_before() -> None:
    clock = ManualClock()
    scene = QuotaScene(clock)
    scene.quotas.set(None, QuotaValues(produce=1000))
    limited = scene.limited("a")
    assert limited.produced(10_000) == 0
    scene.quotas.set(None, QuotaValues(produce=500))
    assert limited.produced(0) == 10_000
    scene.quotas.set("a", QuotaValues(produce=2000))
    assert limited.produced(0) == 0


def test_clients_do_not_share_a_quota_and_a_client_shares_none_of_its_kinds() -> None:
    scene = QuotaScene(ManualClock())
    scene.quotas.set(None, QuotaValues(produce=100, fetch=100))
    assert scene.limited("a").produced(1100) == 1000
    assert scene.limited("b").produced(1000) == 0
    assert scene.limited("a").fetched(1000) == 0


def test_a_throttle_of_bytes_lasts_the_window_at_most() -> None:
    clock = ManualClock()
    scene = QuotaScene(clock)
    scene.quotas.set("a", QuotaValues(produce=1, fetch=1))
    limited = scene.limited("a")
    assert limited.produced(10**9) == limited.fetched(10**9) == WINDOW_S * 1000
    clock.advance(WINDOW_S * 1000)
    assert limited.produced(1) == limited.fetched(1) == 0
    assert scene.throttled_s("a", "producer_byte_rate") == WINDOW_S
    assert scene.throttled_s("a", "consumer_byte_rate") == WINDOW_S


def test_time_above_the_quota_throttles_as_in_kafka() -> None:
    """ClientQuotaManagerTest.testRequestPercentageQuotaViolation."""
    clock = ManualClock()
    scene = QuotaScene(clock)
    scene.quotas.set("a", QuotaValues(request=1))
    limited = scene.limited("a")
    for _ in range(10):
        assert limited.worked(0.004) == 0
        clock.advance(1000)
    clock.advance(500)
    assert limited.worked(0.0671) == 210
    assert limited.worked(0.5) == 1000, "one sample at most"
    assert scene.throttled_s("a", "request_percentage") == pytest.approx(1.21)


def test_a_fetch_gets_no_more_at_once_than_a_silent_client_may_have() -> None:
    scene = QuotaScene(ManualClock())
    scene.quotas.set("a", QuotaValues(fetch=100))
    limited = scene.limited("a")
    assert (fetched_by(limited, 7), fetched_by(limited, 10**9)) == (7, 993)
    assert fetched_by(limited, 10**9) == 10, "a tenth of a second's"
    scene.quotas.set("a", QuotaValues(fetch=0.01))
    assert fetched_by(limited, 10**9) == 1
    scene.quotas.set("a", QuotaValues(produce=1))
    assert fetched_by(limited, 10**9) == 10**9


def fetched_by(limited: LimitedClient, max_bytes: int) -> int:
    with limited.fetching() as room:
        size_bytes = max_bytes if room is None else room.take(max_bytes)
    limited.fetched(size_bytes)
    return size_bytes


@pytest.mark.parametrize("read_s", [0.0, 0.5], ids=["one after the other", "at once"])
@pytest.mark.parametrize("connections", [1, 32])
@pytest.mark.parametrize("max_bytes", [1_000_000, 50_000_000])
def test_many_connections_fetch_hardly_more_than_the_quota(
    max_bytes: int, connections: int, read_s: float
) -> None:
    """Each waits as it is told, with as much in an answer as it may have."""
    rate, minutes, seen = 1_000_000, 2, [0]

    async def main() -> None:
        scene = QuotaScene(LoopClock())
        scene.quotas.set(None, QuotaValues(fetch=rate))
        limited = scene.limited("rogue")

        async def fetch() -> None:
            while True:
                with limited.fetching() as room:
                    assert room is not None
                    size_bytes = room.take(max_bytes)
                    await asyncio.sleep(read_s)
                seen[0] += size_bytes
                await asyncio.sleep(max(limited.fetched(size_bytes) / 1000, 0.001))

        rogues = [asyncio.ensure_future(fetch()) for _ in range(connections)]
        await asyncio.sleep(60 * minutes)
        for rogue in rogues:
            rogue.cancel()
        await asyncio.wait(rogues)
        assert not limited.is_idle()

    run(main)
    # The first ten seconds' worth comes at once.
    assert 0.85 < seen[0] / (60 * minutes * rate) < 1.4


def test_a_fetch_that_waits_has_no_more_than_it_has_read() -> None:
    scene = QuotaScene(ManualClock())
    scene.quotas.set("a", QuotaValues(fetch=100))
    limited = scene.limited("a")
    with limited.fetching() as waits:
        assert waits is not None
        assert waits.take(10**9) == 1000
        waits.keep(300)
        with limited.fetching() as reads:
            assert reads is not None
            assert reads.take(10**9) == 700
            assert waits.take(10**9) == 300, "what it has is its own"
        assert waits.take(10**9) == 1000
        assert not limited.is_idle()
        waits.keep(0)
        assert not limited.is_idle(), "its answer is to be charged"
    assert limited.is_idle()


def test_client_ids_without_end_cost_a_bounded_number_of_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_quotas, "CLIENTS_MAX", 100)
    clock = ManualClock()
    scene = QuotaScene(clock, client_ids_max=5)
    scene.quotas.set(None, QuotaValues(produce=10))
    scene.quotas.set("own", QuotaValues(produce=1))
    for number in range(100):
        assert scene.limited(f"c{number}").produced(101) == 100
    # All further ones together have the quota of one.
    assert scene.limited("d1").produced(100) == 0
    assert scene.limited("d2").produced(100) == 10_000
    assert scene.limited("d2") is scene.limited("d1")
    assert scene.limited("own").produced(10) == 0
    assert scene.limited("c1").produced(0) == 100, "those that are known keep theirs"
    scene.quotas.set(None, QuotaValues(produce=20))
    assert scene.limited("d3").produced(0) == 0, "they follow changes, too"
    clock.advance(WINDOW_S * 1000)
    assert scene.limited("d4") is not scene.limited("d5"), "the idle ones have made room"
    assert scene.limited("own").values.produce == 1
    throttled = [
        sample.labels["client_id"]
        for family in scene.registry.collect()
        if family.name == "streamlog_client_throttle_seconds"
        for sample in family.samples
    ]
    assert len(throttled) <= 6
    assert scene.throttled_s("(other)", "producer_byte_rate") > 9


def test_turns_are_given_one_after_the_other_when_the_client_is_not_throttled() -> None:
    async def main() -> None:
        clock = LoopClock()
        scene = QuotaScene(clock)
        scene.quotas.set("a", QuotaValues(produce=100, fetch=100))
        limited = scene.limited("a")
        began: list[tuple[str, float]] = []

        async def produce(name: str) -> None:
            await limited.turn(QuotaKind.PRODUCE)
            began.append((name, clock.monotonic()))
            limited.produced(1000)

        await produce("first")
        await produce("second")  # 2000 bytes: throttled for 10 s.
        names = ["third", "fourth", "fifth"]
        tasks = [asyncio.create_task(produce(name)) for name in names]
        await asyncio.sleep(0)
        left = asyncio.create_task(produce("left"))
        await asyncio.sleep(1)
        await limited.turn(QuotaKind.FETCH)
        assert clock.monotonic() == 1, "another quota holds nobody up"
        left.cancel()
        await asyncio.gather(*tasks)
        assert [name for name, _ in began] == ["first", "second", *names]
        # At 21 s all is forgotten but what the fourth brings, so the fifth need not wait.
        assert [at for _, at in began[2:]] == [10, 21, 21]

    run(main)


def test_few_requests_of_a_client_wait_at_once() -> None:
    """Each is a request under way, and others need their places, too."""

    async def main() -> None:
        scene = QuotaScene(LoopClock())
        scene.quotas.set("a", QuotaValues(produce=100))
        limited = scene.limited("a")
        assert limited.produced(1500) == 5000
        waiting = [asyncio.create_task(limited.turn(QuotaKind.PRODUCE)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(QuotaExceeded, match="producer_byte_rate") as refused:
            await limited.turn(QuotaKind.PRODUCE)
        assert refused.value.fields["retry_after_ms"] == 5000
        waiting.pop().cancel()
        await asyncio.sleep(0)
        await limited.turn(QuotaKind.PRODUCE)
        await asyncio.gather(*waiting)
        await limited.turn(QuotaKind.PRODUCE)

    run(main)


def test_what_is_stored_is_in_force_at_the_start_and_after_each_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene, stored = QuotaScene(ManualClock()), StoredQuotasOfTest()
    stored.put("a", producer_byte_rate="5", request_percentage="0.5")
    scene.quotas.follow(stored)
    assert scene.limited("a").values == QuotaValues(5, None, 0.5)
    stored.put(None, consumer_byte_rate="6")
    assert scene.limited("a").values == QuotaValues(5, 6, 0.5)
    with caplog.at_level(logging.WARNING):
        stored.put("a", producer_byte_rate="soon", of_a_newer_version="1")
    assert scene.limited("a").values == QuotaValues(None, 6, None)
    assert "soon" in caplog.text
    assert "of_a_newer_version" in caplog.text
    stored.put(None)
    assert scene.quotas.of("a") is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("producer_byte_rate", 0, "greater than 0"),
        ("consumer_byte_rate", -1, "greater than 0"),
        ("request_percentage", 0, "greater than 0"),
        ("request_percentage", float("nan"), "greater than 0"),
        ("request_percentage", float("inf"), "greater than 0"),
        ("producer_byte_rate", 1.5, "whole number"),
        ("producer_byte_rate", 1e30, "too large"),
        ("controller_mutation_rate", 1, "unknown quota"),
        ("", 1, "unknown quota"),
    ],
)
def test_what_no_quota_can_be_is_refused(name: str, value: float, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        check(name, value)


def test_values_as_texts() -> None:
    assert parsed("producer_byte_rate", "1e3") == 1000
    for value, text in ((1000.0, "1000"), (0.5, "0.5"), (1e15, "1000000000000000")):
        assert written(value) == text
    for value in (12.25, 1e-7, 0.1 + 0.2):
        assert parsed("request_percentage", written(value)) == value
    with pytest.raises(Invalid, match="give a number"):
        parsed("producer_byte_rate", "soon")
