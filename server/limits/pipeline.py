"""A bidirectional call as a pipeline: started in order, answered in order, bounded in bytes.

    read → wait for room → start (await: has its place) → queue → answer (await: durable) → write

Reading goes on while earlier requests wait to be durable. Where a protocol allows it (protobuf
parses two concatenated messages as one), answers that are ready go out as one message: sending a
message costs gRPC as much as all other work of a small request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar, cast

from streamlog.errors import Closed
from streamlog.server.limits.in_flight import ConnectionBudget

T = TypeVar("T")


class Answer(Protocol):
    """A request whose place in the order is fixed."""

    async def message(self) -> bytes:
        """The response, once it is durable."""
        ...

    def is_ready(self) -> bool:
        """`message` would not wait."""
        ...

    def abandon(self) -> None:
        """The client has left."""
        ...


JOINED_BYTES_MAX = 64 * 1024
"""An answer of this size is not joined with a further one."""

REQUEST_OVERHEAD_BYTES = 1024
"""Charged beside each message: even a tiny one that is refused holds this until its answer."""

_END = object()


async def _next(source: AsyncIterator[T]) -> T | object:
    return await anext(source, _END)


class Drain:
    """Ends open calls when the node drains: each adds a callback for the time that it runs."""

    def __init__(self) -> None:
        self.is_draining = False
        self._callbacks: set[Callable[[], object]] = set()

    def add(self, callback: Callable[[], object]) -> None:
        self._callbacks.add(callback)
        if self.is_draining:
            callback()

    def remove(self, callback: Callable[[], object]) -> None:
        self._callbacks.discard(callback)

    async def until(self, source: AsyncIterator[T]) -> AsyncIterator[T]:
        """Items of `source` until the node drains; then it is closed."""
        loop = asyncio.get_running_loop()
        drained: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not drained.done():
                drained.set_result(None)

        self.add(end)
        try:
            while True:
                async with asyncio.TaskGroup() as group:
                    item = group.create_task(_next(source))
                    await asyncio.wait((item, drained), return_when=asyncio.FIRST_COMPLETED)
                    if drained.done():
                        item.cancel()
                if drained.done() or item.result() is _END:
                    return
                yield cast(T, item.result())
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            self.remove(end)
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    def start(self) -> None:
        """Runs all callbacks, and those that are added later at once."""
        self.is_draining = True
        for callback in list(self._callbacks):
            callback()


class Pipeline:
    """One call. `read` returns None when the client has sent its last request."""

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes | None]],
        write: Callable[[bytes], Awaitable[None]],
        start: Callable[[bytes], Awaitable[Answer]],
        budget: ConnectionBudget,
        drain: Drain,
        *,
        is_joined: bool = False,
    ) -> None:
        self._is_joined = is_joined
        self._read = read
        self._write = write
        self._start = start
        self._budget = budget
        self._drain = drain
        self._queue: deque[tuple[int, Answer]] = deque()
        self._more = asyncio.Event()
        self._read_all = False

    async def run(self) -> None:
        """Ends when all requests are answered, or with Closed after those taken before a drain.

        Cancellation leaves started requests under way and frees everything else.
        """
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read_requests())
                # Of the task, not in it: a drain may cancel it before its first step.
                reader.add_done_callback(self._has_read_all)
                self._drain.add(reader.cancel)
                try:
                    await self._write_answers()
                finally:
                    self._drain.remove(reader.cancel)
                    reader.cancel()
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            for size_bytes, answer in self._queue:
                answer.abandon()
                self._budget.release(size_bytes)
            self._queue.clear()
        if self._drain.is_draining:
            raise Closed("the node is shutting down; connect to it again, or to another one")

    async def _read_requests(self) -> None:
        while (message := await self._read()) is not None:
            size_bytes = len(message) + REQUEST_OVERHEAD_BYTES
            if not self._budget.try_take(size_bytes):
                await self._budget.take(size_bytes)
            try:
                answer = await self._start(message)
            except BaseException:
                self._budget.release(size_bytes)
                raise
            self._queue.append((size_bytes, answer))
            self._more.set()
            del message, answer

    def _has_read_all(self, _: object) -> None:
        self._read_all = True
        self._more.set()

    def _is_next_ready(self) -> bool:
        return bool(self._queue) and self._queue[0][1].is_ready()

    async def _take_answer(self) -> bytes:
        """The oldest request's answer, once it is ready. Cancelled, the request stays queued."""
        size_bytes, answer = self._queue[0]
        data = await answer.message()
        self._queue.popleft()
        self._budget.release(size_bytes)
        return data

    async def _write_answers(self) -> None:
        while True:
            while self._queue:
                data = await self._take_answer()
                while self._is_joined and len(data) < JOINED_BYTES_MAX and self._is_next_ready():
                    data += await self._take_answer()
                await self._write(data)
            if self._read_all:
                return
            self._more.clear()
            await self._more.wait()
