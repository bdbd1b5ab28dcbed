"""Metrics of the remote tier, by topic; nothing is counted per record.

Kafka                                       here, streamlog_remote_…
RemoteCopyBytesPerSec, RequestsPerSec       copy_bytes, copied_segments
RemoteFetchBytesPerSec, RequestsPerSec      fetch_bytes, fetches
RemoteDeleteRequestsPerSec                  deleted_segments
Remote{Copy,Fetch,Delete}ErrorsPerSec       errors{operation}
RemoteCopyLagBytes, LagSegments             copy_lag_bytes, copy_lag_segments
RemoteLogReaderTaskQueueSize                reads_pending
RemoteLogSizeBytes, MetadataCount           log_size_bytes, segments
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamlog.runtime.counts import Counts


class RemoteLogMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counts:
            return Counts(f"streamlog_remote_{name}", text, ("topic", *labels), registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"streamlog_remote_{name}", text, labels, registry=registry)

        self._copied_bytes = counter("copy_bytes", "Bytes of segments copied to the remote tier.")
        self._copied = counter("copied_segments", "Segments copied to the remote tier.")
        self._fetched_bytes = counter("fetch_bytes", "Bytes of batches read from the remote tier.")
        self._fetches = counter("fetches", "Reads of the remote tier that found batches.")
        self._deleted = counter("deleted_segments", "Segments deleted from the remote tier.")
        self._purged = Counter(
            "streamlog_remote_purged_files",
            "Files of the remote tier that no metadata named, and that were deleted.",
            registry=registry,
        )
        self._purged_bytes = Counter(
            "streamlog_remote_purged_bytes", "Bytes of these files.", registry=registry
        )
        self._errors = counter("errors", "Tries that failed.", "operation")
        self._lag_bytes = gauge("copy_lag_bytes", "Bytes that wait to be copied.", "topic")
        self._lag_segments = gauge("copy_lag_segments", "Segments that wait to be copied.", "topic")
        self.reads_pending = gauge("reads_pending", "Reads of the remote storage under way.")
        self.reads_pending_bound = gauge(
            "reads_pending_bound", "Reads of the remote storage that may be under way."
        )
        self.chunk_bytes = gauge("chunk_bytes", "Memory that holds chunks of remote segments.")
        self.late_index_bytes = gauge(
            "late_index_bytes", "Memory that holds indexes which came too late for their fetch."
        )
        self.read_memory_bound = gauge(
            "read_memory_bytes_max", "Memory for such chunks and indexes together."
        )
        self.index_bytes = gauge("index_cache_bytes", "Bytes of the files of remote indexes.")
        self._size_bytes = gauge("log_size_bytes", "Bytes of segments in the remote tier.", "topic")
        self._segments = gauge("segments", "Segments in the remote tier.", "topic")

    def copied(self, topic: str, size_bytes: int) -> None:
        self._copied.labels(topic).inc()
        self._copied_bytes.labels(topic).inc(size_bytes)

    def fetched(self, topic: str, size_bytes: int) -> None:
        self._fetches.labels(topic).inc()
        self._fetched_bytes.labels(topic).inc(size_bytes)

    def deleted(self, topic: str, segments: int) -> None:
        self._deleted.labels(topic).inc(segments)

    def purged(self, files: int, size_bytes: int) -> None:
        self._purged.inc(files)
        self._purged_bytes.inc(size_bytes)

    def failed(self, operation: str, topic: str) -> None:
        self._errors.labels(topic, operation).inc()

    def lag(self, by_topic: Mapping[str, tuple[int, int]]) -> None:
        """Segments and bytes of each topic. Others have none."""
        self._lag_segments.clear()
        self._lag_bytes.clear()
        for topic, (segments, size_bytes) in by_topic.items():
            self._lag_segments.labels(topic).set(segments)
            self._lag_bytes.labels(topic).set(size_bytes)

    def size(self, by_topic: Mapping[str, tuple[int, int]]) -> None:
        """As `lag`, of what is in the tier."""
        self._segments.clear()
        self._size_bytes.clear()
        for topic, (segments, size_bytes) in by_topic.items():
            self._segments.labels(topic).set(segments)
            self._size_bytes.labels(topic).set(size_bytes)
