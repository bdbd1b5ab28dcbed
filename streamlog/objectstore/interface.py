"""The ObjectStore contract, cut for S3: whole-object puts, ranged gets, paged lists.

Keys are made of `[a-z0-9._-]` components joined by `/`; never of unchecked user input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
