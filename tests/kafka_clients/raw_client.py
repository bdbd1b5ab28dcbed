"""A client of frames: one socket, one request at a time, nothing asked that the test does not ask.

Clients hide what a broker answers: they retry, refresh and translate. This one shows the messages.
"""

from __future__ import annotations

import socket
import struct
from importlib import import_module
from typing import Any, Self

from tests.kafka_clients.wire import API_VERSIONS, KEYS, decode_response, request_frame

TIMEOUT_S = 20.0


class ConnectionEnded(Exception):
    """The broker closed the connection."""


def request(api: str, /, **fields: Any) -> Any:
    """A request message by the API's name, such as `list_offsets`."""
    module = import_module(f"streamlog.kafka.messages.{api}_request")
    return getattr(module, _class_name(f"{api}_request"))(**fields)


def part(api: str, name: str, /, **fields: Any) -> Any:
    """A structure within a request, by Kafka's name."""
    return getattr(import_module(f"streamlog.kafka.messages.{api}_request"), name)(**fields)


def _class_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))


class RawClient:
    def __init__(self, address: str, client_id: str = "raw") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._correlation_id = 0

    def call(self, api: str, version: int, message: Any) -> Any:
        """The response. Errors: ConnectionEnded."""
        key = KEYS[api]
        self.send(api, version, message)
        frame = self._frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        assert correlation_id == self._correlation_id, "an answer to another request"
        return decode_response(key, version, frame)

    def send(self, api: str, version: int, message: Any) -> None:
        """Sends a request and waits for nothing, as a producer with acks=0 does."""
        self._correlation_id += 1
        key = KEYS[api]
        self.send_bytes(request_frame(key, version, self._correlation_id, self._client_id, message))

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes as they are. Errors: ConnectionEnded."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionEnded(str(error)) from error

    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker advertises, by API key."""
        answer = self.call("api_versions", 0, request("api_versions"))
        return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    def _frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                more = self._socket.recv(size - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise ConnectionEnded(f"after {len(data)} of {size} bytes")
            data += more
        return bytes(data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["API_VERSIONS", "ConnectionEnded", "RawClient", "part", "request"]
