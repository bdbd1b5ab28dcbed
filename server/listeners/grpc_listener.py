"""The gRPC listener: refuses requests while the node starts, then serves all gRPC services.

A refusal is a retriable error that says what the node waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from streamlog.errors import StreamlogError, Unavailable
from streamlog.server.addresses import Endpoint
from streamlog.server.composition import Services
from streamlog.server.grpc.calls import Handlers, Rpc
from streamlog.server.grpc.credentials import principal_of, server_credentials
from streamlog.server.grpc.handlers import NAMES, handlers
from streamlog.server.grpc.server import GrpcServer
from streamlog.server.listeners.listener import NodeView
from streamlog.server.tls.node_tls import NodeTls
from streamlog.settings import Settings
from streamlog.v1support.errors import to_status

NAME = "grpc"


class _DeferredHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The handlers of all services; until `serving` is set, every call is refused."""

    def __init__(self, refusal: Callable[[], StreamlogError]) -> None:
        self.serving: tuple[Handlers, ...] | None = None
        # On the wire a call of any kind may end with a status alone.
        self._refuse: Any = grpc.stream_stream_rpc_method_handler(_refuse(refusal))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if self.serving is None:
            name = str(handler_call_details.method).strip("/").partition("/")[0]
            return self._refuse if name in NAMES else None
        for service in self.serving:
            method = service.service(handler_call_details)
            if method is not None:
                return method
        return None


def _refuse(refusal: Callable[[], StreamlogError]) -> Any:
    async def refuse(_: Any, rpc: Rpc) -> None:
        wire = to_status(refusal())
        rpc.set_trailing_metadata(wire.trailers)
        rpc.set_code(wire.code)
        rpc.set_details(wire.message)

    return refuse


def refusal(reason: str) -> Unavailable:
    """The answer until the node serves: nothing was done, and the call may succeed later."""
    return Unavailable(f"the node is {reason}; retry with back-off")


class GrpcListener:
    """A `Listener`. Made inside a running loop. `reason`: what the node waits for until `serve`."""

    def __init__(
        self, settings: Settings, reason: Callable[[], str], tls: NodeTls | None = None
    ) -> None:
        node = settings.node
        self._protocol = "grpc" if tls is None else "grpc+tls"
        self._principal_of = principal_of(tls)
        self._handlers = _DeferredHandlers(lambda: refusal(reason()))
        credentials = None if tls is None else server_credentials(tls)
        self._server = GrpcServer((self._handlers,), list(NAMES), settings.limits, credentials)
        self._advertised = node.advertised
        self.endpoint = Endpoint(NAME, self._protocol, node.listen, node.advertised or node.listen)

    async def bind(self) -> None:
        address = self._server.bind(self.endpoint.address)
        self.endpoint = Endpoint(NAME, self._protocol, address, self._advertised or address)

    async def start(self) -> None:
        await self._server.start()

    async def serve(self, services: Services, view: NodeView) -> None:
        self._handlers.serving = tuple(handlers(services, self._principal_of))
        await self._server.set_serving(True)

    async def drain(self) -> None:
        await self._server.set_serving(False)

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def connections(self) -> int:
        return self._server.connections()
