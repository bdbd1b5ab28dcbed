"""Reads a metric's value without a registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge


def value_of(metric: Counter | Gauge) -> float:
    """The value of a metric without labels, or of one child of a metric with labels."""
    (family,) = metric.collect()
    return next(sample.value for sample in family.samples if not sample.name.endswith("_created"))
