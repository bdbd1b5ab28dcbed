"""Meta records that must not get ahead of the data they tell of: each waits for its offset.

A job runs when everything below its offset is durable: first its time index entries, then its meta
records. Jobs run one at a time, in order. So a crash can lose the newest ones and nothing else, and
what they said follows again from the attributes of the data.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamlog.errors import Internal, StreamlogError
from streamlog.log.meta_codec import MetaRecord
from streamlog.log.meta_log import MetaLog
from streamlog.log.time_index import SegmentTimeIndex, TimeEntry, encode_entries
from streamlog.model.batch import RecordBatch
from streamlog.model.stream import Stream
from streamlog.runtime.background import Background


@dataclass(slots=True)
class MetaJob:
    at_offset: int
    records: Sequence[MetaRecord]
    time_index: SegmentTimeIndex | None = None
    entries: Sequence[TimeEntry] = ()
    done: asyncio.Event = field(default_factory=asyncio.Event)


class MetaJobs:
    def __init__(
        self,
        meta: MetaLog,
        time: Stream,
        background: Background,
        on_failure: Callable[[StreamlogError], None],
    ) -> None:
        self._meta = meta
        self._time = time
        self._background = background
        self._on_failure = on_failure
        self._jobs: deque[MetaJob] = deque()
        self._durable_offset = 0
        self._is_running = False
        self._failure: StreamlogError | None = None

    def add(self, job: MetaJob) -> None:
        self._jobs.append(job)
        self._start()

    def advance(self, durable_offset: int) -> None:
        """Data is durable up to the offset (exclusive)."""
        self._durable_offset = durable_offset
        if self._jobs:
            self._start()

    async def settle(self, offset: int) -> None:
        """Returns when every job now queued at or below the offset is done.

        The caller has made sure that data is, or becomes, durable up to there. Errors: what failed.
        """
        waiting = [job for job in self._jobs if job.at_offset <= offset]
        if waiting:
            await waiting[-1].done.wait()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: StreamlogError) -> None:
        """Nothing is written any more."""
        self._failure = self._failure or error
        while self._jobs:
            self._jobs.popleft().done.set()

    def _start(self) -> None:
        if self._is_running or self._failure or self._jobs[0].at_offset > self._durable_offset:
            return
        self._is_running = True
        self._background.spawn(self._run(), name="meta")

    async def _run(self) -> None:
        try:
            while self._jobs and self._jobs[0].at_offset <= self._durable_offset:
                job = self._jobs[0]
                await self._carry_out(job)
                if self._failure is not None:
                    return
                self._jobs.popleft()
                job.done.set()
        except StreamlogError as error:
            self.fail(error)
            self._on_failure(error)
        finally:
            self._is_running = False

    async def _carry_out(self, job: MetaJob) -> None:
        if job.entries and job.time_index is not None:
            expected = job.time_index.stored_end
            data = encode_entries(job.entries)
            batch = RecordBatch(len(job.entries), job.entries[0].timestamp_ms, (data,))
            result = await self._time.append(batch)
            if result.base_offset != expected:
                raise Internal(
                    f"time index entries went to {result.base_offset} instead of {expected}"
                )
            job.time_index.stored(len(job.entries))
        if job.records:
            await self._meta.write(job.records)
