"""The ObjectStore contract, cut for S3: whole-object puts, ranged gets, paged lists.

Keys are made of `[a-z0-9._-]` components joined by `/`; never of unchecked user input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from streamlog.runtime.buffers import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size_bytes: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ListPage:
    """By key; `next_token` None ends the list."""

    objects: tuple[ObjectInfo, ...]
    next_token: str | None


class ObjectUpload(Protocol):
    """An object that is written from its start to its end; nothing is visible before `finish`.

    Errors of each: as ObjectStore.put. After one, and instead of `finish`, `give_up`.
    """

    async def write(self, parts: Sequence[Buffer]) -> None:
        """Adds bytes; on return their memory may go."""
        ...

    async def finish(self) -> ObjectInfo:
        """The object is there."""
        ...

    def give_up(self) -> None:
        """What was written goes, soon; harmless after `finish`."""
        ...


class ObjectStore(Protocol):
    """All calls are durable and visible to everybody on return; calls are idempotent.

    Errors of each: StoreUnavailable (retry), OutcomeUnknown (puts and deletes: retry the same
    bytes), DiskFull, Internal.
    """

    @property
    def url(self) -> str:
        """As given, without credentials."""
        ...

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        """Stores the whole object; large ones in multiple parts, never visible half-done.

        With `if_absent`: AlreadyExists where the key is taken, for exactly one racer succeeds.
        """
        ...

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        """Replaces the object if its etag is `etag`. Errors: ValueConflict, ObjectNotFound."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """Bytes from `start`; fewer than `length` at the object's end. Errors: ObjectNotFound,
        Invalid for a start past the end.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Errors: ObjectNotFound."""
        ...

    async def list(
        self, prefix: str, *, token: str | None = None, limit: int = 1000
    ) -> ListPage: ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Absent keys are no error."""
        ...

    async def close(self) -> None: ...


Arrived = Callable[[int, Buffer], bool]
"""Takes the piece of that number, on whatever thread; raises nothing. False: the rest need not
come."""


@runtime_checkable
class PiecewiseStore(Protocol):
    """A store that hands out what a GET brings while it is under way."""

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """The bytes from `start`, in pieces of `sizes`, each told as soon as it is there.

        Pieces come in order, from 0 on; where a request is sent again some come again, maybe while
        others still come. At the object's end a piece is short or empty, and the last. Returns when
        all have been told. After cancellation some may still come. Errors: as `get`.
        """
        ...


def tell_pieces(data: Buffer, sizes: Sequence[int], arrived: Arrived) -> None:
    """Tells `data`, which is there, as PiecewiseStore.get_pieces does."""
    view, at = memoryview(data), 0
    for number, size in enumerate(sizes):
        piece = view[at : at + size]
        if not arrived(number, piece) or len(piece) < size:
            return
        at += size


@runtime_checkable
class UploadingStore(Protocol):
    """A store that may take objects piece by piece."""

    def upload(self, key: str, about_bytes: int) -> ObjectUpload | None:
        """`about_bytes`: its size, nearly. None: whole objects alone (`put`)."""
        ...


def upload_to(store: ObjectStore, key: str, about_bytes: int) -> ObjectUpload | None:
    """As UploadingStore.upload; None of any other store."""
    return store.upload(key, about_bytes) if isinstance(store, UploadingStore) else None
