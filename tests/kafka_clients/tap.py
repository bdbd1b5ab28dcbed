"""A proxy between clients and a broker that notes what is asked and which errors come back.

It listens on a port that the broker advertises as its own, so that clients come back through it.
It passes frames on as they are, and looks at copies: a response that it cannot read is noted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self

from tests.kafka_clients.wire import (
    APIS,
    RequestHeader,
    decode_response,
    error_codes,
    request_header,
)

BUFFER_BYTES = 1 << 24
UNREAD = -100
"""In place of an error code: the response's message is not among those that are known."""


class Exchange(NamedTuple):
    """A kind of exchange: one of the errors in the answer to a version of an API."""

    api: int
    version: int
    error: int

    def __str__(self) -> str:
        return f"{APIS.get(self.api, self.api)} v{self.version}: {self.error}"


class Tap:
    """Listens on `address` in a thread of its own; `target` is set before a client comes.

    `look_at` is called with each request's frame, without its length, in that thread.
    """

    def __init__(self, look_at: Callable[[bytes], None] = lambda frame: None) -> None:
        self._look_at = look_at
        self.address = ""
        self.target = ""
        self.failures: list[str] = []
        """What the tap itself could not do; a test that finds any here is worth nothing."""
        self._seen: Counter[Exchange] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(asyncio.run_coroutine_threadsafe(self._listen(), self._loop))
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(asyncio.run_coroutine_threadsafe(self._close(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @staticmethod
    def _wait(future: Future[None]) -> None:
        future.result(10)

    @contextmanager
    def recording(self) -> Iterator[Counter[Exchange]]:
        """What is exchanged within the block, by kind; one recording at a time."""
        self._seen = Counter()
        yield self._seen

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=BUFFER_BYTES)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        host, _, port = self.target.rpartition(":")
        try:
            their_reader, their_writer = await asyncio.open_connection(
                host, int(port), limit=BUFFER_BYTES
            )
        except OSError:
            writer.close()
            return
        asked: dict[int, RequestHeader] = {}
        try:
            await asyncio.gather(
                self._requests(reader, their_writer, asked),
                self._responses(their_reader, writer, asked),
            )
        finally:
            writer.close()
            their_writer.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, RequestHeader],
    ) -> None:
        async for frame in _frames(reader):
            header = request_header(frame)
            asked[header.correlation_id] = header
            self._look_at(frame)
            await _pass_on(writer, frame)
        # What was sent before the end is still the broker's to read: no close, which might reset.
        with suppress(ConnectionError, OSError):
            writer.write_eof()

    async def _responses(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, RequestHeader],
    ) -> None:
        async for frame in _frames(reader):
            self._note(asked.pop(int.from_bytes(frame[:4], "big", signed=True)), frame)
            await _pass_on(writer, frame)
        for header in asked.values():
            # Without an answer: acks=0, or the connection ended before it.
            error = 0 if header.api in APIS else UNREAD
            self._seen[Exchange(header.api, header.version, error)] += 1
        writer.close()

    def _note(self, header: RequestHeader, frame: bytes) -> None:
        api, version, _ = header
        if api not in APIS:
            self._seen[Exchange(api, version, UNREAD)] += 1
            return
        try:
            message = decode_response(api, version, frame)
        except Exception as error:  # noqa: BLE001
            self.failures.append(f"{APIS[api]} v{version}: {error!r}")
            return
        for code in set(error_codes(message)) or {0}:
            self._seen[Exchange(api, version, code)] += 1


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            yield await reader.readexactly(size)


async def _pass_on(writer: asyncio.StreamWriter, frame: bytes) -> None:
    with suppress(ConnectionError):
        writer.write(len(frame).to_bytes(4, "big") + frame)
        await writer.drain()
