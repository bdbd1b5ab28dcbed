"""Connections of Kafka's listener in virtual time: bytes pass between both sides in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response
from streamlog.kafka.protocol.headers import decode_response_header
from streamlog.server.kafka.transport.connection import Connection


class MemoryTransport:
    """The node's side of a connection. It says that it encrypts, so that answers are written to it
    and not to a socket."""

    def __init__(self, on_answer: Callable[[bytes], None]) -> None:
        self._on_answer = on_answer
        self._received = b""
        self._connection: Connection | None = None
        self._waiting = b""
        self._is_reading = True
        self._is_closing = False

    def attach(self, connection: Connection) -> None:
        self._connection = connection
        connection.connection_made(cast(asyncio.Transport, self))

    def send(self, data: bytes) -> None:
        """What the client sends; it lies here while the node does not read."""
        self._waiting += data
        self._pass_on()

    def _pass_on(self) -> None:
        connection = self._connection
        while connection is not None and self._waiting and self._is_reading:
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(self._waiting))
            buffer[:size] = self._waiting[:size]
            self._waiting = self._waiting[size:]
            connection.buffer_updated(size)

    # ---- what the node calls

    def get_extra_info(self, name: str) -> Any:
        return "memory" if name == "sslcontext" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        asyncio.get_running_loop().call_soon(self._pass_on)

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            frame, self._received = self._received[4:end], self._received[end:]
            asyncio.get_running_loop().call_soon(self._on_answer, frame)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing and self._connection is not None:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


def throttle_ms_of(api: ApiKey, version: int, frame: bytes) -> int:
    """What an answer says about its client's quota."""
    view = memoryview(frame)
    _, at = decode_response_header(APIS[api], version, view)
    response: Any = decode_response(api, version, view, at)
    return int(response.throttle_time_ms)
