"""How a node keeps the remote tiers of its logs; `settings/broker.py` documents the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.tiered.quotas.byte_window import UNLIMITED
from streamlog.tiered.reading.chunks import ChunkConfig


@dataclass(frozen=True, slots=True)
class RemoteLogConfig:
    """Times in ms, sizes in bytes. `KAFKA_NAMES` has Kafka's names of the fields."""

    is_enabled: bool = True
    storage_class: str = ""
    """`module:Class` of a plug-in; "": the node's own object store."""
    metadata_class: str = ""
    """`module:Class` of a plug-in; "": the node's own KV store; one of TOPIC_BASED: a topic."""
    storage_path: str = ""
    """Folders beside those of Python in which the plug-in is looked for, with `:` between them."""
    metadata_path: str = ""
    storage_configs: Mapping[str, str] = field(default_factory=dict)
    metadata_configs: Mapping[str, str] = field(default_factory=dict)
    task_interval_ms: int = 30_000
    retry_backoff_ms: int = 500
    retry_backoff_ms_max: int = 30_000
    retry_jitter: float = 0.2
    copier_tasks: int = 10
    expiration_tasks: int = 10
    follower_tasks: int = 2
    reader_tasks: int = 10
    reads_pending_max: int = 100
    reads_kept_bytes: int = 80 << 20
    custom_metadata_bytes_max: int = 128
    index_cache_bytes: int = 1 << 30
    fetch_wait_ms: int = 500
    look_up_wait_ms: int = 30_000
    copy_timeout_ms: int = 600_000
    copy_spread_ms: int = 60_000
    metadata_timeout_ms: int = 30_000
    copy_bytes_per_second: int = UNLIMITED
    copy_windows: int = 61
    copy_window_s: int = 1
    fetch_bytes_per_second: int = UNLIMITED
    fetch_windows: int = 11
    fetch_window_s: int = 1
    record_bytes_max: int = 32 << 20
    batch_bytes_max: int = 1 << 20
    """Largest record batch: so much of the memory for chunks is there in any case, twice."""
    purge_interval_ms: int = 86_400_000
    purge_age_ms: int = 604_800_000
    purge_share_max: float = 0.5
    chunks: ChunkConfig = field(default_factory=ChunkConfig)


TOPIC_BASED = (
    "TopicBasedRemoteLogMetadataManager",
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
)
"""Values of `metadata_class` that mean the topic `__remote_log_metadata`; the last is Kafka's."""
KAFKA_NAMES = {
    "remote.fetch.max.wait.ms": "fetch_wait_ms",
    "remote.list.offsets.request.timeout.ms": "look_up_wait_ms",
    "remote.log.copy.spread.ms": "copy_spread_ms",
    "remote.log.index.file.cache.total.size.bytes": "index_cache_bytes",
    "remote.log.manager.copier.thread.pool.size": "copier_tasks",
    "remote.log.manager.copy.max.bytes.per.second": "copy_bytes_per_second",
    "remote.log.manager.copy.quota.window.num": "copy_windows",
    "remote.log.manager.copy.quota.window.size.seconds": "copy_window_s",
    "remote.log.manager.expiration.thread.pool.size": "expiration_tasks",
    "remote.log.manager.fetch.max.bytes.per.second": "fetch_bytes_per_second",
    "remote.log.manager.fetch.quota.window.num": "fetch_windows",
    "remote.log.manager.fetch.quota.window.size.seconds": "fetch_window_s",
    "remote.log.manager.follower.thread.pool.size": "follower_tasks",
    "remote.log.manager.task.interval.ms": "task_interval_ms",
    "remote.log.manager.task.retry.backoff.max.ms": "retry_backoff_ms_max",
    "remote.log.manager.task.retry.backoff.ms": "retry_backoff_ms",
    "remote.log.manager.task.retry.jitter": "retry_jitter",
    "remote.log.metadata.custom.metadata.max.bytes": "custom_metadata_bytes_max",
    "remote.log.metadata.manager.class.name": "metadata_class",
    "remote.log.metadata.manager.class.path": "metadata_path",
    "remote.log.purge.age.ms": "purge_age_ms",
    "remote.log.purge.interval.ms": "purge_interval_ms",
    "remote.log.purge.max.share": "purge_share_max",
    "remote.log.reader.max.pending.tasks": "reads_pending_max",
    "remote.log.reader.memory.bytes": "reads_kept_bytes",
    "remote.log.reader.threads": "reader_tasks",
    "remote.log.storage.manager.class.name": "storage_class",
    "remote.log.storage.manager.class.path": "storage_path",
    "remote.log.storage.system.enable": "is_enabled",
}
"""Kafka's broker settings → fields of RemoteLogConfig."""
