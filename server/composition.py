"""Builds the services of a node, once, over an open engine.

Listeners get the result and serve it over their protocols. This module imports no protocol: code
that speaks gRPC or Kafka's protocol stands above it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from streamlog.compaction.compactor import Compactor
from streamlog.coordinator.api import TransactionCoordinator
from streamlog.model.kv import KVClient
from streamlog.model.stream import StreamClient
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.offload import Offload
from streamlog.runtime.progress import ProgressWatch
from streamlog.runtime.rand import Random
from streamlog.server.addresses import Endpoint
from streamlog.server.context import Authorize
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.limits.pipeline import Drain
from streamlog.server.limits.quotas.client_quotas import ClientQuotas
from streamlog.server.limits.quotas.limited_client import QuotaWindows
from streamlog.server.limits.requests import ActiveRequests
from streamlog.server.limits.shared import ListenerResources
from streamlog.server.metrics import ClientMetrics, ServerMetrics, TopicTraffic
from streamlog.server.process_metrics import resident_bytes
from streamlog.server.runtime_settings import RuntimeSettings
from streamlog.server.services.admin import AdminService
from streamlog.server.services.configs import ConfigService
from streamlog.server.services.kv import KVService
from streamlog.server.services.locating import LocatableMetadata, LocateService, ObjectPins
from streamlog.server.services.log import LogService
from streamlog.server.services.merging import MergeService
from streamlog.server.services.objects import ObjectService
from streamlog.server.services.partition_sizes import PartitionSizes
from streamlog.server.services.ports import Logs
from streamlog.server.services.quotas.quota_service import QuotaService
from streamlog.server.services.records.fetch import FetchService
from streamlog.server.services.records.long_polls import LongPolls
from streamlog.server.services.records.parts import RecordParts
from streamlog.server.services.records.produce import ProduceService
from streamlog.server.services.staging import StagingService
from streamlog.server.services.status import StatusService
from streamlog.server.services.stream import StreamService
from streamlog.server.services.topic_views import TopicViews
from streamlog.server.services.transactions import TransactionService
from streamlog.settings import Settings
from streamlog.tiered.remote_log_manager import RemoteLogManager


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts of an open engine that the services use.

    `status` gives fields of GetStatusResponse by name.
    """

    streams: StreamClient
    kv: KVClient
    kv_revision: Callable[[], Awaitable[int]]
    logs: Logs
    transactions: TransactionCoordinator
    store: ObjectStore
    is_live_object: Callable[[int], Awaitable[bool]]
    metadata: LocatableMetadata
    pins: ObjectPins
    status: Callable[[], Awaitable[dict[str, Any]]]
    backup: Callable[[], AsyncIterator[bytes]]
    is_alive: Callable[[], bool]
    registry: CollectorRegistry
    clock: Clock
    random: Random
    offload: Offload
    cluster_id: str = ""
    compactor: Compactor | None = None
    tiers: RemoteLogManager | None = None
    not_ready_reason: Callable[[], str | None] = lambda: None
    """Why requests may wait or fail, though the engine lives."""
    progress: ProgressWatch | None = None
    """The node's watch over its own work; the services add their checks to it."""
    read_bytes: Callable[[], int] = lambda: 0
    """Bytes that were read from the store so far."""


@dataclass(frozen=True, slots=True)
class Services:
    """Every service of a node, and the resources that its listeners share."""

    produce: ProduceService
    fetch: FetchService
    log: LogService
    transactions: TransactionService
    streams: StreamService
    staging: StagingService
    kv: KVService
    admin: AdminService
    topic_views: TopicViews
    partition_sizes: PartitionSizes
    configs: ConfigService
    quotas: QuotaService
    objects: ObjectService
    locating: LocateService
    merging: MergeService
    status: StatusService
    polls: LongPolls
    topic_metrics: TopicTraffic
    resources: ListenerResources
    cluster_id: str
    node_id: int
    rack: str | None
    store_url: str


def _runtime_settings(
    backend: Backend, settings: Settings, resources: ListenerResources
) -> RuntimeSettings:
    """The server's part of what changes at run time, in force and followed."""
    logs = backend.logs
    runtime = RuntimeSettings(settings, lambda: logs.broker_configs.in_force())
    runtime.bound_requests(resources.requests, resources.metrics)
    if backend.tiers is not None:
        runtime.bound_tiers(backend.tiers)
    logs.on_broker_configs(runtime.follow)
    runtime.follow()
    return runtime


