"""Repeats a request while the store is unavailable: back-off with jitter, within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamlog.errors import OutcomeUnknown, StoreUnavailable, Unauthorized
from streamlog.objectstore.errors import Misplaced, StoreRefused
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

T = TypeVar("T")

WRITES = frozenset({"put", "delete", "create", "part", "complete", "abort"})


class Tries:
    """The tries of one request. `is_unknown`: one that failed may have taken effect."""

    def __init__(
        self,
        operation: str,
        config: StoreConfig,
        clock: Clock,
        random: Random,
        metrics: StoreMetrics,
        *,
        is_trusted: bool = True,
    ) -> None:
        """`is_trusted`: bucket and credentials worked before, so that Unauthorized, Misplaced and
        StoreRefused may pass and are tried again."""
        self._operation = operation
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._ends_at = clock.monotonic() + config.request_deadline_ms / 1000
        self._try_s = (config.connect_timeout_ms + 2 * config.read_timeout_ms) / 1000
        self._wait_ms = float(config.retry_backoff_ms)
        self._wait_ms_max = float(config.retry_backoff_ms_max)
        self._is_trusted = is_trusted
        self.is_unknown = False

    async def run(self, request: Callable[[], Awaitable[T]]) -> T:
        """Tries until `request()` succeeds; its result.

        Errors: StoreUnavailable at the deadline, or OutcomeUnknown if a write may have taken effect
        (the last try begins before the deadline); all other errors at once. Cancellation ends the
        wait; a request under way may still take effect.
        """
        while True:
            try:
                # A try that began in time may run on: stopping it would make its outcome unknown.
                async with asyncio.timeout(max(self._left_s(), self._try_s)):
                    return await request()
            except OutcomeUnknown as error:
                self.is_unknown = True
                failure: StoreUnavailable | OutcomeUnknown = error
            except StoreUnavailable as error:
                failure = error
            except (Unauthorized, Misplaced, StoreRefused) as error:
                if not self._is_trusted:
                    raise
                failure = StoreUnavailable(error.message, **error.fields)
            except TimeoutError as error:
                raise self._timed_out() from error
            wait_s = self._next_wait_s()
            if wait_s >= self._left_s():
                raise self._as_known(failure)
            await asyncio.sleep(wait_s)
            self._metrics.retries.labels(self._operation).inc()

    def _left_s(self) -> float:
        return self._ends_at - self._clock.monotonic()

    def _next_wait_s(self) -> float:
        wait_ms, self._wait_ms = self._wait_ms, min(self._wait_ms * 2, self._wait_ms_max)
        return wait_ms * (0.5 + self._random.random() / 2) / 1000

    def _timed_out(self) -> Exception:
        self.is_unknown = self.is_unknown or self._operation in WRITES
        return self._as_known(
            StoreUnavailable(
                f"the store did not answer a {self._operation} in time",
                operation=self._operation,
            )
        )

    def _as_known(self, failure: StoreUnavailable | OutcomeUnknown) -> Exception:
        """The last try's failure; OutcomeUnknown if any try may have taken effect."""
        if not self.is_unknown or isinstance(failure, OutcomeUnknown):
            return failure
        unknown = OutcomeUnknown(
            f"{failure.message}; an earlier try may have taken effect", **failure.fields
        )
        unknown.__cause__ = failure
        return unknown
