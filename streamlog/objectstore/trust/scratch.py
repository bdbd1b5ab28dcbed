"""A prefix `doctor/<random>/` in a store for one examination, removed with all keys at the end.

A write goes on in its own task when its caller is cancelled. `remove` waits for it, because a late
write would leave an object behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from streamlog.errors import StreamlogError
from streamlog.objectstore.interface import ListPage, ObjectInfo, ObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

PREFIX = "doctor/"
_DELETE_KEYS_MAX = 500


class Scratch:
    """The calls of an ObjectStore, with names below the scratch's prefix."""

    def __init__(
        self, store: ObjectStore, clock: Clock, random: Random, *, separator: str = "/"
    ) -> None:
        self._store = store
        self._writes: set[asyncio.Task[ObjectInfo]] = set()
        self._written: set[str] = set()
        self.clock = clock
        self.random = random
        self.prefix = f"{PREFIX}{random.bytes(8).hex()}{separator}"

    async def put(self, name: str, *parts: Buffer, if_absent: bool = False) -> ObjectInfo:
        key = self._noted(name)
        return await self._finish(self._store.put(key, parts, if_absent=if_absent))

    async def put_if_match(self, name: str, etag: str, *parts: Buffer) -> ObjectInfo:
        return await self._finish(self._store.put_if_match(self._noted(name), parts, etag))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return bytes(await self._store.get(self.prefix + name, start, length))

    async def head(self, name: str) -> ObjectInfo:
        return await self._store.head(self.prefix + name)

    async def page(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        """One page of a list; keys include the scratch's prefix."""
        return await self._store.list(self.prefix + prefix, token=token, limit=limit)

    async def names(self, prefix: str) -> list[str]:
        """All names under `prefix`, as listed, without the scratch's prefix."""
        names: list[str] = []
        token: str | None = None
        while True:
            page = await self.page(prefix, token=token)
            names += [one.key.removeprefix(self.prefix) for one in page.objects]
            token = page.next_token
            if token is None:
                return names

    async def delete(self, *names: str) -> None:
        await self._store.delete([self.prefix + name for name in names])

    async def remove(self) -> str:
        """Deletes everything that was written here, after the writes under way have ended.

        Returns what could not be deleted; empty: everything was.
        """
        while self._writes:
            await asyncio.wait(self._writes)
        keys = sorted(self._written)
        try:
            for first in range(0, len(keys), _DELETE_KEYS_MAX):
                await self._store.delete(keys[first : first + _DELETE_KEYS_MAX])
            left = (await self._store.list(self.prefix)).objects
        except StreamlogError as error:
            return f"{type(error).__name__}: {error.message}"
        return f"{len(left)} objects are still listed" if left else ""

    def _noted(self, name: str) -> str:
        key = self.prefix + name
        self._written.add(key)
        return key

    async def _finish(self, write: Coroutine[Any, Any, ObjectInfo]) -> ObjectInfo:
        task = asyncio.ensure_future(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        task.add_done_callback(_retrieved)
        return await asyncio.shield(task)


def _retrieved(task: asyncio.Task[ObjectInfo]) -> None:
    """Marks the error as seen: a write whose caller was cancelled has nobody who awaits it."""
    if not task.cancelled():
        task.exception()


def parts_of(data: bytes, size: int) -> Sequence[Buffer]:
    view = memoryview(data)
    return [view[at : at + size] for at in range(0, len(data), size)]
