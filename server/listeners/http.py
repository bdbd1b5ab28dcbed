"""HTTP on the same event loop: /metrics, /livez, /readyz."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from streamlog.errors import Unavailable
from streamlog.runtime.offload import Lane
from streamlog.server.addresses import Endpoint, joined, split_address
from streamlog.server.composition import Services
from streamlog.server.listeners.listener import NodeView
from streamlog.server.metrics import ServerMetrics
from streamlog.settings import Settings

log = logging.getLogger(__name__)

NAME = "http"


def _is_ours(record: logging.LogRecord) -> bool:
    """False for bytes that are not HTTP: their sender gets a 400, and the log no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


class HttpListener:
    """A `Listener`. Between `start` and `serve`, /readyz says what the node waits for."""

    def __init__(self, settings: Settings, reason: Callable[[], str]) -> None:
        node = settings.node
        self._advertised = node.http_advertised
        self.endpoint = Endpoint(
            NAME, "http", node.http_listen, node.http_advertised or node.http_listen
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
        self._runner = web.AppRunner(app, access_log=None, logger=log, shutdown_timeout=1.0)
        log.addFilter(_is_ours)

    async def bind(self) -> None:
        configured = self.endpoint.address
        host, port = split_address(configured)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise Unavailable(
                f"cannot listen on {configured} for HTTP: the port is in use, or the address is "
                "not this machine's; choose another with --http-listen",
                address=configured,
            ) from error
        address = joined(host, self._runner.addresses[0][1])
        self.endpoint = Endpoint(NAME, "http", address, self._advertised or address)

    async def start(self) -> None:
        self._is_answering.set()

    async def serve(self, services: Services, view: NodeView) -> None:
        self._view = view

    async def drain(self) -> None:
        """/readyz shows it already (`NodeView.not_ready_reason`)."""

    async def stop(self, grace_s: float) -> None:
        self._is_answering.set()
        await self._runner.cleanup()

    def connections(self) -> int:
        """None of them counts: they read pages."""
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
