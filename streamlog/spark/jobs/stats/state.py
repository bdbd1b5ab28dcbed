"""The state of a statistics run, as JSON in a file that is replaced whole.

    {"version": 1, "cluster_id": "…", "selection": {"subscribe": "topic", "isolation": "…"},
     "left": [["topic", 0, 23, 99]],
     "topics": {"topic": {"partitions": {"0": {…}}, "minutes": {"29462400": 12},
                          "registers": base64, "frequent": [[base64, 12]], "missed": 0}}}

`selection`: the options that say which records are counted; absent in files of older releases.
`left`: windows still to be read, as topic, partition, start and end offset. Ends are as of the
first run.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamlog.errors import Corrupt, ForeignCluster, Invalid
from streamlog.model.located import OffsetWindow
from streamlog.spark.jobs.files import replace_file
from streamlog.spark.jobs.stats.sketches import REGISTERS, Distinct, Frequent
from streamlog.spark.jobs.stats.topic_stats import PartitionStats, TopicStats

VERSION = 1


@dataclass(slots=True)
class StatsState:
    """`path` None: in memory only. `left` None: no run has begun."""

    path: Path | None
    cluster_id: str
    selection: Mapping[str, str]
    left: list[OffsetWindow] | None = None
    topics: dict[str, TopicStats] = field(default_factory=dict)

    @staticmethod
    def read(path: Path | None, cluster_id: str, selection: Mapping[str, str]) -> StatsState:
        """A new state if there is no file. Errors: Corrupt, ForeignCluster; Invalid, if the file
        is of another selection.
        """
        state = StatsState(path, cluster_id, selection)
        if path is None or not path.exists():
            return state
        try:
            value = json.loads(path.read_bytes())
            if value["version"] != VERSION:
                raise Corrupt(f"{path} was written by another version: name another file")
            state_cluster = str(value["cluster_id"])
            state_selection = value.get("selection", selection)
            state.left = [OffsetWindow(*window) for window in value["left"]]
            state.topics = {name: _topic(topic) for name, topic in value["topics"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"{path} is no state of statistics: name another file") from error
        if state_cluster != cluster_id:
            raise ForeignCluster(
                f"{path} is of topics of cluster {state_cluster}, these are of {cluster_id}: name "
                "another file",
                store_cluster=state_cluster,
                meta_cluster=cluster_id,
            )
        if state_selection != selection:
            raise Invalid(
                f"{path} is of {json.dumps(state_selection)}, this run of "
                f"{json.dumps(dict(selection))}: name another file"
            )
        return state

    def add(
        self, results: Sequence[Mapping[str, TopicStats]], left: Sequence[OffsetWindow]
    ) -> None:
        for result in results:
            for name, topic in result.items():
                self.topics.setdefault(name, TopicStats()).merge(topic)
        self.left = list(left)

    def write(self) -> None:
        if self.path is None:
            return
        left = [astuple(window) for window in self.left or ()]
        value = {
            "version": VERSION,
            "cluster_id": self.cluster_id,
            "selection": dict(self.selection),
            "left": left,
            "topics": {name: _value(topic) for name, topic in self.topics.items()},
        }
        replace_file(self.path, json.dumps(value).encode())

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _value(topic: TopicStats) -> dict[str, Any]:
    return {
        "partitions": {str(number): asdict(stats) for number, stats in topic.partitions.items()},
        "minutes": {str(minute): count for minute, count in topic.minutes.items()},
        "registers": b64encode(topic.distinct.registers.tobytes()).decode(),
        "frequent": [[b64encode(k).decode(), n] for k, n in topic.frequent.counts.items()],
        "missed": topic.frequent.missed,
    }


def _topic(value: Mapping[str, Any]) -> TopicStats:
    registers = np.frombuffer(b64decode(value["registers"]), np.uint8).copy()
    if len(registers) != REGISTERS:
        raise ValueError(f"{len(registers)} registers instead of {REGISTERS}")
    return TopicStats(
        {int(number): PartitionStats(**stats) for number, stats in value["partitions"].items()},
        Counter({int(minute): count for minute, count in value["minutes"].items()}),
        Distinct(registers),
        Frequent({b64decode(key): count for key, count in value["frequent"]}, value["missed"]),
    )
