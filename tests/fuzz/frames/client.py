"""A client of damaged requests, with a socket and without one, and what it is owed.

It cuts what it has sent into requests by itself, and so knows whose answer has to come next.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple

from streamlog.kafka.protocol.apis import ApiKey, request_codec
from streamlog.kafka.protocol.headers import decode_request_header
from streamlog.kafka.protocol.primitives import Malformed
from streamlog.server.kafka.transport.connection import Connection
from tests.fuzz.frames.answers import Answers
from tests.fuzz.frames.damage import Request
from tests.fuzz.frames.findings import Findings
from tests.support.kafka_wire import API_VERSIONS, request_bytes

FRAME_BYTES_MIN = 10
HISTORY_MAX = 8
PRODUCE = int(ApiKey.PRODUCE)
PRODUCE_CODEC = request_codec(ApiKey.PRODUCE)
MARK_ID = 0x7FFFFFFF
MARK = Request(
    request_bytes(ApiKey.API_VERSIONS, 0, MARK_ID, API_VERSIONS),
    "mark",
    is_valid=False,
    api=int(ApiKey.API_VERSIONS),
)
"""Sent behind a request over a socket: its answer says that the request is done with."""


class Owed(NamedTuple):
    api: int
    version: int
    correlation_id: bytes
    frame: bytes
    is_valid: bool


class Client(ABC):
    """One connection. `is_over`: the node has ended it, or the client has left."""

    def __init__(self, answers: Answers, findings: Findings, limit: int) -> None:
        """`limit`: the largest request that the node takes."""
        self.is_over = False
        self.sent_at = asyncio.get_running_loop().time()
        """When the last request was sent, or the client was made."""
        self.sent_in_frame = 0
        """Requests sent while the node waited for the rest of one."""
        self.answered = 0
        self._answers = answers
        self._findings = findings
        self._limit = limit
        self.history: deque[bytes] = deque(maxlen=HISTORY_MAX)
        self._owed: deque[Owed] = deque()
        self._stream = b""
        """The beginning of a request that is not whole."""
        self._has_left = False
        self._has_broken_frame = False
        """What is sent from here on is no request: the connection has to end."""
        self._received = b""

    # ---- what the run does

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """The node has nothing of this client under way: it may send more."""

    @abstractmethod
    def _write(self, data: bytes) -> None: ...

    @abstractmethod
    def _abort(self) -> None: ...

    @property
    def waits_for(self) -> int | None:
        """The API of the request that has to be answered next."""
        return self._owed[0].api if self._owed else None

    def send(self, request: Request, now: float) -> None:
        self.sent_at = now
        self.history.append(request.data)
        if self._stream:
            self.sent_in_frame += 1
        self._expect(request)
        self._write(request.data)

    def leave(self) -> None:
        """Closes the connection, as a client does that has gone."""
        self._has_left = True
        self._abort()

    def check_quiet(self) -> None:
        """Called when the node has nothing under way: what is owed has no answer."""
        while self._owed:
            owed = self._owed.popleft()
            if not _has_no_answer(owed):
                self._wrong("no answer", f"{owed.api} v{owed.version}")
        if self._has_broken_frame:
            self._wrong("a broken frame was taken", "the connection is open")

    # ---- what comes from the node

    def _receive(self, data: bytes) -> None:
        self._received = data if not self._received else self._received + data
        view, at = memoryview(self._received), 0
        while len(view) - at >= 4:
            end = at + 4 + int.from_bytes(view[at : at + 4], "big")
            if end > len(view):
                break
            self._answer(view[at + 4 : end])
            at = end
        self._received = bytes(view[at:])

    def _lost(self, *, is_cut_off: bool) -> None:
        """The connection is over; whatever was owed is not owed any more."""
        self.is_over = True
        if is_cut_off:
            self._findings.ended(self.history)
        if self._has_left or self._has_broken_frame or self._stream or not self._owed:
            return
        first = self._owed[0]
        # With acks=0 an error ends the connection.
        if first.is_valid and not _has_no_answer(first):
            self._wrong("a good request ended its connection", f"{first.api} v{first.version}")

    def _expect(self, request: Request) -> None:
        if self._has_broken_frame:
            return
        is_whole = not self._stream
        data = request.data if is_whole else self._stream + request.data
        while len(data) >= 4:
            size = int.from_bytes(data[:4], "big", signed=True)
            if not FRAME_BYTES_MIN <= size <= self._limit:
                self._has_broken_frame = True
                break
            if len(data) < 4 + size:
                break
            frame = data[4 : 4 + size]
            api, version = frame[0] << 8 | frame[1], frame[2] << 8 | frame[3]
            is_valid = request.is_valid and is_whole
            self._owed.append(Owed(api, version, frame[4:8], frame, is_valid))
            data = data[4 + size :]
        self._stream = data

    def _answer(self, answer: memoryview) -> None:
        owed = None
        while self._owed:
            owed = self._owed.popleft()
            # The correlation id does not tell: damage may have made it that of the next request.
            if not _has_no_answer(owed):
                break
        if owed is None or owed.correlation_id != answer[:4]:
            self._wrong("an answer to nothing", bytes(answer[:40]).hex())
            return
        self.answered += 1
        wrong = self._answers.wrong(owed.api, owed.version, answer)
        if wrong is not None:
            self._wrong("an answer that is none", wrong, (owed.frame, bytes(answer[:2000])))

    def _wrong(self, what: str, detail: str, sent: tuple[bytes, ...] = ()) -> None:
        self._findings.add(what, detail, sent or tuple(self.history))


def _has_no_answer(owed: Owed) -> bool:
    """Produce with acks=0."""
    if owed.api != PRODUCE:
        return False
    frame = memoryview(owed.frame)
    try:
        at = decode_request_header(frame).body_at
        message: Any = PRODUCE_CODEC.decode(frame, at, owed.version)[0]
    except Malformed:
        return False
    return bool(message.acks == 0)


class InProcess(Client):
    """A client without a socket: it gives its bytes to the node's protocol as asyncio does."""

    def __init__(
        self, connection: Connection, answers: Answers, findings: Findings, limit: int
    ) -> None:
        super().__init__(answers, findings, limit)
        self._connection = connection
        self._unread = b""
        """Sent, and not read by the node, which has paused."""
        self._transport = _Transport(self)
        connection.connection_made(self._transport)

    @property
    def is_ready(self) -> bool:
        return (
            self._transport.is_reading()
            and not self._unread
            and not self._transport.is_closing()
            and self._connection.is_waiting_for_client
        )

    def _write(self, data: bytes) -> None:
        self._unread += data
        self.pump()

    def _abort(self) -> None:
        self._transport.abort()

    def pump(self) -> None:
        """The node reads, as the event loop lets it."""
        if not self._unread:
            return
        data = memoryview(self._unread)
        transport, connection = self._transport, self._connection
        while data and transport.is_reading() and not transport.is_closing():
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            connection.buffer_updated(size)
            data = data[size:]
        self._unread = bytes(data)

    def receive(self, data: bytes) -> None:
        self._receive(data)

    def ended(self, is_cut_off: bool) -> None:
        self._connection.connection_lost(None)
        self._lost(is_cut_off=is_cut_off and not self._has_left)


