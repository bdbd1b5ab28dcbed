"""`OpenEngine`: a running engine with its logs and services, and how it closes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from streamlog.compaction.collect.collector import Collector
from streamlog.compaction.compactor import Compactor
from streamlog.coordinator.coordinator import Coordinator
from streamlog.engine.engine import Engine
from streamlog.engine.kv_client import EngineKVClient
from streamlog.engine.staging.client import EngineStaging
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.errors import StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.log.manager import LogManager
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.progress import ProgressWatch
from streamlog.tiered.remote_log_manager import RemoteLogManager
from streamlog.unified.log_folder import LogFolder
from streamlog.wal.config import WalMode
from streamlog.wiring.log_folder import LocalLogs
from streamlog.wiring.plan import EnginePlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A node's state, for status commands; sizes in bytes."""

    cluster_id: str
    node_id: int
    tenure: str
    store_url: str
    meta_url: str
    wal: WalMode
    started_ms: int
    streams: int
    objects: int
    pending_upload_bytes: int
    queued_bytes: int
    wal_bytes: int
    metadata_revision: int
    alarms: tuple[str, ...] = ()
    """What needs an operator's attention, each as `name: what (since …)`; docs/operations.md."""


@dataclass(frozen=True, slots=True)
class EngineServices:
    """The parts of an open engine."""

    engine: Engine
    metadata: MetadataSession
    streams: EngineStreamClient
    kv: EngineKVClient
    kv_store: KVStore
    logs: LogManager
    local_logs: LocalLogs
    transactions: Coordinator
    compactor: Compactor | None
    collector: Collector
    staging: EngineStaging
    progress: ProgressWatch


class OpenEngine:
    """An engine with its logs; made by `streamlog.open`."""

    def __init__(self, plan: EnginePlan, services: EngineServices, started_ms: int) -> None:
        self._plan = plan
        self.collector = services.collector
        self.engine = engine = services.engine
        self.streams = services.streams
        self.kv = services.kv
        self.kv_store = services.kv_store
        self.logs = services.logs
        self._local_logs = services.local_logs
        self.transactions = services.transactions
        self.compactor = services.compactor
        self.staging = services.staging
        self.progress = services.progress
        """Callers may add checks of their own."""
        self.metadata = services.metadata
        self.store: ObjectStore = engine.parts.store
        self.registry = engine.parts.registry
        self.clock = engine.parts.clock
        self.random = engine.parts.random
        self.offload = engine.parts.offload
        self._started_ms = started_ms
        self._is_ended = False

    @property
    def wal(self) -> WalMode:
        return self._plan.wal

    @property
    def tiers(self) -> RemoteLogManager | None:
        """The remote tiers of logs in local files; None: they have none."""
        return self._local_logs.tiers

    @property
    def log_folder(self) -> LogFolder | None:
        """The folder of logs in local files; None: the engine has none."""
        return self._local_logs.folder

    async def status(self) -> EngineStatus:
        engine, metadata = self.engine, self.metadata
        wal = engine.parts.wal
        return EngineStatus(
            cluster_id=metadata.cluster_id,
            node_id=self._plan.node_id,
            tenure=str(metadata.tenure),
            store_url=self.store.url,
            meta_url=str(self._plan.meta),
            wal=self._plan.wal,
            started_ms=self._started_ms,
            streams=metadata.stream_count,
            objects=metadata.object_count,
            pending_upload_bytes=engine.pending_upload_bytes,
            queued_bytes=engine.budget.used_bytes,
            wal_bytes=0 if wal is None else wal.live_bytes,
            metadata_revision=metadata.revision,
            alarms=self._alarms(),
        )

    def _alarms(self) -> tuple[str, ...]:
        stopped = self.collector.alarm
        return (
            *(str(alarm) for alarm in self.progress.alarms),
            *([f"deletion_stopped: nothing is deleted any more: {stopped}"] if stopped else []),
            *(f"waiting_for_deletion: {reason}" for reason in self.metadata.waiting_for_sweep()),
            *([f"log_folder: {lost}"] if (lost := self._local_logs.alarm) else []),
            *self._local_logs.tier_alarms(),
            *(f"broker_settings: {reason}" for reason in self.logs.config_alarms()),
            *(f"quotas: {reason}" for reason in self.logs.client_configs.alarms()),
        )

    def not_ready_reason(self) -> str | None:
        """Why requests may fail or wait now: a failure, or work that does not move; else None."""
        failure = self.engine.failure
        if failure is not None:
            return f"the engine has failed: {failure}"
        return "; ".join(str(alarm) for alarm in self.progress.alarms) or None

    def stop_waits_for(self) -> str | None:
        """What does not move while it closes, as far as it is known; a write that hangs is told
        before it is an alarm."""
        folder = self.log_folder
        due = None if folder is None else folder.progress(0.0)
        return self.not_ready_reason() or (None if due is None else due.waits_for)

    async def drain(self) -> None:
        """Returns when every append called so far is confirmed and in the store.

        Errors: the engine's failure, and Closed behind its end: what is not in the store yet is in
        the WAL (`wal="disk"`), and the next start uploads it.
        """
        await self.engine.drain()

    async def wait_stopped(self) -> StreamlogError:
        """Returns when the engine has failed, with the reason.

        Errors: Closed, when it was closed or killed.
        """
        return await self.engine.wait_stopped()

    async def kill(self) -> None:
        """Stops at once, as a crash would: nothing is drained, the tenure is not sealed."""
        if not self._is_ended:
            self._is_ended = True
            await self._kill()

    async def _kill(self) -> None:
        """Kills all parts, even if one of them raises."""
        async with AsyncExitStack() as parts:
            parts.push_async_callback(self.metadata.kill)
            parts.push_async_callback(self.engine.kill)
            parts.push_async_callback(self._local_logs.kill)
            parts.push_async_callback(self.logs.kill)
            if self.compactor is not None:
                parts.push_async_callback(self.compactor.kill)
            parts.push_async_callback(self.transactions.kill)

    async def close(self) -> None:
        """Drains within `drain_timeout_ms`, seals the tenure, stops. Called when the context ends.

        The time covers the partitions as well as the engine: without the store, closing a partition
        would also wait for ever.
        """
        if not self._is_ended:
            self._is_ended = True
            try:
                await self._close()
            except BaseException:
                # No part may keep running after its caller was cancelled or got an error. The next
                # start does the rest, as after a crash.
                await self._kill()
                raise

    async def _close(self) -> None:
        began = self.clock.monotonic()
        await self.transactions.close()
        drain_s = self.engine.config.append.drain_timeout_ms / 1000
        try:
            async with asyncio.timeout(drain_s):
                await self.logs.stop()
                await self._local_logs.close()
        except TimeoutError:
            log.warning("closed before all partitions were given up; the next start takes them")
            await self.logs.kill()
            await self._local_logs.kill()
        if self.compactor is not None:
            await self.compactor.close()
        await self.engine.close(began + drain_s - self.clock.monotonic())
        await self.metadata.close(drained=self.engine.is_drained)
