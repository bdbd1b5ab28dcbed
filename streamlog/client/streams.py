"""Streams below topics: append, fetch, trim; payloads are opaque bytes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc

from streamlog.client import forking
from streamlog.client.calls import stream as stream_calls
from streamlog.client.calls.stream import Append, StreamBatch, StreamFetch, StreamInfo
from streamlog.client.channel import UNARY_TIMEOUT_MS, Retry, never_connected, typed_error
from streamlog.client.closing import CallingClient
from streamlog.client.tls import Tls
from streamlog.errors import Closed, Invalid, OutcomeUnknown, Unavailable
from streamlog.model.batch import AppendResult
from streamlog.runtime.buffers import Buffer
from streamlog.v1support.errors import from_proto

APPENDS_IN_FLIGHT_MAX = 32
_END = object()


class _AppendCall:
    """One open Append call: a queue carries requests, answers come in order."""

    def __init__(self, method: Any, metadata: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = method(iter(self._requests.get, _END), metadata=metadata)
        self._next_id = 0
        self.is_broken = False

    def send(self, stream_id: int, append: Append, timeout_ms: int) -> int:
        self._next_id += 1
        self._requests.put(
            stream_calls.append_request(self._next_id, stream_id, append, timeout_ms)
        )
        return self._next_id

    def answer(self, correlation_id: int) -> AppendResult:
        """The answer to that request, which must be the oldest unanswered one."""
        try:
            response = next(self._call)
        except StopIteration:
            self.end()
            raise OutcomeUnknown("the server ended the call before it answered") from None
        except grpc.RpcError as error:
            self.end()
            if never_connected(error):
                raise Unavailable(f"the server cannot be reached: {error.details()}") from None
            raise typed_error(error, writes=True) from None
        except BaseException:
            # Ctrl-C: the next answer would be this request's.
            self.end()
            raise
        if response.correlation_id != correlation_id:
            self.end()
            raise OutcomeUnknown(
                f"answer {response.correlation_id} came instead of {correlation_id}"
            )
        if response.HasField("error"):
            raise from_proto(response.error)
        return AppendResult(response.base_offset, response.end_offset)

    def end(self) -> None:
        self.is_broken = True
        self._requests.put(_END)
        self._call.cancel()


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
        self._lock = threading.Lock()
        self._appending: _AppendCall | None = None
        self._is_closed = False
        self._is_forked = False
        self._left_to_parent: _AppendCall | None = None
        """Kept in the child process, because freeing gRPC's objects takes locks of gRPC."""
        forking.watch(self)

    def create(self, *, tags: Mapping[str, str] | None = None) -> StreamInfo:
        """A new stream, open on the node; durable on return."""
        made: StreamInfo = self._caller.run(stream_calls.create(tags))
        return made

    def open(
        self, stream_id: int, *, epoch: int | None = None, accept_data_loss: bool = False
    ) -> StreamInfo:
        """Makes the node the stream's holder. Errors: StreamNotFound, StreamFenced, WalPending."""
        call = stream_calls.open_stream(stream_id, epoch, accept_data_loss)
        opened: StreamInfo = self._caller.run(call)
        return opened

    def close_stream(self, stream_id: int) -> None:
        """The node gives up the stream once all appends are durable. (`close` ends this client.)"""
        self._caller.run(stream_calls.close_stream(stream_id))

    def delete(self, stream_id: int, *, epoch: int | None = None) -> None:
        """Errors: StreamNotFound, StreamFenced."""
        self._caller.run(stream_calls.delete(stream_id, epoch))

    def describe(self, stream_id: int) -> StreamInfo:
        """Errors: StreamNotFound."""
        info: StreamInfo = self._caller.run(stream_calls.describe(stream_id))
        return info

    def list(self) -> Iterator[StreamInfo]:
        """All streams by id, page by page."""
        after = 0
        while True:
            page = self._caller.run(stream_calls.list_page(after))
            yield from page
            if len(page) < stream_calls.PAGE:
                return
            after = page[-1].stream_id

    def append(
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
        """Adds a record batch; durable on return.

        Errors: OffsetConflict, TokenMismatch, StreamFenced, Overloaded (nothing is stored);
        OutcomeUnknown (with expected_next_offset a repetition is safe).
        """
        append = Append(
            payload,
            record_count,
            base_timestamp_ms,
            attributes,
            expected_next_offset,
            fencing_token,
        )
        with self._lock:
            if self._is_closed:
                raise Closed("the client is closed; open another one")
            call = self._appending
            if call is None or call.is_broken:
                call = self._appending = _AppendCall(self._append, self._caller.metadata)
            return call.answer(call.send(stream_id, append, self._timeout_ms))

    def append_many(
        self, stream_id: int, appends: Iterable[Append | Buffer]
    ) -> Iterator[AppendResult]:
        """Appends in order over a separate call, up to 32 under way; results in order.

        The first error ends it; batches behind the failed one may be stored.
        """
        call = _AppendCall(self._append, self._caller.metadata)
        under_way: list[int] = []
        try:
            for item in appends:
                append = item if isinstance(item, Append) else Append(item)
                under_way.append(call.send(stream_id, append, self._timeout_ms))
                if len(under_way) >= APPENDS_IN_FLIGHT_MAX:
                    yield call.answer(under_way.pop(0))
            while under_way:
                yield call.answer(under_way.pop(0))
        finally:
            call.end()

    def fetch(
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
        fetched: StreamFetch = self._caller.run(call)
        return fetched

    def read(
        self, stream_id: int, start_offset: int, *, end_offset: int | None = None
    ) -> Iterator[StreamBatch]:
        """Batches up to end_offset (exclusive), or without an end, waiting for new ones.

        A slow reader slows the server down and costs no memory there. Errors as for `fetch`. A
        call that breaks off before its first batch is repeated.
        """
        request = stream_calls.read_request(stream_id, start_offset, end_offset)
        retry = Retry(self._caller, self._timeout_ms)
        has_begun = False
        while True:
            call = self._read(request, metadata=self._caller.metadata)
            try:
                for response in call:
                    has_begun = True
                    yield from stream_calls.batches(response)
                return
            except grpc.RpcError as error:
                failure = typed_error(error, writes=False)
                if has_begun:
                    self._caller.guard.check()
                    raise failure from None
            finally:
                call.cancel()
            time.sleep(retry.wait_s(failure))

    def trim(self, stream_id: int, new_start_offset: int) -> int:
        """Drops all offsets below; returns the new start. Errors: OffsetOutOfRange."""
        start: int = self._caller.run(stream_calls.trim(stream_id, new_start_offset))
        return start

    def set_fencing_token(
        self,
        stream_id: int,
        token: bytes,
        *,
        expected_token: bytes | None = None,
        expected_next_offset: int | None = None,
    ) -> None:
        """Refuses appends with another token from now on; b"" removes the token. Durable on return.

        `expected_token`: the token that the stream must have now, b"": none; None: any. Appends
        without a token are never refused for it. After OutcomeUnknown, `describe` has the token.
        Errors: TokenMismatch, OffsetConflict, Invalid (over 64 bytes); DeadlinePassed (nothing was
        changed), OutcomeUnknown; StreamFenced, StreamNotFound.
        """
        self._caller.run(
            stream_calls.set_fencing_token(
                stream_id, token, expected_token, expected_next_offset, self._timeout_ms
            )
        )

    def close(self) -> None:
        """Harmless when called again. An append without its answer raises OutcomeUnknown."""
        if self._is_forked:
            return
        self._is_closed = True
        # First without the lock, which an append holds while it waits.
        appending = self._appending
        if appending is not None:
            appending.end()
        with self._lock:
            if self._appending is not None:
                self._appending.end()
        super().close()

    def after_fork(self, error: Invalid) -> None:
        """In the child process: the open call is the parent's; each further call raises."""
        self._is_forked = True
        self._lock = threading.Lock()
        self._left_to_parent, self._appending = self._appending, None


__all__ = ["Append", "StreamBatch", "StreamFetch", "StreamInfo", "Streams"]
