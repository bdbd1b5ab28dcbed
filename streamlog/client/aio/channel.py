"""Unary calls over asyncio gRPC, with the blocking client's rules for retries and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from streamlog.client.channel import (
    CHANNEL_OPTIONS,
    UNARY_TIMEOUT_MS,
    BaseCaller,
    Call,
    Retry,
)
from streamlog.client.closing import AsyncClosing
from streamlog.client.forking import CallGuard
from streamlog.client.tls import Security, Tls
from streamlog.errors import OutcomeUnknown, StreamlogError
from streamlog.runtime.concurrency.cancellation import is_being_cancelled


@contextmanager
def closed_not_cancelled(guard: CallGuard, *, writes: bool = False) -> Iterator[None]:
    """Surrounds the wait for a call's answer: raises Closed where the client is closed meanwhile.

    gRPC cancels the call then, and raises CancelledError in the task that waits, which was not
    cancelled. `writes`: OutcomeUnknown in place of Closed.
    """
    try:
        yield
    except asyncio.CancelledError:
        if not is_being_cancelled() and guard.is_ended:
            if writes:
                raise OutcomeUnknown("the client was closed before the answer came") from None
            guard.check()
        raise


def _open_channel(target: str, security: Security | None) -> grpc.aio.Channel:
    if security is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    options = [*CHANNEL_OPTIONS, *security.options]
    return grpc.aio.secure_channel(target, security.credentials, options=options)


class Caller(BaseCaller):
    """As `streamlog.client.channel.Caller`. Made inside a running loop."""

    def __init__(
        self,
        server: str,
        *,
        client_id: str = "",
        timeout_ms: int = UNARY_TIMEOUT_MS,
        tls: Tls | bool | None = None,
    ) -> None:
        super().__init__(server, client_id, timeout_ms, tls, _open_channel)

    async def run(self, call: Call, *, timeout_ms: float | None = None) -> Any:
        retry = Retry(self, self._timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            try:
                return await self.run_once(call, retry.left_s() * 1000)
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            await asyncio.sleep(wait_s)

    async def run_once(self, call: Call, timeout_ms: float) -> Any:
        try:
            with closed_not_cancelled(self.guard, writes=call.writes):
                response = await self.method(call)(
                    call.request, timeout=max(timeout_ms, 1) / 1000, metadata=self.metadata
                )
        except grpc.RpcError as error:
            raise self.typed_error(error, writes=call.writes) from None
        return call.read(response)

    async def close(self) -> None:
        """Harmless when called again."""
        if self.guard.close():
            await self._channel.close(None)


class CallingClient(AsyncClosing):
    """A client of one node, for one event loop; close it, or use it in `async with`.

    `timeout_ms` is for each call with its retries; `tls` True or a `Tls`: the node speaks TLS.
    Errors of every call: those of the server; TlsHandshakeFailed at once;
    Unavailable where it cannot be reached in time; OutcomeUnknown where the connection broke during
    a call that writes. Cancelling a call that writes leaves
    its outcome unknown.
    """

    def __init__(
        self,
        server: str,
        *,
        timeout_ms: int = UNARY_TIMEOUT_MS,
        client_id: str = "",
        tls: Tls | bool | None = None,
    ) -> None:
        self._caller = Caller(server, client_id=client_id, timeout_ms=timeout_ms, tls=tls)
        self._timeout_ms = timeout_ms

    async def close(self) -> None:
        """Harmless when called again."""
        await self._caller.close()
