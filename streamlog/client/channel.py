"""Channels to a node, and unary calls whose failures are typed errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import grpc

from streamlog.client.diagnosis import CLOSED_TEXT, NOT_GRPC, Diagnosis, foreign_server, is_closed
from streamlog.client.forking import CallGuard
from streamlog.client.settings import backoff_s, check_number
from streamlog.client.tls import Security, Tls, checked, handshake_error, security
from streamlog.errors import (
    Invalid,
    StreamlogError,
    TlsHandshakeFailed,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.v1support.errors import from_rpc_error
from streamlog.v1support.metadata import CLIENT_ID

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
UNARY_TIMEOUT_MS = 30_000
PORT_MAX = 65535
CLIENT_ID_MAX = 249
"""Characters, as many as a topic's name has; gRPC takes 20 KB of headers in all."""

T = TypeVar("T")

_JITTER = random.Random()
"""Not the `random` module's generator: a program that seeds that one gets its own numbers."""


class Call(NamedTuple):
    """One unary request, made and read without I/O; the blocking and the asyncio client send it.

    `rpc` is "Service/Method"; `read` turns the response into the caller's result. `writes`: after
    a broken connection the outcome is unknown, so that the call is not repeated.
    """

    rpc: str
    request: Any
    response_class: Any
    read: Callable[[Any], Any]
    writes: bool = False

    @property
    def path(self) -> str:
        return f"/streamlog.v1.{self.rpc}"


def metadata_of(client_id: str) -> tuple[tuple[str, str], ...]:
    """Errors: Invalid for a client id that an HTTP header cannot carry."""
    if not isinstance(client_id, str):
        raise Invalid(f"client_id is {client_id!r}; give a text")
    if len(client_id) > CLIENT_ID_MAX or not (client_id.isascii() and client_id.isprintable()):
        raise Invalid(
            f"client_id is {client_id[:CLIENT_ID_MAX]!r}; give {CLIENT_ID_MAX} printable ASCII "
            "characters at most"
        )
    return ((CLIENT_ID, client_id),) if client_id else ()


def target_of(server: str) -> str:
    """Errors: Invalid for anything but host:port."""
    host, _, port = str(server).rpartition(":")
    is_address = isinstance(server, str) and not server.startswith(("http://", "https://"))
    if not (is_address and host and port.isdecimal() and int(port) <= PORT_MAX):
        raise Invalid(f"{server!r} is no server; give host:port, such as 127.0.0.1:9644")
    return server


def open_channel(target: str, security: Security | None = None) -> grpc.Channel:
    if security is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    options = [*CHANNEL_OPTIONS, *security.options]
    return grpc.secure_channel(target, security.credentials, options=options)


class Retry:
    """Waits between the tries of one call until its time is over."""

    def __init__(
        self, caller: BaseCaller, timeout_ms: float, first_ms: float = 50, max_ms: float = 1000
    ) -> None:
        self._caller = caller
        self._timeout_ms = timeout_ms
        self._ends_at = time.monotonic() + timeout_ms / 1000
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._failures = 0

    def left_s(self) -> float:
        return max(0.0, self._ends_at - time.monotonic())

    def wait_s(self, error: StreamlogError) -> float:
        """How long to wait before the next try; raises the error when there is no further try.

        An unknown topic is not waited for, because a node knows all topics; nor is a handshake that
        failed, because people have to mend it. Where another thread or task closed the client
        meanwhile, the error is Closed.
        """
        self._failures += 1
        wait = backoff_s(self._failures, self._first_ms, self._max_ms)
        wait *= 0.8 + 0.4 * _JITTER.random()
        error = self._caller.with_server(self._caller.diagnosis.of(error))
        is_final = not error.is_retryable or isinstance(
            error, UnknownTopicOrPartition | TlsHandshakeFailed
        )
        if is_final:
            raise error
        self._caller.guard.check()
        if wait >= self.left_s():
            raise self._named(error)
        return wait

    def _named(self, error: StreamlogError) -> StreamlogError:
        """The error with the server and the time, where the server was not reached."""
        if type(error) is not Unavailable:
            return error
        text = (
            f"{self._caller.server} was not reached within {self._timeout_ms / 1000:g} s: {error}"
        )
        if is_closed(text):
            text += CLOSED_TEXT
        return Unavailable(text, **error.fields)


