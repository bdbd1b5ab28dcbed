"""A KV store that tells of no changes for a while: its node does not see what others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from streamlog.kvstore.interface import KVStore, WatchBatch


class DeafKV:
    """A KV store whose watches bring nothing until `hears` is set."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.hears = asyncio.Event()
        self.hears.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> _DeafWatch:
        return _DeafWatch(self._kv.watch(start, end, from_revision=from_revision), self.hears)


class _DeafWatch:
    def __init__(self, watch: Any, hears: asyncio.Event) -> None:
        self._watch = watch
        self._hears = hears

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        return self

    async def __anext__(self) -> WatchBatch:
        batch: WatchBatch = await self._watch.__anext__()
        await self._hears.wait()
        return batch

    async def aclose(self) -> None:
        await self._watch.aclose()
