"""Settings → a compactor with the executor that the settings ask for."""

from __future__ import annotations

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from streamlog.compaction.compactor import Compactor, CompactorParts
from streamlog.compaction.execute.executor import Executor, InlineExecutor
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.spool import FileSpool, MemorySpool, Spool
from streamlog.compaction.metrics import CompactionMetrics
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.workers.frames import WorkerSettings
from streamlog.compaction.workers.process import ProcessExecutor
from streamlog.errors import Invalid
from streamlog.metadata.compaction_interface import CompactionMetadata
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.url import MemoryUrl, StoreUrl
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload


def open_compactor(
    url: StoreUrl,
    metadata: CompactionMetadata,
    store: ObjectStore,
    offload: Offload,
    clock: Clock,
    registry: CollectorRegistry,
    config: CompactionConfig,
    store_config: StoreConfig,
    pressure: Callable[[], float],
    log_style: tuple[str, str],
) -> Compactor | None:
    """A compactor that is not started yet; None: the settings say off. `log_style`: format and
    level of the child process's log.

    Errors: Invalid (a process cannot see this process's memory).
    """
    mode = config.compaction_process
    if mode == "auto":
        mode = "off" if isinstance(url, MemoryUrl) else "inline"
    if mode == "off":
        return None
    executor: Executor
    if mode == "process":
        if isinstance(url, MemoryUrl):
            raise Invalid("compaction_process = process cannot see memory://; say inline or off")
        executor = ProcessExecutor(
            WorkerSettings(
                store_url=str(url),
                store=store_config,
                memory_bytes=config.memory_bytes(str(url)),
                rate_bytes_per_s=config.compaction_rate_max_bytes_per_s,
                nice=config.worker_nice,
                spool_dir=config.spool_dir,
                log_format=log_style[0],
                log_level=log_style[1],
            ),
            offload,
            clock,
        )
    else:
        spool: Callable[[], Spool] = functools.partial(FileSpool, config.spool_dir)
        executor = InlineExecutor(
            store,
            offload,
            RateLimit(config.compaction_rate_max_bytes_per_s, clock),
            MemorySpool if isinstance(url, MemoryUrl) else spool,
            memory_bytes=config.memory_bytes(str(url)),
        )
    parts = CompactorParts(metadata, store, executor, offload, clock, CompactionMetrics(registry))
    return Compactor(parts, config, pressure)
