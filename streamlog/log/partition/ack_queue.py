"""Appends of one log between sequencing and durability, in offset order.

1. `push` adds an append; one task awaits the medium's answers in order and reports each.
2. The caller of an append and each retry of it have a future of their own; cancelling one future
   changes nothing for the others, nor for the append.
3. The first failure fails every append behind it: no append is acknowledged past a hole.
4. Appends that are still pending when the log is given up end with OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Generic, Protocol, TypeVar

from streamlog.errors import Internal, OutcomeUnknown, StreamlogError
from streamlog.log.api.abstract_log import LogAppendInfo
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.runtime.concurrency.background import Background

Segment = TypeVar("Segment")


class AppendAnswer(Protocol):
    """What a medium answers when a batch is durable; its offsets count as the medium does."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class PendingAppend(Generic[Segment]):
    """A sequenced batch: offsets base_offset (inclusive) to end_offset (exclusive)."""

    __slots__ = (
        "base_offset",
        "durable",
        "end_offset",
        "max_timestamp_ms",
        "segment",
        "waiting",
    )

    def __init__(
        self,
        base_offset: int,
        end_offset: int,
        durable: Awaitable[AppendAnswer],
        segment: Segment,
        max_timestamp_ms: int,
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.durable = durable
        self.segment = segment
        self.max_timestamp_ms = max_timestamp_ms
        self.waiting: list[tuple[asyncio.Future[LogAppendInfo], LogAppendInfo]] = []

    def wait(self, info: LogAppendInfo) -> asyncio.Future[LogAppendInfo]:
        """Ends with `info` when the batch is durable."""
        future: asyncio.Future[LogAppendInfo] = asyncio.get_running_loop().create_future()
        self.waiting.append((future, info))
        return future


class Acknowledges(Protocol[Segment]):
    """Makes a durable append visible to readers."""

    def acknowledge(self, pending: PendingAppend[Segment]) -> None: ...


class AckQueue(Generic[Segment]):
    """It does not decide what a failure means: it reports the first one to the log's lifecycle."""

    def __init__(
        self, background: Background, visibility: Acknowledges[Segment], lifecycle: LogLifecycle
    ) -> None:
        self._background = background
        self._visibility = visibility
        self._lifecycle = lifecycle
        self._pending: deque[PendingAppend[Segment]] = deque()
        self._by_base: dict[int, PendingAppend[Segment]] = {}
        self._is_following = False
        self._failure: StreamlogError | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._pending)

    def push(self, pending: PendingAppend[Segment]) -> None:
        self._pending.append(pending)
        self._by_base[pending.base_offset] = pending
        if not self._is_following:
            self._is_following = True
            self._idle.clear()
            self._background.spawn(self._follow(), name="acks")

    def find(self, base_offset: int) -> PendingAppend[Segment] | None:
        """The append at base_offset that is not durable yet."""
        return self._by_base.get(base_offset)

    async def drained(self) -> None:
        """Returns when nothing is pending."""
        await self._idle.wait()

    def give_up(self) -> None:
        """Fails the appends that are left. Call it when the queue's task has been cancelled."""
        while self._pending:
            self._answer_refused(
                OutcomeUnknown(
                    "the partition was given up before the append was confirmed; retry with the "
                    "same producer id and sequence"
                )
            )
        self._idle.set()

    async def _follow(self) -> None:
        try:
            while self._pending:
                pending = self._pending[0]
                try:
                    result = await pending.durable
                except StreamlogError as error:
                    self._failed(error)
                else:
                    self._acked(result, pending)
        finally:
            self._is_following = False
            if not self._pending:
                self._idle.set()

    def _acked(self, result: AppendAnswer, pending: PendingAppend[Segment]) -> None:
        if self._failure is not None:
            self._failed(self._failure)
            return
        if result.end_offset - result.base_offset != pending.end_offset - pending.base_offset:
            self._failed(
                Internal(f"the medium stored {result} for offsets from {pending.base_offset}")
            )
            return
        self._take_oldest()
        self._visibility.acknowledge(pending)
        for future, info in pending.waiting:
            if not future.done():
                future.set_result(info)

    def _failed(self, error: StreamlogError) -> None:
        is_first = self._failure is None
        self._failure = self._failure or error
        self._answer_refused(error)
        if is_first:
            self._lifecycle.fail(error)

    def _answer_refused(self, error: StreamlogError) -> None:
        for future, _ in self._take_oldest().waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # Marks it as seen: a caller may have given up waiting.

    def _take_oldest(self) -> PendingAppend[Segment]:
        pending = self._pending.popleft()
        del self._by_base[pending.base_offset]
        return pending
