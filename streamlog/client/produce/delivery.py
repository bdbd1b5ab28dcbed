"""The results of send() and send_many(): views of batches, for threads to wait on."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from streamlog.client.produce.batches import (
    BatchMetadata,
    PendingBatch,
    RecordMetadata,
    Run,
    RunOutcome,
    call_back,
)
from streamlog.client.settings import wait_s
from streamlog.errors import Invalid, StreamlogError

log = logging.getLogger(__name__)

_waiters = threading.Lock()
"""Held while a waiter or callback is added, and while those of an ended batch are taken."""


class _Thread(threading.local):
    """Whether this thread is running delivery callbacks, and so reads the answers."""

    delivers = False


_thread = _Thread()


def _after_fork() -> None:
    """Another thread may have held the lock during the fork; it does not exist in the child."""
    global _waiters
    _waiters = threading.Lock()
    _thread.delivers = False


os.register_at_fork(after_in_child=_after_fork)


def is_delivering() -> bool:
    """This thread runs a delivery callback: it must not wait for answers."""
    return _thread.delivers


def check_may_wait(call: str) -> None:
    """Errors: Invalid in a delivery callback, which runs in the thread that reads the answers."""
    if _thread.delivers:
        raise Invalid(
            f"a delivery callback cannot wait ({call}): answers come by its own thread; wait in "
            "another thread"
        )


def deliver(batches: Sequence[PendingBatch]) -> BaseException | None:
    """Wakes waiters and runs callbacks, without a lock.

    Returns the last SystemExit or KeyboardInterrupt out of a callback, once all have been run.
    """
    last: BaseException | None = None
    before, _thread.delivers = _thread.delivers, True
    try:
        for batch in batches:
            last = call_back(ended(batch)) or last
    finally:
        _thread.delivers = before
    return last


def deliver_in_background(batches: Sequence[PendingBatch]) -> None:
    """As `deliver`, for the producer's own threads, which `sys.exit()` in a callback must not end:
    they read the next answers."""
    last = deliver(batches)
    if last is not None:
        log.error(
            "a delivery callback raised %r, which ends nothing in the producer's thread; tell the "
            "main thread to exit instead",
            last,
            exc_info=last,
        )


def wait(batch: PendingBatch, timeout: float | None) -> None:
    """Returns when the batch is done.

    Errors: TimeoutError, and the batch is still under way; Invalid in a delivery callback, which
    runs in the thread that reads the answers.
    """
    with _waiters:
        if batch.done:
            return
        if _thread.delivers:
            raise Invalid(
                "a delivery callback cannot wait for records under way (flush, close, result): "
                "their answers come by its own thread; wait in another thread"
            )
        waiter = batch.waiter
        if waiter is None:
            waiter = batch.waiter = threading.Event()
    assert isinstance(waiter, threading.Event)
    if not waiter.wait(wait_s(timeout)):
        # A flush waits for what is left of its time.
        waited_s = round(timeout or 0.0, 2)
        raise TimeoutError(
            f"{batch.topic}-{batch.partition}: no answer after {waited_s:g} s; it is still under "
            "way"
        )


def when_done(batch: PendingBatch, callback: Callable[[], None]) -> None:
    """Calls back once the batch is done; at once where it is."""
    with _waiters:
        if not batch.done:
            batch.callbacks.append(callback)
            return
    callback()


def ended(batch: PendingBatch) -> list[Callable[[], None]]:
    """Wakes the waiters of a done batch; returns the callbacks, to be run without a lock."""
    with _waiters:
        return batch.notify()


class Delivery:
    """One record on its way: a view of its batch."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: PendingBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        """Stored, or given up."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, once durable. `timeout` in seconds.

        Errors: why the producer gave the record up; TimeoutError, and it is still under way.
        """
        if not self._batch.done:
            wait(self._batch, timeout)
        return self._batch.metadata(self._index, self._timestamp_ms)

    def exception(self, timeout: float | None = None) -> StreamlogError | None:
        """The error that `result` would raise; None once stored. Errors: TimeoutError."""
        if not self._batch.done:
            wait(self._batch, timeout)
        return self._batch.error_of(self._index)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Calls `callback(self)` when done, from the producer's thread: it must be quick."""

        def call() -> None:
            callback(self)

        when_done(self._batch, call)


class ManyDeliveries:
    """Many records on their way. Iterating gives the metadata of each in the order given."""

    __slots__ = ("_runs", "_timestamp_ms", "_which")

    def __init__(
        self, runs: Sequence[Run], timestamp_ms: int, which: Sequence[int] | None = None
    ) -> None:
        self._runs = runs
        self._timestamp_ms = timestamp_ms
        self._which = which
        """Partition of each record where they went to several by key; None: runs are in order."""

    def __len__(self) -> int:
        return sum(run.record_count for run in self._runs)

    def done(self) -> bool:
        """All are stored or given up."""
        return all(run.batch.done for run in self._runs)

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Where the records are, in runs, once all are durable. `timeout` in seconds.

        Errors: the first failed batch's, though other batches may be stored: see `outcomes`;
        TimeoutError.
        """
        self._wait(timeout)
        return [metadata for run in self._runs for metadata in run.metadata(self._timestamp_ms)]

    def exception(self, timeout: float | None = None) -> StreamlogError | None:
        """The first error; None when all are stored. Errors: TimeoutError."""
        self._wait(timeout)
        return next((error for run in self._runs if (error := run.error())), None)

    def outcomes(self, timeout: float | None = None) -> list[RunOutcome]:
        """The outcome of each run: where it is, or its error. Errors: TimeoutError."""
        self._wait(timeout)
        return [outcome for run in self._runs for outcome in run.outcomes(self._timestamp_ms)]

    def _wait(self, timeout: float | None) -> None:
        timeout = wait_s(timeout)
        ends_at = None if timeout is None else time.monotonic() + timeout
        for run in self._runs:
            if not run.batch.done:
                left = None if ends_at is None else max(0.0, ends_at - time.monotonic())
                wait(run.batch, left)

    def add_done_callback(self, callback: Callable[[ManyDeliveries], object]) -> None:
        """Calls `callback(self)` once, when all are done, from the producer's thread."""
        left = [len(self._runs)]
        lock = threading.Lock()

        def one_done() -> None:
            with lock:
                left[0] -= 1
                is_last = left[0] == 0
            if is_last:
                callback(self)

        if not self._runs:
            callback(self)
        for run in self._runs:
            when_done(run.batch, one_done)

    def __iter__(self) -> Iterator[RecordMetadata]:
        """Waits for each batch when its first record is next. Errors: the batch's."""
        return iterate(self._runs, self._timestamp_ms, self._which, wait)


def iterate(
    runs: Sequence[Run],
    timestamp_ms: int,
    which: Sequence[int] | None,
    wait_for: Callable[[PendingBatch, float | None], None],
) -> Iterator[RecordMetadata]:
    """Metadata of each record in the order they were given."""

    def records(of: Sequence[Run]) -> Iterator[RecordMetadata]:
        for run in of:
            if not run.batch.done:
                wait_for(run.batch, None)
            for index in range(run.first, run.first + run.record_count):
                yield run.batch.metadata(index, timestamp_ms)

    if which is None:
        yield from records(runs)
        return
    by_partition: dict[int, list[Run]] = {}
    for run in runs:
        by_partition.setdefault(run.batch.partition, []).append(run)
    iterators = {
        partition: records(partition_runs) for partition, partition_runs in by_partition.items()
    }
    for partition in which:
        yield next(iterators[partition])
