"""Settings of the transaction coordinator; `settings/broker.py` documents them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The comment behind a field is Kafka's name for it."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    state_partitions: int = 16  # transaction.state.log.num.partitions
    abort_interval_ms: int = 10_000
    # transaction.abort.timed.out.transaction.cleanup.interval.ms
    expiration_interval_ms: int = 3_600_000
    # transaction.remove.expired.transaction.cleanup.interval.ms


KAFKA_NAMES = {
    "transaction.max.timeout.ms": "max_timeout_ms",
    "transactional.id.expiration.ms": "id_expiration_ms",
    "transaction.state.log.num.partitions": "state_partitions",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "abort_interval_ms",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "expiration_interval_ms",
}
"""Kafka's broker settings → fields of TransactionConfig."""
