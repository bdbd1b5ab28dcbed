"""`streamlog.open`: the one place where concrete parts are built and put together.

Opening, in this order: metadata store (its lock keeps a second process out), object store, cluster
id, WAL, metadata (a new tenure), engine (takes over, replays), logs. Closing goes backwards: logs
first, then the engine drains, the tenure is sealed, and what was built here is closed. What was
handed in through `Components` is left open.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry

from streamlog.compaction.collect.collector import Collector
from streamlog.compaction.compactor import Compactor
from streamlog.compaction.opening import open_compactor
from streamlog.engine.cluster import CLUSTER_KEY as META_CLUSTER_KEY
from streamlog.engine.cluster import settle_cluster_id
from streamlog.engine.config import StreamEngineConfig
from streamlog.engine.engine import Engine, EngineParts
from streamlog.engine.kv_client import EngineKVClient
from streamlog.engine.staging.client import EngineStaging
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.errors import Invalid, StoreUnavailable, StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.observed import ObservedKVStore
from streamlog.kvstore.rocks.store import LOCK_NAME as META_LOCK_NAME
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.log.api.config import LogConfig
from streamlog.log.manager import LogManager
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.open import open_metadata
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.objectstore.observed import observed
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.trust.quick import check_quickly
from streamlog.objectstore.url import (
    LocalUrl,
    MemoryUrl,
    MetaUrl,
    RocksUrl,
    S3Url,
    StoreUrl,
    check_available,
    default_meta,
    parse_meta_url,
    parse_store_url,
)
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.concurrency.answers import Answers, Probes
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.interface import Disk
from streamlog.runtime.disk.lockfile import Lock, hold
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.runtime.offload import Lane, Offload, ThreadOffload, run_owned
from streamlog.runtime.progress import TICK_S, Due, ProgressWatch
from streamlog.runtime.rand import Random, SystemRandom
from streamlog.wal.log import WriteAheadLog

log = logging.getLogger(__name__)

WalMode = Literal["disk", "object"]
WAL_LOCK_NAME = "wal-lock"


@dataclass(frozen=True, slots=True)
class Components:
    """Parts to use in place of those that the URLs name; they stay open when the engine closes."""

    clock: Clock | None = None
    random: Random | None = None
    offload: Offload | None = None
    registry: CollectorRegistry | None = None
    disk: Disk | None = None
    store: ObjectStore | None = None
    kv: KVStore | None = None
    log_style: tuple[str, str] = ("text", "info")
    """Format and level of what child processes log."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What a node says about itself; sizes in bytes."""

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
    """What somebody must look at, each as `name: what (since …)`; docs/operations.md."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to open; decided before anything is touched."""

    store: StoreUrl
    meta: MetaUrl
    wal: WalMode
    wal_dir: Path | None
    node_id: int

    @property
    def is_remote(self) -> bool:
        return isinstance(self.store, S3Url)


class OpenEngine:
    """An engine with its logs; made by `streamlog.open`."""

    def __init__(
        self,
        plan: _Plan,
        engine: Engine,
        metadata: MetadataSession,
        streams: EngineStreamClient,
        kv: EngineKVClient,
        kv_store: KVStore,
        logs: LogManager,
        compactor: Compactor | None,
        collector: Collector,
        staging: EngineStaging,
        progress: ProgressWatch,
        started_ms: int,
    ) -> None:
        self._plan = plan
        self._collector = collector
        self.engine = engine
        self.streams = streams
        self.kv = kv
        self.kv_store = kv_store
        self.logs = logs
        self.compactor = compactor
        self.staging = staging
        self.progress = progress
        """Where others may add checks of their own."""
        self.metadata = metadata
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

    async def status(self) -> EngineStatus:
        """Facts of now."""
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
        alarm = self._collector.alarm
        stopped = [f"deletion_stopped: nothing is deleted any more: {alarm}"] if alarm else []
        waiting = [f"waiting_for_deletion: {one}" for one in self.metadata.waiting_for_sweep()]
        return (*(str(one) for one in self.progress.alarms), *stopped, *waiting)

    def not_ready_reason(self) -> str | None:
        """Why requests may fail or wait now: a failure, or work that does not move; else None."""
        failure = self.engine.failure
        if failure is not None:
            return f"the engine has failed: {failure}"
        return "; ".join(str(one) for one in self.progress.alarms) or None

    async def drain(self) -> None:
        """Returns when every append called so far is confirmed and in the store."""
        await self.engine.drain()

    async def wait_stopped(self) -> StreamlogError:
        """Returns when the engine has failed, with the reason."""
        return await self.engine.wait_stopped()

    async def kill(self) -> None:
        """Stops at once, as a crash would: nothing is drained, the tenure is not sealed."""
        if not self._is_ended:
            self._is_ended = True
            await self._kill()

    async def _kill(self) -> None:
        """All parts, whatever one of them raises."""
        async with AsyncExitStack() as parts:
            parts.push_async_callback(self.metadata.kill)
            parts.push_async_callback(self.engine.kill)
            parts.push_async_callback(self.logs.kill)
            if self.compactor is not None:
                parts.push_async_callback(self.compactor.kill)

    async def close(self) -> None:
        """Drains for as long as is allowed, seals the tenure, stops. Called when the context ends.

        Partitions are closed within the same time as the engine: with the store away they, too,
        would wait without end.
        """
        if not self._is_ended:
            self._is_ended = True
            try:
                await self._close()
            except BaseException:
                # Nothing may run on behind a caller who was cancelled, or told of a bug. What is
                # not done is left to the next start, as after a crash.
                await self._kill()
                raise

    async def _close(self) -> None:
        began = self.clock.monotonic()
        drain_s = self.engine.config.append.drain_timeout_ms / 1000
        try:
            async with asyncio.timeout(drain_s):
                await self.logs.stop()
        except TimeoutError:
            log.warning("closed before all partitions were given up; the next start takes them")
            await self.logs.kill()
        if self.compactor is not None:
            await self.compactor.close()
        await self.engine.close(began + drain_s - self.clock.monotonic())
        await self.metadata.close(drained=self.engine.is_drained)