class BaseCaller:
    """One channel and its methods: what the blocking and the asyncio caller share."""

    def __init__(
        self,
        server: str,
        client_id: str,
        timeout_ms: int,
        tls: Tls | bool | None,
        make_channel: Callable[[str, Security | None], Any],
    ) -> None:
        """Errors: Invalid for the server or the client id, InvalidConfig for the time limit, and
        for files of `tls`.
        """
        check_number("timeout_ms", timeout_ms, is_whole=False, least=0)
        self.metadata = metadata_of(client_id)
        self.tls = checked(tls)
        self._channel = make_channel(target_of(server), security(self.tls))
        self.server = server
        self._timeout_ms = timeout_ms
        self.diagnosis = Diagnosis(server, self.tls)
        self._methods: dict[str, Any] = {}
        self.guard = CallGuard()

    @property
    def channel(self) -> Any:
        """Errors: as `CallGuard.check`."""
        self.guard.check()
        return self._channel

    def typed_error(self, error: grpc.RpcError, *, writes: bool) -> StreamlogError:
        """As the function, with the reason of refused connections once it is known."""
        return self.with_server(self.diagnosis.of(typed_error(error, writes=writes)))

    def final_error(self, error: grpc.RpcError, *, writes: bool) -> StreamlogError:
        """As `typed_error`, for a call that is not repeated: looks for the reason now, and blocks
        meanwhile."""
        return self.with_server(self.diagnosis.now(typed_error(error, writes=writes)))

    def with_server(self, error: StreamlogError) -> StreamlogError:
        """The error with the server in it, where that is the wrong one, or a handshake failed."""
        is_wrong = isinstance(error, Invalid) and NOT_GRPC in error.message
        if not (is_wrong or isinstance(error, TlsHandshakeFailed)) or self.server in error.message:
            return error
        return type(error)(f"{self.server}: {error.message}", **error.fields)

    def method(self, call: Call) -> Any:
        """Errors: as `channel`."""
        self.guard.check()
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self.channel.unary_unary(
                call.path,
                request_serializer=type(call.request).SerializeToString,
                response_deserializer=call.response_class.FromString,
            )
        return method


class Caller(BaseCaller):
    """Runs calls over one channel; repeats those that may be repeated."""

    def __init__(
        self,
        server: str,
        *,
        client_id: str = "",
        timeout_ms: int = UNARY_TIMEOUT_MS,
        tls: Tls | bool | None = None,
    ) -> None:
        super().__init__(server, client_id, timeout_ms, tls, open_channel)

    def run(self, call: Call, *, timeout_ms: float | None = None) -> Any:
        """The call's result. Retries while the error allows it and time is left.

        Errors: those of the server; Unavailable where it cannot be reached; OutcomeUnknown where
        the connection broke during a call that writes.
        """
        retry = Retry(self, self._timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            try:
                return self.run_once(call, retry.left_s() * 1000)
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            time.sleep(wait_s)

    def run_once(self, call: Call, timeout_ms: float) -> Any:
        """As `run`, without a retry."""
        try:
            response = self.method(call)(
                call.request, timeout=max(timeout_ms, 1) / 1000, metadata=self.metadata
            )
        except grpc.RpcError as error:
            raise self.typed_error(error, writes=call.writes) from None
        return call.read(response)

    def close(self) -> None:
        """Harmless when called again."""
        if self.guard.close():
            self._channel.close()


def never_connected(error: grpc.RpcError) -> bool:
    """The request was not sent, because no connection could be made."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (
        error.details() or ""
    )


def typed_error(error: grpc.RpcError, *, writes: bool) -> StreamlogError:
    foreign = foreign_server(error.details() or "")
    if foreign is not None:
        return foreign
    if never_connected(error):
        failure = handshake_error(error.details() or "")
        if failure is not None:
            return failure
    typed: StreamlogError = from_rpc_error(
        error, may_have_happened=writes and not never_connected(error)
    )
    return typed
