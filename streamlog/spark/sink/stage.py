"""A writing task: rows in, staged objects out, in bounded memory.

1. Rows are gathered into a chunk, placed, and encoded by topic-partition. A chunk has about one
   batch for each partition of the chunk before.
2. Encoded batches are gathered until partitions have PART_BYTES on average, or all have
   `bufferBytes`. Then they are staged, partition after partition, in objects of STAGED_BYTES_MAX at
   most. So an object has few partitions, and a commit few pairs of object and partition.
3. A failed attempt drops the objects that it staged; those of a killed attempt expire.

Records become visible only at the driver's commit, however attempts end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from streamlog.client.staging import StagedObject
from streamlog.codec.columns import encode_batches
from streamlog.errors import MessageTooLarge, StreamlogError
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.spark.sink.partitioner import Partitioner
from streamlog.spark.sink.write_columns import columns_of, wanted_names
from streamlog.spark.sink.write_options import WriteOptions

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
"""Least bytes of a chunk; with many partitions it may have a quarter of `bufferBytes`."""
OBJECT_BYTES = 7 << 20
"""Least bytes that are gathered before they are staged."""
PART_BYTES = 1 << 20
"""Average bytes of a partition at which gathering ends."""
STAGED_PARTS_MAX = 5000
"""Partitions in one call; a node takes `partitions_per_request_max`, 10,000."""
STAGED_BYTES_MAX = 15 << 20
"""Bytes of one call, unless one partition has more; less than the size that the client splits."""


class Target(Protocol):
    """The place that a task stages on. Errors of every call: Unavailable, those of a produce."""

    def partition_count(self, topic: str) -> int: ...

    def batch_bytes_max(self, topic: str) -> int: ...

    def stage(
        self, attempt: str, batches: dict[tuple[str, int], Buffer], *, expires_ms: int
    ) -> list[StagedObject]: ...

    def drop(self, objects: Iterable[StagedObject]) -> None:
        """Tries briefly to drop the objects; they would expire otherwise."""
        ...


@dataclass(slots=True)
class _Gathered:
    parts: dict[tuple[str, int], list[Buffer]] = field(default_factory=dict)
    size_bytes: int = 0

    def add(self, partition: tuple[str, int], data: Buffer) -> None:
        self.parts.setdefault(partition, []).append(data)
        self.size_bytes += len(data)


@dataclass(frozen=True, slots=True)
class StageSizes:
    """How much a task encodes and stages at a time; tests have smaller ones."""

    chunk_bytes: int = CHUNK_BYTES
    object_bytes: int = OBJECT_BYTES
    part_bytes: int = PART_BYTES
    staged_bytes_max: int = STAGED_BYTES_MAX


_SIZES = StageSizes()


class StagingTask:
    """One attempt of one task; `write` is called once."""

    def __init__(
        self,
        target: Target,
        options: WriteOptions,
        attempt: str,
        *,
        clock: Clock,
        start: float,
        sizes: StageSizes = _SIZES,
    ) -> None:
        """`attempt`: a unique name. `start`: as of Partitioner."""
        self._target = target
        self._options = options
        self._attempt = attempt
        self._clock = clock
        self._chunk_bytes = self._chunk_bytes_min = sizes.chunk_bytes
        self._chunk_bytes_max = max(sizes.chunk_bytes, options.buffer_bytes // 4)
        self._sizes = sizes
        self._counts = _Remembered(target.partition_count)
        self._limits = _Remembered(target.batch_bytes_max)
        self._partitioner = Partitioner(self._counts, self._batch_bytes, start)
        self._staged: list[StagedObject] = []
        self._calls = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedObject]:
        """Stages all rows; returns the objects to commit, in order.

        Errors: InvalidRecord, which names the column; those of a produce; Unavailable.
        """
        gathered = _Gathered()
        try:
            for chunk in chunks(batches, self._options.topic, lambda: self._chunk_bytes):
                self._encode(chunk, gathered)
                if self._is_enough(gathered):
                    self._stage(gathered)
            self._stage(gathered)
        except BaseException:
            self._drop()
            raise
        return self._staged

    def _is_enough(self, gathered: _Gathered) -> bool:
        decent = max(self._sizes.object_bytes, len(gathered.parts) * self._sizes.part_bytes)
        return gathered.size_bytes >= min(decent, self._options.buffer_bytes)

    def _encode(self, chunk: pa.RecordBatch, gathered: _Gathered) -> None:
        columns = columns_of(chunk, self._options.topic)
        now_ms = self._clock.now_ms()
        full_bytes = 0
        for topic, partition, rows in self._partitioner.place(columns):
            encoded = encode_batches(
                columns.count,
                timestamp_ms=now_ms,
                keys=columns.keys,
                values=columns.values,
                headers=columns.headers,
                rows=rows.tobytes(),
                compression=self._options.compression,
                batch_bytes=self._batch_bytes(topic),
            )
            for batch in encoded:
                self._check_size(topic, len(batch.data))
                gathered.add((topic, partition), batch.data)
            full_bytes += self._batch_bytes(topic)
        self._chunk_bytes = min(max(full_bytes, self._chunk_bytes_min), self._chunk_bytes_max)

    def _check_size(self, topic: str, size_bytes: int) -> None:
        if size_bytes > self._limits(topic):
            raise MessageTooLarge(
                f"a row for topic {topic} makes a record batch of {size_bytes} bytes; the topic "
                f"takes {self._limits(topic)} (max.message.bytes). Raise that setting of the "
                "topic, write with the option compression, or make the row smaller",
                size_bytes=size_bytes,
                max_bytes=self._limits(topic),
            )

    def _batch_bytes(self, topic: str) -> int:
        return min(self._options.batch_bytes, self._limits(topic))

    def _stage(self, gathered: _Gathered) -> None:
        """Stages everything that was gathered, which is empty on return."""
        joined: dict[tuple[str, int], Buffer] = {}
        size = 0
        for partition in sorted(gathered.parts):
            data = b"".join(gathered.parts.pop(partition))
            if joined and (
                size + len(data) > self._sizes.staged_bytes_max or len(joined) == STAGED_PARTS_MAX
            ):
                self._store(joined)
                joined, size = {}, 0
            joined[partition] = data
            size += len(data)
        gathered.size_bytes = 0
        if joined:
            self._store(joined)

    def _store(self, batches: dict[tuple[str, int], Buffer]) -> None:
        attempt = f"{self._attempt}.{self._calls}"
        self._calls += 1
        self._staged += self._target.stage(attempt, batches, expires_ms=self._options.staged_ttl_ms)

    def _drop(self) -> None:
        if self._staged:
            try:
                self._target.drop(self._staged)
            except StreamlogError as error:
                log.warning("%d staged objects are left to expire: %s", len(self._staged), error)


class _Remembered:
    """Caches a number of each topic for a task."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._answers: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        answer = self._answers.get(topic)
        if answer is None:
            answer = self._answers[topic] = self._ask(topic)
        return answer


def chunks(
    batches: Iterable[pa.RecordBatch], topic: str | None, chunk_bytes: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """The written columns in chunks of about `chunk_bytes`, or of one larger row."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece in _pieces(batch.select(wanted_names(batch.schema, topic)), chunk_bytes()):
            if held and size + piece.nbytes > chunk_bytes():
                joined, held, size = _joined(held), [], 0
                yield joined
                del joined
            held.append(piece)
            size += piece.nbytes
    if held:
        yield _joined(held)


def _pieces(batch: pa.RecordBatch, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch, halved until each part is small enough."""
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or batch.nbytes <= chunk_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half), chunk_bytes)
    yield from _pieces(batch.slice(half), chunk_bytes)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
