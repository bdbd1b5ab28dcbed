"""`open`: builds all parts of an engine in order, and closes them in reverse.

Order: metadata store (its lock keeps a second process out), object store, cluster id, WAL, metadata
(a new tenure), engine (takes over streams, replays the WAL), logs, transaction coordinator. On
closing, the coordinator and the logs stop, the engine drains, the tenure is sealed, and every part
that was built here is closed. Parts that the caller passed in `Components` stay open.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry

from streamlog.compaction.collect.collector import Collector
from streamlog.compaction.compactor import Compactor
from streamlog.compaction.opening import open_compactor
from streamlog.coordinator.config import TransactionConfig
from streamlog.coordinator.coordinator import Coordinator
from streamlog.engine.config import StreamEngineConfig
from streamlog.engine.engine import Engine, EngineParts
from streamlog.engine.kv_client import EngineKVClient
from streamlog.engine.staging.client import EngineStaging
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.errors import Invalid
from streamlog.log.api.config import LogConfig
from streamlog.log.manager import LogManager
from streamlog.log.opening import open_logs
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.open import open_metadata
from streamlog.metadata.session import MetadataSession
from streamlog.model.kv import KVClient
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.concurrency.catch_up_throttle import ReadThrottle
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.opening import TierRuntime
from streamlog.tiered.unopened import UnopenedTiers
from streamlog.unified.log_folder import FolderOwner
from streamlog.wal.config import WalMode
from streamlog.wal.log import WriteAheadLog
from streamlog.wiring.engine import EngineServices, OpenEngine
from streamlog.wiring.log_folder import LocalLogs, OpenTiers
from streamlog.wiring.plan import (
    Components,
    EnginePlan,
    Runtime,
    checked_log_dir,
    plan_engine,
    threads_for,
)
from streamlog.wiring.progress import run_checks, watch_progress
from streamlog.wiring.stores import OpenStores, open_stores
from streamlog.wiring.tiers import open_tiers
from streamlog.wiring.wal import open_wal

log = logging.getLogger(__name__)

T = TypeVar("T")
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Configs:
    """Settings of the parts, by layer."""

    engine: StreamEngineConfig
    logs: LogConfig
    transactions: TransactionConfig
    tiers: RemoteLogConfig


def _given(name: str, given: T | None, kind: type[T]) -> T:
    """`given`, or the defaults. Errors: Invalid for what is of another type, an empty dict too."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise Invalid(f"{name} is a {kind.__name__}, not {type(given).__name__}")
    return given


@asynccontextmanager
async def open(
    store: str,
    *,
    meta: str | None = None,
    wal: WalMode | None = None,
    wal_dir: str | Path | None = None,
    log_dir: str | Path | None = None,
    node_id: int = 1,
    config: StreamEngineConfig | None = None,
    logs: LogConfig | None = None,
    transactions: TransactionConfig | None = None,
    tiers: RemoteLogConfig | None = None,
    components: Components | None = None,
    check_store: bool = False,
    accept_data_loss: bool = False,
    upkeep: bool = True,
    on_step: OnStep = lambda _: None,
) -> AsyncIterator[OpenEngine]:
    """Opens an engine in this process: `streams` and `kv` of what it returns are for applications.
    Appends acknowledged when the context ends are in the store, or, where that was away for the
    config's `drain_timeout_ms`, in the WAL (`wal="disk"`), and the next start uploads them.

    `store` is memory://, local:///abs/path or s3://bucket/prefix; `meta` defaults to
    rocksdb:///PATH/meta for local:///PATH. `wal` defaults to disk on local stores and object on
    others; its folder to PATH/wal. `log_dir` is the folder of topics with log.type=unified, which
    are refused without one; `accept_data_loss` opens those of them that end before what was durable
    there. `check_store` sends half a dozen requests first, which tell
    whether the store does what streamlog relies on. `on_step` is called with a noun for each part
    that is opened. Unavailable: a store or the metadata is away; opening may be tried again.

    `upkeep` False is for tools on the data of a stopped node, whose settings they may not have:
    nothing goes by retention, cleaning, expiry or a collector's delay, nothing is merged, no
    transactions are coordinated, and no remote tiers opened: of `tiers` only `is_enabled` counts,
    and where it is true no partition of a log folder is deleted, as it may have records there. Only
    a log that is opened forgets producers, by `logs`.

    Errors: Invalid (a URL, or what does not go together), DataInUse (another process has the data),
    ForeignCluster, LineageFenced, WalPending, Corrupt, UnsupportedVersion, Unavailable (a folder or
    a store), StoreUntrusted.
    """
    parts = _given("components", components, Components)
    plan = replace(
        plan_engine(store, meta, wal, wal_dir, node_id, parts),
        log_dir=checked_log_dir(log_dir),
        accepts_data_loss=accept_data_loss,
        has_upkeep=upkeep,
    )
    configs = Configs(
        _given("config", config, StreamEngineConfig),
        _given("logs", logs, LogConfig),
        _given("transactions", transactions, TransactionConfig),
        _given("tiers", tiers, RemoteLogConfig),
    )
    opening = _Opening(plan, configs, parts, on_step)
    async with AsyncExitStack() as built:
        opened = await opening.run(built, check_store=check_store)
        try:
            yield opened
        finally:
            await opened.close()