def compose(
    backend: Backend,
    settings: Settings,
    authorize: Authorize,
    *,
    connections: Callable[[], int],
    endpoints: Callable[[], Sequence[Endpoint]],
    background: Background,
    alarms: Callable[[], Sequence[str]] = lambda: (),
) -> Services:
    """The services over `backend`.

    `connections`, `endpoints`, `alarms`: of the listeners, for the status. `background` runs what
    goes on when its request has been answered.
    """
    logs, clock, limits = backend.logs, backend.clock, settings.limits
    clients = ClientMetrics(backend.registry, limits.client_ids_max)
    resources = _resources(backend, settings, clients)
    topics = TopicTraffic(backend.registry, lambda name: logs.topic(name) is not None)
    polls = _long_polls(backend, resources.metrics)
    parts = _record_parts(backend, settings, authorize, resources.metrics, topics, clients)
    runtime = _runtime_settings(backend, settings, resources)
    admin = AdminService(
        logs,
        settings,
        node_id=settings.node.node_id,
        clock=clock,
        authorize=authorize,
        metrics=resources.metrics,
        topic_metrics=topics,
        auto_create=runtime.auto_create,
    )

    return Services(
        produce=ProduceService(parts, auto_create=runtime.auto_create),
        fetch=FetchService(parts, polls, record_bytes_max=settings.log.decoded_bytes_max),
        log=LogService(logs, clock=clock, authorize=authorize, limits=limits),
        transactions=_transactions(backend, settings, authorize),
        streams=StreamService(
            backend.streams, polls, clock=clock, authorize=authorize, limits=limits
        ),
        staging=StagingService(logs, backend.transactions, authorize=authorize, limits=limits),
        kv=KVService(backend.kv, backend.kv_revision, authorize=authorize, limits=limits),
        admin=admin,
        topic_views=TopicViews(
            logs,
            clock=clock,
            authorize=authorize,
            background=background,
            auto_create=runtime.auto_create,
        ),
        partition_sizes=PartitionSizes(
            logs, node_id=settings.node.node_id, clock=clock, authorize=authorize, limits=limits
        ),
        configs=ConfigService(logs, settings, node_id=settings.node.node_id, authorize=authorize),
        quotas=QuotaService(logs, authorize=authorize),
        objects=ObjectService(backend.store, backend.is_live_object, authorize=authorize),
        locating=LocateService(
            logs, backend.metadata, backend.pins, authorize=authorize, limits=limits
        ),
        merging=MergeService(
            backend.compactor, backend.cluster_id, backend.store, authorize=authorize
        ),
        status=StatusService(
            _status(backend, admin, connections, endpoints, alarms),
            backend.backup,
            authorize=authorize,
        ),
        polls=polls,
        topic_metrics=topics,
        resources=resources,
        cluster_id=backend.cluster_id,
        node_id=settings.node.node_id,
        rack=settings.engine.metadata.rack or None,
        store_url=settings.node.store or "",
    )


def _transactions(backend: Backend, settings: Settings, authorize: Authorize) -> TransactionService:
    return TransactionService(
        backend.transactions,
        backend.logs,
        node_id=settings.node.node_id,
        clock=backend.clock,
        authorize=authorize,
        limits=settings.limits,
    )


def _record_parts(
    backend: Backend,
    settings: Settings,
    authorize: Authorize,
    metrics: ServerMetrics,
    topics: TopicTraffic,
    clients: ClientMetrics,
) -> RecordParts:
    return RecordParts(
        logs=backend.logs,
        coordinator=backend.transactions,
        clock=backend.clock,
        authorize=authorize,
        limits=settings.limits,
        topics=topics,
        clients=clients,
        metrics=metrics,
        offload=backend.offload,
    )


def _status(
    backend: Backend,
    admin: AdminService,
    connections: Callable[[], int],
    endpoints: Callable[[], Sequence[Endpoint]],
    alarms: Callable[[], Sequence[str]],
) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What GetStatus tells: the engine's fields, and those of the node around it."""

    async def status() -> dict[str, Any]:
        topic_count, partition_count = admin.count()
        fields = await backend.status()
        return {
            **fields,
            "alarms": [*fields.get("alarms", ()), *alarms()],
            "topics": topic_count,
            "partitions": partition_count,
            "rss_bytes": resident_bytes(),
            "connections": connections(),
            "listeners": [asdict(endpoint) for endpoint in endpoints()],
        }

    return status


def _resources(backend: Backend, settings: Settings, clients: ClientMetrics) -> ListenerResources:
    limits = settings.limits
    metrics = ServerMetrics(backend.registry)
    metrics.requests_bound.set(limits.requests_max)
    metrics.connections_bound.set(limits.connections_max)
    metrics.in_flight_bytes_bound.set(limits.in_flight_bytes_per_connection_max)
    metrics.message_bytes_bound.set(limits.message_bytes_max)
    return ListenerResources(
        limits=limits,
        metrics=metrics,
        requests=ActiveRequests(limits.requests_max, metrics, clients),
        quotas=_quotas(backend, settings, clients),
        budgets=Budgets(limits.in_flight_bytes_per_connection_max, metrics),
        drain=Drain(),
        clock=backend.clock,
        random=backend.random,
        offload=backend.offload,
    )


def _quotas(backend: Backend, settings: Settings, clients: ClientMetrics) -> ClientQuotas:
    samples, sample_s = (
        settings.broker.quota_window_num,
        settings.broker.quota_window_size_seconds,
    )
    quotas = ClientQuotas(QuotaWindows(backend.clock, samples, sample_s), clients)
    quotas.follow(backend.logs.client_configs)
    return quotas


def _long_polls(backend: Backend, metrics: ServerMetrics) -> LongPolls:
    polls = LongPolls()
    metrics.long_polls.set_function(lambda: polls.waiting)
    if backend.progress is not None:
        backend.progress.watch("long_polls", polls.progress)
    return polls
