"""Offsets of partitions: their form in Spark's log and checkpoints, and those that options mean.

    {"version": 1, "offsets": {"topic": {"0": 23, "1": 5}}, "topics": {"topic": "its id"}}

Spark compares these as texts, so keys are always in the same order. Older checkpoints have no topic
ids: then only offsets can show that a topic was deleted and recreated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from streamlog.errors import Corrupt, Invalid, UnknownTopicOrPartition, UnsupportedVersion
from streamlog.model.located import OffsetWindow
from streamlog.reading.topics import Offsets, Topic, TopicPartition
from streamlog.spark.cluster.cluster import Cluster
from streamlog.spark.errors import DataLost
from streamlog.spark.options import EARLIEST, LATEST, Bound, ReadOptions

log = logging.getLogger(__name__)

VERSION = 1
NAMED_MAX = 10
"""At most so many partitions are named in a message."""

PartitionOffsets = Mapping[TopicPartition, int]
TopicIds = Mapping[str, str]


def encode_offsets(offsets: PartitionOffsets, topic_ids: TopicIds | None = None) -> dict[str, Any]:
    """The value that Spark writes as JSON; with ids of the topics that have offsets, if given."""
    value: dict[str, Any] = {"version": VERSION, "offsets": _nested(offsets)}
    if topic_ids is not None:
        names = sorted(topic_ids.keys() & value["offsets"].keys())
        value["topics"] = {name: topic_ids[name] for name in names}
    return value


def _nested(offsets: PartitionOffsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return nested


def encode_report(
    latest: PartitionOffsets, read: PartitionOffsets, plan_stats: Mapping[str, Any]
) -> dict[str, Any]:
    """A query's progress: the partitions' ends, how far the query is behind, and `plan_stats`."""
    lag = {key: max(end - read.get(key, end), 0) for key, end in latest.items()}
    behind = lag.values() or [0]
    return {
        **encode_offsets(latest),
        "lag": _nested(lag),
        "lagRecords": sum(behind),
        # Named and counted as the metrics of Spark's Kafka source.
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        **plan_stats,
    }


def decode_offsets(value: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Errors: UnsupportedVersion, Corrupt."""
    version = value.get("version")
    if not isinstance(version, int):
        raise Corrupt(
            f"{str(value)[:200]!r} are no offsets of this source: did another source write the "
            "checkpoint?"
        )
    if version > VERSION:
        raise UnsupportedVersion(
            f"the checkpoint has offsets of version {version}, this program knows {VERSION}; use "
            "the version of streamlog that wrote it, or a newer one",
            found=version,
            supported=VERSION,
        )
    try:
        return {
            (str(topic), int(partition)): int(offset)
            for topic, partitions in value["offsets"].items()
            for partition, offset in partitions.items()
        }
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Corrupt(f"the offsets {str(value)[:200]!r} cannot be read") from error


def decode_topic_ids(value: Mapping[str, Any]) -> dict[str, str]:
    """The topic ids in offsets that `decode_offsets` reads. Errors: Corrupt."""
    ids = value.get("topics", {})
    if not isinstance(ids, Mapping) or not all(isinstance(name, str) for name in ids.values()):
        raise Corrupt(f"the topic ids {str(ids)[:200]!r} cannot be read")
    return dict(ids)


def partition_counts(topics: Mapping[str, Topic]) -> dict[str, int]:
    return {name: topic.partitions for name, topic in topics.items()}


def chosen_among(options: ReadOptions, existing: Mapping[str, Topic]) -> list[TopicPartition]:
    """The chosen partitions of `existing` topics. Errors: UnknownTopicOrPartition for a named one
    that does not exist."""
    topics = partition_counts(existing)
    chosen = options.chosen
    missing = [name for name in chosen.topics or () if name not in topics]
    missing += [f"{t}-{p}" for t, p in chosen.partitions or () if p >= topics.get(t, 0)]
    if missing:
        raise UnknownTopicOrPartition(
            f"there is no {', '.join(missing[:NAMED_MAX])}; create it, or change the options"
        )
    return chosen.of(topics)


