"""A remote store whose slow GETs are sent a second time; the first answer counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from streamlog.errors import Closed
from streamlog.objectstore.hedging.hedge import Hedging
from streamlog.objectstore.hedging.latency import LatenciesBySize
from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ListPage,
    ObjectInfo,
    ObjectStore,
    ObjectUpload,
    PiecewiseStore,
    SendRate,
    upload_to,
)
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

T = TypeVar("T")

BURST = 8
"""Second GETs that may follow one another at once; after them their share of all GETs decides."""


class RemoteStore(ObjectStore, PiecewiseStore, Protocol):
    """A store whose GETs are worth hedging."""


class HedgedStore:
    """Hedges GETs, and passes all other calls on. Made inside a running loop."""

    def __init__(
        self, store: RemoteStore, config: StoreConfig, clock: Clock, metrics: StoreMetrics
    ) -> None:
        self._store = store
        self._delay_min_s = config.hedge_get_delay_ms_min / 1000
        self._share = config.hedge_get_share_max
        self._metrics = metrics
        self._credit = float(BURST) if self._share else 0.0
        self._latencies = LatenciesBySize()
        self._background = Background("hedged_gets", self._broken)
        self._hedging = Hedging(self._background, clock)
        self._is_closed = False

    @property
    def url(self) -> str:
        return self._store.url

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        return await self._store.put(key, parts, if_absent=if_absent)

    def upload(self, key: str, about_bytes: int, rate: SendRate = FULL_RATE) -> ObjectUpload | None:
        return upload_to(self._store, key, about_bytes, rate)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        return await self._store.put_if_match(key, parts, etag)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """Cancellation ends the wait for both requests."""
        return await self._hedged(partial(self._store.get, key, start, length), length)

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """Both requests pass their pieces on; cancellation ends the wait for both."""
        request = partial(self._store.get_pieces, key, start, sizes, arrived)
        await self._hedged(request, sum(sizes))

    async def head(self, key: str) -> ObjectInfo:
        return await self._store.head(key)

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        return await self._store.list(prefix, token=token, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete(keys)

    async def close(self) -> None:
        self._is_closed = True
        self._hedging.close()
        await self._background.close()
        await self._store.close()

    async def _hedged(self, request: Callable[[], Awaitable[T]], length: int | None) -> T:
        if self._is_closed:
            raise Closed("the object store was closed")
        self._credit = min(self._credit + self._share, BURST)
        usual = self._latencies.of(length)
        answer, sent = await self._hedging.run(
            request, usual.hedge_delay_s(self._delay_min_s), self._may_repeat
        )
        usual.add(sent.seconds)
        if sent.is_second:
            self._metrics.hedge_wins.inc()
        return answer

    def _may_repeat(self) -> bool:
        if self._credit < 1:
            return False
        self._credit -= 1
        self._metrics.hedged_gets.inc()
        return True

    def _broken(self, error: BaseException) -> None:
        """Nothing to stop: the caller of the failed GET gets the error."""
