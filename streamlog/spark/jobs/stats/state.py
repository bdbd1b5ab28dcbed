"""What statistics have seen so far, as JSON in a file that is replaced whole, and what is left.

    {"version": 1, "cluster_id": "…", "left": [["topic", 0, 23, 99]],
     "topics": {"topic": {"partitions": {"0": {…}}, "minutes": {"29462400": 12},
                          "registers": base64, "frequent": [[base64, 12]], "missed": 0}}}

`left`: topic, partition, first and end offset. Ends are those of when the first run began.
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

from streamlog.errors import Corrupt, ForeignCluster
from streamlog.model.located import OffsetWindow
from streamlog.spark.jobs.files import replace_file
from streamlog.spark.jobs.stats.facts import PartitionFacts, TopicFacts
from streamlog.spark.jobs.stats.sketches import Distinct, Frequent

VERSION = 1


@dataclass(slots=True)
class StatsState:
    """`path` None: kept in memory alone. `left` None: nothing was begun."""

    path: Path | None
    cluster_id: str
    left: list[OffsetWindow] | None = None
    topics: dict[str, TopicFacts] = field(default_factory=dict)

    @staticmethod
    def read(path: Path | None, cluster_id: str) -> StatsState:
        """New where there is no file. Errors: Corrupt, ForeignCluster."""
        state = StatsState(path, cluster_id)
        if path is None or not path.exists():
            return state
        try:
            found = json.loads(path.read_bytes())
            if found["version"] != VERSION:
                raise Corrupt(f"{path} was written by another version: name another file")
            known = str(found["cluster_id"])
            state.left = [OffsetWindow(*one) for one in found["left"]]
            state.topics = {name: _topic(one) for name, one in found["topics"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is no state of statistics: name another file") from error
        if known != cluster_id:
            raise ForeignCluster(
                f"{path} is of topics of cluster {known}, these are of {cluster_id}: name another "
                "file",
                store_cluster=known,
                meta_cluster=cluster_id,
            )
        return state

    def add(self, found: Sequence[Mapping[str, TopicFacts]], left: Sequence[OffsetWindow]) -> None:
        for one in found:
            for name, facts in one.items():
                self.topics.setdefault(name, TopicFacts()).merge(facts)
        self.left = list(left)

    def write(self) -> None:
        if self.path is None:
            return
        left = [astuple(one) for one in self.left or ()]
        value = {
            "version": VERSION,
            "cluster_id": self.cluster_id,
            "left": left,
            "topics": {name: _value(facts) for name, facts in self.topics.items()},
        }
        replace_file(self.path, json.dumps(value).encode())

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _value(facts: TopicFacts) -> dict[str, Any]:
    return {
        "partitions": {str(number): asdict(one) for number, one in facts.partitions.items()},
        "minutes": {str(minute): count for minute, count in facts.minutes.items()},
        "registers": b64encode(facts.distinct.registers.tobytes()).decode(),
        "frequent": [[b64encode(k).decode(), n] for k, n in facts.frequent.counts.items()],
        "missed": facts.frequent.missed,
    }


def _topic(value: Mapping[str, Any]) -> TopicFacts:
    registers = np.frombuffer(b64decode(value["registers"]), np.uint8).copy()
    return TopicFacts(
        {int(number): PartitionFacts(**one) for number, one in value["partitions"].items()},
        Counter({int(minute): count for minute, count in value["minutes"].items()}),
        Distinct(registers),
        Frequent({b64decode(key): count for key, count in value["frequent"]}, value["missed"]),
    )
