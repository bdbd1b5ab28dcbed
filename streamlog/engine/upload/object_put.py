"""Puts one object into the store: same key, same bytes, again and again until it is there.

The rules for errors are the same for data, first batches and staged objects:

1. Any answer of a store, also an unexpected one (a proxy's refusal, a key service that throttles,
   access that is denied for a while): the PUT is tried again with back-off. Sequenced appends wait;
   `under_way` and a log line each minute name the reason.
2. With `tries_max` (creates, staging) the last try's error is raised, as one that may be retried:
   nothing was committed.
3. A bug here, or a process that must stop (`may_succeed_later` is False): the error is raised at
   once, and stops the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from streamlog.engine.config import AppendConfig, FlushConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.errors import DiskFull, StoreUnavailable, StreamlogError, Unavailable
from streamlog.objectstore.errors import may_succeed_later
from streamlog.objectstore.hedging.hedge import Hedging
from streamlog.objectstore.hedging.latency import Latencies, LatenciesBySize
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

TOLD_AGAIN_AFTER_S = 60.0
"""How often a PUT that still fails is logged."""


@dataclass(slots=True)
class PutUnderWay:
    """A PUT that has not ended. `error`: that of the last failed try; None: no try has failed."""

    key: str
    size_bytes: int
    since: float
    """On the clock's monotonic scale, seconds."""
    failures: int = 0
    error: StreamlogError | None = None
    failed_at: float = 0.0
    """When the last try failed; another one may have started since."""
    told_at: float = 0.0


class ObjectPut:
    """PUTs with back-off; hedged (`is_hedging`) for remote stores, which are slow at times."""

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
        self.under_way: dict[str, PutUnderWay] = {}
        """By key, in the order in which they began."""
        metrics.puts_retried.set_function(
            lambda: sum(put.error is not None for put in self.under_way.values())
        )

    async def put(
        self,
        key: str,
        parts: Sequence[Buffer],
        *,
        tries_max: int | None = None,
        full_is_final: bool = False,
        may_try: Callable[[], bool] | None = None,
    ) -> bool:
        """True: the object is in the store; without tries_max it tries for ever.

        `full_is_final`: the caller will send a smaller object if there is no room for this one.
        `may_try` is asked before each try; the answer is False if it refuses one.
        Errors: with tries_max Unavailable, after the last try; with `full_is_final` DiskFull, after
        the first; a bug's, or this process's end.
        """
        began = self._clock.monotonic()
        put = self.under_way[key] = PutUnderWay(key, parts_size(parts), began)
        try:
            is_there = await self._until_there(put, parts, tries_max, full_is_final, may_try)
        finally:
            del self.under_way[key]
        if is_there and put.error is not None:
            seconds = round(self._clock.monotonic() - began, 1)
            log.info(
                "a PUT succeeded after failures",
                extra={"key": key, "failures": put.failures, "seconds": seconds},
            )
        return is_there

    async def _until_there(
        self,
        put: PutUnderWay,
        parts: Sequence[Buffer],
        tries_max: int | None,
        full_is_final: bool,
        may_try: Callable[[], bool] | None,
    ) -> bool:
        backoff = self._append.backoff(self._random)
        usual = self._latencies.of(put.size_bytes)
        while may_try is None or may_try():
            started = self._clock.monotonic()
            try:
                if self._is_hedging:
                    seconds = await self._hedged(put.key, parts, usual)
                else:
                    await self._store.put(put.key, parts)
                    seconds = self._clock.monotonic() - started
            except StreamlogError as error:
                if not may_succeed_later(error):
                    raise
                self._failed(put, error)
                if full_is_final and isinstance(error, DiskFull):
                    raise
                if tries_max is not None and put.failures >= tries_max:
                    raise _given_up(error, put.failures) from error
                await backoff.sleep()
            else:
                self._metrics.put_seconds.observe(self._clock.monotonic() - started)
                usual.add(seconds)
                return True
        return False

    def _failed(self, put: PutUnderWay, error: StreamlogError) -> None:
        self._metrics.failures.labels("put").inc()
        put.failures += 1
        put.error = error
        put.failed_at = now = self._clock.monotonic()
        if put.failures == 1 or now - put.told_at >= TOLD_AGAIN_AFTER_S:
            put.told_at = now
            log.warning(
                "a PUT failed and is tried again",
                extra={
                    "key": put.key,
                    "size_bytes": put.size_bytes,
                    "reason": str(error),
                    "failures": put.failures,
                    "seconds": round(now - put.since, 1),
                },
            )

    async def _hedged(self, key: str, parts: Sequence[Buffer], usual: Latencies) -> float:
        """Seconds that the first successful one of up to two PUTs took; the other is cancelled."""
        _, sent = await self._hedging.run(
            partial(self._store.put, key, parts),
            usual.hedge_delay_s(self._delay_min_s),
            self._count,
        )
        return sent.seconds

    def _count(self) -> bool:
        self._metrics.hedged.inc()
        return True


def _given_up(error: StreamlogError, tries: int) -> Unavailable:
    """An error that may be retried: an object without a commit has no effect."""
    if isinstance(error, Unavailable):
        return error
    return StoreUnavailable(
        f"the object was refused {tries} times: {error.message}. Nothing was committed: retry with "
        "back-off, or mend what the store complains about",
        operation="put",
    )
