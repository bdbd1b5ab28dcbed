"""A Kafka listener: one named address on which Kafka's own clients reach the node.

Before `serve`, connections are accepted and nothing is answered (`kafka/transport/connections.py`).
"""

from __future__ import annotations

import asyncio
import socket

from streamlog.runtime.clock import Clock, SystemClock
from streamlog.server.addresses import Endpoint, cannot_listen, joined, split_address
from streamlog.server.composition import Services
from streamlog.server.kafka.dispatch import Dispatcher
from streamlog.server.kafka.handlers.table import NodeRoutes
from streamlog.server.kafka.transport.connections import Connections
from streamlog.server.limits.connections import BoundedConnections
from streamlog.server.listeners.kafka_addresses import KafkaAddress
from streamlog.server.listeners.listener import NodeView
from streamlog.server.tls.connection import TlsConnections
from streamlog.server.tls.node_tls import NodeTls
from streamlog.settings import Settings

PROTOCOL = "kafka"
OPTION = "--kafka-listen"
BACKLOG = 1024
"""Connections that the kernel keeps until the event loop accepts them."""


class KafkaListener:
    """A `Listener`. Made inside a running loop. `routes`: shared with the node's other Kafka
    listeners. `tls`: the protocol runs inside TLS."""

    def __init__(
        self,
        settings: Settings,
        address: KafkaAddress,
        routes: NodeRoutes | None = None,
        *,
        tls: NodeTls | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._advertised = address.advertised
        self._routes = routes or NodeRoutes()
        self._protocol = PROTOCOL if tls is None else f"{PROTOCOL}+tls"
        self._connections = Connections(address.name, settings.limits, clock or SystemClock())
        self._secured: TlsConnections | None = None
        if tls is not None:
            # Counts those in their handshake, too, which the connections do not know.
            bound = BoundedConnections(settings.limits.connections_max)
            self._secured = TlsConnections(tls, self._connections.new, bound)
        self._servers: list[asyncio.Server] = []
        self.endpoint = Endpoint(
            address.name, self._protocol, address.listen, address.advertised or address.listen
        )

    async def bind(self) -> None:
        name, configured = self.endpoint.name, self.endpoint.address
        host, _ = split_address(configured)
        sockets = await _listening(configured)
        loop = asyncio.get_running_loop()
        for listening in sockets:
            server = await loop.create_server(
                self._secured or self._connections.new, sock=listening, backlog=BACKLOG
            )
            self._servers.append(server)
        address = joined(host, sockets[0].getsockname()[1])
        self.endpoint = Endpoint(name, self._protocol, address, self._advertised or address)
        self._connections.advertised = split_address(self.endpoint.advertised)
        self._connections.start()

    async def start(self) -> None:
        """Nothing is answered before `serve`, so that no client takes it for the whole answer."""

    async def serve(self, services: Services, view: NodeView) -> None:
        resources = services.resources
        dispatcher = Dispatcher(self._routes.of(services), resources.requests)
        self._connections.serve(dispatcher, resources)

    async def drain(self) -> None:
        """The protocol has no word for it: clients go on when their connection ends."""

    async def stop(self, grace_s: float) -> None:
        for server in self._servers:
            server.close()
        if self._secured is not None:
            self._secured.abort_handshakes()
        await self._connections.stop(grace_s)

    def connections(self) -> int:
        return self._connections.count


async def _listening(address: str) -> list[socket.socket]:
    """Sockets on all addresses of the host, with one port: `localhost` is reached over IPv6, too.

    Errors: Unavailable.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, place in dict.fromkeys(found):
            try:
                sockets.append(_bound(family, str(place[0]), port))
                port = sockets[0].getsockname()[1]
            except OSError:
                # A machine without IPv6 may still know an IPv6 address of localhost.
                if family != socket.AF_INET6 or len(found) == 1:
                    raise
        if not sockets:
            raise OSError(f"no address of {host} is this machine's")
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise cannot_listen(address, error.strerror or str(error), OPTION) from error
    return sockets


def _bound(family: int, host: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        # With SO_REUSEADDR two sockets may bind one port; only one of them may listen.
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
