"""Metrics of staged writes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streamlog.engine.metrics import SECONDS


class StagingMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.stages = Counter(
            "streamlog_staging_stages", "Objects that were staged here.", registry=registry
        )
        self.stage_bytes = Counter(
            "streamlog_staging_stage_bytes",
            "Payload bytes that were staged here.",
            registry=registry,
        )
        self.attaches = Counter(
            "streamlog_staging_commits",
            "Staged commits, by outcome (attached, known: the epoch was in before, refused).",
            ["outcome"],
            registry=registry,
        )
        self.attach_seconds = Histogram(
            "streamlog_staging_commit_seconds",
            "How long a staged commit holds back appends to its streams.",
            buckets=SECONDS,
            registry=registry,
        )
        self.dropped = Counter(
            "streamlog_staging_dropped_objects",
            "Staged objects that were dropped here, by reason (abort, expiry).",
            ["reason"],
            registry=registry,
        )
        self.staged = Gauge(
            "streamlog_staging_objects",
            "Objects that are staged, in the whole cluster: neither committed nor dropped.",
            registry=registry,
        )
