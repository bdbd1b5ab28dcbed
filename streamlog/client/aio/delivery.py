"""The results of send() and send_many(): views of batches, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Any

from streamlog.client.produce.batches import (
    BatchMetadata,
    PendingBatch,
    RecordMetadata,
    Run,
    RunOutcome,
)
from streamlog.client.produce.delivery import iterate
from streamlog.errors import StreamlogError


async def wait(batch: PendingBatch) -> None:
    """Returns when the batch is done. Cancelling it leaves the batch under way."""
    while not batch.done:
        if batch.waiter is None:
            batch.waiter = asyncio.Event()
        assert isinstance(batch.waiter, asyncio.Event)
        await batch.waiter.wait()


def when_done(batch: PendingBatch, callback: Callable[[], None]) -> None:
    if batch.done:
        callback()
        return
    batch.callbacks.append(callback)


class Delivery:
    """One record on its way: `await delivery` gives its metadata once it is durable.

    Errors: why the producer gave the record up. Cancelling the wait leaves the record under way.
    """

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: PendingBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self.result().__await__()

    def done(self) -> bool:
        """Stored, or given up."""
        return self._batch.done

    async def result(self) -> RecordMetadata:
        """As `await delivery`."""
        await wait(self._batch)
        return self._batch.metadata(self._index, self._timestamp_ms)

    async def exception(self) -> StreamlogError | None:
        """The error that `result` would raise; None once stored."""
        await wait(self._batch)
        return self._batch.error_of(self._index)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Calls `callback(self)` when done."""

        def call() -> None:
            callback(self)

        when_done(self._batch, call)


class ManyDeliveries:
    """Many records on their way. `await` gives runs; `async for` the metadata of each record."""

    __slots__ = ("_runs", "_timestamp_ms", "_which")

    def __init__(
        self, runs: Sequence[Run], timestamp_ms: int, which: Sequence[int] | None = None
    ) -> None:
        self._runs = runs
        self._timestamp_ms = timestamp_ms
        self._which = which

    def __len__(self) -> int:
        return sum(run.record_count for run in self._runs)

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        return self.result().__await__()

    def done(self) -> bool:
        """All are stored or given up."""
        return all(run.batch.done for run in self._runs)

    async def result(self) -> list[BatchMetadata]:
        """Where the records are, in runs, once all are durable.

        Errors: the first failed batch's, though other batches may be stored: see `outcomes`.
        """
        for run in self._runs:
            await wait(run.batch)
        return [metadata for run in self._runs for metadata in run.metadata(self._timestamp_ms)]

    async def exception(self) -> StreamlogError | None:
        """The first error; None when all are stored."""
        for run in self._runs:
            await wait(run.batch)
        return next((error for run in self._runs if (error := run.error())), None)

    async def outcomes(self) -> list[RunOutcome]:
        """The outcome of each run: where it is, or its error."""
        for run in self._runs:
            await wait(run.batch)
        return [outcome for run in self._runs for outcome in run.outcomes(self._timestamp_ms)]

    async def __aiter__(self) -> AsyncIterator[RecordMetadata]:
        for run in self._runs:
            await wait(run.batch)
        for metadata in in_order(self._runs, self._timestamp_ms, self._which):
            yield metadata


def in_order(
    runs: Sequence[Run], timestamp_ms: int, which: Sequence[int] | None
) -> Sequence[RecordMetadata]:
    return list(iterate(runs, timestamp_ms, which, _must_be_done))


def _must_be_done(batch: PendingBatch, _: float | None) -> None:
    raise AssertionError(f"{batch.topic}-{batch.partition} is not done")
