"""HTTP on the same event loop: /metrics, /livez, /readyz."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from streamlog.errors import Unavailable
from streamlog.runtime.offload import Lane, Offload
from streamlog.server.grpc.server import joined, split_address

log = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """Bytes that are no HTTP are their sender's fault: it gets a 400, the log no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


@dataclass(frozen=True, slots=True)
class HttpSource:
    """Sources of the pages. `offload` None: the metrics page is made on the event loop."""

    registry: CollectorRegistry
    not_ready_reason: Callable[[], str | None]
    is_alive: Callable[[], bool]
    before_scrape: Callable[[], None]
    offload: Offload | None


class HttpServer:
    """Made inside a running loop; of use after `start`. `source` may be replaced while it runs."""

    def __init__(self, source: HttpSource) -> None:
        self.source = source
        app = web.Application()
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

    async def start(self, address: str) -> str:
        """Listens; the address with the port that was chosen. Errors: Invalid, Unavailable."""
        host, port = split_address(address)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise Unavailable(
                f"cannot listen on {address} for HTTP: the port is in use, or the address is not "
                "this machine's; choose another with --http-listen",
                address=address,
            ) from error
        return joined(host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        source = self.source
        source.before_scrape()
        if source.offload is None:
            body = generate_latest(source.registry)
        else:
            # Thousands of topics take longer than the event loop may be held.
            body = await source.offload.run(Lane.CPU, generate_latest, source.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _livez(self, _: web.Request) -> web.Response:
        return _answer(self.source.is_alive(), "alive", "the engine has failed; see the log")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self.source.not_ready_reason()
        return _answer(reason is None, "ready", f"not ready: {reason}")

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text="streamlog: /metrics /livez /readyz\n")


def _answer(is_good: bool, good: str, bad: str) -> web.Response:
    return web.Response(status=200 if is_good else 503, text=f"{good if is_good else bad}\n")
