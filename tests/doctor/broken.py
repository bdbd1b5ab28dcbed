"""Object stores that are wrong in one way each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from streamlog.errors import AlreadyExists, ValueConflict
from streamlog.objectstore.interface import ListPage, ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer

PART_BYTES = 32 << 20


class IfAbsentIgnored(MemoryObjectStore):
    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        return await super().put(key, parts)


class IfMatchIgnored(MemoryObjectStore):
    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        await self.head(key)
        return await super().put(key, parts)


class IfMatchMakesObjects(MemoryObjectStore):
    """A put over an absent key is refused only after it was stored."""

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        try:
            return await super().put_if_match(key, parts, etag)
        except ValueConflict:
            raise
        except Exception:
            await self.put(key, parts)
            raise


class RacersBothWin(MemoryObjectStore):
    """Looks whether the key is free, then writes: right unless two come at a time."""

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if if_absent and key in self._objects:
            raise AlreadyExists("taken")
        await asyncio.sleep(0)
        return await super().put(key, parts)


class MatchersBothWin(MemoryObjectStore):
    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        info = await self.head(key)
        if info.etag != etag:
            raise ValueConflict("changed")
        await asyncio.sleep(0)
        return await self.put(key, parts)


class StaleList(MemoryObjectStore):
    """A list shows what was there at the first list of its prefix."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self._seen: dict[str, ListPage] = {}

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        if not prefix.endswith("/list/") or limit != 1000:
            return await super().list(prefix, token=token, limit=limit)
        if prefix not in self._seen:
            page = await super().list(prefix, token=token, limit=limit)
            shown = tuple(one for one in page.objects if not one.key.endswith("/new"))
            self._seen[prefix] = ListPage(shown, None)
        return self._seen[prefix]


class UnorderedList(MemoryObjectStore):
    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        page = await super().list(prefix, token=token, limit=limit)
        return ListPage(page.objects[::-1], page.next_token)


class ListWithoutPages(MemoryObjectStore):
    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        page = await super().list(prefix, token=token, limit=limit)
        return ListPage(page.objects, None)


class ListBesideThePrefix(MemoryObjectStore):
    """Takes the prefix for one without its last slash."""

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        return await super().list(prefix.removesuffix("/"), token=token, limit=limit)


class RangeOffByOne(MemoryObjectStore):
    """The end of a range is taken for inclusive."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        return await super().get(key, start, None if length is None else length + 1)


class RangeWrapsAround(MemoryObjectStore):
    """A get from past the end has nothing, and is no error."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        info = await self.head(key)
        return await super().get(key, min(start, info.size_bytes), length)


class LostDelete(MemoryObjectStore):
    async def delete(self, keys: Sequence[str]) -> None:
        return None


class PartialDelete(MemoryObjectStore):
    """A delete of several keys leaves the first."""

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys[1:] if len(keys) == 4 else keys)


class OverwriteInvisible(MemoryObjectStore):
    """A get shows what was there before the last put, where there was something."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self._before: dict[str, bytes] = {}

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if key in self._objects:
            self._before[key] = self._objects[key][1]
        return await super().put(key, parts, if_absent=if_absent)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if key in self._before and length is None:
            return self._before.pop(key)[start:]
        return await super().get(key, start, length)


class NewObjectsInvisible(MemoryObjectStore):
    """The first get of a new object has nothing yet."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if key.endswith("/raw/2"):
            return b""
        return await super().get(key, start, length)


class MultipartTruncated(MemoryObjectStore):
    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        return await super().put(key, (b"".join(parts)[:PART_BYTES],), if_absent=if_absent)


class MultipartReordered(MemoryObjectStore):
    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        data = b"".join(parts)
        if len(data) > PART_BYTES:
            half = PART_BYTES // 2
            data = data[half:PART_BYTES] + data[:half] + data[PART_BYTES:]
        return await super().put(key, (data,), if_absent=if_absent)


class SkewedClock(MemoryObjectStore):
    SKEW_MS = 3_600_000

    async def head(self, key: str) -> ObjectInfo:
        info = await super().head(key)
        return dataclasses.replace(info, modified_ms=info.modified_ms + self.SKEW_MS)


class SlowClock(SkewedClock):
    SKEW_MS = -30_000


BROKEN: dict[type[MemoryObjectStore], str] = {
    IfAbsentIgnored: "store.if_absent",
    IfMatchIgnored: "store.if_match",
    IfMatchMakesObjects: "store.if_match",
    RacersBothWin: "store.racers",
    MatchersBothWin: "store.racers",
    StaleList: "store.list",
    UnorderedList: "store.list",
    ListWithoutPages: "store.list",
    ListBesideThePrefix: "store.list",
    RangeOffByOne: "store.range",
    RangeWrapsAround: "store.range",
    LostDelete: "store.delete",
    PartialDelete: "store.delete",
    OverwriteInvisible: "store.overwrite",
    NewObjectsInvisible: "store.read_after_write",
    MultipartTruncated: "store.multipart",
    MultipartReordered: "store.multipart",
    SkewedClock: "store.clock",
}
"""The check that must fail."""
