"""The listeners of one node over an open engine: services, gRPC, HTTP, and their orderly end.

Draining: not ready → long polls answered → streams take no more requests and answer those taken →
gRPC ends → HTTP ends. What still runs after the grace is cut off.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector

from streamlog.compaction.compactor import Compactor
from streamlog.model.kv import KVClient
from streamlog.model.stream import StreamClient
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.offload import Offload
from streamlog.runtime.progress import ProgressWatch
from streamlog.runtime.rand import Random
from streamlog.server.context import Authorize, allow_all
from streamlog.server.grpc.admin import GrpcAdmin
from streamlog.server.grpc.calls import Calls, Handlers
from streamlog.server.grpc.compaction import GrpcCompaction
from streamlog.server.grpc.kv import GrpcKV
from streamlog.server.grpc.log import GrpcLog
from streamlog.server.grpc.staging import GrpcStaging
from streamlog.server.grpc.stream import GrpcStream
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.limits.pipeline import Drain
from streamlog.server.listeners.http import HttpSource
from streamlog.server.listeners.node_listeners import Listeners
from streamlog.server.metrics import ClientMetrics, ServerMetrics, TopicMetrics
from streamlog.server.process_metrics import resident_bytes, watch_loop_lag
from streamlog.server.services.admin import AdminService
from streamlog.server.services.fetch import FetchService, LongPolls
from streamlog.server.services.kv import KVService
from streamlog.server.services.locating import LocatableMetadata, LocateService, ObjectPins
from streamlog.server.services.log import LogService
from streamlog.server.services.merging import MergeService
from streamlog.server.services.objects import ObjectService
from streamlog.server.services.ports import Logs
from streamlog.server.services.produce import ProduceService
from streamlog.server.services.staging import StagingService
from streamlog.server.services.stream import StreamService
from streamlog.server.spare_memory import INTERVAL_S, SpareMemory
from streamlog.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """What the listeners serve. `status` gives fields of GetStatusResponse by name."""

    streams: StreamClient
    kv: KVClient
    kv_revision: Callable[[], Awaitable[int]]
    logs: Logs
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
    not_ready_reason: Callable[[], str | None] = lambda: None
    """Why requests may wait or fail, though the engine lives."""
    progress: ProgressWatch | None = None
    """The node's watch over its own work; listeners add their checks to it."""
    read_bytes: Callable[[], int] = lambda: 0
    """Bytes that were read from the store so far."""


