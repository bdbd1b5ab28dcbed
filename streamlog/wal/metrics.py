"""Metrics of the write-ahead log."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamlog.runtime.counts import Observations

_SIZES = [float(4096 << shift) for shift in range(0, 16, 2)]
_COUNTS = [float(1 << shift) for shift in range(0, 16, 2)]
_SECONDS = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0]


class WalMetrics:
    """Updated once per group."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.group_bytes = Observations(
            "streamlog_wal_group_bytes",
            "Bytes on disk of a group of appends, made durable by one write",
            registry=registry,
            buckets=_SIZES,
        )
        self.group_entries = Observations(
            "streamlog_wal_group_entries",
            "Appends in a group",
            registry=registry,
            buckets=_COUNTS,
        )
        self.write_seconds = Observations(
            "streamlog_wal_write_seconds",
            "From the call of append to the group's being durable",
            registry=registry,
            buckets=_SECONDS,
        )
        self.groups_beside = Counter(
            "streamlog_wal_groups_beside",
            "Groups whose write began while that of another one was under way",
            registry=registry,
        )
        self.write_failures = Counter(
            "streamlog_wal_write_failures", "Groups whose write failed", registry=registry
        )
        self.room_waits = Counter(
            "streamlog_wal_room_waits",
            "Groups that waited for a file because none was ready",
            registry=registry,
        )
        self.files = Gauge("streamlog_wal_files", "Files of the log", registry=registry)
        self.disk_bytes = Gauge(
            "streamlog_wal_disk_bytes", "Disk space of the log", registry=registry
        )
        self.live_bytes = Gauge(
            "streamlog_wal_live_bytes",
            "Bytes of groups that are not yet uploaded and committed",
            registry=registry,
        )
