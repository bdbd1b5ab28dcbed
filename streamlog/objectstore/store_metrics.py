"""Metrics of a remote store, counted by request, as the store's bill counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from streamlog.errors import (
    Conflict,
    Invalid,
    NotFound,
    OutcomeUnknown,
    StreamlogError,
    Unauthorized,
    Unavailable,
)
from streamlog.runtime.clock import Clock

T = TypeVar("T")

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

_OUTCOMES: tuple[tuple[type[StreamlogError], str], ...] = (
    (NotFound, "not_found"),
    (Conflict, "conflict"),
    (OutcomeUnknown, "unknown"),
    (Unavailable, "unavailable"),
    (Invalid, "refused"),
    (Unauthorized, "refused"),
)


class StoreMetrics:
    """Counters of one remote store. An operation is one request to the store, not one call."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self.requests = Counter(
            "streamlog_store_requests",
            "Requests to the object store, by operation (put, get, head, list, delete, and the "
            "steps of a multipart upload) and outcome.",
            ["operation", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "streamlog_store_request_seconds",
            "Requests to the object store.",
            ["operation"],
            buckets=SECONDS,
            registry=registry,
        )
        self.sent_bytes = Counter(
            "streamlog_store_sent_bytes", "Bytes of bodies sent.", registry=registry
        )
        self.received_bytes = Counter(
            "streamlog_store_received_bytes", "Bytes of bodies received.", registry=registry
        )
        self.retries = Counter(
            "streamlog_store_retries",
            "Requests that repeat one that failed.",
            ["operation"],
            registry=registry,
        )
        self.hedged_gets = Counter(
            "streamlog_store_hedged_gets",
            "GETs sent a second time for being slow.",
            registry=registry,
        )
        self.hedge_wins = Counter(
            "streamlog_store_hedge_wins",
            "Second GETs that answered first.",
            registry=registry,
        )

    async def measured(self, operation: str, request: Awaitable[T]) -> T:
        """`request`, counted under its outcome."""
        started = self._clock.monotonic()
        outcome = "failed"
        try:
            result = await request
            outcome = "ok"
            return result
        except asyncio.CancelledError:
            outcome = "abandoned"
            raise
        except StreamlogError as error:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), outcome)
            raise
        finally:
            requests, seconds = self._of(operation, outcome)
            requests.inc()
            seconds.observe(self._clock.monotonic() - started)

    def _of(self, operation: str, outcome: str) -> tuple[Counter, Histogram]:
        """Cached, because `labels` would double the time that counting takes."""
        children = self._children.get((operation, outcome))
        if children is None:
            children = self.requests.labels(operation, outcome), self.seconds.labels(operation)
            self._children[operation, outcome] = children
        return children
