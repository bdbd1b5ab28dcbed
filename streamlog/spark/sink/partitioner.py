"""The partition of each row, chosen as Kafka's producer does.

1. The column `partition`, if it is there and not null.
2. With a key: murmur2, the partition where every client of the log puts that key.
3. Without a key: runs of about a batch's bytes go to one partition after another, so that batches
   are full. Each task begins at another partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from streamlog.codec.columns import key_partitions
from streamlog.errors import InvalidRecord
from streamlog.spark.sink.write_columns import WriteColumns, lengths

RECORD_OVERHEAD_BYTES = 8
"""Approximate bytes of a record beside key and value."""


class Placed(NamedTuple):
    """Rows of one partition, in their original order."""

    topic: str
    partition: int
    rows: np.ndarray
    """int32; indices into the columns."""


class Partitioner:
    """The partitioner of one task."""

    def __init__(
        self, counts: Callable[[str], int], run_bytes: Callable[[str], int], start: float
    ) -> None:
        """`counts`: partitions of a topic; `run_bytes`: bytes of one batch of it. `start`, in
        [0, 1): where among the partitions the runs of rows without a key begin.
        """
        self._counts = counts
        self._run_bytes = run_bytes
        self._start = start
        self._next: dict[str, int] = {}

    def place(self, columns: WriteColumns) -> Iterator[Placed]:
        """Errors: InvalidRecord, which names the column; those of `counts`."""
        hashes = _Hashes(columns)
        if columns.topic_codes is None:
            everything: np.ndarray = np.arange(columns.count, dtype=np.int32)
            yield from self._place(columns, hashes, columns.topics[0], everything)
            return
        for code, rows in _groups(columns.topic_codes):
            yield from self._place(columns, hashes, columns.topics[code], rows)

    def _place(
        self, columns: WriteColumns, hashes: _Hashes, topic: str, rows: np.ndarray
    ) -> Iterator[Placed]:
        for partition, among in _groups(self._choose(columns, hashes, topic, rows)):
            yield Placed(topic, partition, rows[among])

    def _choose(
        self, columns: WriteColumns, hashes: _Hashes, topic: str, rows: np.ndarray
    ) -> np.ndarray:
        count = self._counts(topic)
        chosen: np.ndarray = np.full(len(rows), -1, np.int32)
        if columns.partitions is not None:
            chosen = columns.partitions[rows].astype(np.int32)
            if len(chosen) and (most := int(chosen.max())) >= count:
                raise InvalidRecord(
                    f"column partition has {most}; topic {topic} has {count} partitions, counted "
                    "from 0"
                )
        if columns.keys is not None and (chosen < 0).any():
            chosen = np.where(chosen < 0, hashes.of(count)[rows], chosen)
        free = np.flatnonzero(chosen < 0)
        if len(free):
            chosen[free] = self._runs(columns, topic, rows[free], count)
        return chosen

    def _runs(self, columns: WriteColumns, topic: str, rows: np.ndarray, count: int) -> np.ndarray:
        sizes = lengths(columns.values, columns.count)[rows].astype(np.int64)
        ends = np.cumsum(sizes + RECORD_OVERHEAD_BYTES)
        runs = (ends - ends[0]) // self._run_bytes(topic)
        first = self._next.get(topic, int(self._start * count))
        self._next[topic] = (first + int(runs[-1]) + 1) % count
        chosen: np.ndarray = ((first + runs) % count).astype(np.int32)
        return chosen


class _Hashes:
    """Partitions of a chunk's keys, computed once per number of partitions."""

    def __init__(self, columns: WriteColumns) -> None:
        self._columns = columns
        self._partitions: dict[int, np.ndarray] = {}

    def of(self, count: int) -> np.ndarray:
        """Partition numbers, -1 for a null key. The chunk must have keys."""
        partitions = self._partitions.get(count)
        if partitions is None:
            keys = self._columns.keys
            assert keys is not None
            chosen = key_partitions(keys, self._columns.count, count)
            partitions = self._partitions[count] = np.frombuffer(chosen, np.int32)
        return partitions


def _groups(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each number with the indexes where it occurs, in order."""
    order = np.argsort(numbers, kind="stable").astype(np.int32)
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(bounds):
        if end > start:
            yield int(ordered[start]), order[start:end]
