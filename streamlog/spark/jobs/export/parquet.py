"""A task's records as Parquet files, one for each topic and day at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
from streamlog.spark.jobs.export.manifest import Manifest, WrittenOffsets
from streamlog.spark.plan.types import ReadPlace, TaskPlan
from streamlog.spark.read.task import read_task

OPEN_FILES_MAX = 16
"""Open files of a task, each with a row group in memory. Records that alternate between more days
make more files."""
ROW_GROUP_BYTES = 32 << 20
DAY_US = 86_400_000_000
COMPRESSION = "zstd"
LEVEL = 1

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class DayFile(Protocol[T_co]):
    """One file under way."""

    @property
    def sink(self) -> Any:
        """The path or file object for the Parquet writer."""
        ...

    def finish(
        self, rows: int, offsets: Mapping[int, tuple[int, int]], footer: pq.FileMetaData
    ) -> T_co:
        """Called when the file is complete; stores it durably."""
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
        span = self.offsets.get(partition)
        self.offsets[partition] = (first if span is None else span[0], last + 1)
        self.rows += batch.num_rows
        self.held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.held:
            # Only the schema has the field ids, and says which columns may be null.
            columns = pa.Table.from_batches(self.held).columns
            table = pa.Table.from_arrays(columns, schema=self.schema)
            self.writer.write_table(table, self.rows)
            self.held, self.held_bytes = [], 0

    def close(self) -> T:
        self.flush()
        self.writer.close()
        return self.file.finish(self.rows, self.offsets, self.footer[0])

    def give_up(self) -> None:
        """Ends a file of a task that fails. An error here would hide the task's own."""
        with suppress(Exception):
            self.writer.close()
        # Otherwise the writer's finalizer closes it again, and prints the error.
        self.writer.is_open = False
        with suppress(Exception):
            self.file.give_up()


def write_days(
    plan: TaskPlan,
    place: ReadPlace,
    schema: pa.Schema,
    create: Callable[[str, int], DayFile[T]],
) -> list[T]:
    """Writes the task's records to files. `schema` has some of COLUMNS, with partition, offset and
    timestamp among them; `create` gets a topic and a day, counted from 1970 in UTC.

    Errors: those of `read_task` and of the files.
    """
    opened: OrderedDict[tuple[str, int], _Open[T]] = OrderedDict()
    done: list[T] = []
    try:
        for key, partition, batch in _by_day(plan, place, schema):
            day_file = opened.get(key)
            if day_file is None:
                if len(opened) == OPEN_FILES_MAX:
                    done.append(_close_oldest(opened))
                day_file = opened[key] = _Open(create(*key), schema)
            opened.move_to_end(key)
            day_file.add(partition, batch)
        while opened:
            done.append(_close_oldest(opened))
    finally:
        for day_file in opened.values():
            day_file.give_up()
    return done


def _close_oldest(opened: OrderedDict[tuple[str, int], _Open[T]]) -> T:
    key, day_file = next(iter(opened.items()))
    result = day_file.close()
    del opened[key]
    return result


def _by_day(
    plan: TaskPlan, place: ReadPlace, schema: pa.Schema
) -> Iterator[tuple[tuple[str, int], int, pa.RecordBatch]]:
    """((topic, day), partition, records of that day); the order within a day is kept."""
    names = schema.names if "topic" in schema.names else ["topic", *schema.names]
    whole = pa.schema([pa.field(name, COLUMNS[name]) for name in names])
    for batch in read_task(plan, place, whole):
        for start, end in runs(batch):
            part = batch.slice(start, end - start)
            topic, partition = (part.column(name)[0].as_py() for name in ("topic", "partition"))
            days = part.column("timestamp").cast(pa.int64()).to_numpy() // DAY_US
            records = part.select(schema.names)
            for day in np.unique(days):
                is_whole = days[0] == days[-1] == day and (days == day).all()
                of_day = records if is_whole else records.filter(pa.array(days == day))
                yield (topic, int(day)), partition, of_day


def file_schema(*, headers: bool) -> pa.Schema:
    """The columns of the source without the topic, which is in the folder's name."""
    names = [name for name in COLUMNS if name != "topic" and (headers or name != "headers")]
    return pa.schema([pa.field(name, COLUMNS[name]) for name in names])


@dataclass(frozen=True, slots=True)
class _Pending:
    """A file of the export, before the manifest names it."""

    folder: str
    sink: Path

    def finish(
        self, rows: int, offsets: Mapping[int, tuple[int, int]], footer: pq.FileMetaData
    ) -> WrittenOffsets:
        """The file is on disk when this returns."""
        descriptor = os.open(self.sink, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        return WrittenOffsets(self.folder, self.sink.name, rows, size, offsets)

    def give_up(self) -> None:
        """The next open of the manifest removes the file."""


@dataclass(frozen=True, slots=True)
class ParquetTask:
    """Pickled to the tasks; all machines reach the export's folder under the same name."""

    folder: str
    headers: bool

    def __call__(self, plan: TaskPlan, place: ReadPlace) -> list[WrittenOffsets]:
        """Errors: as of `read_task`, OSError."""
        return write_days(plan, place, file_schema(headers=self.headers), self._create)

    def _create(self, topic: str, day: int) -> _Pending:
        date = np.datetime64(day, "D")
        # The topic is not part of the name: it may begin with _ or a dot, which readers skip, and
        # it may be as long as a file name can be.
        name = f"part-{SystemRandom().uuid().hex}.parquet"
        path = Manifest.pending(Path(self.folder)) / name
        return _Pending(f"topic={quote(topic)}/date={date}", path)