@asynccontextmanager
async def open(
    store: str,
    *,
    meta: str | None = None,
    wal: WalMode | None = None,
    wal_dir: str | Path | None = None,
    node_id: int = 1,
    config: StreamEngineConfig | None = None,
    logs: LogConfig | None = None,
    components: Components | None = None,
    check_store: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[OpenEngine]:
    """Opens an engine in this process; what is acknowledged when the context ends is in the store.

    `store` is memory://, local:///abs/path or s3://bucket/prefix; `meta` defaults to
    rocksdb:///PATH/meta for local:///PATH. `wal` defaults to disk on local stores and object on
    others; its folder to PATH/wal. `check_store`: half a dozen requests tell first whether the
    store does what data rests on. `on_step` hears what is opened next, a noun. A store or metadata
    that is away raises Unavailable: opening may be tried again.

    Errors: Invalid (a URL, or what does not go together), DataInUse (another process has the data),
    ForeignCluster, LineageFenced, WalPending, Corrupt, UnsupportedVersion, Unavailable (a folder or
    a store), StoreUntrusted.
    """
    parts = components or Components()
    plan = _plan(store, meta, wal, wal_dir, node_id, parts)
    async with AsyncExitStack() as built:
        opened = await _open(
            plan,
            config or StreamEngineConfig(),
            logs,
            parts,
            built,
            check_store=check_store,
            on_step=on_step,
        )
        try:
            yield opened
        finally:
            await opened.close()


def _plan(
    store: str,
    meta: str | None,
    wal: WalMode | None,
    wal_dir: str | Path | None,
    node_id: int,
    parts: Components,
) -> _Plan:
    store_url = parse_store_url(store)
    meta_url = default_meta(store_url) if meta is None else parse_meta_url(meta)
    if parts.store is None:
        check_available(store_url)
    if parts.kv is None:
        check_available(meta_url)
    is_local = isinstance(store_url, LocalUrl)
    mode: WalMode = wal or ("disk" if is_local else "object")
    folder = Path(wal_dir) if wal_dir is not None else None
    if folder is None and isinstance(store_url, LocalUrl):
        folder = Path(store_url.path) / "wal"
    if mode not in ("disk", "object"):
        raise Invalid(f"wal is disk or object, not {mode!r}")
    if mode == "disk" and folder is None and parts.disk is None:
        raise Invalid(f"wal=disk with the store {store_url} needs wal_dir, a local folder")
    return _Plan(store_url, meta_url, mode, folder, node_id)


async def _open(
    plan: _Plan,
    config: StreamEngineConfig,
    log_config: LogConfig | None,
    parts: Components,
    built: AsyncExitStack,
    *,
    check_store: bool,
    on_step: Callable[[str], None],
) -> OpenEngine:
    clock = parts.clock or SystemClock()
    random = parts.random or SystemRandom()
    registry = parts.registry or CollectorRegistry()
    offload = parts.offload
    if offload is None:
        offload = ThreadOffload(_threads(plan, config))
        built.push_async_callback(offload.close)
    started_ms = clock.now_ms()
    kv_store = parts.kv
    on_step(f"the metadata store {plan.meta}")
    if kv_store is None:
        kv_store = await _open_kv(plan.meta, clock, offload)
        built.push_async_callback(kv_store.close)
    store = parts.store
    on_step(f"the object store {plan.store}")
    if store is None:
        store = await open_store(
            plan.store, offload, clock, random, config=config.store, registry=registry
        )
        built.push_async_callback(store.close)
    if check_store and not isinstance(plan.store, MemoryUrl):
        await check_quickly(store, clock, random)
    store_answers = Answers(f"the object store {store.url}", clock, is_quick=False)
    kv_answers = Answers(f"the metadata store {plan.meta}", clock, is_quick=True)
    store, kv_store = observed(store, store_answers), ObservedKVStore(kv_store, kv_answers)
    on_step(f"the cluster's name in {plan.meta} and {plan.store}")
    cluster_id = await settle_cluster_id(kv_store, store, random)
    on_step(f"the write-ahead log {plan.wal_dir or ''}".rstrip())
    wal = await _open_wal(plan, config, parts, offload, registry, random, built)
    if wal is not None:
        built.push_async_callback(wal.close)
    on_step(f"the metadata in {plan.meta} and its checkpoint in {plan.store}")
    metadata = await open_metadata(
        kv_store,
        store,
        cluster_id=cluster_id,
        node_id=plan.node_id,
        # A WAL that disk mode left behind may hold what nobody else may take over.
        wal_mode="disk" if plan.wal == "disk" or (wal and wal.live_bytes) else "object",
        clock=clock,
        random=random,
        offload=offload,
        registry=registry,
        config=config.metadata,
    )
    engine: Engine | None = None
    compactor: Compactor | None = None
    try:
        engine = Engine(
            EngineParts(
                plan.wal, metadata, store, wal, clock, random, offload, registry, plan.is_remote
            ),
            config,
        )
        on_step(f"the streams, with metadata in {plan.meta} and the object store {plan.store}")
        await engine.start()
        streams = EngineStreamClient(engine)
        staging = EngineStaging(engine, streams, metadata, config.staging)
        staging.start()
        kv = EngineKVClient(kv_store, prefix_of(cluster_id))
        collector = Collector(metadata, store, clock, config.collector, registry)
        engine.background.spawn(collector.run(), name="collector")
        engine.background.every(
            lambda: config.metadata.lineage_check_interval_ms / 1000,
            metadata.lineage.watch,
            name="watch_lineage",
        )
        logs = await LogManager.open(
            streams,
            kv,
            clock=clock,
            random=random,
            registry=registry,
            config=_bounded(log_config or LogConfig(), engine),
            offload=offload,
            staged=staging,
        )
        engine.background.spawn(_watch(logs), name="watch_logs")
        budget = engine.budget
        compactor = open_compactor(
            plan.store,
            metadata,
            store,
            offload,
            clock,
            registry,
            config.compaction,
            config.store,
            lambda: budget.used_bytes / budget.bound_bytes,
            parts.log_style,
        )
        if compactor is not None:
            compactor.start()
        progress = _watched(
            config, registry, engine, metadata, logs, compactor, store_answers, kv_answers
        )
        _probed(engine, progress, (store_answers, store), (kv_answers, kv_store))
    except BaseException:
        if engine is not None:
            await engine.kill()
        await metadata.kill()
        raise
    log.info(
        "opened",
        extra={
            "cluster": cluster_id,
            "tenure": str(metadata.tenure),
            "store": store.url,
            "meta": str(plan.meta),
            "wal": plan.wal,
        },
    )
    return OpenEngine(
        plan,
        engine,
        metadata,
        streams,
        kv,
        kv_store,
        logs,
        compactor,
        collector,
        staging,
        progress,
        started_ms,
    )


def _watched(
    config: StreamEngineConfig,
    registry: CollectorRegistry,
    engine: Engine,
    metadata: MetadataSession,
    logs: LogManager,
    compactor: Compactor | None,
    store: Answers,
    kv: Answers,
) -> ProgressWatch:
    """The watch over all parts; who waits for another comes behind it."""
    watch = ProgressWatch(config.progress, engine.parts.clock, registry)
    unanswered_after_s = config.progress.unanswered_after_ms / 1000
    stalled_after_s = config.progress.stalled_after_ms / 1000

    def full_disk() -> Due | None:
        return engine.full_disk() or store.full() or kv.full()

    watch.watch("store_unavailable", lambda: store.unanswered(unanswered_after_s))
    watch.watch("metadata_unavailable", lambda: kv.unanswered(unanswered_after_s))
    watch.watch("disk_full", full_disk)
    engine.watch_progress(watch)
    metadata.watch_progress(watch)
    if compactor is not None:
        moving = compactor
        watch.watch("compaction", lambda: moving.progress(stalled_after_s))
    watch.watch("partition_opens", logs.progress)
    return watch


def _probed(
    engine: Engine,
    watch: ProgressWatch,
    store: tuple[Answers, ObjectStore],
    kv: tuple[Answers, KVStore],
) -> None:
    """Asks stores that are silent, and looks at all checks, as long as the engine is there."""
    background, clock, config = engine.background, engine.parts.clock, watch.config
    probes = (
        Probes(store[0], lambda: store[1].head(CLUSTER_KEY), config, clock, background),
        Probes(kv[0], lambda: kv[1].get(META_CLUSTER_KEY), config, clock, background),
    )

    async def tick() -> None:
        for one in probes:
            one.tick()
        watch.tick()

    background.every(lambda: TICK_S, tick, name="progress")


async def open_object_store(
    url: str,
    config: StreamEngineConfig,
    clock: Clock,
    random: Random,
    offload: Offload,
    registry: CollectorRegistry,
) -> ObjectStore:
    """The store alone, the caller's to close. Errors: Invalid, Unavailable."""
    return await open_store(
        parse_store_url(url), offload, clock, random, config=config.store, registry=registry
    )


async def open_metadata_store(
    url: str | None, store: str, clock: Clock, offload: Offload
) -> KVStore:
    """The metadata store alone, the caller's to close; None: the one that goes with `store`.

    Errors: Invalid, DataInUse, Corrupt, UnsupportedVersion, Unavailable.
    """
    meta = default_meta(parse_store_url(store)) if url is None else parse_meta_url(url)
    check_available(meta)
    return await _open_kv(meta, clock, offload)


def is_shared(meta: str | None, store: str) -> bool:
    """Whether several processes may have the metadata open; None: what goes with `store`."""
    url = default_meta(parse_store_url(store)) if meta is None else parse_meta_url(meta)
    return not isinstance(url, MemoryUrl | RocksUrl)


def _threads(plan: _Plan, config: StreamEngineConfig) -> dict[Lane, int]:
    """A remote store has as many threads as connections: each request keeps one of both."""
    if not plan.is_remote:
        return {}
    return {
        Lane.STORE: config.store.puts_in_flight_max,
        Lane.GET: config.store.gets_in_flight_max,
    }


def _bounded(config: LogConfig, engine: Engine) -> LogConfig:
    """No record batch is larger than what one append takes."""
    bound = min(config.message_bytes_max, engine.batch_bytes_max)
    return replace(config, message_bytes_max=bound)


async def _watch(logs: LogManager) -> None:
    """Without topics that are followed, and without retention, a node must not go on unnoticed."""
    raise await logs.wait_failed()


async def _open_kv(url: MetaUrl, clock: Clock, offload: Offload) -> KVStore:
    if isinstance(url, RocksUrl):
        return await RocksKVStore.open(url.path, clock, offload)
    return MemoryKVStore(clock)


def _locked_folder(folder: Path) -> tuple[SystemDisk, Lock]:
    """The metadata store's lock keeps no process out that has other metadata. Blocking."""
    disk = SystemDisk(folder)
    return disk, hold(str(folder / WAL_LOCK_NAME))


def lock_paths(meta: str, wal_dir: str) -> list[str]:
    """The lock files of an open engine's local folders; `wal_dir` is empty without one."""
    url = parse_meta_url(meta)
    found = [str(Path(url.path) / META_LOCK_NAME)] if isinstance(url, RocksUrl) else []
    return [*found, str(Path(wal_dir) / WAL_LOCK_NAME)] if wal_dir else found


async def _open_wal(
    plan: _Plan,
    config: StreamEngineConfig,
    parts: Components,
    offload: Offload,
    registry: CollectorRegistry,
    random: Random,
    built: AsyncExitStack,
) -> WriteAheadLog | None:
    """With wal=object: what disk mode left behind, if it was ever used here."""
    disk = parts.disk
    if disk is None:
        if plan.wal_dir is None or (plan.wal == "object" and not plan.wal_dir.is_dir()):
            return None
        try:
            opening = partial(_locked_folder, plan.wal_dir)
            folder, lock = await run_owned(
                offload, Lane.WAL, opening, lambda held: held[1].release()
            )
        except OSError as error:
            raise typed_os_error(
                error, str(plan.wal_dir), "opening the write-ahead log's folder", StoreUnavailable
            ) from error
        built.callback(lock.release)
        disk = folder
    shares_disk = not plan.is_remote and (
        parts.disk is not None
        or await offload.run(Lane.WAL, _is_same_disk, plan.store, plan.wal_dir)
    )
    upload = config.upload
    uploads_bytes = upload.upload_bytes_target * upload.uploads_in_flight_max
    return await WriteAheadLog.open(
        disk,
        offload,
        config.wal,
        registry,
        random,
        uploads_bytes=uploads_bytes if shares_disk else None,
    )


def _is_same_disk(store: StoreUrl, folder: Path | None) -> bool:
    """Whether the objects of a local store are in the file system of `folder`. Blocking."""
    if not isinstance(store, LocalUrl) or folder is None:
        return False
    return os.stat(store.path).st_dev == os.stat(folder).st_dev
