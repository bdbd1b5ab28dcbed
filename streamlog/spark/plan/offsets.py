"""Offsets of partitions: as Spark's log and checkpoints hold them, and what options make of them.

    {"version": 1, "offsets": {"topic": {"0": 23, "1": 5}}, "topics": {"topic": "its id"}}

Spark compares these as texts, so keys are always in the same order. Older checkpoints have no
topic ids: then a topic that was made anew is known by its offsets at best.
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
"""Partitions named in a message."""

PartitionOffsets = Mapping[TopicPartition, int]
TopicIds = Mapping[str, str]


def encode_offsets(offsets: PartitionOffsets, topic_ids: TopicIds | None = None) -> dict[str, Any]:
    """What Spark writes as JSON; ids of the topics that have offsets, as far as they are given."""
    found: dict[str, Any] = {"version": VERSION, "offsets": _nested(offsets)}
    if topic_ids is not None:
        names = sorted(topic_ids.keys() & found["offsets"].keys())
        found["topics"] = {name: topic_ids[name] for name in names}
    return found


def _nested(offsets: PartitionOffsets) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return found


def encode_report(
    latest: PartitionOffsets, read: PartitionOffsets, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """For a query's progress: where partitions end, how far the query is behind that, facts."""
    lag = {at: max(end - read.get(at, end), 0) for at, end in latest.items()}
    behind = lag.values() or [0]
    return {
        **encode_offsets(latest),
        "lag": _nested(lag),
        "lagRecords": sum(behind),
        # Named and counted as the metrics of Spark's Kafka source.
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        **facts,
    }


def decode_offsets(value: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Errors: UnsupportedVersion, Corrupt."""
    version = value.get("version")
    if not isinstance(version, int):
        raise Corrupt(
            f"{str(value)[:200]!r} are no offsets of this source: was the checkpoint written by "
            "another one?"
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
    except (KeyError, ValueError, AttributeError) as error:
        raise Corrupt(f"the offsets {str(value)[:200]!r} cannot be read") from error


def decode_topic_ids(value: Mapping[str, Any]) -> dict[str, str]:
    """Of offsets that `decode_offsets` reads. Errors: Corrupt."""
    found = value.get("topics", {})
    if not isinstance(found, Mapping) or not all(isinstance(one, str) for one in found.values()):
        raise Corrupt(f"the topic ids {str(found)[:200]!r} cannot be read")
    return dict(found)


def partition_counts(topics: Mapping[str, Topic]) -> dict[str, int]:
    return {name: one.partitions for name, one in topics.items()}


def chosen_partitions(options: ReadOptions, cluster: Cluster) -> list[TopicPartition]:
    """Those that are there now. Errors: UnknownTopicOrPartition for one that is named and is not
    there."""
    return chosen_among(options, cluster.topics())


def chosen_among(options: ReadOptions, known: Mapping[str, Topic]) -> list[TopicPartition]:
    """As `chosen_partitions`, of topics that are known."""
    topics = partition_counts(known)
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
    known: Mapping[TopicPartition, Offsets],
    cluster: Cluster,
    *,
    name: str,
    is_end: bool,
    is_late_an_error: bool,
) -> dict[TopicPartition, int]:
    """Offsets of all partitions; numbers that were given are not checked against what is there.

    Errors: Invalid, where a bound names other partitions, or a time that no record reaches.
    """
    if bound.timestamp_ms is not None or bound.timestamps_ms is not None:
        times = bound.timestamps_ms
        if times is None:
            times = dict.fromkeys(partitions, bound.timestamp_ms or 0)
        _check_named(times, partitions, f"{name}ByTimestamp")
        found = cluster.offsets_at({at: times[at] for at in partitions})
        late = [at for at, offset in found.items() if offset is None]
        if late and not is_end and is_late_an_error:
            raise Invalid(
                f"no record of {_shown(late)} is as late as the starting timestamp; set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end there"
            )
        return {at: known[at].end if offset is None else offset for at, offset in found.items()}
    if bound.offsets is not None:
        _check_named(bound.offsets, partitions, name)
        ends = {EARLIEST: 0, LATEST: 1}
        return {
            at: known[at][ends[offset]] if offset in ends else offset
            for at, offset in bound.offsets.items()
        }
    return {at: known[at].start if bound.everywhere == EARLIEST else known[at].end for at in known}


def _check_named(
    named: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition], name: str
) -> None:
    if set(named) != set(partitions):
        raise Invalid(
            f"{name} must name all partitions that are read (-1: latest, -2: earliest); named: "
            f"{_shown(sorted(named))}, read: {_shown(partitions)}"
        )


def _shown(partitions: Sequence[TopicPartition]) -> str:
    names = [f"{topic}-{partition}" for topic, partition in partitions[:NAMED_MAX]]
    return ", ".join(names) + (" …" if len(partitions) > NAMED_MAX else "")


def batch_windows(options: ReadOptions, cluster: Cluster) -> list[OffsetWindow]:
    """What a batch query reads, pinned down to offsets. Errors: as for what it calls, DataLost."""
    topics = cluster.topics()
    partitions = chosen_among(options, topics)
    known = cluster.offsets(partitions)
    partitions = [at for at in partitions if at in known]
    late = options.is_late_an_error
    starts = resolve(
        options.start, partitions, known, cluster,
        name="startingOffsets", is_end=False, is_late_an_error=late,
    )  # fmt: skip
    ends = resolve(
        options.end, partitions, known, cluster,
        name="endingOffsets", is_end=True, is_late_an_error=late,
    )  # fmt: skip
    windows = [
        checked_window(
            options, at, starts[at], ends[at], known[at], topic_id=topics[at[0]].topic_id
        )
        for at in partitions
    ]
    return [window for window in windows if window.count > 0]


def checked_window(
    options: ReadOptions,
    at: TopicPartition,
    start: int,
    end: int,
    known: Offsets,
    *,
    topic_id: str = "",
) -> OffsetWindow:
    """Cut to what is there. Errors: DataLost, where that leaves out what was asked for."""
    low, high = max(start, known.start), min(end, known.end)
    is_lost = start < end and (low > start or high < end)
    if start > known.end or is_lost:
        lost(
            options,
            f"offsets {start} to {end} of {at[0]}-{at[1]} were asked for; it has {known.start} to "
            f"{known.end}: the others were deleted, or the topic was made anew",
        )
    return OffsetWindow(*at, low, max(low, high), topic_id)


def lost(options: ReadOptions, what: str) -> None:
    """Raises DataLost; a warning where failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLost(f"{what}; failOnDataLoss=false goes on without them")
    log.warning("%s; the query goes on without them, for failOnDataLoss is false", what)
