"""The object store as one incarnation reaches it: slow, failing, with late or lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from streamlog.errors import OutcomeUnknown, StoreUnavailable
from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ListPage,
    ObjectInfo,
    ObjectStore,
    ObjectUpload,
    SendRate,
    tell_pieces,
)
from streamlog.runtime.buffers import Buffer
from streamlog.testing.simulation.world.calls import remote_call
from streamlog.testing.simulation.world.faults import FaultSource
from streamlog.testing.simulation.world.incarnation import Incarnation

T = TypeVar("T")

UPLOAD_BYTES_MIN = 16 * 1024
"""Larger objects may go up part by part."""


class SimulationStore:
    """An ObjectStore over one that all incarnations share."""

    def __init__(
        self, shared: ObjectStore, node: Incarnation, faults: FaultSource, typical_s: float = 0.02
    ) -> None:
        self._shared = shared
        self._node = node
        self._faults = faults
        self._typical_s = typical_s

    @property
    def url(self) -> str:
        return self._shared.url

    async def _call(
        self, verb: str, key: str, apply: Callable[[], Awaitable[T]], *, writes: bool
    ) -> T:
        fault = self._faults.remote(self._node.loop.time(), self._faults.store_away_until)
        operation = f"{verb} {key}" if fault is not None else verb
        if fault is not None:
            self._node.trace.add(f"store-{fault}", self._node.name, verb, key)
        return await remote_call(
            self._node,
            self._typical_s,
            apply,
            fault=fault,
            unavailable=lambda: StoreUnavailable(f"{operation}: no answer", operation=operation),
            unknown=lambda: (
                OutcomeUnknown(f"{operation}: the answer was lost", operation=operation)
                if writes
                else StoreUnavailable(f"{operation}: the answer was lost", operation=operation)
            ),
        )

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        return await self._call(
            "put", key, lambda: self._shared.put(key, parts, if_absent=if_absent), writes=True
        )

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        return await self._call(
            "put", key, lambda: self._shared.put_if_match(key, parts, etag), writes=True
        )

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        return await self._call(
            "get", key, lambda: self._shared.get(key, start, length), writes=False
        )

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """Delivers pieces one by one; some may come twice, as from a retry, or the rest is cut."""
        data = memoryview(await self.get(key, start, sum(sizes)))
        position = 0
        for number, size in enumerate(sizes):
            if number:
                await asyncio.sleep(self._node.latency(self._typical_s / 10))
                await self._node.wait_while_crashed()
                if self._faults.happens(self._faults.rates.cut):
                    self._node.trace.add("store-cut", self._node.name, "get", key)
                    raise StoreUnavailable(f"get {key}: the answer was cut", operation="get")
            if self._faults.happens(self._faults.rates.twice):
                self._node.trace.add("store-twice", self._node.name, "get", key)
                tell_pieces(data[:position], sizes[:number], arrived)
            piece = data[position : position + size]
            if not arrived(number, piece) or len(piece) < size:
                return
            position += size

    async def head(self, key: str) -> ObjectInfo:
        return await self._call("head", key, lambda: self._shared.head(key), writes=False)

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        return await self._call(
            "list",
            prefix,
            lambda: self._shared.list(prefix, token=token, limit=limit),
            writes=False,
        )

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call(
            "delete", keys[0] if keys else "", lambda: self._shared.delete(keys), writes=True
        )

    def upload(self, key: str, about_bytes: int, rate: SendRate = FULL_RATE) -> ObjectUpload | None:
        if about_bytes < UPLOAD_BYTES_MIN:
            return None
        return SimulationUpload(self, key)

    async def take_part(self, key: str, take: Callable[[], Awaitable[None]]) -> None:
        """One part of an upload: a request that makes nothing visible."""
        await self._call("part", key, take, writes=True)

    async def close(self) -> None:
        """The shared store goes on."""


class SimulationUpload:
    """Each part is a request; the final one shows the object, and may land late like a PUT."""

    def __init__(self, store: SimulationStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: list[Buffer] = []

    async def write(self, parts: Sequence[Buffer]) -> None:
        taken = [bytes(part) for part in parts]

        async def take() -> None:
            self._parts += taken

        await self._store.take_part(self._key, take)

    async def finish(self) -> ObjectInfo:
        return await self._store.put(self._key, list(self._parts))

    def give_up(self) -> None:
        self._parts = []
