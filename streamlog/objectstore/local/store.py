"""LocalObjectStore: a folder as an object store, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Coroutine, Iterator, Sequence
from itertools import chain
from typing import Any, Self

from streamlog.errors import Closed
from streamlog.objectstore.errors import check_limit
from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ListPage,
    ObjectInfo,
    ObjectUpload,
    SendRate,
)
from streamlog.objectstore.keys import check_key, check_prefix
from streamlog.objectstore.local.files import LocalFiles
from streamlog.objectstore.local.upload import LocalUpload
from streamlog.objectstore.url import LocalUrl
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane, Offload

log = logging.getLogger(__name__)

OPEN_LISTINGS_MAX = 16


class LocalObjectStore:
    """Objects under `root`, an absolute path. Several processes may use one root.

    A listing reads each folder once. It may lack an object that is put meanwhile, and never has one
    that is deleted meanwhile.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        offload: Offload,
        clock: Clock,
        *,
        lane: Lane = Lane.STORE,
    ) -> None:
        self._root = os.path.abspath(root)
        self._files = LocalFiles(self._root)
        self._offload = offload
        self._clock = clock
        self._lane = lane
        self._listings: OrderedDict[tuple[str, str], Iterator[str]] = OrderedDict()
        self._given_up: set[asyncio.Task[None]] = set()
        """Removals of files that uploads have left."""
        self._is_closed = False

    @classmethod
    async def open(cls, root: str | os.PathLike[str], offload: Offload, clock: Clock) -> Self:
        """Makes the folder if it is absent, and deletes objects that a crash left half-written.

        Errors: StoreUnavailable (what to do about the folder), DiskFull.
        """
        store = cls(root, offload, clock)
        deleted = await offload.run(Lane.STORE, store._files.open)
        if deleted:
            log.info("deleted half-written objects", extra={"root": store._root, "count": deleted})
        return store

    @property
    def url(self) -> str:
        return str(LocalUrl(str(self._root)))

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        self._check_open()
        check_key(key)
        now_ms = self._clock.now_ms()
        return await self._offload.run(
            self._lane, self._files.put, key, parts, if_absent, None, now_ms
        )

    def upload(self, key: str, about_bytes: int, rate: SendRate = FULL_RATE) -> ObjectUpload:
        """As UploadingStore.upload."""
        self._check_open()
        check_key(key)
        return LocalUpload(
            self._files, key, about_bytes, self._offload, self._lane, self._clock, self._spawn
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._given_up.add(task)
        task.add_done_callback(self._given_up.discard)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        self._check_open()
        check_key(key)
        now_ms = self._clock.now_ms()
        return await self._offload.run(self._lane, self._files.put, key, parts, False, etag, now_ms)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        self._check_open()
        check_key(key)
        return await self._offload.run(self._lane, self._files.get, key, start, length)

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        self._check_open()
        check_key(key)
        await self._offload.run(self._lane, self._files.get_pieces, key, start, sizes, arrived)

    async def head(self, key: str) -> ObjectInfo:
        self._check_open()
        check_key(key)
        return await self._offload.run(self._lane, self._files.head, key)

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        self._check_open()
        check_prefix(prefix)
        check_limit(limit)
        listing = self._listings.pop((prefix, token), None) if token is not None else None
        if listing is None:
            listing = self._files.keys(prefix, token or "")
        objects = await self._offload.run(self._lane, self._files.infos, listing, limit + 1)
        if len(objects) <= limit:
            return ListPage(tuple(objects), None)
        ahead = objects.pop().key
        next_token = objects[-1].key
        self._listings[prefix, next_token] = chain((ahead,), listing)
        while len(self._listings) > OPEN_LISTINGS_MAX:
            self._listings.popitem(last=False)
        return ListPage(tuple(objects), next_token)

    async def delete(self, keys: Sequence[str]) -> None:
        self._check_open()
        for key in keys:
            check_key(key)
        await self._offload.run(self._lane, self._files.delete, keys)

    async def close(self) -> None:
        self._is_closed = True
        self._listings.clear()
        if self._given_up:
            await asyncio.wait(self._given_up)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the object store was closed")
