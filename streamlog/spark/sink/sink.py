"""Batch and streaming writers as Spark calls them: `write` in tasks, the rest on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.staging import StagedObject, StagedWriter
from streamlog.errors import InvalidConfig
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.cluster.node_target import NodeTarget
from streamlog.spark.cluster.staged_writers import initialised, staged_writer
from streamlog.spark.garbage_freeze import freeze_gc, freeze_worker_gc
from streamlog.spark.read.worker import worker
from streamlog.spark.sink.epochs import abort_epoch, commit_epoch
from streamlog.spark.sink.stage import StagingTask
from streamlog.spark.sink.write_columns import NAMES, check_columns
from streamlog.spark.sink.write_options import CommitKind, WriteOptions, parse_write_options
from streamlog.spark.sink.writer_ids import batch_writer_id, stream_writer_id


@dataclass
class StagedMessage(WriterCommitMessage):
    """The objects that one task staged, as sent to the driver, and for whose transaction."""

    objects: tuple[StagedObject, ...]
    producer: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True)
class TableSink:
    """One write; pickled to the tasks."""

    options: WriteOptions
    writer_id: str
    producer: ProducerIdentity | None = None
    """Of the transaction that commits; None: a node commits, or it is not known here."""

    def initialised(self) -> TableSink:
        """As tasks need it. Errors: those of asking for a producer, where a transaction commits."""
        options = self.options
        if options.commit is not CommitKind.TRANSACTION or self.producer is not None:
            return self
        producer = initialised(options.server, self.writer_id, options.timeout_ms, options.tls)
        return replace(self, producer=producer)

    def write(self, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Runs in a task. Errors: InvalidRecord, which names the column; those of a produce."""
        worker()
        random = SystemRandom()
        context = TaskContext.get()
        task = "task" if context is None else f"{context.partitionId()}"
        options = self.options
        with NodeTarget(
            options.server, self.writer_id, options.timeout_ms, options.tls, self.producer
        ) as target:
            staging = StagingTask(
                target,
                self.options,
                f"{task}-{random.uuid().hex}",
                clock=SystemClock(),
                start=random.random(),
            )
            message = StagedMessage(named_once(staging.write(batches)), self.producer)
        freeze_gc("write")
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], epoch: int) -> None:
        """Errors: those of commit_epoch."""
        with self._driver(messages) as writer:
            commit_epoch(writer, epoch, _objects(messages))
        freeze_worker_gc("commit")

    def abort(self, messages: Sequence[WriterCommitMessage | None], epoch: int) -> None:
        """Errors: those of abort_epoch."""
        with self._driver(messages) as writer:
            abort_epoch(writer, epoch, _objects(messages))

    def _driver(self, messages: Sequence[WriterCommitMessage | None]) -> StagedWriter:
        """Commits for the producer that the tasks had."""
        options = self.options
        producers = [one.producer for one in messages if isinstance(one, StagedMessage)]
        return staged_writer(
            options.server,
            self.writer_id,
            producers[0] if producers else None,
            options.timeout_ms,
            options.tls,
        )


def named_once(objects: Iterable[StagedObject]) -> tuple[StagedObject, ...]:
    """The objects, each partition named only by the first object that has records of it.

    A commit needs no more, and the driver holds the messages of all tasks.
    """
    seen: set[tuple[str, int]] = set()
    trimmed: list[StagedObject] = []
    for staged in objects:
        new = tuple(part for part in staged.parts if (part.topic, part.partition) not in seen)
        seen.update((part.topic, part.partition) for part in new)
        trimmed.append(replace(staged, parts=new))
    return tuple(trimmed)


def _objects(messages: Sequence[WriterCommitMessage | None]) -> list[StagedObject]:
    """All objects in the order of the tasks; a failed task has no message."""
    return [
        staged
        for message in messages
        if isinstance(message, StagedMessage)
        for staged in message.objects
    ]


class _SentToTasks:
    """Spark asks for a writer on the driver and pickles it for the tasks; then it makes another one
    for the commit of a stream. So a producer is asked for when a writer is pickled, once: a later
    one would fence the tasks."""

    def __init__(self, sink: TableSink) -> None:
        self._sink = sink

    def __getstate__(self) -> dict[str, object]:
        self._sink = self._sink.initialised()
        return self.__dict__


class BatchWriter(_SentToTasks, DataSourceArrowWriter):
    """Of a batch query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, self._sink.options.writer_epoch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages, self._sink.options.writer_epoch)


class StreamWriter(_SentToTasks, DataSourceStreamArrowWriter):
    """Spark makes a new one for each commit, so it has no state but its options."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.abort(messages, batchId)


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Errors: InvalidConfig, which names the option or column."""
    if overwrite:
        raise InvalidConfig(
            "mode overwrite is not possible: a topic can only be appended to; use mode('append')",
            name="mode",
        )
    options = parse_write_options(given, streaming=False)
    check_columns(_arrow_schema(schema), options.topic)
    return BatchWriter(TableSink(options, batch_writer_id(options, SystemRandom())))


def stream_writer(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    """Errors: InvalidConfig, which names the option or column."""
    options = parse_write_options(given, streaming=True)
    check_columns(_arrow_schema(schema), options.topic)
    return StreamWriter(TableSink(options, stream_writer_id(options)))


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The schema, with null types for ignored columns, whose types Arrow may not have."""
    return pa.schema(
        [
            (field.name, to_arrow_type(field.dataType, timezone="UTC"))
            if field.name in NAMES
            else (field.name, pa.null())
            for field in schema.fields
        ]
    )