def resolve(
    bound: Bound,
    partitions: Sequence[TopicPartition],
    existing: Mapping[TopicPartition, Offsets],
    cluster: Cluster,
    *,
    name: str,
    is_end: bool,
    is_late_an_error: bool,
) -> dict[TopicPartition, int]:
    """Offsets of all partitions; offsets that the bound names are not checked against `existing`.

    Errors: Invalid, if a bound names other partitions, or a time that no record reaches.
    """
    if bound.timestamp_ms is not None or bound.timestamps_ms is not None:
        times = bound.timestamps_ms
        if times is None:
            times = dict.fromkeys(partitions, bound.timestamp_ms or 0)
        _check_named(times, partitions, f"{name}ByTimestamp")
        by_time = cluster.offsets_at({key: times[key] for key in partitions})
        late = [key for key, offset in by_time.items() if offset is None]
        if late and not is_end and is_late_an_error:
            raise Invalid(
                f"no record of {shown(late)} is as late as the starting timestamp; set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end there"
            )
        return {
            key: existing[key].end if offset is None else offset for key, offset in by_time.items()
        }
    if bound.offsets is not None:
        _check_named(bound.offsets, partitions, name)
        ends = {EARLIEST: 0, LATEST: 1}
        return {
            key: existing[key][ends[offset]] if offset in ends else offset
            for key, offset in bound.offsets.items()
        }
    is_earliest = bound.everywhere == EARLIEST
    return {key: offsets.start if is_earliest else offsets.end for key, offsets in existing.items()}


def _check_named(
    named: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition], name: str
) -> None:
    if set(named) != set(partitions):
        raise Invalid(
            f"{name} must name all partitions that are read (-1: latest, -2: earliest); named: "
            f"{shown(sorted(named))}, read: {shown(partitions)}"
        )


def shown(partitions: Sequence[TopicPartition]) -> str:
    """Their names, for a message."""
    names = [f"{topic}-{partition}" for topic, partition in partitions[:NAMED_MAX]]
    return ", ".join(names) + (" …" if len(partitions) > NAMED_MAX else "")


def batch_windows(options: ReadOptions, cluster: Cluster) -> list[OffsetWindow]:
    """The offsets that a batch query reads. Errors: those of `resolve`, DataLost, Unavailable."""
    topics = cluster.topics()
    partitions = chosen_among(options, topics)
    existing = cluster.offsets(partitions)
    partitions = [partition for partition in partitions if partition in existing]
    late = options.is_late_an_error
    starts = resolve(
        options.start, partitions, existing, cluster,
        name="startingOffsets", is_end=False, is_late_an_error=late,
    )  # fmt: skip
    ends = resolve(
        options.end, partitions, existing, cluster,
        name="endingOffsets", is_end=True, is_late_an_error=late,
    )  # fmt: skip
    windows = [
        checked_window(
            options, key, starts[key], ends[key], existing[key], topic_id=topics[key[0]].topic_id
        )
        for key in partitions
    ]
    return [window for window in windows if window.count > 0]


def checked_window(
    options: ReadOptions,
    partition: TopicPartition,
    start: int,
    end: int,
    bounds: Offsets,
    *,
    topic_id: str = "",
) -> OffsetWindow:
    """The window, cut to `bounds`. Errors: DataLost, if that leaves out requested offsets."""
    low, high = max(start, bounds.start), min(end, bounds.end)
    is_lost = start < end and (low > start or high < end)
    if start > bounds.end or is_lost:
        lost(
            options,
            f"offsets {start} to {end} of {shown([partition])} were asked for; it has "
            f"{bounds.start} to {bounds.end}: the others were deleted, or the topic was recreated",
        )
    return OffsetWindow(*partition, low, max(low, high), topic_id)


def lost(options: ReadOptions, message: str) -> None:
    """Raises DataLost, or warns if failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLost(f"{message}; failOnDataLoss=false goes on without them")
    log.warning("%s; the query goes on without them, for failOnDataLoss is false", message)
