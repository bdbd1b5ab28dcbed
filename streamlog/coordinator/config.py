"""Settings of the transaction coordinator. A comment behind a field is Kafka's name for it."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    max_timeout_ms: int = setting(  # transaction.max.timeout.ms
        900_000,
        "Longest time-out that a transactional producer may ask for. Longer: what read_committed "
        "readers wait for may take longer.",
        minimum=1,
        maximum=2**31 - 1,
    )
    id_expiration_ms: int = setting(  # transactional.id.expiration.ms
        7 * 24 * 60 * 60 * 1000,
        "A transactional id that is unused for this long is forgotten: its producer has to "
        "initialise itself again.",
        minimum=1,
    )
    state_partitions: int = setting(  # transaction.state.log.num.partitions
        16,
        "Partitions of `__transaction_state`, fixed when the topic is created. More: transactional "
        "ids spread over more nodes.",
        minimum=1,
        maximum=10_000,
    )
    abort_interval_ms: int = setting(  # transaction.abort.timed.out.transaction.cleanup.interval.ms
        10_000,
        "Time between two looks for transactions past their time-out. Shorter: they are aborted "
        "sooner.",
        minimum=1,
    )
    expiration_interval_ms: int = setting(  # transaction.remove.expired.transaction.cleanup…
        3_600_000,
        "Time between two looks for transactional ids that are unused for too long.",
        minimum=1,
    )


KAFKA_NAMES = {
    "transaction.max.timeout.ms": "max_timeout_ms",
    "transactional.id.expiration.ms": "id_expiration_ms",
    "transaction.state.log.num.partitions": "state_partitions",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "abort_interval_ms",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "expiration_interval_ms",
}
"""Kafka's broker settings → fields of TransactionConfig."""