class _Transport(asyncio.Transport):
    """Says that it has TLS: what a connection writes then goes through `write`."""

    def __init__(self, client: InProcess) -> None:
        super().__init__()
        self._client = client
        self._is_closing = False
        self._is_reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("fuzz", 1), "sslcontext": self}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_reading(self) -> bool:
        return self._is_reading

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        asyncio.get_running_loop().call_soon(self._client.pump)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._client.receive(bytes(data))

    def close(self) -> None:
        self._end(is_cut_off=False)

    def abort(self) -> None:
        self._end(is_cut_off=True)

    def _end(self, *, is_cut_off: bool) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._client.ended, is_cut_off)


class OverSocket(Client, asyncio.Protocol):
    """A client with a socket. A mark behind each request says when the node is done with it."""

    def __init__(self, answers: Answers, findings: Findings, limit: int) -> None:
        super().__init__(answers, findings, limit)
        self._transport: asyncio.Transport | None = None

    @property
    def is_ready(self) -> bool:
        return self._transport is not None and not self._owed and not self._has_broken_frame

    def send(self, request: Request, now: float) -> None:
        super().send(request, now)
        super().send(MARK, now)

    def check_quiet(self) -> None:
        """Marks were answered: so was everything before them."""

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(is_cut_off=not self._has_left)
