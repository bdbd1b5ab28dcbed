"""Prometheus metrics of the metadata; a few updates per commit, none per row."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BYTES = tuple(float(1 << shift) for shift in range(6, 21, 2))


class MetadataMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.commit_seconds = Histogram(
            "streamlog_metadata_commit_seconds",
            "From the first send of a commit record to its definite answer",
            buckets=SECONDS,
            registry=registry,
        )
        self.record_bytes = Histogram(
            "streamlog_metadata_record_bytes",
            "Size of commit records",
            buckets=BYTES,
            registry=registry,
        )
        self.commit_operations = Counter(
            "streamlog_metadata_commit_operations_total",
            "Compares and writes of commit transactions sent",
            registry=registry,
        )
        self.entries = Counter(
            "streamlog_metadata_entries_total", "Commit entries committed", registry=registry
        )
        self.stripped = Counter(
            "streamlog_metadata_stripped_entries_total",
            "Commit entries that lost rows because another node had taken their streams",
            registry=registry,
        )
        self.resends = Counter(
            "streamlog_metadata_commit_resends_total",
            "Commit records sent again after an unknown or failed outcome",
            registry=registry,
        )
        self.refused = Counter(
            "streamlog_metadata_commit_refusals_total",
            "Commit transactions refused",
            ["reason"],
            registry=registry,
        )
        self.queue_entries = Gauge(
            "streamlog_metadata_queue_entries",
            "Commit entries waiting for their record",
            registry=registry,
        )
        self.revision = Gauge(
            "streamlog_metadata_revision",
            "Revision up to which this node has folded the metadata",
            registry=registry,
        )
        self.checkpoint_seconds = Histogram(
            "streamlog_metadata_checkpoint_seconds",
            "Time to build, store and name a checkpoint",
            buckets=SECONDS,
            registry=registry,
        )
        self.checkpoints = Counter(
            "streamlog_metadata_checkpoints_total",
            "Checkpoint attempts",
            ["outcome"],
            registry=registry,
        )
        self.checkpoint_time = Gauge(
            "streamlog_metadata_checkpoint_timestamp_seconds",
            "Unix time of this node's last checkpoint; 0 before its first",
            registry=registry,
        )
        self.checkpoint_bytes = Counter(
            "streamlog_metadata_checkpoint_bytes_total",
            "Bytes of checkpoint files stored",
            registry=registry,
        )
        self.dead_objects = Gauge(
            "streamlog_metadata_dead_objects",
            "Dead objects that wait for their deletion",
            registry=registry,
        )
        self.waiting_for_sweep = Gauge(
            "streamlog_metadata_waiting_for_deletion",
            "1 while nothing can be stored (uploads, compaction) before objects that were given up "
            "are deleted; deletion may be stopped",
            ["what"],
            registry=registry,
        )
        self.compactions_folded = Counter(
            "streamlog_metadata_compactions_folded_total",
            "Compaction records folded since the start",
            registry=registry,
        )
        self.compaction_counter = Gauge(
            "streamlog_metadata_compactions",
            "Compactions, attaches and unstages that the cluster committed, as folded",
            registry=registry,
        )
        self.patches = Gauge(
            "streamlog_metadata_patches",
            "Ranges in memory that compactions put over older ones since the checkpoint",
            registry=registry,
        )
