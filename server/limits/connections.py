"""The connections of one listener, bounded: the next one is closed as soon as it is accepted.

For listeners over asyncio's transports. gRPC bounds its own connections, by the same setting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from streamlog.server.ended_connections import peer_address

ProtocolFactory = Callable[[], asyncio.Protocol]


class BoundedConnections:
    """Counts what `loop.create_server` accepts, in place of which `bounded` stands."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.count = 0
        """Open connections."""

    def bounded(
        self, factory: ProtocolFactory, on_refused: Callable[[str], None]
    ) -> ProtocolFactory:
        """`factory` for the connections within the bound. `on_refused(peer)`: another is
        closed."""
        return lambda: _Connection(self, factory, on_refused)

    def try_open(self) -> bool:
        """Counts a connection, unless the bound is reached."""
        if self.count >= self._bound:
            return False
        self.count += 1
        return True


class _Connection(asyncio.Protocol):
    """Passes everything on to a protocol of its own, if the connection is within the bound."""

    def __init__(
        self,
        connections: BoundedConnections,
        factory: ProtocolFactory,
        on_refused: Callable[[str], None],
    ) -> None:
        self._connections = connections
        self._factory = factory
        self._on_refused = on_refused
        self._protocol: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._connections.try_open():
            self._on_refused(peer_address(transport))
            cast(asyncio.Transport, transport).abort()
            return
        self._protocol = self._factory()
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._protocol is not None:
            self._connections.count -= 1
            self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._protocol is not None:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._protocol is None else self._protocol.eof_received()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()
