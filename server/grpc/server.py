"""The gRPC listener: services, health, reflection, and the limits that gRPC itself enforces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from streamlog.server.addresses import cannot_listen, joined, probe, split_address
from streamlog.server.grpc.calls import Handlers, Rpc
from streamlog.server.grpc.library.connections import count_connections, last_server_id
from streamlog.server.grpc.library.ended_calls import quiet_grpc
from streamlog.settings.limits import LimitsConfig

PENDING_REQUESTS_MIN = 40_000
"""Requests of a burst that wait to be looked at, at least."""


class _Health(health.aio.HealthServicer):  # type: ignore[name-defined,misc]
    """Ends its watches when the server stops: they have no end of their own, and would make every
    stop take the whole grace."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Task[None]] = set()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Rpc) -> None:
        watch = asyncio.ensure_future(super().Watch(request, context))
        self._watches.add(watch)
        try:
            await asyncio.wait({watch})
            if not watch.cancelled():
                watch.result()
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details("the node is shutting down")
        finally:
            watch.cancel()
            self._watches.discard(watch)

    def end_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()


class GrpcServer:
    """Made inside a running loop. Between `bind` and `start` connections wait, unanswered."""

    def __init__(
        self,
        handlers: Iterable[Handlers],
        names: list[str],
        limits: LimitsConfig,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """`credentials` None: the port speaks no TLS."""
        quiet_grpc()
        # Not by requests_max alone: it may rise at run time, and these stay; and a burst comes
        # before anyone looks at it, however low it is. Not by the most that it may rise to either:
        # little else bounds the memory of calls that nobody has looked at. One that was raised
        # above half of this takes larger bursts from the next start on.
        pending_max = max(2 * limits.requests_max, PENDING_REQUESTS_MIN)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.message_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.requests_per_connection_max),
                # gRPC's default cancels, without a reason, requests of a burst beyond 1,000 that
                # wait. With these bounds, requests_max refuses them first, with a reason, unless
                # still more come at once.
                ("grpc.server.max_pending_requests", pending_max),
                ("grpc.server.max_pending_requests_hard_limit", 2 * pending_max),
                ("grpc.max_allowed_incoming_connections", limits.connections_max),
                ("grpc.max_metadata_size", 16 * 1024),
                # A client that vanished without closing its connection is noticed within 30 s.
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.server_handshake_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_ping_strikes", 0),
                # Large frames: fewer system calls for messages of 128 KiB to 1 MiB.
                ("grpc.http2.max_frame_size", 1024 * 1024),
            ]
        )
        self._credentials = credentials
        self._is_started = False
        self._channelz_id = last_server_id()
        self._server.add_generic_rpc_handlers(tuple(handlers))
        self._health = _Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = names
        reflection.enable_server_reflection(
            (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    def bind(self, address: str) -> str:
        """Takes the address; it, with the port that was chosen. Errors: Invalid, Unavailable."""
        host, port = split_address(address)
        probe(address)
        try:
            if self._credentials is None:
                chosen = self._server.add_insecure_port(joined(host, port))
            else:
                chosen = self._server.add_secure_port(joined(host, port), self._credentials)
        except RuntimeError as error:
            raise cannot_listen(address, str(error), "--listen") from error
        return joined(host, chosen)

    async def start(self) -> None:
        """Answers; the health service says NOT_SERVING until `set_serving`."""
        self._is_started = True
        await self._server.start()
        await self.set_serving(False)

    async def set_serving(self, is_serving: bool) -> None:
        """Sets the answer of the health service."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if is_serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *self._names):
            await self._health.set(name, status)

    def connections(self) -> int:
        return count_connections(self._channelz_id)

    async def stop(self, grace_s: float) -> None:
        """No new requests; those under way are cut off after `grace_s`."""
        if not self._is_started:
            # gRPC frees the port of a server only if it was started.
            await self._server.start()
        self._health.end_watches()
        await self._server.stop(grace_s)
