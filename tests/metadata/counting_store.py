"""An object store that counts its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlog.errors import StoreUnavailable
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.buffers import Buffer


class CountingStore:
    """Counts what is read and written; fails puts on demand."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.gets: list[tuple[str, int]] = []
        self.puts: list[str] = []
        self.fail_puts = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = await self._store.get(key, start, length)
        self.gets.append((key, len(data)))
        return data

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> Any:
        if self.fail_puts:
            raise StoreUnavailable("the store is away", operation="put")
        self.puts.append(key)
        return await self._store.put(key, parts, if_absent=if_absent)
