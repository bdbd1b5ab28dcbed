"""What S3ObjectStore needs of a client library: single requests, on whole keys.

Errors of each: ObjectNotFound, ValueConflict (a condition does not hold), StoreUnavailable (nothing
happened), OutcomeUnknown (a write may have happened), Unauthorized, Misplaced, StoreRefused (an
unknown refusal), Invalid (a request that the store can never take: too large, not implemented),
Internal. An implementation repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from streamlog.errors import Invalid
from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ObjectInfo,
    SendRate,
)
from streamlog.objectstore.s3.retry import Tries
from streamlog.runtime.buffers import Buffer


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a PUT. The object keeps `put_id`, by which its writer recognizes it."""

    is_absent: bool = False
    etag: str | None = None
    put_id: str | None = None


ALWAYS = Condition()


@dataclass(frozen=True, slots=True)
class Head:
    info: ObjectInfo
    put_id: str | None


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects in the order of their keys; `next_after`: the key to go on behind; None: the end."""

    objects: tuple[ObjectInfo, ...]
    next_after: str | None


class RangeNotSatisfiable(Invalid):
    """A range starts at or past the object's end."""


class PartsUpload(Protocol):
    """An object in parts of `part_bytes`; the last may be smaller. Errors: as `put`."""

    part_bytes: int

    async def begin(self, put_id: str | None) -> None:
        """Creates the upload; nothing is visible yet."""
        ...

    async def send(self, parts: Sequence[Buffer], first: int) -> list[dict[str, Any]]:
        """Sends parts numbered from `first`; returns them for `complete`. Never OutcomeUnknown."""
        ...

    async def complete(
        self, done: Sequence[Mapping[str, Any]], size_bytes: int, condition: Condition
    ) -> ObjectInfo:
        """Makes the object visible, with all parts in `done`."""
        ...

    def give_up(self) -> None:
        """Removes the parts that were sent, in the background."""
        ...


class S3Requests(Protocol):
    """Keys come with the store's prefix."""

    async def put(
        self, key: str, parts: Sequence[Buffer], size_bytes: int, condition: Condition
    ) -> ObjectInfo:
        """One PUT."""
        ...

    async def put_large(
        self,
        key: str,
        parts: Sequence[Buffer],
        size_bytes: int,
        condition: Condition,
        tries: Callable[[str], Tries],
    ) -> ObjectInfo:
        """Sends the object in parts, each repeated by `tries(operation)`; cleans up on failure."""
        ...

    def multipart(
        self,
        key: str,
        about_bytes: int,
        tries: Callable[[str], Tries],
        rate: SendRate = FULL_RATE,
    ) -> PartsUpload | None:
        """An upload piece by piece; None if the client cannot do that."""
        ...

    async def get(self, key: str, start: int, end: int | None) -> Buffer:
        """Bytes from `start` to `end` (exclusive) or the object's end, whichever is first.

        Errors: also RangeNotSatisfiable.
        """
        ...

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """One GET, as PiecewiseStore.get_pieces. Errors: as `get`."""
        ...

    async def head(self, key: str) -> Head: ...

    async def list(self, prefix: str, after: str | None, limit: int) -> Listed:
        """Keys with `prefix` behind `after`, `limit` (1,000) at most."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """At most 1,000 keys. Absent ones are no error."""
        ...

    async def close(self) -> None: ...
