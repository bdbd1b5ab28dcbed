"""Gives a store the faults of a remote one: latency, bandwidth, hanging requests, errors, outages.

Over another store. All waits are on the event loop's clock, so that tests run it in virtual time
and benchmarks in real time; all choices come from one seed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from streamlog.errors import OutcomeUnknown, StoreUnavailable
from streamlog.objectstore.interface import ListPage, ObjectInfo, ObjectStore
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.rand import Random, SeededRandom

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Latency:
    """Log-normal around `median_ms`, with p99 = median · e^(2.33 · spread); 0: none at all."""

    median_ms: float = 0.0
    spread: float = 0.25

    def draw_s(self, random: Random) -> float:
        if not self.median_ms:
            return 0.0
        radius = math.sqrt(-2 * math.log(1 - random.random()))
        normal = radius * math.cos(2 * math.pi * random.random())
        return self.median_ms / 1000 * math.exp(self.spread * normal)


@dataclass(frozen=True, slots=True)
class Moods:
    """The latency and faults of requests. A share is of all requests of that kind, 0 to 1."""

    put: Latency = Latency()
    get: Latency = Latency()
    other: Latency = Latency()
    link_bytes_per_s: float = math.inf
    """The bandwidth of all transfers in one direction together."""
    request_bytes_per_s: float = math.inf
    """The bandwidth of one request."""
    hanging_put_share: float = 0.0
    hanging_get_share: float = 0.0
    hanging_s: float = 60.0
    """How much later a hanging request takes effect and is answered."""
    refused_share: float = 0.0
    """The share of requests that fail with StoreUnavailable and have no effect."""
    lost_answer_share: float = 0.0
    """The share that takes effect and fails: OutcomeUnknown, for reads StoreUnavailable."""


@dataclass
class Traffic:
    """Counts of requests and bytes, and the seconds that each answered PUT and GET took."""

    puts: int = 0
    gets: int = 0
    others: int = 0
    put_bytes: int = 0
    get_bytes: int = 0
    puts_in_flight: int = 0
    puts_in_flight_max: int = 0
    gets_in_flight: int = 0
    gets_in_flight_max: int = 0
    put_seconds: list[float] = field(default_factory=list)
    get_seconds: list[float] = field(default_factory=list)


class _Link:
    """A link on which transfers take their turns."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def ends_in_s(self, size_bytes: int, moods: Moods, now: float) -> float:
        self._free_at = max(self._free_at, now) + size_bytes / moods.link_bytes_per_s
        return max(self._free_at - now, size_bytes / moods.request_bytes_per_s)


class SlowStore:
    """`moods` may change at any time; requests under way keep their latency and faults."""

    def __init__(
        self, store: ObjectStore, moods: Moods | None = None, *, random: Random | None = None
    ) -> None:
        self._store = store
        self.moods = Moods() if moods is None else moods
        self._random = SeededRandom(0) if random is None else random
        self._up, self._down = _Link(), _Link()
        self._answers_after_s: float | None = None
        self.traffic = Traffic()

    @property
    def url(self) -> str:
        return self._store.url

    def go_away(self, *, answers_after_s: float = 0.0) -> None:
        """Makes every later request fail without effect, after `answers_after_s` seconds."""
        self._answers_after_s = answers_after_s

    def come_back(self) -> None:
        self._answers_after_s = None

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        return await self._write(
            key, parts, lambda: self._store.put(key, parts, if_absent=if_absent)
        )

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        return await self._write(key, parts, lambda: self._store.put_if_match(key, parts, etag))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        traffic, moods = self.traffic, self.moods
        now = asyncio.get_running_loop().time
        traffic.gets += 1
        traffic.gets_in_flight += 1
        traffic.gets_in_flight_max = max(traffic.gets_in_flight_max, traffic.gets_in_flight)
        began = now()
        try:
            data = await self._call(
                "get",
                key,
                lambda: self._store.get(key, start, length),
                moods.get.draw_s(self._random) + self._hang_s(moods.hanging_get_share, moods),
            )
            await asyncio.sleep(self._down.ends_in_s(len(data), moods, now()))
        finally:
            traffic.gets_in_flight -= 1
        traffic.get_bytes += len(data)
        traffic.get_seconds.append(now() - began)
        return data

    async def head(self, key: str) -> ObjectInfo:
        return await self._other("head", key, lambda: self._store.head(key))

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        return await self._other(
            "list", prefix, lambda: self._store.list(prefix, token=token, limit=limit)
        )

    async def delete(self, keys: Sequence[str]) -> None:
        await self._other(
            "delete", keys[0] if keys else "", lambda: self._store.delete(keys), writes=True
        )

    async def close(self) -> None:
        await self._store.close()

    async def _write(
        self, key: str, parts: Sequence[Buffer], apply: Callable[[], Awaitable[ObjectInfo]]
    ) -> ObjectInfo:
        traffic, moods = self.traffic, self.moods
        now = asyncio.get_running_loop().time
        size_bytes = parts_size(parts)
        traffic.puts += 1
        traffic.puts_in_flight += 1
        traffic.puts_in_flight_max = max(traffic.puts_in_flight_max, traffic.puts_in_flight)
        began = now()
        try:
            if self._answers_after_s is None:
                await asyncio.sleep(self._up.ends_in_s(size_bytes, moods, began))
            info = await self._call(
                "put",
                key,
                apply,
                moods.put.draw_s(self._random) + self._hang_s(moods.hanging_put_share, moods),
                writes=True,
            )
        finally:
            traffic.puts_in_flight -= 1
        traffic.put_bytes += size_bytes
        traffic.put_seconds.append(now() - began)
        return info

    async def _other(
        self, verb: str, key: str, apply: Callable[[], Awaitable[T]], *, writes: bool = False
    ) -> T:
        self.traffic.others += 1
        return await self._call(
            verb, key, apply, self.moods.other.draw_s(self._random), writes=writes
        )

    async def _call(
        self,
        verb: str,
        key: str,
        apply: Callable[[], Awaitable[T]],
        delay_s: float,
        *,
        writes: bool = False,
    ) -> T:
        refused = self._random.random() < self.moods.refused_share
        is_lost = self._random.random() < self.moods.lost_answer_share
        if self._answers_after_s is None:
            await asyncio.sleep(delay_s)
        if self._answers_after_s is not None:
            await asyncio.sleep(self._answers_after_s)
            raise StoreUnavailable(f"{verb} {key}: the store is away", operation=verb)
        if refused:
            raise StoreUnavailable(f"{verb} {key}: slow down", operation=verb)
        result = await apply()
        if is_lost:
            kind = OutcomeUnknown if writes else StoreUnavailable
            raise kind(f"{verb} {key}: the answer was lost", operation=verb)
        return result

    def _hang_s(self, share: float, moods: Moods) -> float:
        return moods.hanging_s if self._random.random() < share else 0.0
