"""HTTP on the same event loop: /metrics, /livez, /readyz."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from streamlog.runtime.offload import Lane
from streamlog.server.addresses import Endpoint, cannot_listen, joined, split_address
from streamlog.server.composition import Services
from streamlog.server.ended_connections import EndedConnectionsLog
from streamlog.server.limits.connections import BoundedConnections
from streamlog.server.listeners.http_first_bytes import watched
from streamlog.server.listeners.listener import NodeView
from streamlog.server.metrics import ServerMetrics
from streamlog.server.tls.connection import TlsConnections
from streamlog.server.tls.node_tls import NodeTls
from streamlog.server.wrong_ports import NodePorts
from streamlog.settings import Settings

log = logging.getLogger(__name__)

NAME = "http"
IDLE_S = 75.0
"""A connection without a request is closed after this, and makes room for another one."""
PAGE_S_MAX = 1.0
"""A page that is under way at the stop is cut off after this, or sooner if the grace is over."""


def _is_ours(record: logging.LogRecord) -> bool:
    """False for bytes that are not HTTP: their sender gets a 400, and the log no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


class HttpListener:
    """A `Listener`. Between `start` and `serve`, /readyz says what the node waits for."""

    def __init__(
        self,
        settings: Settings,
        reason: Callable[[], str],
        tls: NodeTls | None = None,
        ports: NodePorts | None = None,
    ) -> None:
        node = settings.node
        self._tls = tls
        self._protocol = "http" if tls is None else "https"
        self._ports = ports or NodePorts()
        self._advertised = node.http_advertised
        self.endpoint = Endpoint(
            NAME, self._protocol, node.http_listen, node.http_advertised or node.http_listen
        )
        self._view = _starting_view(reason)
        self._is_answering = asyncio.Event()
        app = web.Application(middlewares=[self._wait_until_started])
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/", self._index),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, logger=log, keepalive_timeout=IDLE_S)
        self._connections = BoundedConnections(settings.limits.connections_max)
        self._ended = EndedConnectionsLog(log, "a connection to the HTTP port was closed")
        self._server: asyncio.Server | None = None
        self._secured: TlsConnections | None = None
        log.addFilter(_is_ours)

    async def bind(self) -> None:
        configured = self.endpoint.address
        host, port = split_address(configured)
        await self._runner.setup()
        assert self._runner.server is not None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocols(self._runner.server), host, port
            )
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or str(error)
            raise cannot_listen(configured, reason, "--http-listen") from error
        address = joined(host, self._server.sockets[0].getsockname()[1])
        self.endpoint = Endpoint(NAME, self._protocol, address, self._advertised or address)

    def _protocols(self, server: web.Server) -> Callable[[], asyncio.BaseProtocol]:
        pages = watched(server, self._ports, self._ended)
        if self._tls is None:
            return self._connections.bounded(pages, self._note_refused)
        self._secured = TlsConnections(
            self._tls, pages, self._connections, self._ports, self._note_refused
        )
        return self._secured

    def _note_refused(self, peer: str) -> None:
        now, reason = asyncio.get_running_loop().time(), "one connection too many (connections_max)"
        self._ended.note(now, logging.WARNING, listener=NAME, peer=peer, reason=reason)

    async def start(self) -> None:
        self._is_answering.set()

    async def serve(self, services: Services, view: NodeView) -> None:
        self._view = view

    async def drain(self) -> None:
        """/readyz shows it already (`NodeView.not_ready_reason`)."""

    async def stop(self, grace_s: float) -> None:
        self._is_answering.set()
        if self._server is not None:
            self._server.close()
        if self._secured is not None:
            self._secured.abort_handshakes()
        if self._runner.server is not None:
            await asyncio.sleep(0)  # Connections that were just accepted begin to be served.
            self._runner.server.pre_shutdown()
            # aiohttp waits for each page, then as long for its cancellation, and takes 0 for ever.
            await self._runner.server.shutdown(max(0.2, min(grace_s, PAGE_S_MAX)) / 2)
        await self._runner.cleanup()

    def connections(self) -> int:
        """0: these connections read pages, and are bounded apart from those of clients."""
        return 0

    @web.middleware
    async def _wait_until_started(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        await self._is_answering.wait()
        return await handler(request)

    async def _metrics(self, _: web.Request) -> web.Response:
        view = self._view
        view.before_scrape()
        if view.offload is None:
            body = generate_latest(view.registry)
        else:
            # The page of thousands of topics takes longer than the event loop may be held.
            body = await view.offload.run(Lane.CPU, generate_latest, view.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _livez(self, _: web.Request) -> web.Response:
        return _answer(self._view.is_alive(), "alive", "the engine has failed; see the log")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._view.not_ready_reason()
        return _answer(reason is None, "ready", f"not ready: {reason}")

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text="streamlog: /metrics /livez /readyz\n")


def _starting_view(reason: Callable[[], str]) -> NodeView:
    """A node that is being opened: alive, not ready, its metrics at 0."""
    registry = CollectorRegistry()
    ServerMetrics(registry)
    return NodeView(
        registry,
        not_ready_reason=reason,
        is_alive=lambda: True,
        before_scrape=lambda: None,
        offload=None,
    )


def _answer(is_good: bool, good: str, bad: str) -> web.Response:
    return web.Response(status=200 if is_good else 503, text=f"{good if is_good else bad}\n")
