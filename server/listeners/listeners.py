"""The listeners of one node: a list, whose members come up in order.

    bind → start → serve → drain → stop

The first one shows supervisors how the node is: it answers until all others, which stop side by
side, have ended.

A further protocol is one more class with the calls of `Listener`, and one more line in
`node_listeners`; the services do not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum

from streamlog.server.addresses import Endpoint
from streamlog.server.composition import Services
from streamlog.server.kafka.handlers.table import NodeRoutes
from streamlog.server.listeners.checks import check_listeners
from streamlog.server.listeners.grpc_listener import GrpcListener
from streamlog.server.listeners.http import NAME as HTTP
from streamlog.server.listeners.http import HttpListener
from streamlog.server.listeners.kafka_addresses import kafka_addresses
from streamlog.server.listeners.kafka_listener import KafkaListener
from streamlog.server.listeners.listener import Listener, NodeView
from streamlog.server.tls.node_tls import NodeTls, node_tls
from streamlog.server.wrong_ports import NodePorts
from streamlog.settings import Settings

log = logging.getLogger(__name__)

LEFT_AFTER_S = 2.0
"""A listener that has not ended so long after its grace keeps the node from stopping no longer."""


class _State(IntEnum):
    NEW = 0
    BOUND = 1
    STARTED = 2
    SERVING = 3
    STOPPED = 4


class Listeners:
    """Made inside a running loop. `listeners`: the one with /readyz first."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        *,
        is_insecure: bool = False,
        tls: NodeTls | None = None,
        ports: NodePorts | None = None,
    ) -> None:
        self.tls = tls
        self._ports = ports or NodePorts()
        self._listeners = tuple(listeners)
        self._state = _State.NEW
        self.is_insecure = is_insecure
        """An address reaches beyond this machine, and asks for no client certificate."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """With the ports that were chosen, from `bind` on."""
        return tuple(listener.endpoint for listener in self._listeners)

    def endpoint(self, name: str) -> Endpoint:
        return next(endpoint for endpoint in self.endpoints if endpoint.name == name)

    def connections(self) -> int:
        return sum(listener.connections() for listener in self._listeners)

    def connections_by_name(self) -> dict[str, int]:
        """Open connections of clients, by listener; pages have no clients."""
        return {
            listener.endpoint.name: listener.connections()
            for listener in self._listeners
            if listener.endpoint.name != HTTP
        }

    async def bind(self) -> None:
        """Takes all addresses. Errors: Invalid, Unavailable (port in use); then none is taken."""
        if self._state >= _State.BOUND:
            return
        bound: list[Listener] = []
        try:
            for listener in self._listeners:
                await listener.bind()
                bound.append(listener)
        except BaseException:
            for listener in reversed(bound):
                await _end(listener, 0)
            raise
        self._ports.endpoints = self.endpoints
        self._state = _State.BOUND

    async def start(self) -> None:
        """Answers every request with what the node waits for. Errors: those of `bind`."""
        await self.bind()
        if self._state >= _State.STARTED:
            return
        for listener in self._listeners:
            await listener.start()
        self._state = _State.STARTED

    async def serve(self, services: Services, view: NodeView) -> None:
        """Serves the node. Errors: those of `bind`."""
        await self.start()
        for listener in self._listeners:
            await listener.serve(services, view)
        self._state = _State.SERVING

    async def drain(self) -> None:
        """Tells clients to use another node. A listener that fails is logged, as by `stop`."""
        for listener in self._listeners:
            await _at_stop(listener, listener.drain(), 0)

    async def stop(self, grace_s: float) -> None:
        """Ends all listeners within one grace; harmless in any state.

        A listener that fails, or does not end, is logged: the node has data to bring to safety.
        """
        if self._state in (_State.NEW, _State.STOPPED):
            return
        self._state = _State.STOPPED
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + grace_s
        first, *others = self._listeners
        await asyncio.gather(*(_end(listener, grace_s) for listener in reversed(others)))
        await _end(first, max(0.0, grace_ends - loop.time()))


async def _end(listener: Listener, grace_s: float) -> None:
    await _at_stop(listener, listener.stop(grace_s), grace_s)


async def _at_stop(listener: Listener, work: Awaitable[None], grace_s: float) -> None:
    try:
        async with asyncio.timeout(grace_s + LEFT_AFTER_S):
            await work
    except Exception:
        log.exception("a listener did not end", extra={"listener": listener.endpoint.name})


def node_listeners(settings: Settings, reason: Callable[[], str] = lambda: "starting") -> Listeners:
    """The listeners that the settings ask for. `reason`: what the node waits for until it serves.

    Errors: Invalid (an address that is not allowed), InvalidConfig (files of certificates).
    """
    is_insecure = check_listeners(settings)
    tls = node_tls(settings.tls)
    routes, ports = NodeRoutes(), NodePorts()
    return Listeners(
        [
            HttpListener(settings, reason, tls if settings.tls.http else None, ports),
            GrpcListener(settings, reason, tls),
            *(
                KafkaListener(settings, address, routes, tls=tls, ports=ports)
                for address in kafka_addresses(settings.node)
            ),
        ],
        is_insecure=is_insecure,
        tls=tls,
        ports=ports,
    )
