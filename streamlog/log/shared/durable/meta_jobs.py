"""Meta records that must not get ahead of the data that they describe: each waits for its offset.

A job runs when all data below its offset is durable: first its entries of the time index and of
aborted transactions, then its meta records. Jobs run in order. Jobs that are ready together are
written together, so that segments which roll faster than the streams take appends do not queue up;
of several checkpoints only the newest is written. A crash can lose the newest jobs and nothing
else, and recovery makes their records again from the attributes of the data.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, NamedTuple, Protocol, TypeVar

from streamlog.errors import Internal, StreamlogError
from streamlog.format.kafka_files.time_index import ENTRY_BYTES, TimeEntry, encode_entries
from streamlog.format.kafka_files.transaction_index import ENTRY_BYTES as ABORTED_BYTES
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.log.shared.aborted.aborted_batch import aborted_batch
from streamlog.log.shared.meta.codec import Checkpoint, MetaRecord
from streamlog.log.shared.meta.log import MetaLog
from streamlog.model.batch import RecordBatch
from streamlog.model.stream import Stream
from streamlog.runtime.concurrency.background import Background

Entry = TypeVar("Entry")


class StoresEntries(Protocol):
    """A segment's index, whose entries are records of a stream."""

    @property
    def stored_end(self) -> int: ...

    def stored(self, count: int) -> None: ...


class IndexEntries(NamedTuple, Generic[Entry]):
    """Entries that `source` has given out."""

    source: StoresEntries
    entries: Sequence[Entry]


@dataclass(slots=True)
class MetaJob:
    """What is to be written when data is durable to at_offset."""

    at_offset: int
    records: Sequence[MetaRecord]
    time: IndexEntries[TimeEntry] | None = None
    txn: IndexEntries[AbortedTxn] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


class MetaJobs:
    """It owns the order of meta records. It does not know why data is durable."""

    def __init__(
        self,
        meta: MetaLog,
        time: Stream,
        txn: Stream,
        background: Background,
        lifecycle: LogLifecycle,
    ) -> None:
        self._meta = meta
        self._time = time
        self._txn = txn
        self._background = background
        self._lifecycle = lifecycle
        self._jobs: deque[MetaJob] = deque()
        self._durable_offset = 0
        self._is_running = False
        self._failure: StreamlogError | None = None

    def add(self, job: MetaJob) -> None:
        """Drops the job after a failure, which `flush_until` raises then."""
        if self._failure is None:
            self._jobs.append(job)
            self._start()

    def advance(self, durable_offset: int) -> None:
        """Starts the jobs whose data is durable now: up to the offset (exclusive)."""
        self._durable_offset = durable_offset
        if self._jobs:
            self._start()

    async def flush_until(self, offset: int) -> None:
        """Returns when every job that is queued now at or below the offset is done.

        The caller ensures that data is, or becomes, durable up to there. Errors: why a job failed.
        """
        waiting = [job for job in self._jobs if job.at_offset <= offset]
        if waiting:
            await waiting[-1].done.wait()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: StreamlogError) -> None:
        """Drops all jobs and takes no more."""
        self._failure = self._failure or error
        while self._jobs:
            self._jobs.popleft().done.set()

    def _start(self) -> None:
        if self._is_running or self._jobs[0].at_offset > self._durable_offset:
            return
        self._is_running = True
        self._background.spawn(self._run(), name="meta")

    async def _run(self) -> None:
        try:
            while ready := self._ready():
                await self._run_jobs(ready)
                if self._failure is not None:
                    return
                for job in ready:
                    self._jobs.popleft()
                    job.done.set()
        except StreamlogError as error:
            self._lifecycle.fail(error)
        finally:
            self._is_running = False

    def _ready(self) -> list[MetaJob]:
        return [*takewhile(lambda job: job.at_offset <= self._durable_offset, self._jobs)]

    async def _run_jobs(self, jobs: Sequence[MetaJob]) -> None:
        time = [job.time for job in jobs if job.time is not None]
        txn = [job.txn for job in jobs if job.txn is not None]
        await self._store(self._time, time, ENTRY_BYTES, _time_batch)
        await self._store(self._txn, txn, ABORTED_BYTES, aborted_batch)
        records = _without_old_checkpoints([record for job in jobs for record in job.records])
        if records:
            await self._meta.write(records)

    async def _store(
        self,
        stream: Stream,
        taken: Sequence[IndexEntries[Entry]],
        entry_bytes: int,
        batch_of: Callable[[Sequence[Entry]], RecordBatch],
    ) -> None:
        """Stores the entries of all jobs, in the order of their segments."""
        parts = [part for part in taken if part.entries]
        if not parts:
            return
        entries = [entry for part in parts for entry in part.entries]
        room = max(1, self._meta.entry_bytes_max // entry_bytes)
        expected = parts[0].source.stored_end
        for start in range(0, len(entries), room):
            chunk = entries[start : start + room]
            offset = (await stream.append(batch_of(chunk))).base_offset
            if offset != expected + start:
                raise Internal(
                    f"index entries of stream {stream.stream_id} went to {offset} instead of "
                    f"{expected + start}"
                )
        for part in parts:
            part.source.stored(len(part.entries))


def _time_batch(entries: Sequence[TimeEntry]) -> RecordBatch:
    return RecordBatch(len(entries), entries[0].timestamp_ms, (encode_entries(entries),))


def _without_old_checkpoints(records: Sequence[MetaRecord]) -> list[MetaRecord]:
    """A checkpoint replaces those before it; with many producers each is large."""
    newest = max(
        (index for index, record in enumerate(records) if isinstance(record, Checkpoint)),
        default=-1,
    )
    return [
        record
        for index, record in enumerate(records)
        if index == newest or not isinstance(record, Checkpoint)
    ]
