"""The engine's metrics: updated per group or object, never per record."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streamlog.runtime.concurrency.catch_up_throttle import CatchUpMetrics
from streamlog.runtime.counts import Counts, Observations

SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
BYTES = tuple(float(1 << shift) for shift in range(10, 26, 2))


class AppendMetrics:
    """Appends, up to their answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        appends, append_bytes = (
            Counts(f"streamlog_engine_{name}", documentation, (), registry)
            for name, documentation in (
                ("appends", "Appends that became durable."),
                ("append_bytes", "Payload bytes of durable appends."),
            )
        )
        self.appends = appends.labels()
        self.append_bytes = append_bytes.labels()
        self.queued_appends = Counter(
            "streamlog_engine_queued_appends",
            "Appends, and reservations for them, that had to wait for room.",
            registry=registry,
        )
        self.group_bytes = Observations(
            "streamlog_engine_group_bytes",
            "Bytes made durable together.",
            buckets=BYTES,
            registry=registry,
        )
        self.ack_seconds = Observations(
            "streamlog_engine_ack_seconds",
            "From a group's first append to its answer.",
            buckets=SECONDS,
            registry=registry,
        )
        self.queue_bytes = Gauge(
            "streamlog_engine_queue_bytes", "Bytes of appends under way.", registry=registry
        )
        self.queue_bytes_bound = Gauge(
            "streamlog_engine_queue_bytes_bound", "The bound on queue_bytes.", registry=registry
        )


class UploadMetrics:
    """Objects on their way to the store."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.closed = Counter(
            "streamlog_engine_objects_closed",
            "Objects closed for upload, by reason.",
            ["reason"],
            registry=registry,
        )
        self.object_bytes = Histogram(
            "streamlog_engine_object_bytes",
            "Sizes of objects uploaded.",
            buckets=BYTES,
            registry=registry,
        )
        self.put_bytes = Counter(
            "streamlog_engine_put_bytes", "Bytes of objects stored.", registry=registry
        )
        self.put_seconds = Histogram(
            "streamlog_engine_put_seconds",
            "Object PUTs, with their retries.",
            buckets=SECONDS,
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "streamlog_engine_commit_seconds",
            "Metadata commits.",
            buckets=SECONDS,
            registry=registry,
        )
        self.failures = Counter(
            "streamlog_engine_write_failures",
            "Failed tries that were repeated, by place (wal, put).",
            ["place"],
            registry=registry,
        )
        self.puts_retried = Gauge(
            "streamlog_engine_puts_retried",
            "PUTs of objects under way whose last try failed.",
            registry=registry,
        )
        self.hedged = Counter(
            "streamlog_engine_hedged_puts",
            "PUTs sent a second time for being slow.",
            registry=registry,
        )
        self.upload_backlog_bytes = Gauge(
            "streamlog_engine_upload_backlog_bytes",
            "Acknowledged bytes not in the store yet.",
            registry=registry,
        )


class ReadMetrics:
    """Caches, GETs, and the throttle of catch-up reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.cache_hits = Counter(
            "streamlog_engine_cache_hits", "Reads served by a cache.", ["cache"], registry=registry
        )
        self.cache_misses = Counter(
            "streamlog_engine_cache_misses",
            "Reads that a cache could not serve.",
            ["cache"],
            registry=registry,
        )
        self.get_bytes = Counter(
            "streamlog_engine_get_bytes", "Bytes read from the store.", registry=registry
        )
        self.tail_bytes = Gauge(
            "streamlog_engine_tail_cache_bytes", "Bytes in the tail cache.", registry=registry
        )
        self.block_bytes = Gauge(
            "streamlog_engine_block_cache_bytes", "Bytes in the block cache.", registry=registry
        )
        self.catch_up = CatchUpMetrics(registry)


class EngineMetrics(AppendMetrics, UploadMetrics, ReadMetrics):
    """All metrics of one engine."""

    def __init__(self, registry: CollectorRegistry) -> None:
        AppendMetrics.__init__(self, registry)
        UploadMetrics.__init__(self, registry)
        ReadMetrics.__init__(self, registry)
