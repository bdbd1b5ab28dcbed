"""A store in memory that takes objects piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.errors import StreamlogError
from streamlog.objectstore.interface import (
    FULL_RATE,
    ObjectInfo,
    SendRate,
)
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock


class UploadingMemoryStore(MemoryObjectStore):
    """`fails_on`: writes (by number from 1, over all uploads) and `finish` (0) that fail."""

    def __init__(self, fails_on: dict[int, StreamlogError] | None = None) -> None:
        super().__init__(SystemClock())
        self.fails_on = fails_on or {}
        self.writes: list[int] = []
        """Bytes of each."""
        self.given_up: list[str] = []

    def upload(self, key: str, about_bytes: int, rate: SendRate = FULL_RATE) -> MemoryUpload:
        return MemoryUpload(self, key)


class MemoryUpload:
    def __init__(self, store: UploadingMemoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._data = b""
        self._is_done = False

    async def write(self, parts: Sequence[Buffer]) -> None:
        added = b"".join(parts)
        self._store.writes.append(len(added))
        self._fail(len(self._store.writes))
        self._data += added

    async def finish(self) -> ObjectInfo:
        self._fail(0)
        self._is_done = True
        return await self._store.put(self._key, (self._data,))

    def give_up(self) -> None:
        if not self._is_done:
            self._store.given_up.append(self._key)

    def _fail(self, number: int) -> None:
        if number in self._store.fails_on:
            raise self._store.fails_on[number]
