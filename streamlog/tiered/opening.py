"""Puts a RemoteLogManager together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from streamlog.errors import ObjectNotFound
from streamlog.objectstore.interface import SendRate
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.catch_up_throttle import NO_THROTTLE, ReadThrottle
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.api.storage_manager import IndexType, RemoteStorageManager
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.copying.backoff import TaskBackoff
from streamlog.tiered.copying.copier import Copier, CopyParts
from streamlog.tiered.copying.pace import CopyPace
from streamlog.tiered.copying.removal import SegmentRemoval
from streamlog.tiered.copying.stranger_purge import PurgeConfig, StrangerPurge
from streamlog.tiered.metrics import RemoteLogMetrics
from streamlog.tiered.reading.chunks import ChunkCache, ChunkConfig
from streamlog.tiered.reading.failures import RemoteFailures
from streamlog.tiered.reading.index_cache import Fetch, RemoteIndexCache
from streamlog.tiered.reading.late_results import LateResults
from streamlog.tiered.reading.partition_tier import TierReads
from streamlog.tiered.reading.plugin_calls import PluginCalls
from streamlog.tiered.reading.tries import PluginTries
from streamlog.tiered.remote_log_manager import RemoteLogManager, RemoteLogParts, TierQuotas

LATE_PART = 5
"""Which part of the memory for reads is for indexes that came late: one of so many."""


@dataclass(frozen=True, slots=True)
class TierPlugins:
    """The two plug-ins, configured. The manager closes them. `rate`: at which the storage sends
    segments, if it takes one."""

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    rate: SendRate = field(default_factory=SendRate)


@dataclass(frozen=True, slots=True)
class TierRuntime:
    """What a node's parts share. `tree` gets the folder of the index cache."""

    clock: Clock
    random: Random
    offload: Offload
    registry: CollectorRegistry
    tree: FolderTree
    broker_id: int
    throttle: ReadThrottle = NO_THROTTLE


async def open_remote_log_manager(
    plugins: TierPlugins, quotas: TierQuotas, runtime: TierRuntime, config: RemoteLogConfig
) -> RemoteLogManager:
    """A manager that is yet to be started. Errors: StoreUnavailable."""
    clock, storage = runtime.clock, plugins.storage
    unexpected: list[BaseException] = []
    background = Background("remote log manager", unexpected.append)
    failures = RemoteFailures(clock)
    # Calls that hang in a mounted folder of one kind leave those of the other theirs.
    left_max = config.copier_tasks if storage.names_have_ids else 0
    calls = PluginCalls(failures, background, left_max)
    read_calls = PluginCalls(failures, background, config.reader_tasks)
    tries = PluginTries(clock, failures, read_calls)
    metrics = RemoteLogMetrics(runtime.registry)

    async def load(segment: RemoteLogSegmentMetadata, first: int, last: int) -> Buffer:
        return await _counted(metrics, segment, storage.fetch_log_segment(segment, first, last))

    chunks = ChunkCache(load, _chunk_config(config), clock, failures, read_calls, background)
    fetch_index = _index_fetch(storage, tries, metrics, config.reader_tasks)
    indexes = RemoteIndexCache(
        runtime.tree, fetch_index, storage.check_index, runtime.offload, config.index_cache_bytes
    )

    async def forget(segment: RemoteLogSegmentMetadata) -> None:
        chunks.forget(segment.remote_log_segment_id)
        await indexes.forget(segment)

    removal = SegmentRemoval(
        storage, plugins.metadata, forget, calls, failures, clock, runtime.broker_id
    )
    reads = TierReads(
        plugins.metadata,
        chunks,
        indexes,
        LateResults(
            clock, background, config.reads_kept_bytes // LATE_PART, config.reads_pending_max
        ),
        failures,
        quotas.fetch,
        runtime.throttle,
        metrics,
        clock,
        runtime.offload,
        config.record_bytes_max,
        config.fetch_wait_ms,
        config.look_up_wait_ms,
    )
    purge = StrangerPurge(storage, plugins.metadata, calls, metrics, clock, _purge_config(config))
    # Half of a copy's time is for what its plug-in needs beside the reads.
    spread_ms = min(config.copy_spread_ms, config.copy_timeout_ms / 2)
    pace = CopyPace(runtime.throttle, clock, spread_ms / 1000, plugins.rate)
    pace.set_quota(config.copy_bytes_per_second)
    copier = _copier(plugins, quotas, runtime, config, removal, calls, failures, pace)
    manager = RemoteLogManager(
        RemoteLogParts(
            storage,
            plugins.metadata,
            reads,
            copier,
            pace,
            removal,
            purge,
            failures,
            metrics,
            clock,
            background,
            unexpected,
            quotas,
            _backoff(runtime, config),
            config.task_interval_ms,
            config.copier_tasks,
            config.expiration_tasks,
            config.follower_tasks,
        )
    )
    await indexes.load()
    return manager


def _index_fetch(
    storage: RemoteStorageManager, tries: PluginTries, metrics: RemoteLogMetrics, at_once: int
) -> Fetch:
    turns = asyncio.Semaphore(at_once)

    async def fetch(segment: RemoteLogSegmentMetadata, index_type: IndexType) -> Buffer:
        async with turns:
            return await tries.run(
                f"reading the {index_type.value} index of {segment.remote_log_segment_id}",
                lambda: _counted(metrics, segment, storage.fetch_index(segment, index_type)),
            )

    return fetch


def _purge_config(config: RemoteLogConfig) -> PurgeConfig:
    return PurgeConfig(config.purge_interval_ms, config.purge_age_ms, config.purge_share_max)


def _backoff(runtime: TierRuntime, config: RemoteLogConfig) -> TaskBackoff:
    return TaskBackoff(
        runtime.random, config.retry_backoff_ms, config.retry_backoff_ms_max, config.retry_jitter
    )


def _chunk_config(config: RemoteLogConfig) -> ChunkConfig:
    # A batch whose chunks come one after another has to find the first when the last is there.
    at_least = 2 * (config.batch_bytes_max + config.chunks.chunk_bytes)
    return replace(
        config.chunks,
        loads=config.reader_tasks,
        pending_max=config.reads_pending_max,
        cache_bytes=max(config.reads_kept_bytes * (LATE_PART - 1) // LATE_PART, at_least),
    )


def _copier(
    plugins: TierPlugins,
    quotas: TierQuotas,
    runtime: TierRuntime,
    config: RemoteLogConfig,
    removal: SegmentRemoval,
    calls: PluginCalls,
    failures: RemoteFailures,
    pace: CopyPace,
) -> Copier:
    return Copier(
        CopyParts(
            plugins.storage,
            plugins.metadata,
            removal,
            quotas.copy,
            calls,
            failures,
            runtime.clock,
            runtime.random,
            runtime.broker_id,
            pace,
            config.custom_metadata_bytes_max,
            config.copy_timeout_ms,
        )
    )


async def _counted(
    metrics: RemoteLogMetrics, segment: RemoteLogSegmentMetadata, read: Awaitable[Buffer]
) -> Buffer:
    """Counts a try that fails, also one that its caller gives up by a time-out."""
    try:
        return await read
    except ObjectNotFound:
        raise
    except BaseException:
        metrics.failed("fetch", segment.remote_log_segment_id.topic_id_partition.topic)
        raise
