"""Carries out one spec: reads the inputs' live ranges, writes the outputs, checks every CRC.

1. The inputs' index regions are read.
2. Slice by slice (`slices`), the next one being read while one is copied (`builder`).
3. An output is put into the store when it is whole. All of them are there on return.
Memory: two slices within `memory_bytes`, 49 bytes for each block of the inputs, and the index of
the output under way. Which ids are used and whether they are committed is the caller's business.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from streamlog.compaction.builder import OutputBuilder
from streamlog.compaction.planner import Plan
from streamlog.compaction.planning import PlanRequest
from streamlog.compaction.rate import RateLimit
from streamlog.compaction.slices import Get, Part, Slice, slices
from streamlog.compaction.spec import Job, Outcome
from streamlog.compaction.spool import Spool
from streamlog.errors import OutcomeUnknown, StoreUnavailable
from streamlog.format.corrupt import corrupt
from streamlog.format.object_block import BlockRow
from streamlog.format.object_footer import ObjectIdentity
from streamlog.format.object_index import ObjectIndex, decode_index
from streamlog.format.rows import ObjectRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

T = TypeVar("T")

log = logging.getLogger(__name__)

GETS_IN_FLIGHT_MAX = 4
PUT_TRIES = 3


class Executor(Protocol):
    """Where plans are made and jobs run."""

    async def plan(self, asked: PlanRequest) -> Plan:
        """Errors: StoreUnavailable, Closed."""
        ...

    async def run(self, job: Job) -> Outcome:
        """Every output is in the store on return. A cancelled or failed one leaves orphans.

        Errors: Corrupt (object key and range), ObjectNotFound (an input is gone),
        StoreUnavailable, DiskFull, Closed.
        """
        ...

    def set_busy(self, is_busy: bool) -> None:
        """Goes slowly while others need disk and network."""
        ...

    async def close(self) -> None:
        """Ends what runs."""
        ...


@dataclass(slots=True)
class _Counts:
    bytes_read: int = 0
    bytes_written: int = 0
    gets: int = 0


class InlineExecutor:
    """In this process: the loop waits, `offload` reads and copies."""

    def __init__(
        self,
        store: ObjectStore,
        offload: Offload,
        limit: RateLimit,
        spool: Callable[[], Spool],
        *,
        memory_bytes: int,
    ) -> None:
        self._store = store
        self._offload = offload
        self._limit = limit
        self._spool = spool
        # One slice is read while one is copied, which takes the output's blocks beside it.
        self._slice_bytes = max(memory_bytes // 3, 1)

    async def plan(self, asked: PlanRequest) -> Plan:
        return await self._offload.run(Lane.CPU, asked.planned)

    async def run(self, job: Job) -> Outcome:
        counts = _Counts()
        indexes = await self._indexes([one.row for one in job.spec.inputs], counts)
        objects: list[ObjectRow] = []
        cut = slices(job.spec, indexes, self._slice_bytes)
        ahead = await self._fetched(job, cut, counts)
        output: _Output | None = None
        try:
            while ahead is not None:
                if output is None:
                    output = await self._offload.run(Lane.CPU, self._begin, job, len(objects))
                present = ahead
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(self._fetched(job, cut, counts))
                    group.create_task(
                        self._offload.run(Lane.CPU, _copy, job, output.builder, present)
                    )
                ahead = reading.result()
                if present.slice.is_last:
                    objects.append(await self._put(output, counts))
                    output = None
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            if output is not None:
                output.spool.close()
        return Outcome(objects, counts.bytes_read, counts.bytes_written, counts.gets)

    def set_busy(self, is_busy: bool) -> None:
        self._limit.is_busy = is_busy

    async def close(self) -> None:
        return

    async def _indexes(self, rows: Sequence[ObjectRow], counts: _Counts) -> list[ObjectIndex]:
        slots = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)

        async def read(row: ObjectRow) -> ObjectIndex:
            key = data_key(row.object_id)
            async with slots:
                data = await self._get(key, row.index_position, row.index_length, counts)
                return await self._offload.run(Lane.CPU, _index, data, row, key)

        return await _together([read(row) for row in rows])

    async def _fetched(self, job: Job, cut: Iterator[Slice], counts: _Counts) -> _Fetched | None:
        """The next slice with its bytes; None behind the last."""
        found = await self._offload.run(Lane.CPU, _next, cut)
        if found is None:
            return None
        slots = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)

        async def read(get: Get) -> Buffer:
            key = data_key(job.spec.inputs[get.input].row.object_id)
            async with slots:
                return await self._get(key, get.start, get.end - get.start, counts)

        gets = found.gets()
        return _Fetched(found, gets, await _together([read(get) for get in gets]))

    async def _get(self, key: str, start: int, length: int, counts: _Counts) -> Buffer:
        await self._limit.take(length)
        data = await self._store.get(key, start, length)
        counts.gets += 1
        counts.bytes_read += len(data)
        if len(data) != length:
            raise corrupt(f"{len(data)} bytes instead of {length}", key, start, start + length)
        return data

    def _begin(self, job: Job, number: int) -> _Output:
        spool = self._spool()
        identity = ObjectIdentity(
            job.cluster_id, job.tenure.node_id, job.tenure.node_epoch, job.object_ids[number]
        )
        rows = list(job.spec.outputs[number].rows)
        builder = OutputBuilder(identity, rows, job.spec.block_target_bytes, spool)
        return _Output(builder, spool, data_key(identity.object_id))

    async def _put(self, output: _Output, counts: _Counts) -> ObjectRow:
        row = await self._offload.run(Lane.CPU, output.builder.finish)
        try:
            content = await self._offload.run(Lane.CPU, output.spool.content)
            await self._stored(output.key, content)
        finally:
            output.spool.close()
        counts.bytes_written += row.size_bytes
        return row

    async def _stored(self, key: str, content: Sequence[Buffer]) -> None:
        """Same key, same bytes. Errors: StoreUnavailable."""
        for _ in range(PUT_TRIES):
            try:
                await self._store.put(key, content)
            except OutcomeUnknown as error:
                log.warning("an output's PUT gave no answer", extra={"reason": str(error)})
            else:
                return
        raise StoreUnavailable(f"storing {key} gave no answer {PUT_TRIES} times", operation="put")


@dataclass(slots=True)
class _Output:
    builder: OutputBuilder
    spool: Spool
    key: str


class _Fetched:
    """A slice and the bytes of its blocks."""

    def __init__(self, found: Slice, gets: Sequence[Get], data: Sequence[Buffer]) -> None:
        self.slice = found
        self._data: dict[int, list[tuple[int, memoryview]]] = {}
        for get, piece in zip(gets, data, strict=True):
            self._data.setdefault(get.input, []).append((get.start, memoryview(piece)))

    def block(self, number: int, block: BlockRow) -> memoryview:
        """The block's bytes in input `number`."""
        pieces = self._data[number]
        at = bisect_right(pieces, block.position, key=itemgetter(0)) - 1
        start = block.position - pieces[at][0]
        return pieces[at][1][start : start + block.length]


def _copy(job: Job, builder: OutputBuilder, fetched: _Fetched) -> None:
    """Errors: Corrupt."""
    for part in fetched.slice.parts:
        key = data_key(job.spec.inputs[part.input].row.object_id)
        _copy_part(builder, part, fetched, key)
    # Slices of the GETs' buffers must not outlive them in memory.
    builder.flush()


def _copy_part(builder: OutputBuilder, part: Part, fetched: _Fetched, key: str) -> None:
    builder.begin(part.stream_id, part.start)
    for block in part.blocks:
        builder.add(block, fetched.block(part.input, block), part.end, part.epoch, key)
    builder.finish_part(part.end, key)


def _next(cut: Iterator[Slice]) -> Slice | None:
    return next(cut, None)


def _index(data: Buffer, row: ObjectRow, key: str) -> ObjectIndex:
    return decode_index(data, row, object_key=key)


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


def _first(error: BaseException) -> BaseException:
    """The failure that ended the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
