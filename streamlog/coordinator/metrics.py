"""Metrics of the transaction coordinator; numbers of all partitions together."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streamlog.coordinator.api import TransactionState


class CoordinatorMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._transactions = Gauge(
            "streamlog_txn_ids",
            "Transactional ids that this node coordinates, by state.",
            ["state"],
            registry=registry,
        )
        self._markers_left = Gauge(
            "streamlog_txn_markers_pending",
            "Markers of decided transactions that are not written yet.",
            registry=registry,
        )
        self.loads = Histogram(
            "streamlog_txn_load_seconds",
            "Time from the start of a coordinator partition's load to its first answer.",
            buckets=(0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
            registry=registry,
        )
        self.replayed_bytes = Counter(
            "streamlog_txn_replayed_bytes",
            "Bytes of records that loads of coordinator partitions have read.",
            registry=registry,
        )
        self.failed = Counter(
            "streamlog_txn_failed_partitions",
            "Coordinator partitions given up after an append that failed, and loads that failed.",
            registry=registry,
        )
        self.timed_out = Counter(
            "streamlog_txn_timed_out",
            "Transactions aborted because they were open for longer than their time-out.",
            registry=registry,
        )
        self.expired = Counter(
            "streamlog_txn_expired_ids",
            "Transactional ids forgotten because they were unused.",
            registry=registry,
        )

    def watch(
        self, count: Callable[[TransactionState], int], markers_left: Callable[[], int]
    ) -> None:
        """The functions are called when metrics are read."""
        for state in TransactionState:
            if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
                gauge = self._transactions.labels(state.name.lower())
                gauge.set_function(lambda state=state: count(state))  # type: ignore[misc]
        self._markers_left.set_function(markers_left)
