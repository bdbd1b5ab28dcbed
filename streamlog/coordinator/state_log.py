"""Appends a partition's records in the order in which they came, those that lie ready as one batch.

1. `add` never waits: the state that a record holds is in force at once.
2. Batches are appended one after the other; up to `IN_FLIGHT_MAX` wait for their acks, in order.
3. The first append or ack that fails ends the writer: all that is not durable by then never was,
   for those who wait, and `on_failure` is called once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from streamlog.codec.records import encode_values
from streamlog.errors import Internal, NotCoordinator, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog, LogAppendInfo
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

BATCH_BYTES = 256 << 10
"""Of keys and values: many records may lie ready after a stall, and a batch is encoded at once."""
IN_FLIGHT_MAX = 32

Done = Callable[[], None]


class StateLog:
    """The one writer of a coordinator's log."""

    def __init__(
        self,
        log: AbstractLog,
        record_bytes_max: int,
        clock: Clock,
        background: Background,
        on_failure: Callable[[StreamlogError], None],
    ) -> None:
        self._log = log
        self._batch_bytes = min(BATCH_BYTES, record_bytes_max)
        self._clock = clock
        self._background = background
        self._on_failure = on_failure
        self._ready: deque[tuple[bytes, bytes | None]] = deque()
        self._acks: deque[tuple[Awaitable[LogAppendInfo], int]] = deque()
        """Batches under way, each with how many records are durable with it."""
        self._appending: asyncio.Task[None] | None = None
        self._confirming: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._added = 0
        self._appended = 0
        self._durable = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._then: deque[tuple[int, Done]] = deque()
        self.appended_bytes = 0
        """Of keys and values."""
        self._failure: str | None = None

    def add(self, key: bytes, value: bytes | None, then: Done | None = None) -> None:
        """`then()` is called when the record is durable. Errors: NotCoordinator."""
        self.check()
        self._ready.append((key, value))
        self._added += 1
        self.appended_bytes += len(key) + len(value or b"")
        if then is not None:
            self._then.append((self._added, then))
        if self._appending is None:
            self._appending = self._spawn(self._append, "append")

    def check(self) -> None:
        """Errors: NotCoordinator, once the writer has ended."""
        if self._failure is not None:
            raise self._refusal(self._failure)

    @property
    def is_ended(self) -> bool:
        return self._failure is not None

    async def settled(self) -> None:
        """Returns when all that was added so far is durable. Errors: NotCoordinator."""
        self.check()
        if self._durable >= self._added:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._added, waiting))
        await waiting

    async def stop(self) -> None:
        """Ends the writer; nothing is appended once it returns. Appends under way may come."""
        self._fail(None)
        tasks = [task for task in (self._appending, self._confirming) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """No way out leaves anybody waiting: those are a failure, a bug, and a cancellation."""
        task = self._background.spawn(self._run(work), name=name)
        # One that is cancelled before its first step tells nobody by itself.
        task.add_done_callback(lambda ended: self._fail(None) if ended.cancelled() else None)
        return task

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StreamlogError as error:
            self._fail(error)
        except asyncio.CancelledError:
            raise
        except BaseException as bug:
            self._fail(Internal(f"the coordinator's writer failed: {bug!r}"))
            raise

    async def _append(self) -> None:
        while self._ready and self._failure is None:
            if len(self._acks) >= IN_FLIGHT_MAX:
                self._room.clear()
                await self._room.wait()
                continue
            records = self._next_batch()
            ack = await self._log.append(self._encoded(records))
            self._appended += len(records)
            self._acks.append((ack, self._appended))
            if self._confirming is None:
                self._confirming = self._spawn(self._confirm, "ack")
        self._appending = None

    def _next_batch(self) -> list[tuple[bytes, bytes | None]]:
        records = [self._ready.popleft()]
        size = _size(records[0])
        while self._ready and size + _size(self._ready[0]) <= self._batch_bytes:
            records.append(self._ready.popleft())
            size += _size(records[-1])
        return records

    def _encoded(self, records: Sequence[tuple[bytes, bytes | None]]) -> bytearray:
        keys, values = zip(*records, strict=True)
        return encode_values(values, keys=keys, timestamp_ms=self._clock.now_ms()).data

    async def _confirm(self) -> None:
        while self._acks:
            ack, durable = self._acks[0]
            await ack
            self._acks.popleft()
            self._durable = durable
            self._room.set()
            self._tell()
        self._confirming = None

    def _tell(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._durable:
            _, waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
        while self._then and self._then[0][0] <= self._durable:
            self._then.popleft()[1]()

    def _fail(self, error: StreamlogError | None) -> None:
        if self._failure is not None:
            return
        self._failure = reason = "this node gave it up" if error is None else str(error)
        self._then.clear()
        for task in (self._appending, self._confirming):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        while self._waiting:
            _, waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(self._refusal(reason))
        if error is not None:
            self._on_failure(error)

    def _refusal(self, reason: str) -> NotCoordinator:
        error = NotCoordinator(
            f"{self._log.topic_partition} is not coordinated here any more: {reason}; look the "
            "coordinator up again"
        )
        error.has_no_side_effects = False
        return error


def _size(record: tuple[bytes, bytes | None]) -> int:
    return len(record[0]) + len(record[1] or b"")
