"""The gRPC and HTTP listeners of a node: from `start` on they listen, from `serve` on they serve.

In between every request is refused with a retriable error that says what the node waits for,
/livez is well and /readyz is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from streamlog.errors import StreamlogError, Unavailable
from streamlog.server.grpc.admin import SERVICE as ADMIN
from streamlog.server.grpc.calls import Context, Handlers
from streamlog.server.grpc.compaction import SERVICE as COMPACTION
from streamlog.server.grpc.kv import SERVICE as KV
from streamlog.server.grpc.log import SERVICE as LOG
from streamlog.server.grpc.server import GrpcServer
from streamlog.server.grpc.staging import SERVICE as STAGING
from streamlog.server.grpc.stream import SERVICE as STREAM
from streamlog.server.listeners.addresses import check_listeners
from streamlog.server.listeners.http import HttpServer, HttpSource
from streamlog.server.metrics import ServerMetrics
from streamlog.settings import Settings
from streamlog.v1support.errors import to_status

NAMES = (LOG, STREAM, KV, ADMIN, STAGING, COMPACTION)


class _Services(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The handlers of all services; until `serving` is set each of their calls is refused."""

    def __init__(self, refusal: Callable[[], StreamlogError]) -> None:
        self.serving: tuple[Handlers, ...] | None = None
        # On the wire a call of any kind may end with a status alone.
        self._refuse: Any = grpc.stream_stream_rpc_method_handler(_refuse(refusal))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if self.serving is None:
            name = str(handler_call_details.method).strip("/").partition("/")[0]
            return self._refuse if name in NAMES else None
        for handlers in self.serving:
            found = handlers.service(handler_call_details)
            if found is not None:
                return found
        return None


def _refuse(refusal: Callable[[], StreamlogError]) -> Any:
    async def refuse(_: Any, context: Context) -> None:
        wire = to_status(refusal())
        context.set_trailing_metadata(wire.trailers)
        context.set_code(wire.code)
        context.set_details(wire.message)

    return refuse


def refusal(reason: str) -> Unavailable:
    """What a client hears meanwhile: nothing was done, and the same call may succeed later."""
    return Unavailable(f"the node is {reason}; retry with back-off")


class Listeners:
    """Made inside a running loop. `reason`: what the node waits for until `serve`."""

    def __init__(self, settings: Settings, reason: Callable[[], str] = lambda: "starting") -> None:
        self._settings = settings
        self._services = _Services(lambda: refusal(reason()))
        registry = CollectorRegistry()
        ServerMetrics(registry)
        self.grpc = GrpcServer((self._services,), list(NAMES), settings.limits)
        self.http = HttpServer(
            HttpSource(
                registry,
                not_ready_reason=reason,
                is_alive=lambda: True,
                before_scrape=lambda: None,
                offload=None,
            )
        )
        self.grpc_address = self.http_address = ""
        self.is_insecure = False

    @property
    def is_listening(self) -> bool:
        return bool(self.grpc_address)

    async def start(self) -> None:
        """Listens. Errors: Invalid (address not allowed), Unavailable (port in use)."""
        node = self._settings.node
        self.is_insecure = check_listeners(node)
        self.http_address = await self.http.start(node.http_listen)
        try:
            self.grpc_address = await self.grpc.start(node.listen)
        except BaseException:
            await self.http.stop()
            raise

    async def serve(self, handlers: Iterable[Handlers], source: HttpSource) -> None:
        """Requests go to `handlers` from now on, and HTTP tells what `source` says."""
        self._services.serving = tuple(handlers)
        self.http.source = source
        await self.grpc.set_serving(True)

    async def stop(self, grace_s: float) -> None:
        """gRPC ends, its calls are cut off after `grace_s`; then HTTP. Harmless if not started."""
        await self.grpc.stop(grace_s)
        await self.http.stop()
