"""An object that is sent while it grows; its bytes stay in memory until their part is stored.

1. `finish` stores a small object by one PUT. Until it is known that the object is large, `write`
   keeps what a PUT may have.
2. For a larger one, each `write` sends the parts that are complete, several at a time, and keeps
   the other bytes: a copy where they lie in memory that the caller may use again, or are little of
   what they would hold.
3. `finish` sends the last part and completes the upload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from streamlog.errors import (
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.s3.body import sliced
from streamlog.objectstore.s3.requests import Condition, PartsUpload
from streamlog.runtime.buffers import Buffer, join, parts_size


class S3Upload:
    """An ObjectUpload. One call at a time."""

    def __init__(
        self,
        parts: PartsUpload,
        put: Callable[[Sequence[Buffer]], Awaitable[ObjectInfo]],
        completed: Callable[[str], Awaitable[ObjectInfo | None]],
        put_bytes_max: int,
        put_id: str,
        *,
        is_large: bool = False,
    ) -> None:
        """`put` stores a small object; `completed(put_id)` says whether the upload took effect.
        `is_large`: the object is expected to be larger than what a PUT may have."""
        self._parts = parts
        self._put = put
        self._completed = completed
        self._put_bytes_max = put_bytes_max
        self._put_id = put_id
        self._is_large = is_large
        self._rest: list[Buffer] = []
        self._rest_bytes = 0
        self._size_bytes = 0
        self._done: list[dict[str, Any]] = []
        self._has_begun = False
        self._has_ended = False

    async def write(self, parts: Sequence[Buffer]) -> None:
        added = parts_size(parts)
        self._size_bytes += added
        whole = 0
        if self._is_large or self._has_begun or self._size_bytes > self._put_bytes_max:
            total = self._rest_bytes + added
            whole = total - total % self._parts.part_bytes
        if not whole:
            self._keep(parts)
            return
        here = [*self._rest, *parts]
        self._rest, self._rest_bytes = [], 0
        await self._send(sliced(here, 0, whole))
        self._keep(sliced(here, whole, self._size_bytes))

    async def finish(self) -> ObjectInfo:
        if not self._has_begun and self._size_bytes <= self._put_bytes_max:
            info = await self._put(self._rest)
        else:
            await self._send(self._rest)
            info = await self._complete()
        self._has_ended = True
        self._rest = []
        return info

    def give_up(self) -> None:
        if self._has_begun and not self._has_ended:
            self._has_ended = True
            self._parts.give_up()
        self._rest = []

    async def _send(self, parts: Sequence[Buffer]) -> None:
        if not self._has_begun:
            # Set before the request: a cancelled one may have taken effect.
            self._has_begun = True
            await self._parts.begin(self._put_id)
        try:
            self._done += await self._parts.send(parts, len(self._done) + 1)
        except ObjectNotFound as error:
            raise _gone(error) from error

    async def _complete(self) -> ObjectInfo:
        condition = Condition(put_id=self._put_id)
        try:
            return await self._parts.complete(self._done, self._size_bytes, condition)
        except (ObjectNotFound, ValueConflict) as error:
            raise _gone(error) from error
        except OutcomeUnknown:
            # An abort could hit an upload that was completed.
            self._has_ended = True
            info = await self._completed(self._put_id)
            if info is None:
                raise
            return info

    def _keep(self, parts: Sequence[Buffer]) -> None:
        size_bytes = parts_size(parts)
        if size_bytes:
            is_kept = len(parts) == 1 and _may_be_kept(parts[0])
            self._rest.append(parts[0] if is_kept else bytes(join(parts)))
            self._rest_bytes += size_bytes


def _may_be_kept(part: Buffer) -> bool:
    """A copy of megabytes would hold the event loop up for milliseconds."""
    owner = part.obj if isinstance(part, memoryview) else part
    return isinstance(owner, bytes) and 2 * len(part) >= len(owner)


def _gone(error: StreamlogError) -> StoreUnavailable:
    """Something else ended the upload, such as a lifecycle rule; the object is untouched."""
    return StoreUnavailable(
        f"the store ended a multipart upload before it was complete: {error.message}",
        operation="put",
    )