class Service:
    """Made inside a running loop; of use after `start`."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        authorize: Authorize = allow_all,
        listeners: Listeners | None = None,
    ) -> None:
        """`listeners` may be listening already, while the backend was opened."""
        self._settings = settings
        self._backend = backend
        self._background = Background("service", self._failed)
        self.metrics = ServerMetrics(backend.registry)
        ProcessCollector(registry=backend.registry)
        self._drain = Drain()
        self._polls = LongPolls()
        self._set_bounds()
        self._is_ready = False
        self._is_stopping = False
        self._clients = ClientMetrics(backend.registry, settings.limits.client_ids_max)
        self._calls = Calls(
            clock=backend.clock,
            random=backend.random,
            limits=settings.limits,
            metrics=self.metrics,
            clients=self._clients,
        )
        self._listeners = listeners or Listeners(settings)
        self._served = self._handlers(authorize)

    def _set_bounds(self) -> None:
        limits, metrics = self._settings.limits, self.metrics
        metrics.long_polls.set_function(lambda: self._polls.waiting)
        if self._backend.progress is not None:
            self._backend.progress.watch("long_polls", self._polls.progress)
        metrics.requests_bound.set(limits.requests_max)
        metrics.connections_bound.set(limits.connections_max)
        metrics.in_flight_bytes_bound.set(limits.in_flight_bytes_per_connection_max)
        metrics.message_bytes_bound.set(limits.message_bytes_max)

    def _handlers(self, authorize: Authorize) -> list[Handlers]:
        backend, limits = self._backend, self._settings.limits
        topics = self._topics = TopicMetrics(
            backend.registry, lambda name: backend.logs.topic(name) is not None
        )
        budgets = Budgets(limits.in_flight_bytes_per_connection_max, self.metrics)
        calls, drain, clock = self._calls, self._drain, backend.clock
        produce = ProduceService(
            backend.logs,
            clock=clock,
            authorize=authorize,
            limits=limits,
            metrics=topics,
            auto_create=self._auto_create,
            offload=backend.offload,
            clients=self._clients,
        )
        fetch = FetchService(
            backend.logs,
            self._polls,
            clock=clock,
            authorize=authorize,
            limits=limits,
            metrics=topics,
            offload=backend.offload,
            record_bytes_max=self._settings.log.decoded_bytes_max,
            clients=self._clients,
        )
        streams = StreamService(
            backend.streams, self._polls, clock=clock, authorize=authorize, limits=limits
        )
        admin = self._admin = AdminService(
            backend.logs,
            self._settings,
            node_id=self._settings.node.node_id,
            authorize=authorize,
            metrics=self.metrics,
            topic_metrics=topics,
            auto_create=self._auto_create,
        )
        objects = ObjectService(backend.store, backend.is_live_object, authorize=authorize)
        locating = LocateService(
            backend.logs, backend.metadata, backend.pins, authorize=authorize, limits=limits
        )
        merging = MergeService(
            backend.compactor, backend.cluster_id, backend.store, authorize=authorize
        )
        return [
            GrpcLog(
                produce,
                fetch,
                LogService(backend.logs, clock=clock, authorize=authorize, limits=limits),
                calls=calls,
                budgets=budgets,
                drain=drain,
                offload=backend.offload,
            ).handlers(),
            GrpcStream(
                streams, calls=calls, budgets=budgets, drain=drain, metrics=self.metrics
            ).handlers(),
            GrpcStaging(
                StagingService(backend.logs, authorize=authorize, limits=limits),
                calls=calls,
                budgets=budgets,
            ).handlers(),
            GrpcKV(
                KVService(backend.kv, backend.kv_revision, authorize=authorize, limits=limits),
                calls=calls,
                drain=drain,
            ).handlers(),
            GrpcAdmin(
                admin,
                objects,
                locating,
                self._status,
                backend.backup,
                calls=calls,
                authorize=authorize,
            ).handlers(),
            GrpcCompaction(merging, calls=calls, drain=drain).handlers(),
        ]

    def _auto_create(self) -> bool:
        return bool(self._settings.broker.auto_create_topics_enable)

    async def _status(self) -> dict[str, Any]:
        topics, partitions = self._admin.count()
        return {
            **await self._backend.status(),
            "topics": topics,
            "partitions": partitions,
            "rss_bytes": resident_bytes(),
            "connections": self._listeners.grpc.connections(),
        }

    async def start(self) -> None:
        """Listens and serves. Errors: Invalid (address not allowed), Unavailable (port in use)."""
        if not self._listeners.is_listening:
            await self._listeners.start()
        backend = self._backend
        self.metrics.is_insecure.set(int(self.is_insecure))
        await self._listeners.serve(
            self._served,
            HttpSource(
                backend.registry,
                not_ready_reason=self.not_ready_reason,
                is_alive=lambda: backend.is_alive() and self._background.failure is None,
                before_scrape=self._before_scrape,
                offload=backend.offload,
            ),
        )
        watch_loop_lag(self._background, self.metrics)
        spare = SpareMemory(self._backend.read_bytes, self._backend.offload)
        self._background.every(lambda: INTERVAL_S, spare.tick, name="spare_memory")
        self._is_ready = True
        self.metrics.is_ready.set(1)

    @property
    def grpc_address(self) -> str:
        return self._listeners.grpc_address

    @property
    def http_address(self) -> str:
        return self._listeners.http_address

    @property
    def is_insecure(self) -> bool:
        return self._listeners.is_insecure

    def not_ready_reason(self) -> str | None:
        """Why no requests should be sent here now, for people; None: they should."""
        if self._is_stopping:
            return "the node is draining"
        if not self._is_ready:
            return "the node is starting"
        reason = self._backend.not_ready_reason()
        if reason is None and not self._backend.is_alive():
            return "the engine has failed; see the log"
        return reason

    async def stop(self, grace_s: float) -> None:
        """Drains, then ends the listeners; what still runs after `grace_s` is cut off.

        Call it again and nothing happens.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        self._is_ready = False
        self.metrics.is_ready.set(0)
        await self._listeners.grpc.set_serving(False)
        self._polls.drain()
        self._drain.start()
        await self._listeners.stop(grace_s)
        await self._background.close()

    def _before_scrape(self) -> None:
        self.metrics.rss_bytes.set(resident_bytes())
        self.metrics.connections.set(self._listeners.grpc.connections())
        topics, partitions = self._admin.count()
        self.metrics.topics.set(topics)
        self._topics.forget_deleted()
        self.metrics.partitions.set(partitions)

    def _failed(self, error: BaseException) -> None:
        log.error("a task of the service failed", extra={"error": str(error)})
