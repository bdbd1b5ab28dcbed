"""A writing task: rows in, staged objects out, in bounded memory.

1. Rows are gathered to about CHUNK_BYTES, placed, and encoded per topic-partition.
2. Encoded batches are gathered to about OBJECT_BYTES and staged as one object.
3. What an attempt staged before it failed is dropped by it; what a killed one leaves expires.

Nothing is visible before the driver's commit, whatever becomes of a task or its twins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from streamlog.client.staging import StagedObject
from streamlog.codec.columns import encode_batches
from streamlog.errors import StreamlogError
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.spark.partitioner import Partitioner
from streamlog.spark.write_columns import columns_of, wanted_names
from streamlog.spark.write_options import WriteOptions

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
OBJECT_BYTES = 7 << 20
"""With the chunk that reaches it, it is less than what the client cuts in two."""


class Target(Protocol):
    """Where a task's records go. Errors of every call: Unavailable, and those of a produce."""

    def partition_count(self, topic: str) -> int: ...

    def batch_bytes_max(self, topic: str) -> int: ...

    def stage(
        self, attempt: str, batches: dict[tuple[str, int], Buffer], *, expires_ms: int
    ) -> list[StagedObject]: ...

    def drop(self, objects: Iterable[StagedObject]) -> None:
        """Soon or not at all: they would expire."""
        ...


@dataclass(slots=True)
class _Gathered:
    parts: dict[tuple[str, int], list[Buffer]] = field(default_factory=dict)
    size_bytes: int = 0

    def add(self, at: tuple[str, int], data: Buffer) -> None:
        self.parts.setdefault(at, []).append(data)
        self.size_bytes += len(data)


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
        chunk_bytes: int = CHUNK_BYTES,
        object_bytes: int = OBJECT_BYTES,
    ) -> None:
        """`attempt`: unlike that of every other attempt. `start`: as of Partitioner."""
        self._target = target
        self._options = options
        self._attempt = attempt
        self._clock = clock
        self._chunk_bytes = chunk_bytes
        self._object_bytes = object_bytes
        self._counts = _Remembered(target.partition_count)
        self._limits = _Remembered(target.batch_bytes_max)
        self._partitioner = Partitioner(self._counts, self._batch_bytes, start)
        self._staged: list[StagedObject] = []
        self._calls = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedObject]:
        """What is to be committed, in order. Errors: InvalidRecord, which names the column; those
        of a produce; Unavailable.
        """
        gathered = _Gathered()
        try:
            for chunk in chunks(batches, self._options.topic, self._chunk_bytes):
                self._encode(chunk, gathered)
                if gathered.size_bytes >= self._object_bytes:
                    self._stage(gathered)
                    gathered = _Gathered()
            self._stage(gathered)
        except BaseException:
            self._drop()
            raise
        return self._staged

    def _encode(self, chunk: pa.RecordBatch, gathered: _Gathered) -> None:
        columns = columns_of(chunk, self._options.topic)
        now_ms = self._clock.now_ms()
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
            for one in encoded:
                gathered.add((topic, partition), one.data)

    def _batch_bytes(self, topic: str) -> int:
        return min(self._options.batch_bytes, self._limits(topic))

    def _stage(self, gathered: _Gathered) -> None:
        if not gathered.parts:
            return
        joined: dict[tuple[str, int], Buffer] = {
            at: b"".join(parts) for at, parts in gathered.parts.items()
        }
        gathered.parts.clear()
        attempt = f"{self._attempt}.{self._calls}"
        self._calls += 1
        self._staged += self._target.stage(attempt, joined, expires_ms=self._options.staged_ttl_ms)

    def _drop(self) -> None:
        if self._staged:
            try:
                self._target.drop(self._staged)
            except StreamlogError as error:
                log.warning("%d staged objects are left to expire: %s", len(self._staged), error)


class _Remembered:
    """A fact of each topic, asked for once a task."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._known: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._ask(topic)
        return found


def chunks(
    batches: Iterable[pa.RecordBatch], topic: str | None, chunk_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The columns that are written, about `chunk_bytes` at a time or one row that is larger."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece in _pieces(batch.select(wanted_names(batch.schema, topic)), chunk_bytes):
            if held and size + piece.nbytes > chunk_bytes:
                yield _joined(held)
                held, size = [], 0
            held.append(piece)
            size += piece.nbytes
    if held:
        yield _joined(held)


def _pieces(batch: pa.RecordBatch, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """Halves of what is too large, and their halves."""
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
