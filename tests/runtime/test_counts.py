"""Counts: what Prometheus reads of them is what it would read of its own metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from streamlog.runtime.counts import Counts, Observations


def without_created(registry: CollectorRegistry) -> list[bytes]:
    return [line for line in generate_latest(registry).splitlines() if b"_created" not in line]


def test_the_page_is_that_of_a_counter() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    for counter in (
        Counts("streamlog_things", "Things.", ["kind", "size"], ours),
        Counter("streamlog_things", "Things.", ["kind", "size"], registry=theirs),
    ):
        counter.labels("a", "1").inc()
        counter.labels("a", "1").inc(2)
        counter.labels('b"\\', "2").inc(0.5)
        counter.labels("gone", "1").inc()
        counter.remove("gone", "1")
    assert without_created(ours) == without_created(theirs)
    labels = {"kind": "a", "size": "1"}
    assert ours.get_sample_value("streamlog_things_total", labels) == 3


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    Counts("streamlog_things", "Things.", ["kind"], registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("streamlog_things", "Things.", registry=registry)


def test_labels_are_as_many_as_names() -> None:
    counts = Counts("streamlog_things", "Things.", ["kind"], CollectorRegistry())
    with pytest.raises(ValueError, match="labels"):
        counts.labels("a", "b")


def test_the_page_is_that_of_a_histogram() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    bounds = (0.5, 1, 4096.0)
    histograms = (
        Observations("streamlog_sizes", "Sizes.", buckets=bounds, registry=ours),
        Histogram("streamlog_sizes", "Sizes.", buckets=bounds, registry=theirs),
    )
    assert without_created(ours) == without_created(theirs)
    for histogram in histograms:
        for amount in (0, 0.25, 0.5, 1, 1.5, 4096, 5000):
            histogram.observe(amount)
    assert without_created(ours) == without_created(theirs)
    assert ours.get_sample_value("streamlog_sizes_count") == 7
    assert ours.get_sample_value("streamlog_sizes_bucket", {"le": "1.0"}) == 4
