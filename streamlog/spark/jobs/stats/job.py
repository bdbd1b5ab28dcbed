"""Statistics of topics: sizes, rates over time, keys and skew, by one pass on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamlog.repair.findings import Progress, no_progress
from streamlog.spark.arrow import COLUMNS
from streamlog.spark.jobs.batches import runs
from streamlog.spark.jobs.rounds import ROUND_RECORDS, rounds, run_round
from streamlog.spark.jobs.stats.state import StatsState
from streamlog.spark.jobs.stats.topic_stats import MINUTE_US, PartitionStats, TopicStats
from streamlog.spark.options import SELECTING, parse_read_options
from streamlog.spark.plan.offsets import batch_windows
from streamlog.spark.plan.session import opened_cluster
from streamlog.spark.plan.types import ReadPlace, TaskPlan
from streamlog.spark.read.task import read_task

_READ = ("topic", "partition", "timestamp", "key", "value")
TOP_KEYS = 10
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of the offsets that existed when the first run began."""

    cluster_id: str
    topics: Mapping[str, TopicStats]

    def description(self, top_keys: int = TOP_KEYS) -> dict[str, Any]:
        """The statistics for JSON; rates are over the time from the first to the last timestamp."""
        named = {name: _topic_dict(topic, top_keys) for name, topic in sorted(self.topics.items())}
        return {"cluster_id": self.cluster_id, "topics": named}


def stats(
    spark: Any,
    options: Mapping[str, str],
    *,
    state_file: Path | None = None,
    round_records: int = ROUND_RECORDS,
    progress: Progress = no_progress,
) -> Stats:
    """`options`: those of a batch read.

    With a state file, the run after an interrupted one goes on behind its last round, with the
    offsets of the first run. Errors: those of a read, TaskFailed, Corrupt, ForeignCluster, Invalid
    (the state is of other records), OSError.
    """
    parsed = parse_read_options(options, streaming=False)
    with opened_cluster(parsed) as cluster:
        selection = _selection(options) | {"isolation": parsed.isolation}
        state = StatsState.read(state_file, cluster.cluster_id, selection)
        if state.left is None:
            state.left = batch_windows(parsed, cluster)
        todo = list(rounds(state.left, round_records))
        total = sum(window.count for window in state.left)
        done = 0
        for number, windows in enumerate(todo):
            results = run_round(spark, parsed, cluster, windows, look)
            done += sum(window.count for window in windows)
            state.add(results, [window for later in todo[number + 1 :] for window in later])
            state.write()
            progress("reading records", done, total)
        state.remove()
        return Stats(cluster.cluster_id, state.topics)


def _selection(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    return {name: given[name.lower()] for name in SELECTING if name.lower() in given}


def look(plan: TaskPlan, place: ReadPlace) -> dict[str, TopicStats]:
    """Runs in a task. Errors: those of `read_task`."""
    schema = pa.schema([pa.field(name, COLUMNS[name]) for name in _READ])
    topics: dict[str, TopicStats] = {}
    for batch in read_task(plan, place, schema):
        for start, end in runs(batch):
            part = batch.slice(start, end - start)
            topic = part.column("topic")[0].as_py()
            stats = topics.setdefault(topic, TopicStats())
            stats.add(part.column("partition")[0].as_py(), part)
    return topics


def _topic_dict(topic: TopicStats, top_keys: int) -> dict[str, Any]:
    return _partition_dict(topic.whole) | {
        "partitions": {str(n): _partition_dict(p) for n, p in sorted(topic.partitions.items())},
        "skew": skew(list(topic.partitions.values())),
        "keys": {
            "distinct_about": topic.distinct.estimate(),
            "top": [
                {"key": key.decode(errors="backslashreplace"), "records_at_least": count}
                for key, count in topic.frequent.top(top_keys)
            ],
            "records_missed_at_most": topic.frequent.missed,
        },
        "minutes": {str(minute): count for minute, count in sorted(topic.minutes.items())},
    }


def _partition_dict(partition: PartitionStats) -> dict[str, Any]:
    first, last = partition.first_us, partition.last_us
    return {
        "records": partition.records,
        "key_bytes": partition.key_bytes,
        "value_bytes": partition.value_bytes,
        "without_key": partition.without_key,
        "without_value": partition.without_value,
        "first_ms": None if first is None else first // 1000,
        "last_ms": None if last is None else last // 1000,
        "records_per_s": rate(partition),
    }


def rate(partition: PartitionStats) -> float | None:
    """Records per second between the first and the last timestamp; None for less than a second."""
    first, last = partition.first_us, partition.last_us
    if first is None or last is None or last - first < SECOND_US:
        return None
    return round(partition.records * SECOND_US / (last - first), 3)


def skew(partitions: Sequence[PartitionStats]) -> float | None:
    """The bytes of the largest partition as a multiple of the mean; 1: all are equal."""
    total = sum(partition.size_bytes for partition in partitions)
    if not total:
        return None
    largest = max(partition.size_bytes for partition in partitions)
    return round(largest * len(partitions) / total, 3)


def over_time(
    topics: Mapping[str, TopicStats], most: int
) -> tuple[list[int], dict[str, list[int]]]:
    """Starts of at most `most` equal spans, ms, and each topic's records in them."""
    minutes = [minute for topic in topics.values() for minute in topic.minutes]
    if not minutes:
        return [], {}
    first, last = min(minutes), max(minutes)
    step = -(-(last - first + 1) // most)
    count = (last - first) // step + 1
    series = {name: [0] * count for name in sorted(topics)}
    for name, topic in topics.items():
        for minute, records in topic.minutes.items():
            series[name][(minute - first) // step] += records
    return [(first + n * step) * MINUTE_US // 1000 for n in range(count)], series
