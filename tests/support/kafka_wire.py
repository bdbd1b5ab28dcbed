"""Kafka's wire in tests: a client of raw frames, and connections over routes that a test makes."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from streamlog.kafka.messages.api_versions_request import ApiVersionsRequest
from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response, request_codec
from streamlog.kafka.protocol.headers import decode_response_header, encode_request_header
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.server.kafka.call import Route
from streamlog.server.kafka.dispatch import Dispatcher
from streamlog.server.kafka.handlers.api_versions import ApiVersionsHandler
from streamlog.server.kafka.transport.connections import HELD_S, Connections
from streamlog.server.limits.requests import ActiveRequests
from streamlog.server.limits.shared import ListenerResources
from streamlog.server.metrics import ClientMetrics
from streamlog.server.tls.connection import TlsConnections
from streamlog.server.tls.node_tls import NodeTls
from streamlog.settings.limits import LimitsConfig
from tests.support.server_harness import listener_resources

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")


def sized(frame: bytes) -> bytes:
    """A frame behind its size."""
    return struct.pack(">i", len(frame)) + frame


def request_bytes(
    api: ApiKey, version: int, correlation_id: int, message: Any, client_id: str | None = "test"
) -> bytes:
    """A whole request, with its size."""
    header = encode_request_header(APIS[api], version, correlation_id, client_id)
    return sized(header + b"".join(request_codec(api).encode(message, version)))


VERSIONS_REQUEST = request_bytes(ApiKey.API_VERSIONS, 3, 5, API_VERSIONS)


class WireClient:
    """One connection, whose bytes a test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> memoryview:
        """The next answer without its size."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return memoryview(await self.reader.readexactly(size))

    async def answer(self, api: ApiKey, version: int) -> tuple[int, Any]:
        """Correlation id and message of the next answer."""
        frame = await self.frame()
        correlation_id, at = decode_response_header(APIS[api], version, frame)
        return correlation_id, decode_response(api, version, frame, at)

    async def ask(self, api: ApiKey, version: int, message: Any, correlation_id: int = 1) -> Any:
        """Sends a request and returns its answer, which has to be the next one."""
        self.send(request_bytes(api, version, correlation_id, message))
        answered, response = await self.answer(api, version)
        assert answered == correlation_id
        return response

    async def is_served(self) -> bool:
        """Whether ApiVersions is answered."""
        response = await self.ask(ApiKey.API_VERSIONS, 3, API_VERSIONS, 77)
        return bool(response.error_code == 0)

    async def rest(self) -> bytes:
        """What comes until the node ends the connection."""
        received = b""
        try:
            while data := await self.reader.read(1 << 16):
                received += data
        except ConnectionError:
            pass  # Closed with bytes that the node did not read.
        return received

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


READ_AHEAD_BYTES = 64 * 1024


async def connect(
    port: int, context: ssl.SSLContext | None = None, read_ahead_bytes: int = READ_AHEAD_BYTES
) -> WireClient:
    """`context` None: without TLS."""
    return WireClient(
        *await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=read_ahead_bytes)
    )


@dataclass
class Wire:
    """Connections that are served, on a port of their own."""

    port: int
    connections: Connections
    dispatcher: Dispatcher
    resources: ListenerResources
    registry: CollectorRegistry
    clients: list[WireClient] = field(default_factory=list)
    context: ssl.SSLContext | None = None
    """Of clients; None: there is no TLS."""

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def ended(self, reason: str) -> float:
        """Connections that the node ended for the reason."""
        return self.metric("streamlog_connections_ended_total", listener="kafka", reason=reason)

    def serve(self) -> None:
        self.connections.serve(self.dispatcher, self.resources)

    async def client(self, read_ahead_bytes: int = READ_AHEAD_BYTES) -> WireClient:
        client = await connect(self.port, self.context, read_ahead_bytes)
        self.clients.append(client)
        return client


@asynccontextmanager
async def wire(
    routes: Mapping[ApiKey, Route] | None = None,
    *,
    limits: LimitsConfig | None = None,
    clock: Clock | None = None,
    held_s: float = HELD_S,
    is_serving: bool = True,
    tls: tuple[NodeTls, ssl.SSLContext] | None = None,
) -> AsyncIterator[Wire]:
    """Connections over `routes` and ApiVersions. At the end none is open, and nothing is held.

    `tls`: of the node, and of its clients.
    """
    limits = limits or LimitsConfig()
    registry = CollectorRegistry()
    resources = listener_resources(registry)
    requests = ActiveRequests(
        limits.requests_max, resources.metrics, ClientMetrics(CollectorRegistry(), 10)
    )
    resources = replace(resources, limits=limits, requests=requests)
    routes = dict(routes or {})
    versions = ApiVersionsHandler((*routes, ApiKey.API_VERSIONS))
    routes[ApiKey.API_VERSIONS] = Route(versions.api_versions)
    connections = Connections("kafka", limits, clock or SystemClock(), held_s=held_s)
    connections.advertised = ("example", 9092)
    loop = asyncio.get_running_loop()
    factory = connections.new if tls is None else TlsConnections(tls[0], connections.new)
    server = await loop.create_server(factory, "127.0.0.1", 0)
    connections.start()
    port = server.sockets[0].getsockname()[1]
    dispatcher = Dispatcher(routes, requests, resources.quotas)
    made = Wire(port, connections, dispatcher, resources, registry)
    made.context = None if tls is None else tls[1]
    if is_serving:
        made.serve()
    try:
        yield made
    finally:
        server.close()
        await connections.stop(0.2)
        for client in made.clients:
            client.writer.transport.abort()  # What a test has not read is of no use any more.
            await client.close()
    assert connections.count == 0
    assert connections.memory.unfilled_bytes == 0
    assert requests.count == 0
    assert made.metric("streamlog_in_flight_bytes") == 0
