"""Appends of one log between sequencing and durability, in offset order.

1. `push` adds an append, `push_run` several that share the medium's answer. The answers are
   followed in order, and the appends of a run that became durable together are reported in one
   call. A run tells the queue of each change; for single appends there is a task that awaits them.
2. The caller of an append and each retry of it have a future of their own; cancelling one future
   changes nothing for the others, nor for the append.
3. The first failure fails every append behind it: no append is acknowledged past a hole.
4. Appends that are still pending when the log is given up end with OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Generic, Protocol, TypeVar

from streamlog.errors import Internal, OutcomeUnknown, StreamlogError
from streamlog.log.api.abstract_log import LogAppendInfo
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.prompt_future import PromptFuture
from streamlog.runtime.concurrency.run_ack import RunAck

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
        "number",
        "segment",
        "waiting",
    )

    def __init__(
        self, base_offset: int, end_offset: int, segment: Segment, max_timestamp_ms: int
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.durable: Awaitable[AppendAnswer] | RunAck | None = None
        """The medium's answer; set by `push` and `push_run`."""
        self.number = 0
        """Its place in the run, from 1 on."""
        self.segment = segment
        self.max_timestamp_ms = max_timestamp_ms
        self.waiting: list[tuple[asyncio.Future[LogAppendInfo], LogAppendInfo]] = []

    @property
    def append_time_ms(self) -> int:
        """Log-append time that its first caller is answered with; -1: none."""
        return self.waiting[0][1].log_append_time_ms if self.waiting else -1

    def wait(self, info: LogAppendInfo) -> asyncio.Future[LogAppendInfo]:
        """Ends with `info` when the batch is durable."""
        future: PromptFuture[LogAppendInfo] = PromptFuture(loop=asyncio.get_running_loop())
        self.waiting.append((future, info))
        return future

    def refuse(self, error: StreamlogError) -> None:
        """Ends all waits with the error."""
        for future, _ in self.waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # Marks it as seen: a caller may have given up waiting.


class Acknowledges(Protocol[Segment]):
    """Makes durable appends visible to readers."""

    def acknowledge(self, appends: Sequence[PendingAppend[Segment]]) -> None:
        """They follow one another; there is at least one."""
        ...


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

    def push(self, pending: PendingAppend[Segment], durable: Awaitable[AppendAnswer]) -> None:
        pending.durable = durable
        self._pending.append(pending)
        self._by_base[pending.base_offset] = pending
        self._start()

    def push_run(self, appends: Sequence[PendingAppend[Segment]], ack: RunAck) -> None:
        """`ack` counts these appends, in this order."""
        by_base = self._by_base
        for number, pending in enumerate(appends, 1):
            pending.durable = ack
            pending.number = number
            by_base[pending.base_offset] = pending
        self._pending += appends
        self._start()

    def _start(self) -> None:
        if not self._is_following:
            self._is_following = True
            self._idle.clear()
            self._follow_oldest()

    def find(self, base_offset: int) -> PendingAppend[Segment] | None:
        """The append at base_offset that is not durable yet."""
        return self._by_base.get(base_offset)

    @property
    def last(self) -> PendingAppend[Segment] | None:
        """The newest append that is not durable yet."""
        return self._pending[-1] if self._pending else None

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

    def _follow_oldest(self) -> None:
        """Goes on when the medium has answered for the oldest append; ends with the last one."""
        if not self._pending:
            self._follow_none()
            return
        pending = self._pending[0]
        ack = pending.durable
        assert ack is not None
        if not isinstance(ack, RunAck):
            self._background.spawn(self._follow_single(), name="acks")
        elif ack.durable >= pending.number or ack.error is not None:
            asyncio.get_running_loop().call_soon(self._run_changed)
        else:
            ack.notify(self._run_changed)

    def _follow_none(self) -> None:
        self._is_following = False
        if not self._pending:
            self._idle.set()

    def _run_changed(self) -> None:
        self._background.call(self._answer_runs, name="acks")

    def _answer_runs(self) -> None:
        """Answers for the oldest appends that are of runs and have become durable, or failed."""
        try:
            while self._pending:
                pending = self._pending[0]
                ack = pending.durable
                if not isinstance(ack, RunAck):
                    break
                if ack.durable < pending.number:
                    if ack.error is None:
                        break
                    self._failed(ack.error)
                elif self._failure is not None:
                    self._failed(self._failure)
                else:
                    self._acked_run(ack)
        except BaseException:
            self._follow_none()
            raise
        self._follow_oldest()

    async def _follow_single(self) -> None:
        """Awaits the oldest appends one by one, up to the first one of a run."""
        try:
            while self._pending:
                pending = self._pending[0]
                durable = pending.durable
                assert durable is not None
                if isinstance(durable, RunAck):
                    break
                try:
                    result = await durable
                except StreamlogError as error:
                    self._failed(error)
                    continue
                if self._failure is not None:
                    self._failed(self._failure)
                else:
                    self._acked(result, pending)
        except BaseException:
            self._follow_none()
            raise
        self._follow_oldest()

    def _acked(self, result: AppendAnswer, pending: PendingAppend[Segment]) -> None:
        if result.end_offset - result.base_offset != pending.end_offset - pending.base_offset:
            self._failed(
                Internal(f"the medium stored {result} for offsets from {pending.base_offset}")
            )
            return
        self._answer([self._take_oldest()])

    def _acked_run(self, ack: RunAck) -> None:
        """The oldest append is durable, and perhaps others of its run."""
        queue, count = self._pending, ack.durable
        ready: list[PendingAppend[Segment]] = []
        while queue and queue[0].durable is ack and queue[0].number <= count:
            ready.append(self._take_oldest())
        self._answer(ready)

    def _answer(self, ready: Sequence[PendingAppend[Segment]]) -> None:
        try:
            self._visibility.acknowledge(ready)
        except BaseException as error:
            # They have left the queue: nobody else would answer them.
            unknown = OutcomeUnknown(
                f"the append is durable, but telling its readers failed by a bug: {error!r}; retry "
                "with the same producer id and sequence"
            )
            for pending in ready:
                pending.refuse(unknown)
            raise
        for pending in ready:
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
        self._take_oldest().refuse(error)

    def _take_oldest(self) -> PendingAppend[Segment]:
        pending = self._pending.popleft()
        del self._by_base[pending.base_offset]
        return pending
