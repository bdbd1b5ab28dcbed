"""Kafka's own topics: tools show them apart, and clients may not make them."""

from __future__ import annotations

from streamlog.coordinator.api import TRANSACTION_STATE_TOPIC

_INTERNAL = frozenset({"__consumer_offsets", TRANSACTION_STATE_TOPIC})


def is_internal(topic: str) -> bool:
    return topic in _INTERNAL
