"""Streams below topics, for asyncio: append, fetch, trim; payloads are opaque bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from streamlog.client.aio.channel import CallingClient, closed_not_cancelled
from streamlog.client.calls import stream as stream_calls
from streamlog.client.calls.stream import Append, StreamBatch, StreamFetch, StreamInfo
from streamlog.client.channel import UNARY_TIMEOUT_MS, Retry, never_connected, typed_error
from streamlog.client.tls import Tls
from streamlog.errors import Closed, OutcomeUnknown, Unavailable
from streamlog.model.batch import AppendResult
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.background import Background
from streamlog.v1support.errors import from_proto

APPENDS_IN_FLIGHT_MAX = 32
END_OF_CALL: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class _AppendCall:
    """One open Append call, which many callers share.

    Tasks write the requests and read the answers, so that a caller's cancelled wait loses neither:
    gRPC ends the whole call where a write is cancelled.
    """

    def __init__(self, method: Any, metadata: Any, background: Background) -> None:
        self._call = method(metadata=metadata)
        self._next_id = 0
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting: deque[tuple[int, asyncio.Future[AppendResult]]] = deque()
        self._failure: Exception | None = None
        self._reader = background.spawn(self._read_answers(), name="answers")
        self._writer = background.spawn(self._write_requests(), name="requests")

    @property
    def is_broken(self) -> bool:
        return self._reader.done() or self._failure is not None

    def send(self, stream_id: int, append: Append, timeout_ms: int) -> asyncio.Future[AppendResult]:
        """Sends the append; the future that it returns ends when the append is durable."""
        self._next_id += 1
        number = self._next_id
        request = stream_calls.append_request(number, stream_id, append, timeout_ms)
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        if self._failure is None:
            self._waiting.append((number, answer))
            self._requests.put_nowait(request)
        else:
            _fail(answer, self._failure)
        return answer

    async def _write_requests(self) -> None:
        try:
            while True:
                await self._call.write(await self._requests.get())
        except (grpc.RpcError, asyncio.InvalidStateError):
            """The call is over; `_read_answers` gets the reason."""
        except Exception as error:
            self._end(OutcomeUnknown(f"a request could not be sent: {error!r}"))
            raise

    async def _read_answers(self) -> None:
        try:
            while (response := await self._call.read()) is not END_OF_CALL:
                number, answer = self._waiting.popleft()
                if response.correlation_id != number:
                    self._end(OutcomeUnknown(f"answer {response.correlation_id} for {number}"))
                    return
                if answer.done():
                    continue
                if response.HasField("error"):
                    answer.set_exception(from_proto(response.error))
                else:
                    answer.set_result(AppendResult(response.base_offset, response.end_offset))
            self._end(OutcomeUnknown("the server ended the call before it answered"))
        except grpc.RpcError as error:
            if never_connected(error):
                self._end(Unavailable(f"the server cannot be reached: {error.details()}"))
            else:
                self._end(typed_error(error, writes=True))
        finally:
            self._end(OutcomeUnknown("the call was ended before it was answered"))

    def _end(self, error: Exception) -> None:
        self._failure = self._failure or error
        for _, answer in self._waiting:
            if not answer.done():
                _fail(answer, self._failure)
        self._waiting.clear()
        self._call.cancel()
        self._writer.cancel()

    def end(self) -> None:
        self._end(OutcomeUnknown("the client ended the call before it was answered"))
        self._reader.cancel()


def _fail(answer: asyncio.Future[AppendResult], error: Exception) -> None:
    answer.set_exception(error)
    # Asked for, so that an answer that nobody waits for any more is not logged.
    answer.exception()


class Streams(CallingClient):
    __doc__ = CallingClient.__doc__

    def __init__(
        self,
        server: str,
        *,
        timeout_ms: int = UNARY_TIMEOUT_MS,
        client_id: str = "",
        tls: Tls | bool | None = None,
    ) -> None:
        super().__init__(server, timeout_ms=timeout_ms, client_id=client_id, tls=tls)
        self._append = stream_calls.append_method(self._caller)
        self._read = stream_calls.read_method(self._caller)
        self._background = Background("streamlog.streams", lambda _error: None)
        self._appending: _AppendCall | None = None
        self._is_closed = False

    async def create(self, *, tags: Mapping[str, str] | None = None) -> StreamInfo:
        """A new stream, open on the node; durable on return."""
        made: StreamInfo = await self._caller.run(stream_calls.create(tags))
        return made

    async def open(
        self, stream_id: int, *, epoch: int | None = None, accept_data_loss: bool = False
    ) -> StreamInfo:
        """Makes the node the stream's holder. Errors: StreamNotFound, StreamFenced, WalPending."""
        call = stream_calls.open_stream(stream_id, epoch, accept_data_loss)
        opened: StreamInfo = await self._caller.run(call)
        return opened

    async def close_stream(self, stream_id: int) -> None:
        """The node gives up the stream once all appends are durable. (`close` ends this client.)"""
        await self._caller.run(stream_calls.close_stream(stream_id))

    async def delete(self, stream_id: int, *, epoch: int | None = None) -> None:
        """Errors: StreamNotFound, StreamFenced."""
        await self._caller.run(stream_calls.delete(stream_id, epoch))

    async def describe(self, stream_id: int) -> StreamInfo:
        """Errors: StreamNotFound."""
        info: StreamInfo = await self._caller.run(stream_calls.describe(stream_id))
        return info

    async def list(self) -> AsyncIterator[StreamInfo]:
        """All streams by id, page by page."""
        after = 0
        while True:
            page = await self._caller.run(stream_calls.list_page(after))
            for info in page:
                yield info
            if len(page) < stream_calls.PAGE:
                return
            after = page[-1].stream_id

    async def append(
        self,
        stream_id: int,
        payload: Buffer,
        record_count: int = 1,
        expected_next_offset: int | None = None,
        *,
        base_timestamp_ms: int = 0,
        attributes: bytes = b"",
        fencing_token: bytes | None = None,
    ) -> AppendResult:
        """Adds a record batch; durable on return. Appends of several tasks share one call.

        Errors: OffsetConflict, TokenMismatch, StreamFenced, Overloaded (nothing is stored);
        OutcomeUnknown (with expected_next_offset a repetition is safe). Cancelling the wait
        leaves the append under way.
        """
        append = Append(
            payload,
            record_count,
            base_timestamp_ms,
            attributes,
            expected_next_offset,
            fencing_token,
        )
        if self._is_closed:
            raise Closed("the client is closed; open another one")
        call = self._appending
        if call is None or call.is_broken:
            call = self._appending = self._new_call()
        return await call.send(stream_id, append, self._timeout_ms)

    def _new_call(self) -> _AppendCall:
        return _AppendCall(self._append, self._caller.metadata, self._background)

    async def append_many(
        self, stream_id: int, appends: Iterable[Append | Buffer]
    ) -> AsyncIterator[AppendResult]:
        """Appends in order over a separate call, up to 32 under way; results in order.

        The first error ends it; batches after the failed one may be stored.
        """
        call = self._new_call()
        under_way: deque[asyncio.Future[AppendResult]] = deque()
        try:
            for item in appends:
                append = item if isinstance(item, Append) else Append(item)
                under_way.append(call.send(stream_id, append, self._timeout_ms))
                if len(under_way) >= APPENDS_IN_FLIGHT_MAX:
                    yield await under_way.popleft()
            while under_way:
                yield await under_way.popleft()
        finally:
            call.end()

    async def fetch(
        self,
        stream_id: int,
        start_offset: int,
        end_offset: int | None = None,
        *,
        max_bytes_hint: int = 0,
        max_wait_ms: int = 0,
    ) -> StreamFetch:
        """Batches, the first of which contains start_offset. Errors: OffsetOutOfRange, Corrupt."""
        call = stream_calls.fetch(stream_id, start_offset, end_offset, max_bytes_hint, max_wait_ms)
        fetched: StreamFetch = await self._caller.run(call)
        return fetched

    async def read(
        self, stream_id: int, start_offset: int, *, end_offset: int | None = None
    ) -> AsyncIterator[StreamBatch]:
        """Batches up to end_offset (exclusive), or without an end, waiting for new ones.

        A reader that stops holds up the server, not its memory. Errors as for `fetch`. A call that
        breaks off is repeated as long as nothing came of it.
        """
        request = stream_calls.read_request(stream_id, start_offset, end_offset)
        retry = Retry(self._caller, self._timeout_ms)
        has_begun = False
        while True:
            call = self._read(request, metadata=self._caller.metadata)
            try:
                with closed_not_cancelled(self._caller.guard):
                    async for response in call:
                        has_begun = True
                        for batch in stream_calls.batches(response):
                            yield batch
                return
            except grpc.RpcError as error:
                failure = typed_error(error, writes=False)
                if has_begun:
                    raise failure from None
            finally:
                call.cancel()
            await asyncio.sleep(retry.wait_s(failure))

    async def trim(self, stream_id: int, new_start_offset: int) -> int:
        """Drops all offsets below; returns the new start. Errors: OffsetOutOfRange."""
        start: int = await self._caller.run(stream_calls.trim(stream_id, new_start_offset))
        return start

    async def set_fencing_token(
        self,
        stream_id: int,
        token: bytes,
        *,
        expected_token: bytes | None = None,
        expected_next_offset: int | None = None,
    ) -> None:
        """Refuses appends with another token from now on; b"" removes the token. Durable on return.

        `expected_token` is what the stream must have now, b"": none; None is not tested. Appends
        without a token are never tested. When the outcome is unknown, `describe` tells the token.
        Errors: TokenMismatch, OffsetConflict, Invalid (over 64 bytes); DeadlinePassed (nothing was
        changed), OutcomeUnknown; StreamFenced, StreamNotFound.
        """
        await self._caller.run(
            stream_calls.set_fencing_token(
                stream_id, token, expected_token, expected_next_offset, self._timeout_ms
            )
        )

    async def close(self) -> None:
        self._is_closed = True
        if self._appending is not None:
            self._appending.end()
        await self._background.close()
        await super().close()