class _Opening:
    """The steps of one `open`."""

    def __init__(
        self,
        plan: EnginePlan,
        configs: Configs,
        components: Components,
        on_step: OnStep,
    ) -> None:
        self._plan = plan
        self._config = configs.engine
        self._configs = configs
        self._components = components
        self._on_step = on_step

    async def run(self, built: AsyncExitStack, *, check_store: bool) -> OpenEngine:
        plan, config, components = self._plan, self._config, self._components
        runtime = self._runtime(built)
        started_ms = runtime.clock.now_ms()
        stores = await open_stores(
            plan,
            config,
            components,
            runtime,
            built,
            check_store=check_store,
            on_step=self._on_step,
        )
        self._on_step(f"the write-ahead log {plan.wal_dir or ''}".rstrip())
        wal = await open_wal(plan, config, components, runtime, built)
        self._on_step(f"the metadata in {plan.meta} and its checkpoint in {plan.store}")
        metadata = await self._open_metadata(stores, wal, runtime)
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(metadata.kill)
            engine = self._make_engine(metadata, stores, wal, runtime)
            on_failure.push_async_callback(engine.kill)
            self._on_step(
                f"the streams, with metadata in {plan.meta} and the object store {plan.store}"
            )
            await engine.start()
            services = await self._start_services(engine, metadata, stores, runtime, built)
            on_failure.pop_all()
        log.info(
            "opened",
            extra={
                "cluster": stores.cluster_id,
                "tenure": str(metadata.tenure),
                "store": stores.store.url,
                "meta": str(plan.meta),
                "wal": plan.wal,
            },
        )
        return OpenEngine(plan, services, started_ms)

    def _runtime(self, built: AsyncExitStack) -> Runtime:
        components = self._components
        offload = components.offload
        if offload is None:
            offload = ThreadOffload(threads_for(self._plan, self._config))
            built.push_async_callback(offload.close)
        registry = CollectorRegistry()
        if components.registry is not None:
            # A registry takes each metric once, and the caller's may see several engines in turn.
            components.registry.register(registry)
            built.callback(components.registry.unregister, registry)
        return Runtime(
            components.clock or SystemClock(),
            components.random or SystemRandom(),
            offload,
            registry,
        )

    async def _open_metadata(
        self, stores: OpenStores, wal: WriteAheadLog | None, runtime: Runtime
    ) -> MetadataSession:
        plan = self._plan
        # The WAL that disk mode left behind may hold appends that no other node may take over.
        has_wal = plan.wal == "disk" or (wal is not None and wal.live_bytes > 0)
        return await open_metadata(
            stores.kv,
            stores.store,
            cluster_id=stores.cluster_id,
            node_id=plan.node_id,
            wal_mode="disk" if has_wal else "object",
            clock=runtime.clock,
            random=runtime.random,
            offload=runtime.offload,
            registry=runtime.registry,
            config=self._config.metadata,
        )

    def _make_engine(
        self,
        metadata: MetadataSession,
        stores: OpenStores,
        wal: WriteAheadLog | None,
        runtime: Runtime,
    ) -> Engine:
        parts = EngineParts(
            self._plan.wal,
            metadata,
            stores.store,
            wal,
            runtime.clock,
            runtime.random,
            runtime.offload,
            runtime.registry,
            self._plan.is_remote,
        )
        return Engine(parts, self._config)

    async def _start_services(
        self,
        engine: Engine,
        metadata: MetadataSession,
        stores: OpenStores,
        runtime: Runtime,
        built: AsyncExitStack,
    ) -> EngineServices:
        """Starts all that runs on a started engine."""
        config, plan = self._config, self._plan
        owner = FolderOwner(stores.cluster_id, plan.node_id)
        tree = self._components.log_tree
        local = LocalLogs(plan.log_dir, owner, tree, accepts_data_loss=plan.accepts_data_loss)
        streams = EngineStreamClient(engine)
        staging = EngineStaging(engine, streams, metadata, config.staging)
        staging.start(drops_expired=plan.has_upkeep)
        kv = EngineKVClient(stores.kv, prefix_of(stores.cluster_id))
        collector = self._start_collector(engine, metadata, stores, runtime)
        logs = await open_logs(
            streams,
            kv,
            clock=runtime.clock,
            random=runtime.random,
            registry=runtime.registry,
            config=_bounded(self._configs.logs, engine),
            offload=runtime.offload,
            staged=staging,
            node_id=self._plan.node_id,
            others=lambda environment: local.open(
                environment,
                runtime.offload,
                kv,
                built,
                self._tiers(stores, kv, runtime, engine.throttle),
            ),
            throttle=engine.throttle,
            upkeep=plan.has_upkeep,
        )
        try:
            await local.start_tiers(logs)
        except BaseException:
            await logs.kill()
            await local.kill()
            raise
        engine.background.spawn(_fail_with(logs), name="watch_logs")
        transactions = self._start_coordinator(logs, runtime)
        engine.background.spawn(_fail_with(transactions), name="watch_coordinator")
        compactor = self._start_compactor(engine, metadata, stores, runtime)
        progress = watch_progress(
            config.progress, runtime.registry, engine, metadata, logs, compactor, stores, local
        )
        transactions.watch_progress(progress)
        local.watch_progress(progress)
        run_checks(engine, progress, stores)
        return EngineServices(
            engine=engine,
            metadata=metadata,
            streams=streams,
            kv=kv,
            kv_store=stores.kv,
            logs=logs,
            local_logs=local,
            transactions=transactions,
            compactor=compactor,
            collector=collector,
            staging=staging,
            progress=progress,
        )

    def _tiers(
        self, stores: OpenStores, kv: KVClient, runtime: Runtime, throttle: ReadThrottle
    ) -> OpenTiers | UnopenedTiers | None:
        config, node_id = self._configs.tiers, self._plan.node_id
        if not config.is_enabled:
            return None
        if not self._plan.has_upkeep:
            return UnopenedTiers()
        return lambda tree: open_tiers(
            stores.store,
            kv,
            config,
            TierRuntime(
                runtime.clock,
                runtime.random,
                runtime.offload,
                runtime.registry,
                tree,
                node_id,
                throttle,
            ),
        )

    def _start_coordinator(self, logs: LogManager, runtime: Runtime) -> Coordinator:
        coordinator = Coordinator(
            logs,
            clock=runtime.clock,
            random=runtime.random,
            registry=runtime.registry,
            config=self._configs.transactions,
            sender=self._components.markers,
        )
        if self._plan.has_upkeep:
            coordinator.open()
        return coordinator

    def _start_collector(
        self, engine: Engine, metadata: MetadataSession, stores: OpenStores, runtime: Runtime
    ) -> Collector:
        config = self._config
        collector = Collector(
            metadata,
            stores.store,
            runtime.clock,
            config.collector,
            runtime.registry,
            deletes_dead=self._plan.has_upkeep,
        )
        engine.background.spawn(collector.run(), name="collector")
        engine.background.every(
            lambda: config.metadata.lineage_check_interval_ms / 1000,
            metadata.lineage.watch,
            name="watch_lineage",
        )
        return collector

    def _start_compactor(
        self, engine: Engine, metadata: MetadataSession, stores: OpenStores, runtime: Runtime
    ) -> Compactor | None:
        if not self._plan.has_upkeep:
            return None
        budget = engine.budget
        compactor = open_compactor(
            self._plan.store,
            metadata,
            stores.store,
            runtime.offload,
            runtime.clock,
            runtime.registry,
            self._config.compaction,
            self._config.store,
            lambda: budget.used_bytes / budget.bound_bytes,
            self._components.log_style,
        )
        if compactor is not None:
            compactor.start()
        return compactor


def _bounded(config: LogConfig, engine: Engine) -> LogConfig:
    """Limits record batches to what one append takes."""
    bound = min(config.message_bytes_max, engine.batch_bytes_max)
    return replace(config, message_bytes_max=bound)


async def _fail_with(part: LogManager | Coordinator) -> None:
    """Ends the engine when the part fails: a node that no longer follows topics, deletes old
    records or ends transactions must not run on unnoticed."""
    raise await part.wait_failed()
