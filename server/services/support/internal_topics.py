"""Kafka's own topics: tools show them apart, and clients may not make them."""

from __future__ import annotations

from streamlog.log.api.internal_topics import is_internal

__all__ = ["is_internal"]
