"""A batch on its way, and the metadata that callers get of its records.

A batch is open (takes records), then ready (closed by size, time or flush), then sent until it is
answered, then done. Waiting for a record is waiting for its batch: one event per batch, made by
the first waiter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from streamlog.codec.batch import NO_PRODUCER, BatchProducer, Compression, with_producer
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
    """The outcome of records of one send_many that were stored together, or not at all.

    `places`: their indexes in the list given to send_many. Either `metadata` or `error` is set.
    """

    places: Sequence[int]
    metadata: BatchMetadata | None
    error: StreamlogError | None


class DeliveryWaiter(Protocol):
    """Set once, when a batch is done."""

    def set(self) -> object: ...


class PendingBatch:
    """Records of one partition that are stored together or not at all.

    A batch that the server refuses for its size is split: it is done when its parts are, and the
    outcome of a record is the outcome of its part.
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
        "is_transactional",
        "last_error",
        "log_append_time_ms",
        "may_be_stored",
        "opened_at",
        "parent",
        "partition",
        "parts",
        "producer",
        "record_count",
        "stored_behind",
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
        is_transactional: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.builder: BatchBuilder | None = BatchBuilder(size_limit_bytes, compression=compression)
        self.append = self.builder.append
        self.charged_bytes = size_limit_bytes
        self.opened_at = opened_at
        self.deadline = deadline
        self.is_transactional = is_transactional
        self.record_count = 0
        self.data: bytearray | None = None
        self.producer = NO_PRODUCER
        self.attempt = 0
        self.in_flight = False
        self.may_be_stored = False
        """An attempt ended, and the server did not say that it stored nothing."""
        self.stored_behind = 0
        """Later batches of the partition whose answers came first."""
        self.last_error: StreamlogError | None = None
        self.unknown_topic_attempts = 0
        self.done = False
        self.base_offset = -1
        self.log_append_time_ms: int | None = None
        self.error: StreamlogError | None = None
        self.waiter: DeliveryWaiter | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.parent: PendingBatch | None = None
        self.parts: list[PendingBatch] | None = None

    def encode(self, producer: BatchProducer) -> None:
        """Gives the batch its bytes, with the producer's id, epoch and sequence in them."""
        if self.data is not None:
            if producer != self.producer:
                self.data = with_producer(self.data, producer)
        elif self.builder is not None:
            self.data = self.builder.build(producer, is_transactional=self.is_transactional)
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
        """The parts are sent instead of this batch."""
        self.parts = parts
        self.data = None
        self.in_flight = False
        self.charged_bytes = 0
        for part in parts:
            part.parent = self

    def part_done(self) -> None:
        """Ends this batch with its last part; `error` is the first error among the parts."""
        parts = self.parts or ()
        if all(part.done for part in parts):
            self.error = next((part.error for part in parts if part.error), None)
            self.done = True
            if self.parent is not None:
                self.parent.part_done()

    def pieces(self, first: int, count: int) -> list[tuple[PendingBatch, int, int]]:
        """(unsplit batch, its first record, record count) of `count` records from `first` on."""
        if self.parts is None:
            return [(self, first, count)]
        unsplit: list[tuple[PendingBatch, int, int]] = []
        begin = 0
        for part in self.parts:
            low, high = max(first, begin), min(first + count, begin + part.record_count)
            if low < high:
                unsplit += part.pieces(low - begin, high - low)
            begin += part.record_count
        return unsplit

    def error_of(self, index: int) -> StreamlogError | None:
        """The error of record `index`, once done."""
        ((batch, _, _),) = self.pieces(index, 1)
        return batch.error

    def metadata(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """The metadata of record `index`, once done. Errors: its batch's."""
        # Without the traceback of earlier raises, which would grow with each call.
        if self.parts is not None:
            ((batch, part_index, _),) = self.pieces(index, 1)
            return batch.metadata(part_index, timestamp_ms)
        if self.error is not None:
            raise self.error.with_traceback(None)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        stamp = timestamp_ms if self.log_append_time_ms is None else self.log_append_time_ms
        return RecordMetadata(self.topic, self.partition, offset, stamp)

    def notify(self) -> list[Callable[[], None]]:
        """Wakes the waiters; returns the callbacks to run. Called once, after the batch is done."""
        if self.waiter is not None:
            self.waiter.set()
        callbacks, self.callbacks = self.callbacks, []
        return callbacks


def call_back(callbacks: Iterable[Callable[[], None]]) -> BaseException | None:
    """Runs delivery callbacks; logs those that fail.

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
    """Consecutive records of one send_many in one batch: `record_count` from record `first` on.

    `places`: their indexes in the list given to send_many.
    """

    batch: PendingBatch
    first: int
    record_count: int
    places: Sequence[int] = ()

    def metadata(self, timestamp_ms: int) -> list[BatchMetadata]:
        """Where the records are, once done; several if the batch was split. Errors: the first."""
        stored: list[BatchMetadata] = []
        for batch, first, count in self.batch.pieces(self.first, self.record_count):
            stored.append(_batch_metadata(batch, first, count, timestamp_ms))
        return stored

    def error(self) -> StreamlogError | None:
        """The first error, once done."""
        pieces = self.batch.pieces(self.first, self.record_count)
        return next((batch.error for batch, _, _ in pieces if batch.error), None)

    def outcomes(self, timestamp_ms: int) -> list[RunOutcome]:
        """The outcome of each batch that holds some of the records, once done."""
        outcomes: list[RunOutcome] = []
        begin = 0
        for batch, first, count in self.batch.pieces(self.first, self.record_count):
            places = self.places[begin : begin + count]
            begin += count
            if batch.error is not None:
                outcomes.append(RunOutcome(places, None, batch.error))
                continue
            metadata = _batch_metadata(batch, first, count, timestamp_ms)
            outcomes.append(RunOutcome(places, metadata, None))
        return outcomes


def _batch_metadata(
    batch: PendingBatch, first: int, count: int, timestamp_ms: int
) -> BatchMetadata:
    """Errors: the batch's."""
    record = batch.metadata(first, timestamp_ms)
    return BatchMetadata(record.topic, record.partition, record.offset, count, record.timestamp_ms)
