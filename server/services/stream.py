"""Streams for clients: this node opens them, appends to them, and serves reads of them.

The streams of partitions (by their tags) can be read here, and written only through the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from streamlog.errors import (
    Closed,
    Conflict,
    Fenced,
    Invalid,
    OutcomeUnknown,
    PolicyViolation,
    StreamNotFound,
)
from streamlog.log.stream_tags import belongs_to_log
from streamlog.model.batch import (
    ATTRIBUTES_BYTES_MAX,
    AppendContext,
    AppendResult,
    CreateStreamOptions,
    DeleteStreamOptions,
    FetchContext,
    FetchResult,
    OpenStreamOptions,
    ReadMode,
    RecordBatch,
    StoredBatch,
    StreamDescription,
    StreamState,
)
from streamlog.model.stream import Stream, StreamClient
from streamlog.runtime.clock import Clock
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.records.long_polls import LongPolls
from streamlog.settings.limits import TAGS_BYTES_MAX, LimitsConfig

READ_CHUNK_BYTES = 1024 * 1024
"""A ReadStream call holds this much in memory at most, beside one batch more."""
READ_WAIT_S = 60.0
"""A ReadStream call that waits for appends fetches after this, to notice that its stream is lost.

Not `fetch_wait_ms_max`, which may be 0: the call would spin."""

HANDLE_ENDED = (Fenced, Closed, StreamNotFound)
"""After one of these errors a Stream handle is of no use any more."""


@dataclass(frozen=True, slots=True)
class DescribedStream:
    """A stream as this node knows it; confirm and next offset as the tail has them if open here."""

    description: StreamDescription
    start_offset: int
    confirm_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class AppendCall:
    stream_id: int
    batch: RecordBatch
    expected_next_offset: int | None = None
    fencing_token: bytes | None = None
    timeout_ms: int = 0


class SequencedAppend:
    """An append that has its offset, or its error."""

    __slots__ = ("_ack", "_clock", "_deadline", "_on_lost")

    def __init__(
        self,
        ack: Awaitable[AppendResult],
        deadline: float,
        clock: Clock,
        on_lost: Callable[[], None],
    ) -> None:
        self._ack = asyncio.ensure_future(ack)
        self._deadline = deadline
        self._clock = clock
        self._on_lost = on_lost

    async def result(self) -> AppendResult:
        """Errors: those of Stream.append; OutcomeUnknown when it is not durable in time."""
        try:
            if self._ack.done():
                return self._ack.result()
            async with asyncio.timeout(max(0.0, self._deadline - self._clock.monotonic())):
                return await asyncio.shield(self._ack)
        except HANDLE_ENDED:
            self._on_lost()
            raise
        except TimeoutError:
            self.abandon()
            raise OutcomeUnknown(
                "the append was not durable when the time was up; read the stream's end before a "
                "retry, or append with expected_next_offset"
            ) from None

    def abandon(self) -> None:
        """The caller has left: an append with an offset is stored, one that waits for room ends."""
        if not self._ack.cancel() and not self._ack.cancelled():
            # Retrieved here, so that asyncio does not report the error as lost.
            self._ack.exception()


class StreamService:
    def __init__(
        self,
        streams: StreamClient,
        polls: LongPolls,
        *,
        clock: Clock,
        authorize: Authorize,
        limits: LimitsConfig,
    ) -> None:
        self._streams = streams
        self._polls = polls
        self._clock = clock
        self._authorize = authorize
        self._limits = limits
        self._open: dict[int, Stream] = {}
        self._writable: set[int] = set()

    async def create(self, context: RequestContext, tags: dict[str, str]) -> DescribedStream:
        self._authorize(context, Operation.CREATE, CLUSTER)
        size = sum(len(key.encode()) + len(value.encode()) for key, value in tags.items())
        if size > TAGS_BYTES_MAX:
            raise Invalid(f"tags take {size} bytes; at most {TAGS_BYTES_MAX} are allowed")
        if belongs_to_log(tags):
            raise Invalid("the tags role and attempt mark a log's streams; choose other names")
        stream = await self._streams.create_and_open_stream(CreateStreamOptions(tags))
        self._open[stream.stream_id] = stream
        self._writable.add(stream.stream_id)
        return await self._describe(stream.stream_id)

    async def open(
        self, context: RequestContext, stream_id: int, options: OpenStreamOptions
    ) -> DescribedStream:
        """Takes the stream to this node, at the epoch given or the next one."""
        self._authorize(context, Operation.WRITE, _resource(stream_id))
        await self._check_writable(stream_id)
        self._open[stream_id] = await self._streams.open_stream(stream_id, options)
        return await self._describe(stream_id)

    async def close(self, context: RequestContext, stream_id: int) -> None:
        self._authorize(context, Operation.WRITE, _resource(stream_id))
        await self._check_writable(stream_id)
        stream = self._open.pop(stream_id, None)
        if stream is not None:
            await stream.close()
        else:
            await self._streams.close_stream(stream_id)

    async def delete(self, context: RequestContext, stream_id: int, epoch: int | None) -> None:
        self._authorize(context, Operation.DELETE, _resource(stream_id))
        await self._check_writable(stream_id)
        self._open.pop(stream_id, None)
        await self._streams.delete_stream(stream_id, DeleteStreamOptions(epoch))
        self._writable.discard(stream_id)

    async def describe(self, context: RequestContext, stream_id: int) -> DescribedStream:
        self._authorize(context, Operation.DESCRIBE, _resource(stream_id))
        return await self._describe(stream_id)

    async def list(self, context: RequestContext, after: int, limit: int) -> list[DescribedStream]:
        self._authorize(context, Operation.DESCRIBE, CLUSTER)
        descriptions = await self._streams.list_streams(after=after, limit=limit)
        return [self._with_tail(description) for description in descriptions]

    async def append(self, context: RequestContext, call: AppendCall) -> SequencedAppend:
        """Sequenced in the order of calls, one stream at a time.

        Errors: Invalid, and what opening a stream raises; the append's own errors come later.
        """
        self._authorize(context, Operation.WRITE, _resource(call.stream_id))
        if len(call.batch.attributes) > ATTRIBUTES_BYTES_MAX:
            raise Invalid(
                f"attributes have {len(call.batch.attributes)} bytes; at most "
                f"{ATTRIBUTES_BYTES_MAX} are allowed"
            )
        if call.stream_id not in self._writable:
            await self._check_writable(call.stream_id)
        stream = self._open.get(call.stream_id) or await self._stream(call.stream_id)
        deadline = self._deadline(context, call.timeout_ms)
        ack = stream.append(
            call.batch,
            AppendContext(
                deadline=deadline,
                trace_id=context.trace_id,
                expected_next_offset=call.expected_next_offset,
                fencing_token=call.fencing_token,
            ),
        )
        return SequencedAppend(
            ack, deadline, self._clock, partial(self._forget, call.stream_id, stream)
        )

    async def set_fencing_token(
        self,
        context: RequestContext,
        stream_id: int,
        token: bytes,
        expected_token: bytes | None,
        expected_next_offset: int | None,
        timeout_ms: int,
    ) -> None:
        """Durable on return. Errors: those of Stream.set_fencing_token."""
        self._authorize(context, Operation.WRITE, _resource(stream_id))
        await self._check_writable(stream_id)
        stream = await self._stream(stream_id)
        with self._using(stream_id, stream):
            await stream.set_fencing_token(
                token,
                AppendContext(
                    deadline=self._deadline(context, timeout_ms),
                    trace_id=context.trace_id,
                    expected_next_offset=expected_next_offset,
                    fencing_token=expected_token,
                ),
            )

    def _deadline(self, context: RequestContext, timeout_ms: int) -> float:
        timeout_s = (timeout_ms or self._limits.produce_timeout_ms) / 1000
        deadline = self._clock.monotonic() + timeout_s
        return deadline if context.deadline is None else min(deadline, context.deadline)

    def _forget(self, stream_id: int, stream: Stream) -> None:
        """Drops a handle that is of no use any more; the next call opens the stream again."""
        if self._open.get(stream_id) is stream:
            del self._open[stream_id]

    @contextmanager
    def _using(self, stream_id: int, stream: Stream) -> Iterator[None]:
        try:
            yield
        except HANDLE_ENDED:
            self._forget(stream_id, stream)
            raise

    async def fetch(
        self,
        context: RequestContext,
        stream_id: int,
        start: int,
        end: int | None,
        max_bytes: int,
        max_wait_ms: int,
    ) -> tuple[FetchResult, int, int]:
        """Batches, start offset, confirm offset; waits at the confirm offset for max_wait_ms."""
        self._authorize(context, Operation.READ, _resource(stream_id))
        stream = await self._stream(stream_id)
        wait_ms = min(max_wait_ms, self._limits.fetch_wait_ms_max)
        if start == stream.confirm_offset and wait_ms and (end is None or end > start):
            await self._polls.wait([stream.wait_confirmed(start + 1)], wait_ms / 1000)
        limit = min(max_bytes or self._limits.fetch_bytes_max, self._limits.fetch_bytes_max)
        stop = stream.confirm_offset if end is None else end
        with self._using(stream_id, stream):
            fetched = await stream.fetch(
                start,
                min(stop, stream.confirm_offset) if start <= stream.confirm_offset else stop,
                limit,
                FetchContext(
                    deadline=context.deadline, trace_id=context.trace_id, read_mode=ReadMode.WAIT
                ),
            )
        return fetched, stream.start_offset, stream.confirm_offset

    async def read(
        self, context: RequestContext, stream_id: int, start: int, end: int | None
    ) -> AsyncIterator[tuple[tuple[StoredBatch, ...], int]]:
        """Batches and confirm offset, chunk by chunk, to `end` or for ever; ends when draining."""
        self._authorize(context, Operation.READ, _resource(stream_id))
        stream = await self._stream(stream_id)
        position = start
        while (end is None or position < end) and not self._polls.is_draining:
            if position == stream.confirm_offset:
                await self._polls.wait([stream.wait_confirmed(position + 1)], READ_WAIT_S)
            stop = stream.confirm_offset if end is None else min(end, stream.confirm_offset)
            with self._using(stream_id, stream):
                # Also after a wait without records: the fetch raises if the stream was lost.
                fetched = await stream.fetch(
                    position,
                    max(stop, position),
                    READ_CHUNK_BYTES,
                    FetchContext(trace_id=context.trace_id, read_mode=ReadMode.WAIT),
                )
            if not fetched.batches:
                continue
            position = fetched.batches[-1].end_offset
            yield fetched.batches, stream.confirm_offset

    async def trim(self, context: RequestContext, stream_id: int, new_start: int) -> int:
        """The start offset after it; durable on return."""
        self._authorize(context, Operation.DELETE, _resource(stream_id))
        await self._check_writable(stream_id)
        stream = await self._stream(stream_id)
        with self._using(stream_id, stream):
            await stream.trim(new_start)
        return stream.start_offset

    async def _stream(self, stream_id: int) -> Stream:
        """The stream, if this node holds it already; it is never taken from another node."""
        stream = self._open.get(stream_id)
        if stream is None:
            description = await self._streams.describe_stream(stream_id)
            if description.state is not StreamState.OPEN:
                raise Conflict(
                    f"stream {stream_id} is closed; call OpenStream first", stream_id=stream_id
                )
            stream = await self._streams.open_stream(
                stream_id, OpenStreamOptions(description.epoch)
            )
            self._open[stream_id] = stream
        return stream

    async def _check_writable(self, stream_id: int) -> None:
        description = await self._streams.describe_stream(stream_id)
        if belongs_to_log(description.tags):
            raise PolicyViolation(
                f"stream {stream_id} belongs to partition {description.tags.get('partition')} of "
                f"topic {description.tags.get('topic')}; write through the topic",
                stream_id=stream_id,
            )
        self._writable.add(stream_id)

    async def _describe(self, stream_id: int) -> DescribedStream:
        return self._with_tail(await self._streams.describe_stream(stream_id))

    def _with_tail(self, description: StreamDescription) -> DescribedStream:
        stream = self._open.get(description.stream_id)
        if stream is None:
            return DescribedStream(
                description,
                description.start_offset,
                description.end_offset,
                description.end_offset,
            )
        return DescribedStream(
            description, stream.start_offset, stream.confirm_offset, stream.next_offset
        )


def _resource(stream_id: int) -> Resource:
    return Resource(ResourceType.STREAM, str(stream_id))
