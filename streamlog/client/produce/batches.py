"""A batch on its way, and the light views of it that callers hold.

A batch is open (takes records), then ready (closed by size, time or flush), then sent until it is
answered, then done. Whoever waits for a record waits for its batch: one event per batch, made when
somebody first waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from streamlog.codec.batch import NO_PRODUCER, Compression, Producer, with_producer
from streamlog.codec.records import BatchBuilder
from streamlog.errors import StreamlogError

log = logging.getLogger(__name__)


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(NamedTuple):
    """Where `record_count` records sent together are: from base_offset on, without a hole."""

    topic: str
    partition: int
    base_offset: int
    record_count: int
    timestamp_ms: int


class RunOutcome(NamedTuple):
    """What became of records of one send_many that were stored together, or not at all.

    `places`: which of the records they are, counted from 0. Either `metadata` or `error` is there.
    """

    places: Sequence[int]
    metadata: BatchMetadata | None
    error: StreamlogError | None


class Waiter(Protocol):
    """What is told once that a batch is done."""

    def set(self) -> object: ...


class PendingBatch:
    """Records of one partition that are stored together or not at all.

    One that the server refuses for its size is split: it is done when its parts are, and what
    became of a record is asked of the part that has it.
    """

    __slots__ = (
        "append",
        "attempt",
        "base_offset",
        "builder",
        "callbacks",
        "charged_bytes",
        "data",
        "deadline",
        "done",
        "error",
        "in_flight",
        "last_error",
        "log_append_time_ms",
        "may_be_stored",
        "opened_at",
        "parent",
        "partition",
        "parts",
        "producer",
        "record_count",
        "topic",
        "unknown_topic_attempts",
        "waiter",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        size_limit_bytes: int,
        compression: Compression,
        opened_at: float,
        deadline: float,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.builder: BatchBuilder | None = BatchBuilder(size_limit_bytes, compression=compression)
        self.append = self.builder.append
        self.charged_bytes = size_limit_bytes
        self.opened_at = opened_at
        self.deadline = deadline
        self.record_count = 0
        self.data: bytearray | None = None
        self.producer = NO_PRODUCER
        self.attempt = 0
        self.in_flight = False
        self.may_be_stored = False
        """An attempt ended without the server saying that it stored nothing."""
        self.last_error: StreamlogError | None = None
        self.unknown_topic_attempts = 0
        self.done = False
        self.base_offset = -1
        self.log_append_time_ms: int | None = None
        self.error: StreamlogError | None = None
        self.waiter: Waiter | None = None
        self.callbacks: list[Callable[[], None]] | None = None
        self.parent: PendingBatch | None = None
        self.parts: list[PendingBatch] | None = None

    def encode(self, producer: Producer) -> None:
        """Gives the batch its bytes, with the producer's id, epoch and sequence in them."""
        if self.data is not None:
            if producer != self.producer:
                self.data = with_producer(self.data, producer)
        elif self.builder is not None:
            self.data = self.builder.build(producer)
            self.builder = None
            del self.append
        self.producer = producer

    def finish(self, base_offset: int, log_append_time_ms: int | None) -> None:
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._end()

    def fail(self, error: StreamlogError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        self.builder = None
        self.data = None
        self.in_flight = False
        self.done = True
        if self.parent is not None:
            self.parent.part_done()

    def split(self, parts: list[PendingBatch]) -> None:
        """The parts are sent in the place of this batch."""
        self.parts = parts
        self.data = None
        self.in_flight = False
        self.charged_bytes = 0
        for part in parts:
            part.parent = self

    def part_done(self) -> None:
        """Done with the last part; `error` is the first part's that has one."""
        parts = self.parts or ()
        if all(part.done for part in parts):
            self.error = next((part.error for part in parts if part.error), None)
            self.done = True
            if self.parent is not None:
                self.parent.part_done()

    def pieces(self, first: int, count: int) -> list[tuple[PendingBatch, int, int]]:
        """(batch that was stored as a whole, first record, records) of so many of the records."""
        if self.parts is None:
            return [(self, first, count)]
        found: list[tuple[PendingBatch, int, int]] = []
        begin = 0
        for part in self.parts:
            low, high = max(first, begin), min(first + count, begin + part.record_count)
            if low < high:
                found += part.pieces(low - begin, high - low)
            begin += part.record_count
        return found

    def error_of(self, index: int) -> StreamlogError | None:
        """Of record `index`, once done."""
        ((batch, _, _),) = self.pieces(index, 1)
        return batch.error

    def metadata(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """Of record `index`, once done. Raises its batch's error."""
        # Without the traceback of former raises: it would grow with each record that is asked for.
        if self.parts is not None:
            ((batch, at, _),) = self.pieces(index, 1)
            return batch.metadata(at, timestamp_ms)
        if self.error is not None:
            raise self.error.with_traceback(None)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        stamp = timestamp_ms if self.log_append_time_ms is None else self.log_append_time_ms
        return RecordMetadata(self.topic, self.partition, offset, stamp)

    def notify(self) -> list[Callable[[], None]]:
        """Wakes who waits; returns the callbacks to run. Once, after it is done."""
        if self.waiter is not None:
            self.waiter.set()
        callbacks, self.callbacks = self.callbacks, None
        return callbacks or []


def call_back(callbacks: Iterable[Callable[[], None]]) -> BaseException | None:
    """Runs delivery callbacks. One that fails is logged, and the rest are run all the same.

    Returns the last SystemExit or KeyboardInterrupt: what to do with it depends on the thread.
    """
    last: BaseException | None = None
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception("a delivery callback failed")
        except BaseException as error:  # noqa: BLE001 - returned
            last = error
    return last


class Run(NamedTuple):
    """`record_count` records in a row inside one batch, from record `first` on.

    `places`: which of the records that send_many was given they are.
    """

    batch: PendingBatch
    first: int
    record_count: int
    places: Sequence[int] = ()

    def metadata(self, timestamp_ms: int) -> list[BatchMetadata]:
        """Once done; more than one where the batch was split. Raises the first error."""
        found: list[BatchMetadata] = []
        for batch, first, count in self.batch.pieces(self.first, self.record_count):
            at = batch.metadata(first, timestamp_ms)
            found.append(BatchMetadata(at.topic, at.partition, at.offset, count, at.timestamp_ms))
        return found

    def error(self) -> StreamlogError | None:
        """The first, once done."""
        pieces = self.batch.pieces(self.first, self.record_count)
        return next((batch.error for batch, _, _ in pieces if batch.error), None)

    def outcomes(self, timestamp_ms: int) -> list[RunOutcome]:
        """Once done."""
        found: list[RunOutcome] = []
        begin = 0
        for batch, first, count in self.batch.pieces(self.first, self.record_count):
            places = self.places[begin : begin + count]
            begin += count
            if batch.error is not None:
                found.append(RunOutcome(places, None, batch.error))
                continue
            at = batch.metadata(first, timestamp_ms)
            stored = BatchMetadata(at.topic, at.partition, at.offset, count, at.timestamp_ms)
            found.append(RunOutcome(places, stored, None))
        return found
