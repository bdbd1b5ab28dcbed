"""Kafka's own topics: tools show them apart, and clients may not make them."""

from __future__ import annotations

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})


def is_internal(topic: str) -> bool:
    return topic in _INTERNAL
