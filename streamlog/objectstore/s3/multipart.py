"""One object sent in parts: whole (`run`), or as it comes (`begin`, `send` …, `complete`).

1. The upload is created; nothing is visible yet.
2. Parts go up several at a time, each repeated by itself.
3. Completion makes the object visible, under the condition, at once.
4. On a failure, or when the caller is cancelled, the upload is aborted once the requests under way
   have ended: a part that arrived after the abort would stay. Parts that a crash or a failed abort
   leaves behind are invisible, and use room until the bucket's lifecycle rule removes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from streamlog.errors import (
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.interface import (
    FULL_RATE,
    ObjectInfo,
    SendRate,
)
from streamlog.objectstore.s3.body import S3Body, split
from streamlog.objectstore.s3.requests import Condition
from streamlog.objectstore.s3.retry import Tries
from streamlog.objectstore.store_config import StoreConfig
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.concurrency.background import Background

T = TypeVar("T")

log = logging.getLogger(__name__)

PARTS_MAX = 10_000


class MultipartRequests(Protocol):
    """The single requests; errors as S3Requests."""

    async def create(self, key: str, put_id: str | None) -> str: ...

    async def part(self, key: str, upload_id: str, number: int, body: S3Body) -> dict[str, Any]: ...

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
        about_bytes: int,
        config: StoreConfig,
        tries: Callable[[str], Tries],
        background: Background,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        rate: SendRate = FULL_RATE,
    ) -> None:
        """`about_bytes`: about the object's size. `spawn` starts the abort, which outlives the
        call."""
        self._requests = requests
        self._key = key
        self.part_bytes = max(config.part_bytes, -(-about_bytes // PARTS_MAX))
        self._slots = asyncio.Semaphore(config.parts_in_flight_max)
        self._tries = tries
        self._background = background
        self._spawn = spawn
        self._rate = rate
        self._upload_id = ""
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def run(
        self, parts: Sequence[Buffer], size_bytes: int, condition: Condition
    ) -> ObjectInfo:
        """Errors: as S3Requests.put; OutcomeUnknown only where the object may have become visible.

        After a failure or a cancellation the abort runs in the background.
        """
        try:
            await self.begin(condition.put_id)
            done = await self.send(parts, 1)
            return await self.complete(done, size_bytes, condition)
        except BaseException as error:
            if not isinstance(error, OutcomeUnknown):
                self.give_up()
            raise

    def give_up(self) -> None:
        """Aborts the upload in the background."""
        self._spawn(self._abort())

    async def begin(self, put_id: str | None) -> None:
        """Creates the upload. Errors: as `send`."""

        async def create() -> None:
            self._upload_id = await self._requests.create(self._key, put_id)

        try:
            await self._tries("create").run(lambda: self._to_its_end(create))
        except OutcomeUnknown as error:
            raise StoreUnavailable(error.message, **error.fields) from error

    async def send(self, parts: Sequence[Buffer], first: int) -> list[dict[str, Any]]:
        """Sends parts of `part_bytes`, numbered from `first`; returns them for `complete`.

        Errors: as S3Requests.put, never OutcomeUnknown, because a part alone is not visible.
        """
        sent: list[asyncio.Task[dict[str, Any]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, pieces in enumerate(split(parts, self.part_bytes), first):
                    sent.append(group.create_task(self._send(number, pieces)))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return [task.result() for task in sent]

    async def _send(self, number: int, pieces: Sequence[Buffer]) -> dict[str, Any]:
        size_bytes = parts_size(pieces)

        async def send() -> dict[str, Any]:
            body = S3Body(pieces, size_bytes, self._rate)
            return await self._requests.part(self._key, self._upload_id, number, body)

        async with self._slots:
            try:
                return await self._tries("part").run(lambda: self._to_its_end(send))
            except OutcomeUnknown as error:
                raise StoreUnavailable(error.message, **error.fields) from error

    async def _to_its_end(self, request: Callable[[], Awaitable[T]]) -> T:
        """Runs the request to its end although its caller is cancelled: an abort must not overtake
        it."""

        async def counted() -> T:
            self._under_way += 1
            self._quiet.clear()
            try:
                return await request()
            finally:
                self._under_way -= 1
                if self._under_way == 0:
                    self._quiet.set()

        return await self._background.shielded(counted, name="multipart")

    async def complete(
        self, done: Sequence[Mapping[str, Any]], size_bytes: int, condition: Condition
    ) -> ObjectInfo:
        """Errors: as `run`'s."""
        tries = self._tries("complete")
        try:
            return await tries.run(
                lambda: self._requests.complete(
                    self._key, self._upload_id, done, size_bytes, condition
                )
            )
        except (ObjectNotFound, ValueConflict) as error:
            if not tries.is_unknown:
                raise
            # The upload is gone, or the condition fails: an earlier try may have completed it.
            raise OutcomeUnknown(
                f"completing {self._key} gave no answer", operation="put"
            ) from error

    async def _abort(self) -> None:
        # Lets spawned requests begin, so that they are counted.
        await asyncio.sleep(0)
        await self._quiet.wait()
        upload_id = self._upload_id
        if not upload_id:
            return
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
