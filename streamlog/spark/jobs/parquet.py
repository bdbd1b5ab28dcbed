"""A task's records as Parquet files, one for each topic and day at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamlog.runtime.rand import SystemRandom
from streamlog.spark.arrow import COLUMNS
from streamlog.spark.jobs.batches import runs
from streamlog.spark.jobs.manifest import Manifest, Written
from streamlog.spark.plan_types import ReadPlace, TaskPlan
from streamlog.spark.task import read_task

OPEN_FILES_MAX = 16
"""Of a task, each with a row group in memory: records that go back and forth over more days than
this make more files."""
ROW_GROUP_BYTES = 32 << 20
DAY_US = 86_400_000_000
COMPRESSION = "zstd"
LEVEL = 1


def file_schema(*, headers: bool) -> pa.Schema:
    """The columns of the source but for the topic, which the folder tells."""
    names = [name for name in COLUMNS if name != "topic" and (headers or name != "headers")]
    return pa.schema([pa.field(name, COLUMNS[name]) for name in names])


@dataclass
class _Open:
    folder: str
    path: Path
    writer: pq.ParquetWriter
    rows: int = 0
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, partition: int, batch: pa.RecordBatch) -> None:
        offsets = batch.column(batch.schema.get_field_index("offset"))
        first, last = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
        known = self.offsets.get(partition)
        self.offsets[partition] = (first if known is None else known[0], last + 1)
        self.rows += batch.num_rows
        self.held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.held:
            self.writer.write_table(pa.Table.from_batches(self.held), self.rows)
            self.held, self.held_bytes = [], 0

    def close(self) -> Written:
        """On disk when it returns."""
        self.flush()
        self.writer.close()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        return Written(self.folder, self.path.name, self.rows, size, self.offsets)


@dataclass(frozen=True, slots=True)
class ParquetTask:
    """Travels to the tasks; `folder` is the export's, the same on all machines."""

    folder: str
    headers: bool

    def __call__(self, plan: TaskPlan, place: ReadPlace) -> list[Written]:
        """Errors: as of `read_task`, OSError."""
        schema = file_schema(headers=self.headers)
        pending = Manifest.pending(Path(self.folder))
        random = SystemRandom()
        opened: OrderedDict[str, _Open] = OrderedDict()
        done: list[Written] = []
        try:
            for partition, folder, batch in _by_day(plan, place, schema):
                known = opened.get(folder)
                if known is None:
                    if len(opened) == OPEN_FILES_MAX:
                        done.append(opened.popitem(last=False)[1].close())
                    # Not after the topic: readers pass over names that begin with _ or a dot, and
                    # its name may fill all that a file's may have.
                    path = pending / f"part-{random.uuid().hex}.parquet"
                    writer = pq.ParquetWriter(
                        path, schema, compression=COMPRESSION, compression_level=LEVEL
                    )
                    known = opened[folder] = _Open(folder, path, writer)
                opened.move_to_end(folder)
                known.add(partition, batch)
            while opened:
                done.append(opened.popitem(last=False)[1].close())
        finally:
            for one in opened.values():
                one.writer.close()
        return done


def _by_day(
    plan: TaskPlan, place: ReadPlace, schema: pa.Schema
) -> Iterator[tuple[int, str, pa.RecordBatch]]:
    """(partition, folder, records of one day in UTC); the order within a day is kept."""
    whole = pa.schema([pa.field("topic", pa.string()), *schema])
    for batch in read_task(plan, place, whole):
        for at, end in runs(batch):
            part = batch.slice(at, end - at)
            topic, partition = (part.column(name)[0].as_py() for name in ("topic", "partition"))
            days = part.column("timestamp").cast(pa.int64()).to_numpy() // DAY_US
            records = part.select(schema.names)
            for day in np.unique(days):
                one = records if days[0] == days[-1] == day and (days == day).all() else None
                if one is None:
                    one = records.filter(pa.array(days == day))
                date = np.datetime64(int(day), "D")
                yield partition, f"topic={quote(topic)}/date={date}", one
