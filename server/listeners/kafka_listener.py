"""A Kafka listener: one named address on which Kafka's own clients reach the node.

Before `serve`, connections are accepted and nothing is answered (`kafka/transport/connections.py`).
"""

from __future__ import annotations

import asyncio

from streamlog.runtime.clock import Clock, SystemClock
from streamlog.server.addresses import Endpoint, joined, split_address
from streamlog.server.composition import Services
from streamlog.server.kafka.dispatch import Dispatcher
from streamlog.server.kafka.handlers.table import NodeRoutes
from streamlog.server.kafka.transport.connections import Connections
from streamlog.server.limits.connections import BoundedConnections
from streamlog.server.listeners.kafka_addresses import KafkaAddress
from streamlog.server.listeners.listener import NodeView
from streamlog.server.listeners.sockets import listening_sockets
from streamlog.server.tls.connection import TlsConnections
from streamlog.server.tls.node_tls import NodeTls
from streamlog.server.wrong_ports import NodePorts
from streamlog.settings import Settings

PROTOCOL = "kafka"
OPTION = "--kafka-listen"
BACKLOG = 1024
"""Connections that the kernel keeps until the event loop accepts them."""
ACCEPTED_TOGETHER_MAX = 16
"""Connections that the event loop accepts before it does anything else."""


class KafkaListener:
    """A `Listener`. Made inside a running loop. `routes`: shared with the node's other Kafka
    listeners. `tls`: the protocol runs inside TLS. `ports`: of the node, for clients that came to
    the wrong one."""

    def __init__(
        self,
        settings: Settings,
        address: KafkaAddress,
        routes: NodeRoutes | None = None,
        *,
        tls: NodeTls | None = None,
        ports: NodePorts | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._advertised = address.advertised
        self._routes = routes or NodeRoutes()
        self._protocol = PROTOCOL if tls is None else f"{PROTOCOL}+tls"
        self._connections = Connections(
            address.name, settings.limits, clock or SystemClock(), ports=ports
        )
        self._secured: TlsConnections | None = None
        if tls is not None:
            # Counts those in their handshake, too, which the connections do not know.
            bound = BoundedConnections(settings.limits.connections_max)
            self._secured = TlsConnections(
                tls, self._connections.new, bound, ports, self._connections.note_refused
            )
        self._servers: list[asyncio.Server] = []
        self.endpoint = Endpoint(
            address.name, self._protocol, address.listen, address.advertised or address.listen
        )

    async def bind(self) -> None:
        name, configured = self.endpoint.name, self.endpoint.address
        host, _ = split_address(configured)
        sockets = await listening_sockets(configured, OPTION, BACKLOG)
        loop = asyncio.get_running_loop()
        for listening in sockets:
            server = await loop.create_server(
                self._secured or self._connections.new,
                sock=listening,
                backlog=ACCEPTED_TOGETHER_MAX,
            )
            # asyncio takes one number for how many the kernel keeps and for how many it accepts in
            # one go: 1,000 at once would hold up all others for 100 ms.
            listening.listen(BACKLOG)
            self._servers.append(server)
        address = joined(host, sockets[0].getsockname()[1])
        self.endpoint = Endpoint(name, self._protocol, address, self._advertised or address)
        self._connections.advertised = split_address(self.endpoint.advertised)
        self._connections.start()

    async def start(self) -> None:
        """Nothing is answered before `serve`, so that no client takes it for the whole answer."""

    async def serve(self, services: Services, view: NodeView) -> None:
        resources = services.resources
        dispatcher = Dispatcher(self._routes.of(services), resources.requests, resources.quotas)
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
