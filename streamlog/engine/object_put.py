"""Puts one object into the store, whatever it takes: same key, same bytes, until it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from streamlog.engine.backoff import Backoff
from streamlog.engine.config import AppendConfig, FlushConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.errors import OutcomeUnknown, StreamlogError, Unavailable
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.background import Background
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

_HISTORY = 256
"""PUTs of which the running p99 is taken."""


class ObjectPut:
    """PUTs with back-off and hedging. `is_hedging`: only remote stores have slow stragglers."""

    def __init__(
        self,
        store: ObjectStore,
        append: AppendConfig,
        flush: FlushConfig,
        background: Background,
        clock: Clock,
        random: Random,
        metrics: EngineMetrics,
        *,
        is_hedging: bool,
    ) -> None:
        self._store = store
        self._append = append
        self._delay_min_s = flush.hedge_delay_ms_min / 1000
        self._background = background
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._is_hedging = is_hedging
        self._seconds: list[float] = []
        self._next = 0

    async def put(self, key: str, parts: Sequence[Buffer], *, tries_max: int | None = None) -> None:
        """The object is in the store on return; without tries_max it tries for ever.

        Errors: with tries_max, the last try's; others than Unavailable and OutcomeUnknown always.
        """
        backoff: Backoff | None = None
        while True:
            started = self._clock.monotonic()
            try:
                await (self._hedged(key, parts) if self._is_hedging else self._once(key, parts))
            except (Unavailable, OutcomeUnknown) as error:
                self._metrics.failures.labels("put").inc()
                if backoff is None:
                    backoff = Backoff(self._append, self._random)
                    log.warning("a PUT failed", extra={"key": key, "reason": str(error)})
                if tries_max is not None and backoff.tries + 1 >= tries_max:
                    raise
                await backoff.sleep()
            else:
                seconds = self._clock.monotonic() - started
                self._metrics.put_seconds.observe(seconds)
                self._remember(seconds)
                return

    async def _once(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._store.put(key, parts)

    async def _hedged(self, key: str, parts: Sequence[Buffer]) -> None:
        """The first of up to two PUTs that succeeds; the other one is left to end by itself."""
        running = [self._start(key, parts)]
        await asyncio.wait(running, timeout=self._delay_s())
        if not running[0].done():
            self._metrics.hedged.inc()
            running.append(self._start(key, parts))
        while True:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            pending = [attempt for attempt in running if not attempt.done()]
            ended = [attempt for attempt in running if attempt.done()]
            errors = [attempt.exception() for attempt in ended]
            if None in errors:
                return
            if not pending:
                error = errors[0]
                assert error is not None
                raise error
            running = pending

    def _start(self, key: str, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

        async def attempt() -> None:
            try:
                await self._once(key, parts)
            except StreamlogError as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(None)

        self._background.spawn(attempt(), name="put")
        return future

    def _delay_s(self) -> float:
        if not self._seconds:
            return self._delay_min_s
        ordered = sorted(self._seconds)
        return max(3 * ordered[int(0.99 * (len(ordered) - 1))], self._delay_min_s)

    def _remember(self, seconds: float) -> None:
        if len(self._seconds) < _HISTORY:
            self._seconds.append(seconds)
        else:
            self._seconds[self._next] = seconds
            self._next = (self._next + 1) % _HISTORY
