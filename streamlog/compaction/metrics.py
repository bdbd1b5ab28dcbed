"""Metrics of compaction; counted for each spec, never for each record."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300)


class CompactionMetrics:
    """Write amplification over a time is (increase of engine_put_bytes + increase of
    compaction_written_bytes) / increase of engine_append_bytes.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.read_bytes = Counter(
            "streamlog_compaction_read_bytes", "Bytes read from inputs.", registry=registry
        )
        self.written_bytes = Counter(
            "streamlog_compaction_written_bytes",
            "Bytes of outputs stored, committed or not.",
            registry=registry,
        )
        self.gets = Counter("streamlog_compaction_gets", "GETs of inputs.", registry=registry)
        self.specs = Counter(
            "streamlog_compaction_specs",
            "Specs, by how they ended (committed, conflict, fenced, unavailable, corrupt, gone, "
            "failed).",
            ["outcome"],
            registry=registry,
        )
        self.inputs = Counter(
            "streamlog_compaction_input_objects",
            "Objects that committed specs had as inputs.",
            registry=registry,
        )
        self.outputs = Counter(
            "streamlog_compaction_output_objects",
            "Objects that committed specs made.",
            registry=registry,
        )
        self.spec_seconds = Histogram(
            "streamlog_compaction_spec_seconds",
            "From the choice of a spec's inputs to its commit.",
            buckets=SECONDS,
            registry=registry,
        )
        self.backlog = Gauge(
            "streamlog_compaction_backlog_objects",
            "Objects not fully compacted, by merges that they need (0: mostly trimmed) and size.",
            ["steps", "size"],
            registry=registry,
        )
        self.quarantined = Gauge(
            "streamlog_compaction_quarantined_objects",
            "Damaged or missing objects that compaction leaves alone now; see the error log.",
            registry=registry,
        )
        self.running = Gauge(
            "streamlog_compaction_running", "1 while a spec is carried out.", registry=registry
        )
        self.lent = Gauge(
            "streamlog_compaction_lent",
            "1 while a remote executor carries specs out.",
            registry=registry,
        )
        self.failed = Gauge(
            "streamlog_compaction_stopped",
            "1 once a bug has ended compaction in this process; see the error log.",
            registry=registry,
        )
