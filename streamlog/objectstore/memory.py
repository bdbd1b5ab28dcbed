"""MemoryObjectStore: objects in a dict. Nothing outlives the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from streamlog.errors import Closed
from streamlog.objectstore.errors import (
    already_exists,
    changed,
    check_limit,
    check_range,
    not_found,
)
from streamlog.objectstore.interface import ListPage, ObjectInfo
from streamlog.objectstore.keys import check_key, check_prefix
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock


class MemoryObjectStore:
    """Calls take effect at once. Parts are copied: what was put never changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[ObjectInfo, bytes]] = {}
        self._keys: list[str] = []
        self._versions = 0
        self._is_closed = False

    @property
    def url(self) -> str:
        return "memory://"

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        self._check_open()
        check_key(key)
        if if_absent and key in self._objects:
            raise already_exists(key)
        return self._store(key, parts)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        info, _ = self._find(key)
        if info.etag != etag:
            raise changed(key, etag, info.etag)
        return self._store(key, parts)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        info, data = self._find(key)
        count = check_range(key, start, length, info.size_bytes)
        return data if count == len(data) else memoryview(data)[start : start + count]

    async def head(self, key: str) -> ObjectInfo:
        return self._find(key)[0]

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        self._check_open()
        check_prefix(prefix)
        check_limit(limit)
        first = (
            bisect_left(self._keys, prefix) if token is None else bisect_right(self._keys, token)
        )
        keys = self._keys[first : first + limit + 1]
        keys = [key for key in keys if key.startswith(prefix)]
        more = len(keys) > limit
        objects = tuple(self._objects[key][0] for key in keys[:limit])
        return ListPage(objects, objects[-1].key if more else None)

    async def delete(self, keys: Sequence[str]) -> None:
        self._check_open()
        for key in keys:
            check_key(key)
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    async def close(self) -> None:
        self._is_closed = True

    def _store(self, key: str, parts: Sequence[Buffer]) -> ObjectInfo:
        data = b"".join(parts)
        self._versions += 1
        info = ObjectInfo(key, len(data), f"v{self._versions}", self._clock.now_ms())
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = (info, data)
        return info

    def _find(self, key: str) -> tuple[ObjectInfo, bytes]:
        self._check_open()
        check_key(key)
        try:
            return self._objects[key]
        except KeyError:
            raise not_found(key) from None

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the object store was closed")
