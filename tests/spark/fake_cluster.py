"""A cluster in dicts: what planners ask, answered from memory."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from streamlog.model.located import Located, LocatedRun, ObjectTable, OffsetWindow
from streamlog.reading.topics import Offsets, Topic, TopicPartition


class FakeCluster:
    """`ends`: (start, end) by partition. Records lie in objects of `object_records` each, up to
    `committed` of the end; a record has 100 bytes."""

    def __init__(
        self,
        ends: Mapping[TopicPartition, tuple[int, int]],
        *,
        object_records: int = 10,
        uncommitted: int = 0,
    ) -> None:
        self.server: str | None = "127.0.0.1:1"
        self.store_url = "local:///nowhere"
        self.cluster_id = "fake"
        self.ends = dict(ends)
        self.counts: dict[str, int] = {}
        self.made: dict[str, int] = {}
        self.times: dict[TopicPartition, int | None] = {}
        self.pins: list[int] = []
        self.pinned = 0
        self.object_records = object_records
        self.uncommitted = uncommitted
        self.closed = 0

    def let_go(self) -> None:
        """Nothing is held."""

    def topics(self) -> dict[str, Topic]:
        counts = dict(self.counts)
        for topic, partition in self.ends:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        return {name: Topic(count, self.topic_id(name)) for name, count in counts.items()}

    def topic_id(self, name: str) -> str:
        return f"{name} made {self.made.get(name, 1)} times"

    def offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offsets]:
        return {at: Offsets(*self.ends[at]) for at in partitions if at in self.ends}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {at: self.times.get(at) for at in times}

    def locate(self, windows: Sequence[OffsetWindow]) -> Located:
        assert self.pins, "located without a pin"
        runs: list[LocatedRun] = []
        objects: set[int] = set()
        for number, window in enumerate(windows):
            stream = sorted(self.ends).index((window.topic, window.partition)) + 1
            start, end = self.ends[window.topic, window.partition]
            low, high = max(window.start, start), min(window.end, end - self.uncommitted)
            if low >= high:
                continue
            step = self.object_records
            bounds = [*range(low - low % step + step, high, step), high]
            ids = [(at - 1) // step + 1 for at in bounds]
            objects.update(ids)
            size = (high - low) * 100
            runs.append(
                LocatedRun(number, stream, low, 7, array("q", bounds), array("Q", ids), size)
            )
        table = ObjectTable()
        for object_id in sorted(objects, reverse=True):
            table.append(object_id, object_id * 1000, 50, object_id)
        return Located(5, runs, table)

    def pin(self, ttl_ms: int) -> int:
        self.pinned += 1
        self.pins.append(self.pinned)
        return self.pinned

    def renew(self, pin_id: int) -> bool:
        return pin_id in self.pins

    def unpin(self, pin_id: int) -> None:
        self.pins.remove(pin_id)

    def close(self) -> None:
        self.closed += 1
