"""Slow GETs are sent twice; a store in memory whose GETs end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import Closed, ObjectNotFound, StoreUnavailable, StreamlogError
from streamlog.objectstore.hedging.latency import Latencies
from streamlog.objectstore.hedging.store import BURST, HedgedStore
from streamlog.objectstore.interface import Arrived
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.runtime.buffers import Buffer
from streamlog.testing.clocks import ManualClock
from tests.support.metrics import value_of


class SteeredStore(MemoryObjectStore):
    """Each GET waits for its own event, in the order of the calls, and may fail then."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.gets: list[asyncio.Event] = []
        self.errors: dict[int, StreamlogError] = {}
        self.cancelled: list[int] = []
        self.failed = asyncio.Event()
        self.arrived = asyncio.Condition()
        self.is_quick = False

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        number = len(self.gets)
        self.gets.append(asyncio.Event())
        async with self.arrived:
            self.arrived.notify_all()
        try:
            if not self.is_quick:
                await self.gets[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if number in self.errors:
            self.failed.set()
            raise self.errors[number]
        return b"%d" % number

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """Tells the first piece at once, and the second when the test says so."""
        assert arrived(0, b"%d" % len(self.gets))
        arrived(1, await self.get(key, start, sum(sizes)))

    async def until(self, count: int) -> None:
        """Returns when so many GETs have come."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.gets) >= count)


Body = Callable[[SteeredStore, HedgedStore, StoreMetrics], Awaitable[None]]


def run(body: Body, *, delay_ms: int = 1, share: float = 0.1) -> None:
    async def main() -> None:
        inner, clock = SteeredStore(), ManualClock()
        metrics = StoreMetrics(CollectorRegistry(), clock)
        config = StoreConfig(hedge_get_delay_ms_min=delay_ms, hedge_get_share_max=share)
        store = HedgedStore(inner, config, clock, metrics)
        await body(inner, store, metrics)
        await store.close()

    asyncio.run(asyncio.wait_for(main(), 60))


NEVER_MS = 10_000_000


def test_a_quick_get_is_sent_once() -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        inner.is_quick = True
        for n in range(50):
            assert await store.get("a") == b"%d" % n
        assert value_of(metrics.hedged_gets) == 0

    run(body, delay_ms=NEVER_MS)


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_answer_counts_and_the_other_is_dropped(winner: int) -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        got = asyncio.ensure_future(store.get("a"))
        await inner.until(2)
        inner.gets[winner].set()
        assert await got == b"%d" % winner
        # The loser has ended when the next GET has.
        inner.is_quick = True
        await store.get("a")
        assert inner.cancelled == [1 - winner]
        assert value_of(metrics.hedged_gets) == 1
        assert value_of(metrics.hedge_wins) == winner

    run(body)


def test_one_failure_is_not_the_answer_and_two_are_the_first() -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        inner.errors[0] = StoreUnavailable("first")
        got = asyncio.ensure_future(store.get("a"))
        await inner.until(2)
        inner.gets[0].set()
        inner.gets[1].set()
        assert await got == b"1"
        inner.errors |= {2: ObjectNotFound("first"), 3: StoreUnavailable("second")}
        got = asyncio.ensure_future(store.get("a"))
        await inner.until(4)
        inner.gets[3].set()
        inner.gets[2].set()
        with pytest.raises(ObjectNotFound, match="first"):
            await got

    run(body)


def test_a_failure_before_the_delay_is_raised_at_once() -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        inner.is_quick = True
        inner.errors[0] = ObjectNotFound("absent")
        with pytest.raises(ObjectNotFound):
            await store.get("a")
        assert len(inner.gets) == 1

    run(body, delay_ms=NEVER_MS)


def test_a_store_that_is_slow_as_a_whole_gets_a_bounded_share() -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        count = 100
        gets = [asyncio.ensure_future(store.get("a")) for _ in range(count)]
        most = BURST + int(count * 0.1)
        await inner.until(count + BURST)
        for event in inner.gets:
            event.set()
        inner.is_quick = True
        await asyncio.gather(*gets)
        assert BURST <= value_of(metrics.hedged_gets) <= most

    run(body)


def test_no_share_no_hedge() -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        got = asyncio.ensure_future(store.get("a"))
        await inner.until(1)
        asyncio.get_running_loop().call_later(0.05, inner.gets[0].set)
        assert await got == b"0"
        assert len(inner.gets) == 1

    run(body, share=0)


def test_a_caller_that_goes_away_ends_both() -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        got = asyncio.ensure_future(store.get("a"))
        await inner.until(2)
        got.cancel()
        with pytest.raises(asyncio.CancelledError):
            await got
        inner.is_quick = True
        await store.get("a")
        assert sorted(inner.cancelled) == [0, 1]

    run(body)


@pytest.mark.parametrize("ending", ["cancel", "close"])
def test_a_caller_that_waits_for_the_second_request_alone_is_answered(ending: str) -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        inner.errors[0] = StoreUnavailable("first")
        got = asyncio.ensure_future(store.get("a"))
        await inner.until(2)
        inner.gets[0].set()
        await inner.failed.wait()
        assert not got.done()
        if ending == "cancel":
            got.cancel()
            with pytest.raises(asyncio.CancelledError):
                await got
        else:
            await store.close()
            with pytest.raises(StoreUnavailable, match="first"):
                await got
        assert inner.cancelled == [1]

    run(body)


def test_close_ends_waiting_calls() -> None:
    async def body(inner: SteeredStore, store: HedgedStore, metrics: StoreMetrics) -> None:
        got = asyncio.ensure_future(store.get("a"))
        await inner.until(1)
        await store.close()
        with pytest.raises(Closed):
            await got
        with pytest.raises(Closed):
            await store.get("a")

    run(body, delay_ms=NEVER_MS)


@pytest.mark.parametrize("winner", [0, 1])
def test_both_requests_pass_their_pieces_on(winner: int) -> None:
    async def main() -> None:
        inner, clock = SteeredStore(), ManualClock()
        metrics = StoreMetrics(CollectorRegistry(), clock)
        store = HedgedStore(inner, StoreConfig(hedge_get_delay_ms_min=1), clock, metrics)
        told: list[tuple[int, bytes]] = []

        def arrived(number: int, data: Buffer) -> bool:
            told.append((number, bytes(data)))
            return True

        got = asyncio.ensure_future(store.get_pieces("a", 0, (1, 1), arrived))
        await inner.until(2)
        inner.gets[winner].set()
        await got
        assert told == [(0, b"0"), (0, b"1"), (1, b"%d" % winner)]
        assert value_of(metrics.hedge_wins) == winner
        await store.close()
        with pytest.raises(Closed):
            await store.get_pieces("a", 0, (1, 1), arrived)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_delay_follows_the_slowest_of_the_last() -> None:
    usual = Latencies()
    assert usual.hedge_delay_s(0.5) == 0.5
    for n in range(100):
        usual.add(n / 100)
    assert usual.hedge_delay_s(0.5) == pytest.approx(3 * 0.94)
    for _ in range(256):
        usual.add(0.1)
    assert usual.hedge_delay_s(0.5) == 0.5
    assert usual.hedge_delay_s(0.2) == pytest.approx(0.3)


def test_one_pause_does_not_move_the_delay_and_a_store_that_slows_down_does() -> None:
    usual = Latencies()
    for _ in range(256):
        usual.add(0.01)
    for _ in range(12):
        usual.add(0.4)
    assert usual.hedge_delay_s(0.001) == pytest.approx(3 * 0.01)
    usual.add(0.4)
    usual.add(0.4)
    assert usual.hedge_delay_s(0.001) == pytest.approx(3 * 0.4)
