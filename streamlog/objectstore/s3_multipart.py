"""One object sent in parts.

1. The upload is created; nothing is visible yet.
2. Parts go up several at a time, each repeated by itself.
3. Completion makes the object visible, under the condition, at once.
4. On a failure, or when the caller is cancelled, the upload is aborted. What a crash or an abort
   that failed leaves behind is invisible and costs room until the bucket's lifecycle rule for
   incomplete uploads takes it away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from streamlog.errors import (
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.s3_body import sliced
from streamlog.objectstore.s3_requests import Condition
from streamlog.objectstore.s3_retry import Tries
from streamlog.objectstore.store_config import StoreConfig
from streamlog.runtime.buffers import Buffer

log = logging.getLogger(__name__)

PARTS_MAX = 10_000


class MultipartRequests(Protocol):
    """The single requests; errors as S3Requests."""

    async def create(self, key: str, put_id: str | None) -> str: ...

    async def part(
        self, key: str, upload_id: str, number: int, parts: Sequence[Buffer], size_bytes: int
    ) -> dict[str, Any]: ...

    async def complete(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[Mapping[str, Any]],
        size_bytes: int,
        condition: Condition,
    ) -> ObjectInfo: ...

    async def abort(self, key: str, upload_id: str) -> None: ...


class MultipartUpload:
    """Made for one object."""

    def __init__(
        self,
        requests: MultipartRequests,
        key: str,
        parts: Sequence[Buffer],
        size_bytes: int,
        config: StoreConfig,
        tries: Callable[[str], Tries],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._requests = requests
        self._spawn = spawn
        self._key = key
        self._parts = parts
        self._size_bytes = size_bytes
        self._part_bytes = max(config.part_bytes, -(-size_bytes // PARTS_MAX))
        self._slots = asyncio.Semaphore(config.parts_in_flight_max)
        self._tries = tries

    async def run(self, condition: Condition) -> ObjectInfo:
        """Errors: as S3Requests.put; OutcomeUnknown only where the object may have become visible.

        On failure and cancellation the abort goes on behind it.
        """
        put_id = condition.put_id
        upload_id = await self._tries("create").run(
            lambda: self._requests.create(self._key, put_id)
        )
        try:
            done = await self._send_parts(upload_id)
            return await self._complete(upload_id, done, condition)
        except BaseException as error:
            if not isinstance(error, OutcomeUnknown):
                self._spawn(self._abort(upload_id))
            raise

    async def _send_parts(self, upload_id: str) -> list[dict[str, Any]]:
        starts = range(0, self._size_bytes, self._part_bytes)
        sent: list[asyncio.Task[dict[str, Any]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, start in enumerate(starts, 1):
                    sent.append(group.create_task(self._send(upload_id, number, start)))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return [task.result() for task in sent]

    async def _send(self, upload_id: str, number: int, start: int) -> dict[str, Any]:
        end = min(start + self._part_bytes, self._size_bytes)
        pieces = sliced(self._parts, start, end)
        async with self._slots:
            try:
                return await self._tries("part").run(
                    lambda: self._requests.part(self._key, upload_id, number, pieces, end - start)
                )
            except OutcomeUnknown as error:
                # A part alone is never visible: the object certainly is not there.
                raise StoreUnavailable(error.message, **error.fields) from error

    async def _complete(
        self, upload_id: str, done: Sequence[Mapping[str, Any]], condition: Condition
    ) -> ObjectInfo:
        tries = self._tries("complete")
        try:
            return await tries.run(
                lambda: self._requests.complete(
                    self._key, upload_id, done, self._size_bytes, condition
                )
            )
        except (ObjectNotFound, ValueConflict) as error:
            if not tries.is_unknown:
                raise
            # The upload is gone, or the condition fails: an earlier try may have completed it.
            raise OutcomeUnknown(
                f"completing {self._key} gave no answer", operation="put"
            ) from error

    async def _abort(self, upload_id: str) -> None:
        try:
            await self._tries("abort").run(lambda: self._requests.abort(self._key, upload_id))
        except ObjectNotFound:
            return
        except StreamlogError as error:
            log.warning(
                "parts of an upload that failed stay in the bucket until its lifecycle rule",
                extra={"key": self._key, "upload_id": upload_id, "reason": str(error)},
            )


def _first(error: BaseException) -> BaseException:
    """The failure that ended the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
