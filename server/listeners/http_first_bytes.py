"""The first bytes of each connection to the HTTP port: clients of other protocols are told apart.

The HTTP server would answer a gRPC client with a 400 that says nothing, and wait for ever for the
end of the line that a Kafka client never sends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from streamlog.server.ended_connections import EndedConnectionsLog, peer_address
from streamlog.server.wrong_ports import FIRST_BYTES_MAX, NodePorts, Spoken, spoken

ProtocolFactory = Callable[[], asyncio.Protocol]


def watched(
    factory: ProtocolFactory, ports: NodePorts, ended: EndedConnectionsLog
) -> ProtocolFactory:
    """`factory`; connections of clients that speak something else than HTTP/1 are answered with
    where they should go, closed and logged."""
    return lambda: _Watched(factory(), ports, ended)


class _Watched(asyncio.Protocol):
    """Passes everything on to the protocol of the pages."""

    def __init__(
        self, pages: asyncio.Protocol, ports: NodePorts, ended: EndedConnectionsLog
    ) -> None:
        self._pages = pages
        self._ports = ports
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        """Until the first bytes have come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pages.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        transport, self._transport = self._transport, None
        if transport is not None and spoken(data) in (Spoken.GRPC, Spoken.KAFKA, Spoken.TLS):
            self._refuse(data[:FIRST_BYTES_MAX], transport)
        elif transport is None or not transport.is_closing():
            self._pages.data_received(data)

    def _refuse(self, first_bytes: bytes, transport: asyncio.Transport) -> None:
        advice = self._ports.advice(first_bytes)
        now, peer = asyncio.get_running_loop().time(), peer_address(transport)
        self._ended.note(now, logging.WARNING, listener="http", peer=peer, reason=advice)
        body = f"this port speaks HTTP/1: {advice}\n".encode()
        transport.write(
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        transport.close()

    def eof_received(self) -> bool | None:
        return self._pages.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pages.connection_lost(exc)

    def pause_writing(self) -> None:
        self._pages.pause_writing()

    def resume_writing(self) -> None:
        self._pages.resume_writing()
