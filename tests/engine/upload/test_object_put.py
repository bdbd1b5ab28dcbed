"""PUTs of objects: repeated, and on remote stores hedged, under one key with the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from prometheus_client import CollectorRegistry

from streamlog.engine.config import AppendConfig, FlushConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.upload.object_put import ObjectPut
from streamlog.errors import (
    Internal,
    Invalid,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
    ValueConflict,
)
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.clocks import ManualClock
from tests.support.metrics import value_of


class SteeredStore(MemoryObjectStore):
    """The PUTs in `hanging` (by number) never answer; those in `errors` fail."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.hanging: set[int] = set()
        self.errors: dict[int, StreamlogError] = {}
        self.cancelled: list[int] = []
        self.puts: list[tuple[str, bytes]] = []
        self.seconds = 0

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        number = len(self.puts)
        self.puts.append((key, b"".join(parts)))
        if number in self.hanging:
            self.clock.advance(60_000)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(number)
                raise
        self.clock.advance(1000 * self.seconds)
        if number in self.errors:
            raise self.errors[number]
        return await super().put(key, parts, if_absent=if_absent)

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self._clock, ManualClock)
        return self._clock


Body = Callable[[SteeredStore, ObjectPut, EngineMetrics], Awaitable[None]]


def run(body: Body, *, is_hedging: bool = True, delay_ms: int = 1) -> None:
    async def main() -> None:
        failures: list[BaseException] = []
        background = Background("test", failures.append)
        metrics = EngineMetrics(CollectorRegistry())
        store = SteeredStore(ManualClock())
        put = ObjectPut(
            store,
            AppendConfig(retry_backoff_ms=1, retry_backoff_ms_max=2),
            FlushConfig(hedge_delay_ms_min=delay_ms),
            background,
            store.clock,
            SeededRandom(1),
            metrics,
            is_hedging=is_hedging,
        )
        await body(store, put, metrics)
        await background.close()
        assert failures == []

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_put_that_hangs_is_sent_again_with_the_same_bytes() -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.hanging = {0}
        await put.put("data/a", (b"one", b"two"))
        assert store.puts == [("data/a", b"onetwo")] * 2
        assert bytes(await store.get("data/a")) == b"onetwo"
        assert value_of(metrics.hedged) == 1
        await put.put("data/b", (b"x",))
        assert store.cancelled == [0]
        assert value_of(metrics.hedged) == 1

    run(body)


def test_slow_stragglers_do_not_raise_the_usual_latency() -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        # Each object's first PUT hangs: a minute is not what the next one is given.
        store.hanging = set(range(0, 20, 2))
        for number in range(10):
            await put.put(f"data/{number}", (b"x",))
        assert len(store.puts) == 20
        assert value_of(metrics.hedged) == 10

    run(body)


def test_puts_to_a_local_store_are_not_hedged() -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.hanging = {0}
        waiting = asyncio.ensure_future(put.put("data/a", (b"x",)))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        assert len(store.puts) == 1
        waiting.cancel()

    run(body, is_hedging=False)


def test_if_the_first_put_fails_the_hedged_one_decides() -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.hanging = {0}
        store.errors = {1: StoreUnavailable("second"), 2: OutcomeUnknown("third")}
        # The first hangs and the second fails: the try goes on until the first has answered.
        waiting = asyncio.ensure_future(put.put("data/a", (b"x",)))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        assert len(store.puts) == 2
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(body)


def test_failures_are_repeated_until_the_object_is_there() -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.errors = {0: StoreUnavailable("away"), 1: OutcomeUnknown("lost")}
        await put.put("data/a", (b"x",))
        assert len(store.puts) == 3
        assert value_of(metrics.failures.labels("put")) == 2

    run(body, delay_ms=100_000)


def test_with_tries_max_a_put_fails_with_the_last_error() -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.errors = {0: StoreUnavailable("first"), 1: StoreUnavailable("second")}
        with pytest.raises(StoreUnavailable, match="second"):
            await put.put("data/a", (b"x",), tries_max=2)
        store.errors = {2: Invalid("odd"), 3: OutcomeUnknown("lost")}
        with pytest.raises(StoreUnavailable, match="refused 2 times: lost"):
            await put.put("data/b", (b"x",), tries_max=2)
        assert put.under_way == {}

    run(body, delay_ms=100_000)


@pytest.mark.parametrize("is_hedging", [False, True])
def test_an_unexpected_refusal_is_retried_and_shown(is_hedging: bool) -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.errors = {0: Invalid("first"), 1: Unauthorized("second"), 2: ValueConflict("third")}
        shown: list[tuple[str, int, str]] = []

        class Errors(dict[int, StreamlogError]):
            def __contains__(self, number: object) -> bool:
                (under_way,) = put.under_way.values()
                shown.append((under_way.key, under_way.failures, str(under_way.error)))
                return super().__contains__(number)

        store.errors = Errors(store.errors)
        await put.put("data/a", (b"x",))
        assert shown == [
            ("data/a", 0, "None"),
            ("data/a", 1, "first"),
            ("data/a", 2, "second"),
            ("data/a", 3, "third"),
        ]
        assert put.under_way == {}
        assert value_of(metrics.failures.labels("put")) == 3

    run(body, is_hedging=is_hedging, delay_ms=100_000)


@pytest.mark.parametrize("tries_max", [None, 5])
def test_a_bug_is_raised_at_once(tries_max: int | None) -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.errors = {0: Internal("not a valid request")}
        with pytest.raises(Internal):
            await put.put("data/a", (b"x",), tries_max=tries_max)
        assert len(store.puts) == 1
        assert put.under_way == {}

    run(body, delay_ms=100_000)


def test_the_hedging_delay_follows_the_usual_latency_of_the_size() -> None:
    async def body(store: SteeredStore, put: ObjectPut, metrics: EngineMetrics) -> None:
        store.seconds = 1000
        await put.put("data/large", (bytes(1 << 20),))
        # A large object now has 3,000 s; a small one has the least delay.
        store.hanging = {1, 3}
        await put.put("data/small", (b"x",))
        assert len(store.puts) == 3
        waiting = asyncio.ensure_future(put.put("data/large", (bytes(1 << 20),)))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        assert len(store.puts) == 4
        waiting.cancel()

    run(body)
