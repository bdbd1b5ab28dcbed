"""Bases of the clients: closing by `with`; a connection for single calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from streamlog.client.channel import UNARY_TIMEOUT_MS, Caller
from streamlog.client.tls import Tls


class Closing(ABC):
    """Has a `close`, which a `with` calls at its end, also after an error."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing(ABC):
    """Has a `close`, which an `async with` calls at its end, also after an error."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class CallingClient(Closing):
    """A client of one node. Safe to use from many threads; close it, or use it in `with`.

    `timeout_ms` is for each call with its retries; `tls` True or a `Tls`: the node speaks TLS.
    Errors of every call: those of the server; TlsHandshakeFailed at once;
    Unavailable where it cannot be reached in time; OutcomeUnknown where the connection broke during
    a call that writes.
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

    def close(self) -> None:
        """Harmless when called again."""
        self._caller.close()
