"""How a node keeps the remote tiers of its logs. A comment behind a field is Kafka's name."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlog.tiered.reading.chunks import ChunkConfig

UNLIMITED_RATE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RemoteLogConfig:
    """Times in ms, sizes in bytes."""

    task_interval_ms: int = 30_000  # remote.log.manager.task.interval.ms
    copier_tasks: int = 10  # remote.log.manager.copier.thread.pool.size
    expiration_tasks: int = 10  # remote.log.manager.expiration.thread.pool.size
    custom_metadata_bytes_max: int = 128  # remote.log.metadata.custom.metadata.max.bytes
    index_cache_bytes: int = 1 << 30  # remote.log.index.file.cache.total.size.bytes
    fetch_wait_ms: int = 500  # remote.fetch.max.wait.ms
    look_up_wait_ms: int = 30_000  # remote.list.offsets.request.timeout.ms
    copy_lag_ms: int = 0
    copy_timeout_ms: int = 600_000
    copy_bytes_per_second: int = UNLIMITED_RATE  # remote.log.manager.copy.max.bytes.per.second
    fetch_bytes_per_second: int = UNLIMITED_RATE  # remote.log.manager.fetch.max.bytes.per.second
    record_bytes_max: int = 32 << 20
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
