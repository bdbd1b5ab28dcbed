"""StreamClient and Stream over a `Backing`: the whole contract except storage.

A backing holds rows (streams with their durable batches) and makes changes durable; several
clients, each one process, may share it. Invariants:

1. A row changes under the backing's lock, after the change is durable.
2. Items of one client are carried out in the order of calls, in groups; acks come in that order.
3. An item counts only if its handle's epoch is still the row's when its group is carried out.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streamlog.errors import (
    Closed,
    Conflict,
    Invalid,
    OffsetConflict,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
    TokenMismatch,
)
from streamlog.model.batch import (
    APPEND,
    FETCH,
    AppendContext,
    AppendResult,
    BatchAttributes,
    CloseStreamOptions,
    CreateStreamOptions,
    DeleteStreamOptions,
    FetchContext,
    FetchResult,
    OpenStreamOptions,
    RecordBatch,
    Reservation,
    StoredBatch,
    StreamDescription,
    StreamState,
)
from streamlog.model.batch_limits import check_condition, check_tags, refusal_of
from streamlog.model.fencing_token import check_token
from streamlog.model.numbers import whole_number
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

TAGS_BYTES_MAX = 1024
CREATE, OPEN = CreateStreamOptions(), OpenStreamOptions()
CLOSE, DELETE = CloseStreamOptions(), DeleteStreamOptions()


@dataclass(slots=True)
class StoredStream:
    """The durable state of a stream: batches from `start` on, in order, without a gap."""

    stream_id: int
    epoch: int
    state: StreamState
    holder: str
    start: int
    end: int
    tags: dict[str, str]
    batches: list[StoredBatch] = field(default_factory=list)
    token: bytes = b""

    def index_of(self, offset: int) -> int:
        """The index of the batch that contains the offset."""
        return max(bisect_right(self.batches, offset, key=lambda one: one.base_offset) - 1, 0)

    def add(self, batch: StoredBatch) -> None:
        self.batches.append(batch)
        self.end = batch.end_offset

    def trim(self, start: int) -> None:
        self.start = start
        del self.batches[: bisect_right(self.batches, start, key=lambda one: one.end_offset)]


class Backing(Protocol):
    """Each method makes its change durable; the caller then changes `rows` itself."""

    rows: dict[int, StoredStream]
    lock: asyncio.Lock
    live_holders: set[str]

    def next_stream_id(self) -> int: ...

    async def create(self, rows: Sequence[StoredStream]) -> None:
        """Creates all streams or none, with the batches that they have."""
        ...

    async def append(self, batches: Sequence[tuple[StoredStream, StoredBatch]]) -> None: ...

    async def update(self, row: StoredStream) -> None:
        """Stores everything but the batches; `row` has the new values."""
        ...

    async def remove(self, stream_id: int) -> None: ...


Granted = Callable[[StreamlogError | None], None]
"""Called once: with None when the budget is granted, otherwise with the error."""


class ByteBudget:
    """Bytes of appends under way; waiting appends are served in order."""

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, Granted]] = deque()

    def take(self, size_bytes: int, granted: Granted) -> Callable[[], bool]:
        """Calls `granted` at once where there is room.

        What it returns gives up waiting: True where the room had not been taken.
        """
        waiter = (size_bytes, granted)
        self._waiting.append(waiter)
        self._serve()

        def give_up() -> bool:
            if waiter not in self._waiting:
                return False
            self._waiting.remove(waiter)
            self._serve()
            return True

        return give_up

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        self._serve()

    def refuse_all(self, reason: StreamlogError) -> None:
        while self._waiting:
            self._waiting.popleft()[1](reason)

    def _serve(self) -> None:
        while self._waiting:
            size_bytes, granted = self._waiting[0]
            if self.used_bytes and self.used_bytes + size_bytes > self.bound_bytes:
                return
            self._waiting.popleft()
            self.used_bytes += size_bytes
            granted(None)


class BasicReservation(Reservation):
    __slots__ = ("_budget", "is_used")

    def __init__(self, size_bytes: int, budget: ByteBudget) -> None:
        super().__init__(size_bytes)
        self._budget = budget
        self.is_used = False

    def release(self) -> None:
        if not self.is_used:
            self.is_used = True
            self._budget.release(self.size_bytes)


@dataclass(slots=True)
class _Item:
    """An append that was sequenced, a change of the token, or a refusal that waits for those
    before it.
    """

    stream: BasicStream
    future: asyncio.Future[AppendResult]
    size_bytes: int
    batch: StoredBatch | None = None
    refusal: StreamlogError | None = None
    token: bytes | None = None


class BasicStream:
    def __init__(self, client: BasicStreamClient, row: StoredStream) -> None:
        self._client = client
        self._row = row
        self._epoch = row.epoch
        self._next = row.end
        self._token = row.token
        """The fencing token once everything that was sequenced is durable."""
        self._waiting: dict[asyncio.Future[None], int] = {}
        self.under_way = 0
        self._closed: StreamlogError | None = None

    @property
    def stream_id(self) -> int:
        return self._row.stream_id

    @property
    def stream_epoch(self) -> int:
        return self._epoch

    @property
    def start_offset(self) -> int:
        return self._row.start

    @property
    def confirm_offset(self) -> int:
        return min(self._row.end, self._next)

    @property
    def next_offset(self) -> int:
        return self._next

    @property
    def tail_offset(self) -> int:
        return self._row.start

    def stop(self) -> StreamlogError | None:
        """The reason why appends are refused."""
        if self._closed is not None or self._client.stopped is not None:
            return self._closed or self._client.stopped
        if self._row.stream_id not in self._client.backing.rows:
            return StreamNotFound(f"stream {self.stream_id} was deleted", stream_id=self.stream_id)
        if self._row.epoch != self._epoch:
            return StreamFenced(
                f"stream {self.stream_id} was opened with epoch {self._row.epoch}; this is "
                f"{self._epoch}: open it again",
                stream_id=self.stream_id,
                epoch=self._row.epoch,
            )
        return None

    def _check(self) -> None:
        stop = self.stop()
        if stop is not None:
            raise stop

    def append(
        self, batch: RecordBatch, context: AppendContext = APPEND
    ) -> asyncio.Future[AppendResult]:
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        stop = self.stop()
        if stop is None:
            stop = refusal_of(batch)
        if stop is None:
            try:
                check_condition(context)
            except Invalid as error:
                stop = error
        if stop is not None:
            future.set_exception(stop)
            return future
        size_bytes = parts_size(batch.parts)
        self.under_way += 1
        reservation = context.reservation
        if isinstance(reservation, BasicReservation) and not reservation.is_used:
            reservation.is_used = True
            self._sequence(batch, context, future, reservation.size_bytes)
            return future

        def granted(refusal: StreamlogError | None) -> None:
            if refusal is None:
                self._sequence(batch, context, future, size_bytes)
            else:
                self._turned_away(future, refusal)

        give_up = self._client.budget.take(size_bytes, granted)
        if context.deadline is not None:

            def deadline_passed() -> None:
                if give_up():
                    self._turned_away(future, self._client.overloaded())

            self._client.at(context.deadline, deadline_passed)
        return future

    def _turned_away(self, future: asyncio.Future[AppendResult], reason: StreamlogError) -> None:
        self.under_way -= 1
        if not future.done():
            future.set_exception(reason)

    def _sequence(
        self,
        batch: RecordBatch,
        context: AppendContext,
        future: asyncio.Future[AppendResult],
        size_bytes: int,
    ) -> None:
        refusal = self._refusal(context)
        item = _Item(self, future, size_bytes, refusal=refusal)
        if refusal is None:
            item.batch = StoredBatch(
                self._next,
                batch.record_count,
                batch.base_timestamp_ms,
                batch.parts,
                batch.attributes,
            )
            self._next += batch.record_count
        self._client.put(item)

    def _refusal(self, context: AppendContext) -> StreamlogError | None:
        expected = context.expected_next_offset
        if expected is not None and expected != self._next:
            return OffsetConflict(
                f"the next offset is {self._next}, not {expected}",
                expected=expected,
                actual=self._next,
            )
        if context.fencing_token is not None and context.fencing_token != self._token:
            return TokenMismatch("the stream has another fencing token")
        return None

    async def set_fencing_token(self, token: bytes, context: AppendContext = APPEND) -> None:
        check_token(token)
        check_condition(context)
        self._check()
        done: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        item = _Item(self, done, 0, refusal=self._refusal(context))
        if item.refusal is None:
            item.token = self._token = token
        self.under_way += 1
        self._client.put(item)
        try:
            async with asyncio.timeout(self._client.seconds_until(context.deadline)):
                await asyncio.shield(done)
        except TimeoutError:
            raise OutcomeUnknown("the token may still be changed; describe the stream") from None

    async def reserve(self, size_bytes: int, context: AppendContext = APPEND) -> Reservation:
        self._check()
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reservation = BasicReservation(size_bytes, self._client.budget)

        def granted(refusal: StreamlogError | None) -> None:
            if taken.done():
                reservation.release()
            elif refusal is not None:
                taken.set_exception(refusal)
            else:
                taken.set_result(None)

        give_up = self._client.budget.take(size_bytes, granted)
        try:
            async with asyncio.timeout(self._client.seconds_until(context.deadline)):
                await taken
        except (TimeoutError, asyncio.CancelledError) as error:
            if not give_up():
                reservation.release()
            if isinstance(error, TimeoutError):
                raise self._client.overloaded() from None
            raise
        return reservation

    async def fetch(
        self,
        start_offset: int,
        end_offset: int,
        max_bytes_hint: int,
        context: FetchContext = FETCH,
    ) -> FetchResult:
        found: list[StoredBatch] = []
        size_bytes = 0
        for batch in self._range(start_offset, end_offset):
            found.append(batch)
            size_bytes += parts_size(batch.parts)
            if size_bytes >= max_bytes_hint:
                break
        return FetchResult(tuple(found))

    async def attributes(self, start_offset: int, end_offset: int) -> Sequence[BatchAttributes]:
        return [
            BatchAttributes(
                batch.base_offset, batch.record_count, batch.base_timestamp_ms, batch.attributes
            )
            for batch in self._range(start_offset, end_offset)
        ]

    def _range(self, start: int, end: int) -> list[StoredBatch]:
        if self._closed is not None:
            raise self._closed
        if start > end:
            raise Invalid(f"the range {start} to {end} ends before it starts")
        if start < self.start_offset or end > self.confirm_offset:
            raise OffsetOutOfRange(
                f"offsets {start} to {end} are not in {self.start_offset} to {self.confirm_offset}",
                offset=start,
                start_offset=self.start_offset,
                end_offset=self.confirm_offset,
            )
        if start == end:
            return []
        found = []
        for index in range(self._row.index_of(start), len(self._row.batches)):
            batch = self._row.batches[index]
            if batch.base_offset >= end:
                break
            found.append(batch)
        return found

    async def wait_confirmed(self, offset: int) -> None:
        if self.confirm_offset >= offset:
            return
        self._check()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = offset
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def progressed(self) -> None:
        """Wakes waiters with a new confirm offset, or with the error that ended the stream."""
        stop = self.stop()
        for future, offset in list(self._waiting.items()):
            if future.done():
                continue
            if self.confirm_offset >= offset:
                future.set_result(None)
            elif stop is not None:
                future.set_exception(stop)

    async def trim(self, new_start_offset: int) -> None:
        async with self._client.backing.lock:
            self._check()
            row = self._row
            if new_start_offset > self.confirm_offset:
                raise OffsetOutOfRange(
                    f"cannot trim to {new_start_offset}: the end is {self.confirm_offset}",
                    offset=new_start_offset,
                    start_offset=row.start,
                    end_offset=self.confirm_offset,
                )
            if new_start_offset > row.start:
                await self._client.update(row, start=new_start_offset)
                row.trim(new_start_offset)

    async def close(self) -> None:
        if self._closed is not None:
            return
        await self._client.appends_done(self)
        async with self._client.backing.lock:
            if self.stop() is None:
                await self._client.update(self._row, state=StreamState.CLOSED)
            self._closed = Closed(f"stream {self.stream_id} was closed; open it again")
        self.progressed()

    async def destroy(self) -> None:
        async with self._client.backing.lock:
            self._check()
            await self._client.backing.remove(self.stream_id)
            del self._client.backing.rows[self.stream_id]
        self.progressed()


class BasicStreamClient:
    """`holder` names the process; it lives until `stop` or `kill`."""

    def __init__(
        self, backing: Backing, holder: str, clock: Clock, *, budget_bytes: int = 64 << 20
    ) -> None:
        self.backing = backing
        self.budget = ByteBudget(budget_bytes)
        self.stopped: StreamlogError | None = None
        self._clock = clock
        self._holder = holder
        self._open: dict[int, BasicStream] = {}
        self._items: deque[_Item] = deque()
        self._is_writing = False
        self._is_holding = False
        self._held: frozenset[int] = frozenset()
        self._released = asyncio.Event()
        self._arrived = asyncio.Event()
        self._progress = asyncio.Condition()
        self._background = Background(f"streams of {holder}", self._failed)
        backing.live_holders.add(holder)

    def hold(self, *stream_ids: int) -> None:
        """Appends, or those to the streams named, do not become durable until `release`."""
        self._is_holding = True
        self._held = frozenset(stream_ids)
        self._released.clear()

    def release(self) -> None:
        self._is_holding = False
        self._released.set()

    def _is_held(self, item: _Item) -> bool:
        return self._is_holding and (not self._held or item.stream.stream_id in self._held)

    def seconds_until(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)

    def at(self, deadline: float, action: Callable[[], None]) -> None:
        delay = self.seconds_until(deadline) or 0.0
        asyncio.get_running_loop().call_later(delay, action)

    def overloaded(self) -> Overloaded:
        return Overloaded(
            "there was no room for the append until the deadline; retry with back-off",
            queued_bytes=self.budget.used_bytes,
            bound_bytes=self.budget.bound_bytes,
        )

    def put(self, item: _Item) -> None:
        self._items.append(item)
        self._arrived.set()
        if not self._is_writing:
            self._is_writing = True
            self._background.spawn(self._write(), name="writer")

    async def _write(self) -> None:
        try:
            while self._items:
                if all(map(self._is_held, self._items)):
                    await self._wait_for_more()
                async with self.backing.lock:
                    group = _up_to_token([item for item in self._items if not self._is_held(item)])
                    stored = [
                        (item.stream._row, item.batch)
                        for item in group
                        if item.batch is not None and item.stream.stop() is None
                    ]
                    await self.backing.append(stored)
                    if group and group[-1].token is not None and group[-1].stream.stop() is None:
                        await self.update(group[-1].stream._row, token=group[-1].token)
                    for row, batch in stored:
                        row.add(batch)
                    for item in group:
                        self._items.remove(item)
                        self._answer(item)
                async with self._progress:
                    self._progress.notify_all()
        finally:
            self._is_writing = False

    async def _wait_for_more(self) -> None:
        """Waits for a release, or for an item that is not held."""
        self._arrived.clear()
        waits = [asyncio.ensure_future(one.wait()) for one in (self._released, self._arrived)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _answer(self, item: _Item) -> None:
        item.stream.under_way -= 1
        self.budget.release(item.size_bytes)
        error = item.refusal or item.stream.stop()
        batch = item.batch
        if not item.future.done():
            if error is not None:
                item.future.set_exception(error)
                item.future.exception()
            elif batch is None:
                item.future.set_result(AppendResult(item.stream._row.end, item.stream._row.end))
            else:
                item.future.set_result(AppendResult(batch.base_offset, batch.end_offset))
        item.stream.progressed()

    def _failed(self, error: BaseException) -> None:
        known = isinstance(error, StreamlogError)
        self._stop(error if known else Closed(f"the streams failed: {error!r}"))  # type: ignore[arg-type]

    def _stop(self, reason: StreamlogError) -> None:
        self.stopped = self.stopped or reason
        self.backing.live_holders.discard(self._holder)
        while self._items:
            item = self._items.popleft()
            if not item.future.done():
                item.future.set_exception(
                    OutcomeUnknown("the process stopped before the append was confirmed")
                )
                item.future.exception()
        self.budget.refuse_all(self.stopped)
        for stream in self._open.values():
            stream.progressed()

    async def kill(self) -> None:
        """Acts as a crash: non-durable appends are lost; streams stay open under a dead holder."""
        await self._background.close()
        self._stop(Closed("the process was killed"))

    async def stop(self) -> None:
        """Waits for appends under way, then ends."""
        async with self._progress:
            await self._progress.wait_for(lambda: not self._items)
        await self.kill()

    async def appends_done(self, stream: BasicStream) -> None:
        """Returns when the stream has no append under way."""
        async with self._progress:
            await self._progress.wait_for(lambda: stream.under_way == 0 or self.stopped is not None)

    async def update(
        self,
        row: StoredStream,
        *,
        start: int | None = None,
        state: StreamState | None = None,
        epoch: int | None = None,
        token: bytes | None = None,
    ) -> None:
        new = StoredStream(
            row.stream_id,
            row.epoch if epoch is None else epoch,
            row.state if state is None else state,
            self._holder,
            row.start if start is None else start,
            row.end,
            row.tags,
            token=row.token if token is None else token,
        )
        await self.backing.update(new)
        row.epoch, row.state, row.holder, row.start = new.epoch, new.state, new.holder, new.start
        row.token = new.token

    # StreamClient

    async def create_and_open_streams(
        self,
        options: Sequence[CreateStreamOptions],
        first_batches: Callable[[Sequence[int]], Sequence[tuple[int, RecordBatch]]] | None = None,
    ) -> list[Stream]:
        self._check()
        for one in options:
            check_tags(one.tags, TAGS_BYTES_MAX)
        async with self.backing.lock:
            rows = {}
            for one in options:
                stream_id = self.backing.next_stream_id()
                rows[stream_id] = StoredStream(
                    stream_id, 1, StreamState.OPEN, self._holder, 0, 0, dict(one.tags)
                )
            for stream_id, batch in first_batches(list(rows)) if first_batches else ():
                row = rows[stream_id]
                refusal = refusal_of(batch)
                if refusal is not None:
                    raise refusal
                row.add(
                    StoredBatch(
                        row.end,
                        batch.record_count,
                        batch.base_timestamp_ms,
                        batch.parts,
                        batch.attributes,
                    )
                )
            await self.backing.create(list(rows.values()))
            self.backing.rows.update(rows)
            return [self._handle(row) for row in rows.values()]

    async def create_and_open_stream(self, options: CreateStreamOptions = CREATE) -> Stream:
        return (await self.create_and_open_streams([options]))[0]

    async def open_stream(self, stream_id: int, options: OpenStreamOptions = OPEN) -> Stream:
        async with self.backing.lock:
            self._check()
            row = self._row(stream_id)
            is_open = row.state is StreamState.OPEN
            is_mine = is_open and row.holder == self._holder
            if is_mine and options.epoch == row.epoch and stream_id in self._open:
                return self._open[stream_id]
            epoch = row.epoch + 1 if options.epoch is None else options.epoch
            if epoch <= row.epoch:
                raise StreamFenced(
                    f"stream {stream_id} has epoch {row.epoch}; open it with a higher one",
                    stream_id=stream_id,
                    epoch=row.epoch,
                )
            if is_open and not is_mine and row.holder in self.backing.live_holders:
                raise Conflict(f"stream {stream_id} is open at {row.holder}")
            await self.update(row, epoch=epoch, state=StreamState.OPEN)
            old = self._open.get(stream_id)
            handle = self._handle(row)
            if old is not None:
                old.progressed()
            return handle

    def _handle(self, row: StoredStream) -> BasicStream:
        handle = self._open[row.stream_id] = BasicStream(self, row)
        return handle

    async def close_stream(self, stream_id: int, options: CloseStreamOptions = CLOSE) -> None:
        self._row(stream_id)
        handle = self._open.get(stream_id)
        if handle is None:
            raise Conflict(f"stream {stream_id} is not open here")
        await handle.close()

    async def delete_stream(self, stream_id: int, options: DeleteStreamOptions = DELETE) -> None:
        async with self.backing.lock:
            self._check()
            row = self._row(stream_id)
            if options.epoch is not None and options.epoch < row.epoch:
                raise StreamFenced(
                    f"stream {stream_id} has epoch {row.epoch}",
                    stream_id=stream_id,
                    epoch=row.epoch,
                )
            is_open = row.state is StreamState.OPEN
            if is_open and row.holder in self.backing.live_holders - {self._holder}:
                # A node opens what it deletes.
                raise Conflict(f"stream {stream_id} is open at {row.holder}")
            await self.backing.remove(stream_id)
            del self.backing.rows[stream_id]
        handle = self._open.pop(stream_id, None)
        if handle is not None:
            handle.progressed()

    async def describe_stream(self, stream_id: int) -> StreamDescription:
        return _describe(self._row(stream_id))

    async def list_streams(self, *, after: int = 0, limit: int = 1000) -> list[StreamDescription]:
        ids = sorted(stream_id for stream_id in self.backing.rows if stream_id > after)
        return [_describe(self.backing.rows[stream_id]) for stream_id in ids[:limit]]

    def _check(self) -> None:
        if self.stopped is not None:
            raise self.stopped

    def _row(self, stream_id: int) -> StoredStream:
        row = self.backing.rows.get(whole_number("stream_id", stream_id))
        if row is None:
            raise StreamNotFound(f"there is no stream {stream_id}", stream_id=stream_id)
        return row


def _up_to_token(items: list[_Item]) -> list[_Item]:
    """Items up to the first change of a token; later items become durable after it."""
    for number, item in enumerate(items):
        if item.token is not None:
            return items[: number + 1]
    return items


def _describe(row: StoredStream) -> StreamDescription:
    return StreamDescription(
        row.stream_id,
        row.epoch,
        row.state,
        row.start,
        row.end,
        row.holder,
        dict(row.tags),
        row.token,
    )
