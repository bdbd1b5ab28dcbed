"""The gRPC listener: services, health, reflection, and the limits that gRPC itself enforces."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from streamlog.errors import Invalid, Unavailable
from streamlog.server.grpc.calls import Handlers
from streamlog.server.grpc.connections import count_connections, last_server_id
from streamlog.server.grpc.ended_calls import quiet_grpc
from streamlog.settings.limits import LimitsConfig


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT. Errors: Invalid."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise Invalid(f"{address[:80]!r} is no address; give HOST:PORT, such as 127.0.0.1:9644")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def probe(address: str, option: str = "--listen") -> None:
    """Listens on the address for a moment. Errors: Invalid, Unavailable, which name the reason.

    gRPC prints why it cannot listen and raises without the reason; a socket says it.
    """
    host, port = split_address(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            # Where another one listens with the same option, only this fails.
            listener.listen(1)
    except OSError as error:
        raise _cannot_listen(address, error.strerror or str(error), option) from error


def _cannot_listen(address: str, reason: str, option: str) -> Unavailable:
    purpose = "HTTP" if option == "--http-listen" else "gRPC"
    return Unavailable(
        f"cannot listen on {address} for {purpose} ({reason}): the port is in use, or the address "
        f"is not this machine's; choose another with {option}",
        address=address,
    )


class GrpcServer:
    """Made inside a running loop; of use after `start`."""

    def __init__(
        self, handlers: Iterable[Handlers], names: list[str], limits: LimitsConfig
    ) -> None:
        quiet_grpc()
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.message_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.requests_per_connection_max),
                # By default gRPC cancels, without a reason, what of a burst waits beyond
                # 1,000 requests; ours are refused beyond requests_max, with one.
                ("grpc.server.max_pending_requests", 2 * limits.requests_max),
                ("grpc.server.max_pending_requests_hard_limit", 4 * limits.requests_max),
                ("grpc.max_allowed_incoming_connections", limits.connections_max),
                ("grpc.max_metadata_size", 16 * 1024),
                # A client that vanished without a word is noticed within 30 s.
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_ping_strikes", 0),
                # Large frames: fewer system calls for messages of 128 KiB to 1 MiB.
                ("grpc.http2.max_frame_size", 1024 * 1024),
            ]
        )
        self._channelz_id = last_server_id()
        self._server.add_generic_rpc_handlers(tuple(handlers))
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = names
        reflection.enable_server_reflection(
            (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    async def start(self, address: str) -> str:
        """Listens; the address with the port that was chosen. Errors: Invalid, Unavailable.

        The health service says NOT_SERVING until `set_serving`.
        """
        host, port = split_address(address)
        probe(address)
        try:
            chosen = self._server.add_insecure_port(joined(host, port))
        except RuntimeError as error:
            raise _cannot_listen(address, str(error), "--listen") from error
        await self._server.start()
        await self.set_serving(False)
        return joined(host, chosen)

    async def set_serving(self, is_serving: bool) -> None:
        """What the health service says from now on."""
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
        await self._server.stop(grace_s)
