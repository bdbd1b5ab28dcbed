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
from streamlog.spark.jobs.stats.facts import MINUTE_US, PartitionFacts, TopicFacts
from streamlog.spark.jobs.stats.state import StatsState
from streamlog.spark.options import parse_read_options
from streamlog.spark.plan.offsets import batch_windows
from streamlog.spark.plan.session import opened_cluster
from streamlog.spark.plan.types import ReadPlace, TaskPlan
from streamlog.spark.read.task import read_task

_READ = ("topic", "partition", "timestamp", "key", "value")
TOP_KEYS = 10
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Stats:
    """Of the offsets that were there when the first run began."""

    cluster_id: str
    topics: Mapping[str, TopicFacts]

    def facts(self, top_keys: int = TOP_KEYS) -> dict[str, Any]:
        """For JSON. Rates are over the time between the first and the last timestamp."""
        named = {name: _topic_facts(one, top_keys) for name, one in sorted(self.topics.items())}
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

    With a state file a run that was stopped goes on behind its last round, with the offsets that
    the first run began with. Errors: those of a read, TaskFailed, Corrupt, ForeignCluster, OSError.
    """
    parsed = parse_read_options(options, streaming=False)
    with opened_cluster(parsed) as cluster:
        state = StatsState.read(state_file, cluster.cluster_id)
        if state.left is None:
            state.left = batch_windows(parsed, cluster)
        todo = list(rounds(state.left, round_records))
        total = sum(window.count for window in state.left)
        done = 0
        for number, some in enumerate(todo):
            found = run_round(spark, parsed, cluster, some, look)
            done += sum(window.count for window in some)
            state.add(found, [window for later in todo[number + 1 :] for window in later])
            state.write()
            progress("reading records", done, total)
        state.remove()
        return Stats(cluster.cluster_id, state.topics)


def look(plan: TaskPlan, place: ReadPlace) -> dict[str, TopicFacts]:
    """In a task. Errors: as of `read_task`."""
    schema = pa.schema([pa.field(name, COLUMNS[name]) for name in _READ])
    found: dict[str, TopicFacts] = {}
    for batch in read_task(plan, place, schema):
        for at, end in runs(batch):
            part = batch.slice(at, end - at)
            topic = part.column("topic")[0].as_py()
            facts = found.setdefault(topic, TopicFacts())
            facts.add(part.column("partition")[0].as_py(), part)
    return found


def _topic_facts(one: TopicFacts, top_keys: int) -> dict[str, Any]:
    whole = one.whole
    return _partition_facts(whole) | {
        "partitions": {str(n): _partition_facts(p) for n, p in sorted(one.partitions.items())},
        "skew": skew(list(one.partitions.values())),
        "keys": {
            "distinct_about": one.distinct.estimate(),
            "top": [
                {"key": key.decode(errors="backslashreplace"), "records_at_least": count}
                for key, count in one.frequent.top(top_keys)
            ],
            "records_missed_at_most": one.frequent.missed,
        },
        "minutes": {str(minute): count for minute, count in sorted(one.minutes.items())},
    }


def _partition_facts(one: PartitionFacts) -> dict[str, Any]:
    return {
        "records": one.records,
        "key_bytes": one.key_bytes,
        "value_bytes": one.value_bytes,
        "without_key": one.without_key,
        "without_value": one.without_value,
        "first_ms": None if one.first_us is None else one.first_us // 1000,
        "last_ms": None if one.last_us is None else one.last_us // 1000,
        "records_per_s": rate(one),
    }


def rate(one: PartitionFacts) -> float | None:
    """Records per second between the first and the last timestamp; None for less than a second."""
    if one.first_us is None or one.last_us is None or one.last_us - one.first_us < SECOND_US:
        return None
    return round(one.records * SECOND_US / (one.last_us - one.first_us), 3)


def skew(partitions: Sequence[PartitionFacts]) -> float | None:
    """How many times the mean the largest partition with records has, by bytes; 1: all alike."""
    total = sum(one.size_bytes for one in partitions)
    if not total:
        return None
    return round(max(one.size_bytes for one in partitions) * len(partitions) / total, 3)


def over_time(
    topics: Mapping[str, TopicFacts], most: int
) -> tuple[list[int], dict[str, list[int]]]:
    """Starts of at most `most` equal spans, ms, and each topic's records in them."""
    minutes = [minute for one in topics.values() for minute in one.minutes]
    if not minutes:
        return [], {}
    first, last = min(minutes), max(minutes)
    step = -(-(last - first + 1) // most)
    count = (last - first) // step + 1
    series = {name: [0] * count for name in sorted(topics)}
    for name, one in topics.items():
        for minute, records in one.minutes.items():
            series[name][(minute - first) // step] += records
    return [(first + n * step) * MINUTE_US // 1000 for n in range(count)], series
