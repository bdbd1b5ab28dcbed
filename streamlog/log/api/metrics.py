"""Metrics of the log layer, by topic; nothing is counted per record."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamlog.runtime.counts import Counts


class TopicMetrics:
    """One topic's counters, looked up once."""

    __slots__ = (
        "_appended_bytes",
        "_appended_records",
        "_appends",
        "_fetched_bytes",
        "_reasons",
        "_removed_bytes",
        "_removed_segments",
        "_topic",
        "duplicates",
        "rolls",
    )

    def __init__(self, owner: LogMetrics, topic: str) -> None:
        self._topic = topic
        self._reasons: set[str] = set()
        self._appends = owner.appends.labels(topic)
        self._appended_records = owner.appended_records.labels(topic)
        self._appended_bytes = owner.appended_bytes.labels(topic)
        self._fetched_bytes = owner.fetched_bytes.labels(topic)
        self._removed_bytes = owner.removed_bytes.labels(topic)
        self._removed_segments = owner.removed_segments
        self.duplicates = owner.duplicates.labels(topic)
        self.rolls = owner.rolls.labels(topic)

    def appended(self, batches: int, records: int, size_bytes: int) -> None:
        self._appends.inc(batches)
        self._appended_records.inc(records)
        self._appended_bytes.inc(size_bytes)

    def fetched(self, size_bytes: int) -> None:
        self._fetched_bytes.inc(size_bytes)

    def removed(self, reason: str, segments: int, size_bytes: int) -> None:
        self._reasons.add(reason)
        self._removed_segments.labels(self._topic, reason).inc(segments)
        self._removed_bytes.inc(size_bytes)

    @property
    def reasons(self) -> Iterable[str]:
        """The reasons for which segments were removed."""
        return self._reasons


class LogMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counts:
            return Counts(f"streamlog_log_{name}", text, ("topic", *labels), registry)

        self.appends = counter("appends", "Record batches sequenced.")
        self.appended_records = counter("appended_records", "Records sequenced.")
        self.appended_bytes = counter("appended_bytes", "Bytes of record batches sequenced.")
        self.fetched_bytes = counter("fetched_bytes", "Bytes of record batches fetched.")
        self.duplicates = counter("duplicates", "Retries answered with the original's offsets.")
        self.rolls = counter("rolls", "Segments sealed.")
        self.removed_segments = counter("removed_segments", "Segments removed.", "reason")
        self.removed_bytes = counter("removed_bytes", "Bytes of segments removed.")
        self.open_logs = Gauge(
            "streamlog_log_open_partitions", "Partitions open here.", registry=registry
        )
        self.producer_ids = Gauge(
            "streamlog_log_producer_ids",
            "Idempotent producers that the partitions open here remember.",
            registry=registry,
        )
        self.producer_ids_bound = Gauge(
            "streamlog_log_producer_ids_per_partition_bound",
            "Bound on those of one partition.",
            registry=registry,
        )
        self.producers_refused = Counter(
            "streamlog_log_producers_refused",
            "Appends of new producers that were refused because the partition remembers as many as "
            "it may.",
            registry=registry,
        )
        self.failed_logs = Counter(
            "streamlog_log_failed_partitions",
            "Partitions given up after a failure.",
            registry=registry,
        )
        self.retention_errors = Counter(
            "streamlog_log_retention_errors",
            "Partitions that a retention check could not finish.",
            registry=registry,
        )
        self.cleanings = Counter(
            "streamlog_log_cleanings", "Cleanings of compacted partitions.", registry=registry
        )
        self.cleaning_errors = Counter(
            "streamlog_log_cleaning_errors",
            "Cleanings that could not be finished.",
            registry=registry,
        )
        self.cleaned_bytes = Counter(
            "streamlog_log_cleaned_bytes", "Bytes that cleanings read.", registry=registry
        )
        self.cleaned_bytes_left = Counter(
            "streamlog_log_cleaned_bytes_left", "Bytes that cleanings left.", registry=registry
        )
        self.uncleanable_logs = Gauge(
            "streamlog_log_uncleanable_partitions",
            "Compacted partitions that could not be cleaned a moment ago, and grow.",
            registry=registry,
        )
        self._topics: dict[str, TopicMetrics] = {}

    def of_topic(self, topic: str) -> TopicMetrics:
        metrics = self._topics.get(topic)
        if metrics is None:
            metrics = self._topics[topic] = TopicMetrics(self, topic)
        return metrics

    def forget(self, topic: str) -> None:
        """Drops the metrics of a deleted topic."""
        metrics = self._topics.pop(topic, None)
        if metrics is None:
            return
        for counter in (
            self.appends,
            self.appended_records,
            self.appended_bytes,
            self.fetched_bytes,
            self.duplicates,
            self.rolls,
            self.removed_bytes,
        ):
            counter.remove(topic)
        for reason in metrics.reasons:
            self.removed_segments.remove(topic, reason)
