"""The object store as a node's remote storage reaches it, with what a plug-in may do besides."""

from __future__ import annotations

from dataclasses import replace

from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.testing.simulation.world.faults import FaultSource
from streamlog.testing.simulation.world.incarnation import Incarnation
from streamlog.testing.simulation.world.store import SimulationStore
from streamlog.tiered.config import TOPIC_BASED, RemoteLogConfig
from streamlog.tiered.reading.chunks import ChunkConfig

SHORT_RATE, ODD_RATE = 0.1, 0.04
"""Per GET: of a range some bytes do not come; an error comes that is none of streamlog's."""

TIER_CONFIG = RemoteLogConfig(
    task_interval_ms=400,
    retry_backoff_ms=50,
    retry_backoff_ms_max=800,
    copier_tasks=2,
    expiration_tasks=2,
    reader_tasks=2,
    reads_pending_max=8,
    index_cache_bytes=300,
    fetch_wait_ms=300,
    look_up_wait_ms=1_500,
    copy_timeout_ms=5_000,
    batch_bytes_max=1_200,
    purge_interval_ms=4_000,
    purge_age_ms=15_000,
    purge_share_max=1.0,
    reads_kept_bytes=1_024,
    chunks=ChunkConfig(chunk_bytes=256, retry_ms=20, retry_ms_max=200, load_timeout_ms=2_000),
)
"""Bounds so small that each is met within a history. Files that no metadata names are purged when
they are older than the latest effect of a call (LATE_EFFECT_S_MAX) and a clock's error."""
TOPIC_TIER_CONFIG = replace(
    TIER_CONFIG,
    metadata_class=TOPIC_BASED[0],
    metadata_configs={
        "remote.log.metadata.topic.num.partitions": "2",
        "remote.log.metadata.consume.wait.ms": "3000",
    },
)


class RemoteFault(Exception):
    """What a plug-in raises that knows no better."""


class RemoteSimulationStore(SimulationStore):
    """Ranges may come short, and errors may be of any type."""

    def __init__(self, shared: ObjectStore, node: Incarnation, faults: FaultSource) -> None:
        super().__init__(shared, node, faults)
        self._process = node
        self._source = faults

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = await super().get(key, start, length)
        process, source = self._process, self._source
        if not source.rates.cut:
            return data
        if source.happens(ODD_RATE):
            process.trace.add("store-odd", process.name, "get", key)
            raise RemoteFault(key)
        if length is not None and source.happens(SHORT_RATE):
            process.trace.add("store-short", process.name, "get", key)
            return data[: int(len(data) * process.random.random())]
        return data
