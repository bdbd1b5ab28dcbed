"""A stream in its holder's memory, and the appends to it.

start ≤ confirm ≤ next and committed ≤ next. With wal=disk committed ≤ confirm, because uploads
follow the acks; with wal=object they are equal. Offsets from the tail's first on are in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streamlog.cache.tail import StreamTail
from streamlog.errors import StreamlogError
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import StreamRow
from streamlog.model.batch import APPEND, AppendContext, AppendResult, RecordBatch
from streamlog.runtime.concurrency.run_ack import RunAck

ErrorFactory = Callable[[], StreamlogError]


class Queued(Protocol):
    """An append that was called and is not sequenced yet."""

    def proceed(self) -> None: ...

    def refuse(self, error: StreamlogError) -> None: ...


class StreamCore:
    """Offsets, tail and waiters of one stream under one epoch."""

    __slots__ = (
        "_progress",
        "_waiters",
        "append_barrier",
        "committed",
        "confirm",
        "epoch",
        "is_closing",
        "is_handed_out",
        "next",
        "queued",
        "start",
        "stop",
        "stream_id",
        "tail",
        "token",
    )

    def __init__(self, row: StreamRow, tail: StreamTail) -> None:
        self.stream_id = row.stream_id
        self.epoch = row.epoch
        self.start = row.start
        self.confirm = row.end
        self.committed = row.end
        """End of what is committed to the store."""
        self.next = row.end
        self.token = row.token
        self.tail = tail
        self.queued: dict[Queued, None] = {}
        """Appends that were called and not sequenced: they wait for room, or at the barrier."""
        self.append_barrier: dict[Queued, None] | None = None
        """Appends that wait, in order, until the stream's end is decided; None: no barrier."""
        self.is_handed_out = False
        """Whether a caller has this epoch's Stream."""
        self.is_closing = False
        self.stop: ErrorFactory | None = None
        """Why the stream is unusable; None while it is usable."""
        self._waiters: dict[asyncio.Future[None], tuple[int, StreamlogError | None]] = {}
        self._progress: asyncio.Future[None] | None = None

    def wait_for(self, offset: int, refusal: StreamlogError | None = None) -> asyncio.Future[None]:
        """Done when confirm ≥ offset: with None, or with the refusal that had to wait for that.

        Call `forget` with it when the wait ends early.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.stop is not None:
            future.set_exception(self.stop())
        elif self.confirm >= offset:
            _end(future, refusal)
        else:
            self._waiters[future] = (offset, refusal)
        return future

    def forget(self, future: asyncio.Future[None]) -> None:
        self._waiters.pop(future, None)

    def confirmed(self) -> None:
        """Wakes waiters after `confirm` has moved."""
        if self._waiters:
            confirm = self.confirm
            ready = [item for item in self._waiters.items() if item[1][0] <= confirm]
            for future, (_, refusal) in ready:
                del self._waiters[future]
                _end(future, refusal)
        self.progressed()

    def progressed(self) -> None:
        """Wakes `drained` and `committed_to`."""
        if self._progress is not None:
            progress, self._progress = self._progress, None
            if not progress.done():
                progress.set_result(None)

    async def committed_to(self, offset: int, request_flush: Callable[[], None]) -> None:
        """Returns when everything below `offset` is committed to the store.

        Calls `request_flush` again after every step: some of it may have been sequenced since.
        """
        while self.committed < offset:
            request_flush()
            await self._next_progress()

    async def drained(self, request_flush: Callable[[], None]) -> None:
        """Returns when every append called so far is confirmed and committed."""
        while self.queued or self.committed < self.next:
            request_flush()
            await self._next_progress()

    def halt(self, error: ErrorFactory) -> None:
        """Ends the stream on this node: waiters and appends that are not sequenced fail with the
        error. A later call changes nothing."""
        if self.stop is not None:
            return
        self.stop = error
        waiters, self._waiters = self._waiters, {}
        for future in waiters:
            if not future.done():
                future.set_exception(error())
        for append in list(self.queued):
            append.refuse(error())
        self.tail.clear()
        self.progressed()

    async def _next_progress(self) -> None:
        if self.stop is not None:
            raise self.stop()
        if self._progress is None:
            self._progress = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._progress)


class StreamAppend:
    """One append to a stream, from the call until its batch is committed to the store.

    It is made once, and passed on as it is: to the sequencer, to a queue if it has to wait, to a
    group, to the WAL or the uploader. An append that the WAL replays has no batch and no caller.
    An append of a run is made when it is sequenced; the run answers for it.
    """

    __slots__ = (
        "batch",
        "charge",
        "context",
        "core",
        "entry",
        "future",
        "run",
        "size_bytes",
        "trace_id",
    )

    batch: RecordBatch
    """Unset once nobody asks for it: in a run, and when it is replayed."""
    size_bytes: int
    """Size of the payload."""
    charge: int
    """What it takes of the append budget."""
    entry: StreamEntry
    """The batch with its offsets; set when it is sequenced."""

    def __init__(
        self,
        core: StreamCore,
        batch: RecordBatch,
        context: AppendContext,
        future: asyncio.Future[AppendResult],
    ) -> None:
        self.core = core
        self.batch = batch
        self.context = context
        self.trace_id = context.trace_id
        self.future: asyncio.Future[AppendResult] | None = future
        """Its answer; None in a run, and if it is replayed."""
        self.run: RunAck | None = None
        """Answers for it, where it belongs to a run."""

    @classmethod
    def of_run(
        cls,
        core: StreamCore,
        entry: StreamEntry,
        size_bytes: int,
        charge: int,
        trace_id: str,
        run: RunAck,
    ) -> StreamAppend:
        """A sequenced append of a run."""
        append = cls.__new__(cls)
        append.core, append.entry, append.size_bytes = core, entry, size_bytes
        append.charge, append.context, append.run = charge, APPEND, run
        append.trace_id, append.future = trace_id, None
        return append

    @classmethod
    def replayed(cls, core: StreamCore, entry: StreamEntry, overhead_bytes: int) -> StreamAppend:
        """An append out of the WAL: it is durable, and no caller waits for it."""
        append = cls.__new__(cls)
        append.core, append.context, append.future, append.run = core, APPEND, None, None
        append.trace_id = ""
        append.entry, append.size_bytes = entry, entry.size_bytes
        append.charge = append.size_bytes + overhead_bytes
        return append

    @property
    def is_replayed(self) -> bool:
        """It came out of the WAL, and no caller waits for it."""
        return self.future is None and self.run is None

    def fail(self, error: ErrorFactory) -> None:
        """Answers with the error, unless it was answered or has no caller."""
        if self.run is not None:
            self.run.fail(error)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error())


def _end(future: asyncio.Future[None], refusal: StreamlogError | None) -> None:
    if future.done():
        return
    if refusal is None:
        future.set_result(None)
    else:
        future.set_exception(refusal)
