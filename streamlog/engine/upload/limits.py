"""How large uploads are, and how many run at a time: derived from the settings. Pure."""

from __future__ import annotations

from streamlog.engine.append.flush_policy import FlushPolicy
from streamlog.engine.append.group import ITEMS_MAX
from streamlog.engine.config import StreamEngineConfig

_UPLOADS_IN_FLIGHT_MAX = 32
"""Half of the object ids that a tenure may hold at a time."""


def flush_policy(config: StreamEngineConfig, *, is_disk: bool, is_remote: bool) -> FlushPolicy:
    """`is_disk`: wal=disk, so uploads follow the acks. `is_remote`: the store is."""
    if is_disk:
        upload = config.upload
        return FlushPolicy(upload.upload_bytes_target, upload.upload_interval_ms / 1000, False)
    flush = config.flush
    return FlushPolicy(
        flush.flush_bytes_target,
        flush.flush_interval_ms / 1000,
        True,
        1 / flush.put_rate_max_per_s if is_remote else 0.0,
        flush.flush_bytes_overlap_remote if is_remote else flush.flush_bytes_overlap,
    )


def appends_per_object_max(config: StreamEngineConfig) -> int:
    """Half of the rows that fit into one commit record, because with wal=disk a batch may exceed
    its bound by one group of the WAL."""
    metadata = config.metadata
    rows = min(metadata.object_streams_max, (metadata.record_bytes_max - 256) // 8)
    return max(1, min(ITEMS_MAX, rows // 2))


def uploads_in_flight_max(
    config: StreamEngineConfig, credit_bytes: int, *, is_disk: bool, is_remote: bool
) -> int:
    """More uploads make up for a remote store's latency, within the byte bound on appends and the
    upload credit on top of it."""
    configured = (config.upload if is_disk else config.flush).uploads_in_flight_max
    if not is_remote:
        return configured
    bytes_target = flush_policy(config, is_disk=is_disk, is_remote=True).bytes_target
    fitting = (config.append.append_bytes_max + credit_bytes) // bytes_target + 1
    return max(configured, min(fitting, _UPLOADS_IN_FLIGHT_MAX))
