"""The ObjectStore contract, cut for S3: whole-object puts, ranged gets, paged lists.

Keys are made of `[a-z0-9._-]` components joined by `/`; never of unchecked user input.
"""

from __future__ import annotations

import math
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
    """Objects in the order of their keys; `next_token` None: the list ends here."""

    objects: tuple[ObjectInfo, ...]
    next_token: str | None


class ObjectUpload(Protocol):
    """An object that is written from its start to its end; nothing is visible before `finish`.

    Errors of each method: as ObjectStore.put. After an error, call `give_up` in place of `finish`.
    """

    async def write(self, parts: Sequence[Buffer]) -> None:
        """Adds bytes; the caller may reuse their memory on return."""
        ...

    async def finish(self) -> ObjectInfo:
        """Completes the object, which is visible on return."""
        ...

    def give_up(self) -> None:
        """Removes the written parts in the background; harmless after `finish`."""
        ...


class ObjectStore(Protocol):
    """All calls are durable and visible to everybody on return; calls are idempotent.

    Errors of each: StoreUnavailable (retry), OutcomeUnknown (puts and deletes: retry the same
    bytes), DiskFull, Internal. Any other error is taken for a bug and ends the engine, so that a
    store of your own turns those of its transport (ConnectionResetError and any other OSError) into
    these.
    """

    @property
    def url(self) -> str:
        """As given, without credentials."""
        ...

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        """Stores the whole object, a large one in several parts. No reader sees half an object.

        With `if_absent`: AlreadyExists if the key is taken; of several racers exactly one succeeds.
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
"""Takes the piece with that number, on any thread; raises nothing. False: no more pieces are
needed."""


@runtime_checkable
class PiecewiseStore(Protocol):
    """A store that hands out the pieces of a GET as they arrive."""

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """Passes the bytes from `start` to `arrived` in pieces of `sizes`, each once it is there.

        Pieces come in order, from 0 on. A repeated request passes some of them again, perhaps while
        others still arrive. At the object's end a piece is short or empty, and is the last one.
        Returns when all pieces have been passed; after cancellation some may still come. Errors: as
        `get`.
        """
        ...


def tell_pieces(data: Buffer, sizes: Sequence[int], arrived: Arrived) -> None:
    """Passes `data` to `arrived` as PiecewiseStore.get_pieces does."""
    view, at = memoryview(data), 0
    for number, size in enumerate(sizes):
        piece = view[at : at + size]
        if not arrived(number, piece) or len(piece) < size:
            return
        at += size


@dataclass(slots=True)
class SendRate:
    """How fast bodies are sent that have time. Whoever owns it changes it meanwhile."""

    bytes_per_s: float = math.inf
    """Of each request."""


FULL_RATE = SendRate()


@runtime_checkable
class UploadingStore(Protocol):
    """A store that may take an object piece by piece."""

    def upload(self, key: str, about_bytes: int, rate: SendRate = FULL_RATE) -> ObjectUpload | None:
        """`about_bytes`: about the object's size. A store that sends over a network spreads the
        bytes of each request by `rate`. None: the store takes whole objects only."""
        ...


def upload_to(
    store: ObjectStore, key: str, about_bytes: int, rate: SendRate = FULL_RATE
) -> ObjectUpload | None:
    """UploadingStore.upload; None for every other store."""
    return store.upload(key, about_bytes, rate) if isinstance(store, UploadingStore) else None
