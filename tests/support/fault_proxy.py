"""A proxy before an HTTP server, with a planned fault for each request.

It speaks HTTP/1.1 with Content-Length or chunked answers, on the test's own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto


class Place(Enum):
    """When a connection is reset, or held."""

    BEFORE = auto()
    """The server never hears of the request."""
    AFTER = auto()
    """The server has carried out the request; the answer is lost."""


@dataclass(frozen=True)
class Answer:
    """The proxy answers in place of the server."""

    status: int
    code: str = "InternalError"
    body: str | None = None
    headers: str = ""
    """Further header lines, each with its end of line."""

    def encoded(self) -> bytes:
        text = self.body or f"<Error><Code>{self.code}</Code><Message>injected</Message></Error>"
        head = f"HTTP/1.1 {self.status} Injected\r\nContent-Type: application/xml\r\n"
        return f"{head}{self.headers}Content-Length: {len(text)}\r\n\r\n{text}".encode()


@dataclass(frozen=True)
class Reset:
    place: Place


@dataclass(frozen=True)
class Hold:
    """The request or its answer waits until `until` is set; the client may have left by then."""

    place: Place
    until: asyncio.Event


@dataclass(frozen=True)
class Cut:
    """The connection ends after half of the answer's body."""


Fault = Answer | Reset | Hold | Cut


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """The path with its query."""
    headers: dict[str, str]
    size_bytes: int


@dataclass(frozen=True)
class _Reply:
    head: bytes
    body: bytes


Plan = Callable[[Request], Fault | None]


@dataclass
class FaultProxy:
    """`plan` chooses the fault of a request; `requests` lists every request in order."""

    target_port: int
    plan: Plan = lambda request: None
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _clients: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def arrive(self) -> None:
        """Listens again on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def leave(self) -> None:
        """Ends all connections and refuses new ones."""
        assert self._server is not None
        self._server.close()
        for client in self._clients:
            client.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            self._clients.discard(writer)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, headers = _parsed(head)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(method, path, headers, len(body))
        self.requests.append(request)
        fault = self.plan(request)
        match fault:
            case Answer():
                writer.write(fault.encoded())
                await writer.drain()
                return True
            case Reset(Place.BEFORE):
                return False
            case Hold(Place.BEFORE):
                await fault.until.wait()
        reply = await self._forwarded(method, head, body)
        match fault:
            case Reset(Place.AFTER):
                return False
            case Hold(Place.AFTER):
                await fault.until.wait()
            case Cut():
                writer.write(reply.head + reply.body[: len(reply.body) // 2])
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                return False
        writer.write(reply.head)
        writer.write(reply.body)
        await writer.drain()
        return True

    async def _forwarded(self, method: str, head: bytes, body: bytes) -> _Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        try:
            writer.write(head)
            writer.write(body)
            answer = await reader.readuntil(b"\r\n\r\n")
            status, _, headers = _parsed(answer)
            if method == "HEAD" or headers.get("content-length") == "0" or " 204 " in status:
                return _Reply(answer, b"")
            if "chunked" in headers.get("transfer-encoding", ""):
                return _Reply(answer, await _chunks(reader))
            return _Reply(answer, await reader.readexactly(int(headers.get("content-length", 0))))
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    """The first two words (of an answer: its whole first line), and headers in small letters."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    if first.startswith("HTTP/"):
        return f"{first} ", "", headers
    method, path, _ = first.split(" ", 2)
    return method, path, headers


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """The raw bytes of all chunks, including the empty last one."""
    found = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        found += line + await reader.readexactly(size + 2)
        if size == 0:
            return found


@asynccontextmanager
async def fault_proxy(target_port: int) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(target_port)
    await proxy.arrive()
    try:
        yield proxy
    finally:
        await proxy.leave()


class Script:
    """One fault after another for the requests that `matches` accepts; None means no fault."""

    def __init__(self, matches: Callable[[Request], bool], *faults: Fault | None) -> None:
        self._matches = matches
        self._faults = list(faults)
        self.hits = 0

    def __call__(self, request: Request) -> Fault | None:
        if not self._matches(request):
            return None
        self.hits += 1
        return self._faults.pop(0) if self._faults else None


class Always:
    """The same fault for every request that `matches` accepts."""

    def __init__(self, matches: Callable[[Request], bool], fault: Fault) -> None:
        self._matches = matches
        self._fault = fault

    def __call__(self, request: Request) -> Fault | None:
        return self._fault if self._matches(request) else None
