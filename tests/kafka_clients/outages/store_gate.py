"""A gate before a TCP server, which lets through, refuses, resets or holds what comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

CHUNK_BYTES = 1 << 16
WAIT_S = 10


class StoreGate:
    """In a thread of its own. What it held goes on where it was when the gate opens again."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = asyncio.Event()
        self._is_resetting = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        self._is_open.set()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        self._call(self._let_through())

    def refuse(self) -> None:
        """Ends all connections; the port is closed."""
        self._call(self._leave())

    def hang(self) -> None:
        """Takes connections, and passes on nothing in either direction."""
        self._call(self._hold())

    def reset(self) -> None:
        """Ends all connections, and each new one as soon as it is there."""
        self._call(self._reset())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _let_through(self) -> None:
        self._is_resetting = False
        self._is_open.set()
        if self._server is None:
            await self._listen()

    async def _leave(self) -> None:
        assert self._server is not None
        self._server.close()
        self._server = None
        self._abort()

    async def _hold(self) -> None:
        self._is_open.clear()

    async def _reset(self) -> None:
        self._is_resetting = True
        self._abort()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.CancelledError):
            await self._pass_on(reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_resetting:
            writer.transport.abort()
            return
        await self._is_open.wait()
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        both = {writer, their_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._copy(reader, their_writer), self._copy(their_reader, writer))
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
            await self._is_open.wait()
            if writer.can_write_eof():
                writer.write_eof()
