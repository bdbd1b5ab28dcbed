"""All connections of one Kafka listener: bounded, held until the node serves, closed when idle.

Until `serve` a connection is accepted and not read: its client waits as for a slow node. After
`HELD_S` it is closed, and the client tries again with its own back-off. Nothing is answered before
the node is open, so no client takes an empty answer for an empty cluster; and no client waits so
long for ApiVersions that it takes the node for one that does not know it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from typing import Any

from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.rand import Random
from streamlog.server.ended_connections import EndedConnectionsLog
from streamlog.server.kafka.dispatch import Dispatcher, Peer
from streamlog.server.kafka.transport.connection import Connection
from streamlog.server.kafka.transport.receive import ReceiveMemory
from streamlog.server.limits.connections import BoundedConnections
from streamlog.server.limits.in_flight import ConnectionBudget
from streamlog.server.limits.shared import ListenerResources
from streamlog.server.tls.principal import of_peer_certificate
from streamlog.server.wrong_ports import NodePorts
from streamlog.settings.limits import LimitsConfig

log = logging.getLogger(__name__)

HELD_S = 5.0
"""Below the times after which clients give up ApiVersions (librdkafka: 10 s)."""
CHECK_EVERY_S = 1.0
TOGETHER_MAX = 20


class _Serving:
    """What connections need of a node that serves."""

    def __init__(self, dispatcher: Dispatcher, resources: ListenerResources) -> None:
        self.dispatcher = dispatcher
        self.random: Random = resources.random
        self.metrics = resources.metrics
        self.in_flight_bytes_max = resources.limits.in_flight_bytes_per_connection_max
        self.requests_max = resources.limits.requests_per_connection_max

    def new_budget(self) -> ConnectionBudget:
        return ConnectionBudget(self.in_flight_bytes_max, self.metrics)


class Connections:
    """Made inside a running loop. `advertised`: what clients of this listener are told."""

    def __init__(
        self,
        name: str,
        limits: LimitsConfig,
        clock: Clock,
        *,
        held_s: float = HELD_S,
        ports: NodePorts | None = None,
    ) -> None:
        self.name = name
        self.advertised = ("", 0)
        self.ports = ports or NodePorts()
        self.memory = ReceiveMemory(limits.kafka_request_bytes_max)
        self._bound = BoundedConnections(limits.connections_max)
        self._held_s = held_s
        self._idle_s = limits.connections_max_idle_ms / 1000
        self._clock = clock
        self._serving: _Serving | None = None
        self._is_stopping = False
        self._open: OrderedDict[Connection, float] = OrderedDict()
        """When each was last active; the one that was so longest ago first."""
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._tasks = Background("kafka", self._failed)
        self._ended_log = EndedConnectionsLog(log, "a Kafka connection was closed")

    @property
    def count(self) -> int:
        return self._bound.count

    def new(self) -> Connection:
        """The protocol of a connection that is being accepted."""
        return Connection(self)

    def start(self) -> None:
        """Closes connections that wait too long, from now on."""
        self._tasks.every(
            lambda: min(CHECK_EVERY_S, self._idle_s / 4, self._held_s / 4),
            self._close_idle,
            name="idle",
        )

    def serve(self, dispatcher: Dispatcher, resources: ListenerResources) -> None:
        """Serves the connections that are open, and those to come."""
        self.memory.apis = dispatcher.apis
        self._serving = _Serving(dispatcher, resources)
        for connection in list(self._open):
            self.active(connection)
            connection.serve(self._serving)

    async def stop(self, grace_s: float) -> None:
        """Answers what is under way, then ends all connections, those left after `grace_s` at
        once."""
        self._is_stopping = True
        for connection in list(self._open):
            connection.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in list(self._open):
                connection.abort()
            await self._all_closed.wait()
        await self._tasks.close()

    # ---- what connections call

    def opened(self, connection: Connection) -> bool:
        if self._is_stopping:
            return False
        if not self._bound.try_open():
            self.note_refused()
            return False
        self._open[connection] = self._clock.monotonic()
        self._all_closed.clear()
        if self._serving is not None:
            # Once `connection_made` has returned, which pauses it.
            asyncio.get_running_loop().call_soon(connection.serve, self._serving)
        return True

    def note_refused(self, peer: str = "") -> None:
        """A connection above the bound is closed, here or before its TLS handshake."""
        self._note_end("bound", "one connection too many (connections_max)", peer)

    def active(self, connection: Connection) -> float:
        now = self._clock.monotonic()
        if connection in self._open:
            self._open[connection] = now
            self._open.move_to_end(connection)
        return now

    def closed(self, connection: Connection) -> None:
        if self._open.pop(connection, None) is None:
            return
        self._bound.count -= 1
        if not self._open:
            self._all_closed.set()

    def ended(self, connection: Connection, why: str, reason: str) -> None:
        self._note_end(why, reason, connection.peer_address)

    def peer_of(self, address: str, certificate: Mapping[str, Any] | None) -> Peer:
        assert self._serving is not None
        trace_id = self._serving.random.bytes(4).hex()
        principal = of_peer_certificate(certificate)
        return Peer(address, trace_id, self.name, self.advertised, principal)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.spawn(work, name=name)

    # ---- connections that end

    async def _close_idle(self) -> None:
        """Ends those that were idle for too long; a client that waits for an answer is not."""
        now = self._clock.monotonic()
        bound_s = self._held_s if self._serving is None else self._idle_s
        looked_at = 0
        while self._open:
            connection, active_at = next(iter(self._open.items()))
            if now - active_at < bound_s:
                return
            self.active(connection)
            looked_at += 1
            if looked_at % TOGETHER_MAX == 0:
                await asyncio.sleep(0)  # Thousands that end at once do not hold up the others.
            if self._serving is None:
                connection.abort()
            elif connection.is_waiting_for_client:
                connection.close_idle()

    def _note_end(self, why: str, reason: str, peer: str) -> None:
        """Counts a connection that the node ends, and logs it unless another one just was."""
        if self._serving is not None:
            self._serving.metrics.connections_ended.labels(self.name, why).inc()
        level = logging.DEBUG if why == "idle" else logging.WARNING
        now = self._clock.monotonic()
        self._ended_log.note(now, level, listener=self.name, peer=peer, reason=reason)

    def _failed(self, error: BaseException) -> None:
        log.error("a task of the Kafka listener failed", extra={"error": str(error)})
