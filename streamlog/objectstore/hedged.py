"""A remote store whose slow GETs are sent a second time; the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.errors import Closed, Internal, StreamlogError
from streamlog.objectstore.interface import ListPage, ObjectInfo, ObjectStore
from streamlog.objectstore.latency import Latencies
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.runtime.background import Background
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock

BURST = 8
"""Second GETs that may follow one another; then their share of all GETs decides."""


class HedgedStore:
    """Everything but GETs goes straight through. Made inside a running loop."""

    def __init__(
        self, store: ObjectStore, config: StoreConfig, clock: Clock, metrics: StoreMetrics
    ) -> None:
        self._store = store
        self._delay_min_s = config.hedge_get_delay_ms_min / 1000
        self._share = config.hedge_get_share_max
        self._clock = clock
        self._metrics = metrics
        self._credit = float(BURST) if self._share else 0.0
        self._latencies: dict[int, Latencies] = {}
        self._background = Background("hedged_gets", self._broken)
        self._is_closed = False

    @property
    def url(self) -> str:
        return self._store.url

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        return await self._store.put(key, parts, if_absent=if_absent)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        return await self._store.put_if_match(key, parts, etag)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """Cancellation ends the wait for both."""
        if self._is_closed:
            raise Closed("the object store was closed")
        self._credit = min(self._credit + self._share, BURST)
        usual = self._latencies.setdefault(_size_class(length), Latencies())
        started = self._clock.monotonic()
        attempts = [self._start(key, start, length)]
        try:
            await asyncio.wait(attempts, timeout=usual.hedge_delay_s(self._delay_min_s))
            if not attempts[0].done() and self._credit >= 1:
                self._credit -= 1
                self._metrics.hedged_gets.inc()
                attempts.append(self._start(key, start, length))
            winner = await _first(attempts)
        finally:
            for attempt in attempts:
                attempt.cancel()
        data = winner.result()
        usual.add(self._clock.monotonic() - started)
        if winner is not attempts[0]:
            self._metrics.hedge_wins.inc()
        return data

    async def head(self, key: str) -> ObjectInfo:
        return await self._store.head(key)

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        return await self._store.list(prefix, token=token, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete(keys)

    async def close(self) -> None:
        self._is_closed = True
        await self._background.close()
        await self._store.close()

    def _start(self, key: str, start: int, length: int | None) -> asyncio.Future[Buffer]:
        answer: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()

        async def attempt() -> None:
            try:
                data = await self._store.get(key, start, length)
            except StreamlogError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(data)

        task = self._background.spawn(attempt(), name="get")

        def ended(answer: asyncio.Future[Buffer]) -> None:
            if answer.cancelled():
                task.cancel()
            else:
                # Retrieved here too: the loser of two failures is nobody's.
                answer.exception()

        def failed(task: asyncio.Task[None]) -> None:
            if answer.done():
                return
            if task.cancelled():
                answer.set_exception(Closed("the object store was closed"))
            else:
                answer.set_exception(Internal(f"a GET failed by a bug: {task.exception()!r}"))

        answer.add_done_callback(ended)
        task.add_done_callback(failed)
        return answer

    def _broken(self, error: BaseException) -> None:
        """Nothing to stop: the caller of the GET that failed hears of it."""


async def _first(attempts: Sequence[asyncio.Future[Buffer]]) -> asyncio.Future[Buffer]:
    """The first that succeeds; the first that failed when all have."""
    pending = set(attempts)
    while pending:
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for attempt in attempts:
            if attempt.done() and attempt.exception() is None:
                return attempt
    return attempts[0]


def _size_class(length: int | None) -> int:
    """GETs of about one size take about as long: a class spans a factor of 16."""
    return 16 if length is None else max(length, 1).bit_length() // 4
