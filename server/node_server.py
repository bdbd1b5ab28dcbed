"""Serves an open engine through a node's listeners, and ends them in good order.

Draining: not ready → long polls answered → streams take no more requests and answer those taken →
listeners end, HTTP last. Requests that still run after the grace are cut off.
"""

from __future__ import annotations

import logging

from prometheus_client import ProcessCollector

from streamlog.runtime.concurrency.background import Background
from streamlog.server.composition import Backend, compose
from streamlog.server.context import Authorize, allow_all
from streamlog.server.listeners.listener import NodeView
from streamlog.server.listeners.listeners import Listeners, node_listeners
from streamlog.server.process_metrics import resident_bytes, watch_loop_lag
from streamlog.server.spare_memory import INTERVAL_S, SpareMemory
from streamlog.server.tls.metrics import add_metrics
from streamlog.server.tls.node_tls import TICK_S, NodeTls
from streamlog.settings import Settings

log = logging.getLogger(__name__)


class NodeServer:
    """Made inside a running loop; of use after `start`.

    It owns the listeners and the server's background tasks. It does not own the engine.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        listeners: Listeners | None = None,
        authorize: Authorize = allow_all,
    ) -> None:
        """`listeners` may be answering already, since the backend was being opened."""
        self._backend = backend
        self._listeners = listeners or node_listeners(settings)
        self._background = Background("server", self._failed)
        self.services = compose(
            backend,
            settings,
            authorize,
            connections=self._listeners.connections,
            endpoints=lambda: self._listeners.endpoints,
            background=self._background,
            alarms=lambda: [] if self.tls is None else self.tls.alarms(),
        )
        self.metrics = self.services.resources.metrics
        ProcessCollector(registry=backend.registry)
        self._is_ready = False
        self._is_stopping = False

    async def start(self) -> None:
        """Listens and serves. Errors: Invalid (address not allowed), Unavailable (port in use)."""
        backend = self._backend
        self.metrics.is_insecure.set(int(self._listeners.is_insecure))
        await self._listeners.serve(
            self.services,
            NodeView(
                backend.registry,
                not_ready_reason=self.not_ready_reason,
                is_alive=lambda: backend.is_alive() and self._background.failure is None,
                before_scrape=self._before_scrape,
                offload=backend.offload,
            ),
        )
        watch_loop_lag(self._background, self.metrics)
        tls = self.tls
        if tls is not None:
            add_metrics(backend.registry, tls)
            self._background.every(
                lambda: TICK_S, lambda: tls.tick(backend.offload), name="tls_files"
            )
        spare = SpareMemory(backend.read_bytes, backend.offload)
        self._background.every(lambda: INTERVAL_S, spare.tick, name="spare_memory")
        self._is_ready = True
        self.metrics.is_ready.set(1)

    @property
    def tls(self) -> NodeTls | None:
        """The listeners' certificates; None: they speak no TLS."""
        return self._listeners.tls

    @property
    def grpc_address(self) -> str:
        return self._listeners.endpoint("grpc").address

    @property
    def http_address(self) -> str:
        return self._listeners.endpoint("http").address

    def not_ready_reason(self) -> str | None:
        """Why no requests should be sent here now, for people; None: they should."""
        if self._is_stopping:
            return "the node is draining"
        if not self._is_ready:
            return "the node is starting"
        reason = self._backend.not_ready_reason()
        if reason is None and not self._backend.is_alive():
            return "the engine has failed; see the log"
        return reason

    async def stop(self, grace_s: float) -> None:
        """Drains, then ends the listeners; requests that still run after `grace_s` are cut off.

        A second call does nothing.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        self._is_ready = False
        self.metrics.is_ready.set(0)
        await self._listeners.drain()
        self.services.polls.drain()
        self.services.resources.drain.start()
        await self._listeners.stop(grace_s)
        await self._background.close()

    def _before_scrape(self) -> None:
        self.metrics.rss_bytes.set(resident_bytes())
        for name, connections in self._listeners.connections_by_name().items():
            self.metrics.connections.labels(name).set(connections)
        topics, partitions = self.services.admin.count()
        self.metrics.topics.set(topics)
        self.services.topic_metrics.forget_deleted()
        self.metrics.partitions.set(partitions)

    def _failed(self, error: BaseException) -> None:
        log.error("a task of the server failed", extra={"error": str(error)})
