"""One client id with quotas: what it used, and how long it is throttled.

A charge is made when the work is there (bytes received, an answer made, time spent), and its answer
says for how long the client is throttled: until its rate is the quota's again, as Kafka computes
it. A single request may pass the quota; the next one waits.

1. A throttle of bytes lasts the whole window at most: then all that was charged has been forgotten.
   That is below the time after which clients give a request up.
2. A throttle of `request_percentage` lasts one sample at most, as in Kafka.
3. Listeners that know connections let one wait for it (Kafka's). Those that do not await `turn`,
   which lets the client's requests of a kind through one after the other. `WAITING_MAX` of them may
   wait: each is a request under way, whose number is bounded for all clients together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.errors import QuotaExceeded
from streamlog.runtime.clock import Clock
from streamlog.runtime.rate_window import RateWindow
from streamlog.server.limits.quotas.quota_values import QuotaKind, QuotaValues
from streamlog.server.metrics import ClientMetrics

WAITING_MAX = 64
"""Requests of one client and kind that wait for their turn."""


FETCHED_AT_LEAST_S = 0.1
"""Seconds of the quota that an answer may have, whatever was used before."""


class QuotaWindows:
    """How the rates of all clients are measured: Kafka's `quota.window.num` samples of
    `quota.window.size.seconds`."""

    def __init__(self, clock: Clock, samples: int, sample_s: float) -> None:
        self.clock = clock
        self.samples = samples
        self.sample_s = sample_s

    @property
    def window_s(self) -> float:
        return self.samples * self.sample_s

    def new(self) -> RateWindow:
        return RateWindow(self.clock, self.samples, self.sample_s)


class _Measured:
    """One kind of use by one client."""

    __slots__ = ("fetches", "lock", "reserved", "throttled_until", "waiting", "window")

    def __init__(self, windows: QuotaWindows) -> None:
        self.window = windows.new()
        self.throttled_until = 0.0
        """On the clock."""
        self.lock: asyncio.Lock | None = None
        self.fetches = 0
        """Fetches under way."""
        self.reserved = 0
        """Bytes of their answers, which are not charged yet."""
        self.waiting = 0
        """Requests that wait for their turn."""


class LimitedClient:
    """`values` may be replaced at any time, and counts from the next charge on."""

    __slots__ = ("_measured", "_metrics", "_windows", "client_id", "values")

    def __init__(
        self, client_id: str, values: QuotaValues, windows: QuotaWindows, metrics: ClientMetrics
    ) -> None:
        self.client_id = client_id
        self.values = values
        self._windows = windows
        self._metrics = metrics
        self._measured: dict[QuotaKind, _Measured] = {}

    def produced(self, size_bytes: int) -> int:
        """Charges a produce request; for how many milliseconds the client is throttled, or 0."""
        bound = self.values.produce
        if bound is None:
            return 0
        return self._charge(QuotaKind.PRODUCE, size_bytes, bound, self._windows.window_s)

    def fetched(self, size_bytes: int) -> int:
        """Charges the answer to a fetch; as `produced`."""
        bound = self.values.fetch
        if bound is None:
            return 0
        return self._charge(QuotaKind.FETCH, size_bytes, bound, self._windows.window_s)

    async def produce_turn(self, size_bytes: int) -> int:
        """Waits until the client may produce, then charges the request, as `produced`.

        Cancelled while it waits, it has charged nothing.
        """
        await self.turn(QuotaKind.REQUEST)
        await self.turn(QuotaKind.PRODUCE)
        return self.produced(size_bytes)

    def worked(self, seconds: float) -> int:
        """Charges time on the event loop; as `produced`."""
        bound = self.values.request
        if bound is None:
            return 0
        return self._charge(QuotaKind.REQUEST, seconds * 100, bound, self._windows.sample_s)

    @property
    def is_work_measured(self) -> bool:
        return self.values.request is not None

    @contextmanager
    def fetching(self) -> Iterator[FetchRoom | None]:
        """What the answer of a fetch may have; None: as much as it likes. Entered until the answer
        is there, which is charged then."""
        if self.values.fetch is None:
            yield None
            return
        measured = self._of(QuotaKind.FETCH)
        room = FetchRoom(self, measured)
        measured.fetches += 1
        try:
            yield room
        finally:
            room.keep(0)
            measured.fetches -= 1

    async def turn(self, kind: QuotaKind) -> None:
        """Waits until the client is not throttled for `kind`; first come, first served.

        What the caller charges next, before it waits for anything, counts for those behind it.
        Cancelled, it has changed nothing. Errors: QuotaExceeded, where too many wait already.
        """
        measured = self._measured.get(kind)
        if measured is None or not (measured.waiting or self._wait_s(measured) > 0):
            return
        if measured.waiting >= WAITING_MAX:
            raise QuotaExceeded(
                f"client id {self.client_id!r} is above its {kind.value}, and {WAITING_MAX} of its "
                "requests wait for their turn already; send fewer at once",
                retry_after_ms=round(self._wait_s(measured) * 1000),
            )
        if measured.lock is None:
            measured.lock = asyncio.Lock()
        measured.waiting += 1
        try:
            async with measured.lock:
                # Once: who charges the client meanwhile cannot make this one wait without end.
                await asyncio.sleep(self._wait_s(measured))
        finally:
            measured.waiting -= 1

    def _wait_s(self, measured: _Measured) -> float:
        return max(0.0, measured.throttled_until - self._windows.clock.monotonic())

    def is_idle(self) -> bool:
        """Whether nothing is left of what was charged: a new one in its place is the same."""
        now = self._windows.clock.monotonic()
        return all(
            measured.throttled_until <= now
            and measured.window.is_empty()
            and not (measured.waiting or measured.fetches)
            for measured in self._measured.values()
        )

    def _of(self, kind: QuotaKind) -> _Measured:
        measured = self._measured.get(kind)
        if measured is None:
            measured = self._measured[kind] = _Measured(self._windows)
        return measured

    def _charge(self, kind: QuotaKind, amount: float, bound: float, throttle_s_max: float) -> int:
        measured = self._of(kind)
        measured.window.record(amount)
        throttle_ms = round(min(measured.window.wait_s(bound), throttle_s_max) * 1000)
        if throttle_ms > 0:
            throttle_s = throttle_ms / 1000
            until = self._windows.clock.monotonic() + throttle_s
            measured.throttled_until = max(measured.throttled_until, until)
            self._metrics.throttled(self.client_id, kind.value, throttle_s)
        return throttle_ms


class FetchRoom:
    """What the answer of one fetch may have without a throttle.

    Fetches of other connections that read meanwhile have their part of it already: each would get
    all that the window may hold, and be throttled for the window at most. One that waits for
    records has no more than it has read: it may wait for long, and again and again, beside others
    that could read.
    """

    __slots__ = ("_client", "_measured", "_reserved")

    def __init__(self, client: LimitedClient, measured: _Measured) -> None:
        self._client = client
        self._measured = measured
        self._reserved = 0

    def take(self, max_bytes: int) -> int:
        """Reserves of `max_bytes` what there is, and never less than was kept. Where nothing is
        left, a fetch gets `FETCHED_AT_LEAST_S` of the quota, and not single batches."""
        bound = self._client.values.fetch
        if bound is None:
            return max_bytes
        has, measured = self._reserved, self._measured
        left = measured.window.room(bound) - (measured.reserved - has)
        room = max(left, bound * FETCHED_AT_LEAST_S)
        self.keep(max(1, has, min(max_bytes, int(room))))
        return self._reserved

    def keep(self, size_bytes: int) -> None:
        """Reserves so many."""
        self._measured.reserved += size_bytes - self._reserved
        self._reserved = size_bytes
