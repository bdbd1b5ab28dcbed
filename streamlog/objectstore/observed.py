"""An object store whose answers are watched (`runtime/concurrency/answers.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ListPage,
    ObjectInfo,
    ObjectStore,
    ObjectUpload,
    PiecewiseStore,
    SendRate,
    UploadingStore,
)
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.answers import Answers


def observed(store: ObjectStore, answers: Answers) -> ObjectStore:
    """`store` observed; it is a PiecewiseStore and an UploadingStore where `store` is one."""
    has_pieces = isinstance(store, PiecewiseStore)
    if isinstance(store, UploadingStore):
        kind: type[_Observed] = _PiecewiseUploading if has_pieces else _Uploading
    else:
        kind = _Piecewise if has_pieces else _Observed
    return kind(store, answers)


class _Observed:
    def __init__(self, store: ObjectStore, answers: Answers) -> None:
        self._store = store
        self._answers = answers

    @property
    def url(self) -> str:
        return self._store.url

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        request = self._store.put(key, parts, if_absent=if_absent)
        return await self._answers.of("PUT", request, writes=True)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        request = self._store.put_if_match(key, parts, etag)
        return await self._answers.of("PUT", request, writes=True)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        return await self._answers.of("GET", self._store.get(key, start, length))

    async def head(self, key: str) -> ObjectInfo:
        return await self._answers.of("HEAD", self._store.head(key))

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        return await self._answers.of("LIST", self._store.list(prefix, token=token, limit=limit))

    async def delete(self, keys: Sequence[str]) -> None:
        # Not counted as a write: a store may deny only deletions, and the collector reports that.
        await self._answers.of("DELETE", self._store.delete(keys))

    async def close(self) -> None:
        await self._store.close()


class _Piecewise(_Observed):
    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        store = cast("PiecewiseStore", self._store)
        await self._answers.of("GET", store.get_pieces(key, start, sizes, arrived))


class _Uploading(_Observed):
    def upload(self, key: str, about_bytes: int, rate: SendRate = FULL_RATE) -> ObjectUpload | None:
        started = cast("UploadingStore", self._store).upload(key, about_bytes, rate)
        return None if started is None else _ObservedUpload(started, self._answers)


class _PiecewiseUploading(_Piecewise, _Uploading):
    """Both."""


class _ObservedUpload:
    def __init__(self, upload: ObjectUpload, answers: Answers) -> None:
        self._upload = upload
        self._answers = answers

    async def write(self, parts: Sequence[Buffer]) -> None:
        await self._answers.of("PUT", self._upload.write(parts), writes=True)

    async def finish(self) -> ObjectInfo:
        return await self._answers.of("PUT", self._upload.finish(), writes=True)

    def give_up(self) -> None:
        self._upload.give_up()
