"""A task's records as Parquet files, one for each topic and day at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamlog.runtime.rand import SystemRandom
from streamlog.spark.arrow import COLUMNS
from streamlog.spark.jobs.batches import runs
from streamlog.spark.jobs.export.manifest import Manifest, Written
from streamlog.spark.plan.types import ReadPlace, TaskPlan
from streamlog.spark.read.task import read_task

OPEN_FILES_MAX = 16
"""Of a task, each with a row group in memory: records that go back and forth over more days than
this make more files."""
ROW_GROUP_BYTES = 32 << 20
DAY_US = 86_400_000_000
COMPRESSION = "zstd"
LEVEL = 1

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class DayFile(Protocol[T_co]):
    """Where one file goes."""

    @property
    def sink(self) -> Any:
        """What a Parquet writer takes."""
        ...

    def finish(
        self, rows: int, offsets: Mapping[int, tuple[int, int]], footer: pq.FileMetaData
    ) -> T_co:
        """The file is complete. It is where it belongs when this returns."""
        ...

    def give_up(self) -> None: ...


@dataclass
class _Open(Generic[T]):
    file: DayFile[T]
    schema: pa.Schema
    rows: int = 0
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    footer: list[pq.FileMetaData] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = pq.ParquetWriter(
            self.file.sink,
            self.schema,
            compression=COMPRESSION,
            compression_level=LEVEL,
            metadata_collector=self.footer,
        )

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
            # Field ids and what may be null are the schema's alone.
            columns = pa.Table.from_batches(self.held).columns
            table = pa.Table.from_arrays(columns, schema=self.schema)
            self.writer.write_table(table, self.rows)
            self.held, self.held_bytes = [], 0

    def close(self) -> T:
        self.flush()
        self.writer.close()
        return self.file.finish(self.rows, self.offsets, self.footer[0])


def write_days(
    plan: TaskPlan,
    place: ReadPlace,
    schema: pa.Schema,
    create: Callable[[str, int], DayFile[T]],
) -> list[T]:
    """The task's records in files of `schema`, some of COLUMNS with partition, offset and
    timestamp among them; `create` is called with a topic and a day, counted from 1970 in UTC.

    Errors: as of `read_task` and of the files.
    """
    opened: OrderedDict[tuple[str, int], _Open[T]] = OrderedDict()
    done: list[T] = []
    try:
        for at, partition, batch in _by_day(plan, place, schema):
            known = opened.get(at)
            if known is None:
                if len(opened) == OPEN_FILES_MAX:
                    done.append(opened.popitem(last=False)[1].close())
                known = opened[at] = _Open(create(*at), schema)
            opened.move_to_end(at)
            known.add(partition, batch)
        while opened:
            done.append(opened.popitem(last=False)[1].close())
    finally:
        for one in opened.values():
            one.writer.close()
            one.file.give_up()
    return done


def _by_day(
    plan: TaskPlan, place: ReadPlace, schema: pa.Schema
) -> Iterator[tuple[tuple[str, int], int, pa.RecordBatch]]:
    """((topic, day), partition, records of that day); the order within a day is kept."""
    names = schema.names if "topic" in schema.names else ["topic", *schema.names]
    whole = pa.schema([pa.field(name, COLUMNS[name]) for name in names])
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
                yield (topic, int(day)), partition, one


def file_schema(*, headers: bool) -> pa.Schema:
    """The columns of the source but for the topic, which the folder tells."""
    names = [name for name in COLUMNS if name != "topic" and (headers or name != "headers")]
    return pa.schema([pa.field(name, COLUMNS[name]) for name in names])


@dataclass(frozen=True, slots=True)
class _Pending:
    """A file of the export into a folder, before the manifest names it."""

    folder: str
    sink: Path

    def finish(
        self, rows: int, offsets: Mapping[int, tuple[int, int]], footer: pq.FileMetaData
    ) -> Written:
        """On disk when it returns."""
        descriptor = os.open(self.sink, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        return Written(self.folder, self.sink.name, rows, size, offsets)

    def give_up(self) -> None:
        """Who opens the manifest next removes the file."""


@dataclass(frozen=True, slots=True)
class ParquetTask:
    """Travels to the tasks; `folder` is the export's, the same on all machines."""

    folder: str
    headers: bool

    def __call__(self, plan: TaskPlan, place: ReadPlace) -> list[Written]:
        """Errors: as of `read_task`, OSError."""
        return write_days(plan, place, file_schema(headers=self.headers), self._create)

    def _create(self, topic: str, day: int) -> _Pending:
        date = np.datetime64(day, "D")
        # Not after the topic: readers pass over names that begin with _ or a dot, and its name may
        # fill all that a file's may have.
        name = f"part-{SystemRandom().uuid().hex}.parquet"
        path = Manifest.pending(Path(self.folder)) / name
        return _Pending(f"topic={quote(topic)}/date={date}", path)
