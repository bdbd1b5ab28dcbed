"""A server over fakes on a real socket, on the test's own event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
from prometheus_client import CollectorRegistry

from streamlog.codec.records import encode_values
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.server.composition import Backend
from streamlog.server.context import Authorize, allow_all
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.limits.pipeline import Drain
from streamlog.server.limits.quotas.client_quotas import ClientQuotas
from streamlog.server.limits.quotas.limited_client import QuotaWindows
from streamlog.server.limits.requests import ActiveRequests
from streamlog.server.limits.shared import ListenerResources
from streamlog.server.listeners.grpc_listener import GrpcListener
from streamlog.server.listeners.http import HttpListener
from streamlog.server.listeners.listener import Listener
from streamlog.server.listeners.listeners import Listeners
from streamlog.server.metrics import ClientMetrics, ServerMetrics
from streamlog.server.node_server import NodeServer
from streamlog.server.tls.node_tls import node_tls
from streamlog.settings import Settings, load
from streamlog.settings.limits import LimitsConfig
from streamlog.v1 import log_pb2
from streamlog.v1.log_pb2_grpc import LogServiceStub
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.grpc_aio import END_OF_CALL, close
from tests.support.server_fakes import FakeLogs


@dataclass
class Running:
    service: NodeServer
    logs: FakeLogs
    channel: grpc.aio.Channel
    registry: CollectorRegistry

    @property
    def log_stub(self) -> Any:
        return LogServiceStub(self.channel)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def with_limits(**limits: int) -> Settings:
    settings = load(None, {}, {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"})
    return replace(settings, limits=replace(settings.limits, **limits))


def listener_resources(registry: CollectorRegistry) -> ListenerResources:
    """What a single listener needs beside its services, with the default limits."""
    limits, metrics, clock = LimitsConfig(), ServerMetrics(registry), SystemClock()
    clients = ClientMetrics(registry, 10)
    return ListenerResources(
        limits=limits,
        metrics=metrics,
        requests=ActiveRequests(limits.requests_max, metrics, clients),
        quotas=ClientQuotas(QuotaWindows(clock, 11, 1), clients),
        budgets=Budgets(limits.in_flight_bytes_per_connection_max, metrics),
        drain=Drain(),
        clock=clock,
        random=SeededRandom(1),
        offload=ThreadOffload(),
    )


def _is_starting() -> str:
    return "starting"


async def _status() -> dict[str, Any]:
    return {"cluster_id": "c", "node_id": 1}


@asynccontextmanager
async def running(
    settings: Settings | None = None,
    *,
    more: Sequence[Listener] = (),
    authorize: Authorize = allow_all,
    **parts: Any,
) -> AsyncIterator[Running]:
    """`more`: listeners beside those of the settings. `parts`: of the Backend."""
    logs = FakeLogs()
    await logs.create_topic("t", 2)
    registry = CollectorRegistry()
    offload = ThreadOffload()
    backend = Backend(
        **{
            "streams": None,
            "kv": None,
            "kv_revision": None,
            "logs": logs,
            "transactions": FakeCoordinator(),
            "store": None,
            "is_live_object": None,
            "metadata": None,
            "pins": None,
            "status": _status,
            "backup": None,
            "is_alive": lambda: True,
            "registry": registry,
            "clock": SystemClock(),
            "random": SeededRandom(1),
            "offload": offload,
            **parts,
        }
    )
    settings = (settings or with_limits()).for_mode("serve")
    tls = node_tls(settings.tls)
    standard: list[Listener] = [
        HttpListener(settings, _is_starting, tls),
        GrpcListener(settings, _is_starting, tls),
    ]
    service = NodeServer(backend, settings, Listeners([*standard, *more], tls=tls), authorize)
    await service.start()
    channel = new_channel(service)
    try:
        yield Running(service, logs, channel, registry)
    finally:
        await close(channel)
        await service.stop(0.2)
        await offload.close()


def new_channel(service: NodeServer) -> grpc.aio.Channel:
    """A channel that shares no connection."""
    return grpc.aio.insecure_channel(
        service.grpc_address,
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ],
    )


def batch(*values: bytes) -> bytes:
    return bytes(encode_values(values, timestamp_ms=1000).data)


class Answers:
    """Reads the answers of a ProduceStream call one by one, whatever messages carry them."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._ahead: deque[Any] = deque()

    async def read(self) -> Any:
        """The next ProduceStreamAnswer, or grpc.aio.EOF."""
        while not self._ahead:
            message = await self._call.read()
            if message is END_OF_CALL:
                return message
            if isinstance(message, bytes):
                message = log_pb2.ProduceStreamResponse.FromString(message)
            self._ahead += message.answers
        return self._ahead.popleft()
