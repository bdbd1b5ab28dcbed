"""Statistics of a partition's and a topic's records; parts can be merged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from streamlog.spark.jobs.stats.sketches import Distinct, Frequent

MINUTE_US = 60_000_000


@dataclass
class PartitionStats:
    """`first_us`, `last_us`: the earliest and the latest timestamp."""

    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    without_key: int = 0
    without_value: int = 0
    first_us: int | None = None
    last_us: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and values, uncompressed."""
        return self.key_bytes + self.value_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        keys, values = batch.column("key"), batch.column("value")
        self.records += batch.num_rows
        self.key_bytes += pc.sum(pc.binary_length(keys)).as_py() or 0
        self.value_bytes += pc.sum(pc.binary_length(values)).as_py() or 0
        self.without_key += keys.null_count
        self.without_value += values.null_count
        span = pc.min_max(batch.column("timestamp").cast(pa.int64())).as_py()
        self._widen(span["min"], span["max"])

    def merge(self, other: PartitionStats) -> None:
        self.records += other.records
        self.key_bytes += other.key_bytes
        self.value_bytes += other.value_bytes
        self.without_key += other.without_key
        self.without_value += other.without_value
        self._widen(other.first_us, other.last_us)

    def _widen(self, first: int | None, last: int | None) -> None:
        if first is not None and (self.first_us is None or first < self.first_us):
            self.first_us = first
        if last is not None and (self.last_us is None or last > self.last_us):
            self.last_us = last


@dataclass
class TopicStats:
    """`minutes`: records by minute since 1970, of their timestamps."""

    partitions: dict[int, PartitionStats] = field(default_factory=dict)
    minutes: Counter[int] = field(default_factory=Counter)
    distinct: Distinct = field(default_factory=Distinct)
    frequent: Frequent = field(default_factory=Frequent)

    def add(self, partition: int, batch: pa.RecordBatch) -> None:
        self.partitions.setdefault(partition, PartitionStats()).add(batch)
        stamps = batch.column("timestamp").cast(pa.int64()).to_numpy()
        minutes, counts = np.unique(stamps // MINUTE_US, return_counts=True)
        for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
            self.minutes[minute] += count
        key_counts = batch.column("key").drop_null().value_counts()
        keys = key_counts.field("values").to_pylist()
        if keys:
            # A fixed hash, the same in every process.
            self.distinct.add(pd.util.hash_array(np.array(keys, object), categorize=False))
            self.frequent.add(keys, key_counts.field("counts").to_numpy())

    def merge(self, other: TopicStats) -> None:
        for number, partition in other.partitions.items():
            self.partitions.setdefault(number, PartitionStats()).merge(partition)
        self.minutes.update(other.minutes)
        self.distinct.merge(other.distinct)
        self.frequent.merge(other.frequent)

    @property
    def whole(self) -> PartitionStats:
        """The sum over all partitions."""
        total = PartitionStats()
        for partition in self.partitions.values():
            total.merge(partition)
        return total
