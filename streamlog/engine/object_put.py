"""Puts one object into the store, whatever it takes: same key, same bytes, until it is there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from streamlog.engine.backoff import Backoff
from streamlog.engine.config import AppendConfig, FlushConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.errors import OutcomeUnknown, Unavailable
from streamlog.objectstore.hedging import Hedging
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.latency import Latencies, LatenciesBySize
from streamlog.runtime.background import Background
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)


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
        self._hedging = Hedging(background, clock)
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._is_hedging = is_hedging
        self._latencies = LatenciesBySize()

    async def put(self, key: str, parts: Sequence[Buffer], *, tries_max: int | None = None) -> None:
        """The object is in the store on return; without tries_max it tries for ever.

        Errors: with tries_max, the last try's; others than Unavailable and OutcomeUnknown always.
        """
        backoff: Backoff | None = None
        usual = self._latencies.of(parts_size(parts))
        while True:
            started = self._clock.monotonic()
            try:
                if self._is_hedging:
                    seconds = await self._hedged(key, parts, usual)
                else:
                    await self._store.put(key, parts)
                    seconds = self._clock.monotonic() - started
            except (Unavailable, OutcomeUnknown) as error:
                self._metrics.failures.labels("put").inc()
                if backoff is None:
                    backoff = Backoff(self._append, self._random)
                    log.warning("a PUT failed", extra={"key": key, "reason": str(error)})
                if tries_max is not None and backoff.tries + 1 >= tries_max:
                    raise
                await backoff.sleep()
            else:
                self._metrics.put_seconds.observe(self._clock.monotonic() - started)
                usual.add(seconds)
                return

    async def _hedged(self, key: str, parts: Sequence[Buffer], usual: Latencies) -> float:
        """The first of up to two PUTs that succeeds: its seconds; the other one is given up."""
        _, sent = await self._hedging.run(
            partial(self._store.put, key, parts),
            usual.hedge_delay_s(self._delay_min_s),
            self._count,
        )
        return sent.seconds

    def _count(self) -> bool:
        self._metrics.hedged.inc()
        return True
