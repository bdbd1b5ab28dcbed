"""Carries out one spec: reads the inputs' live ranges, writes the outputs, checks every CRC.

1. The executor reads the inputs' index regions.
2. It reads the blocks slice by slice (`slices`), copies them (`builder`) and sends the bytes to the
   store (`output`). It reads the next slice meanwhile, if both slices fit into memory.
3. All outputs are in the store on return.
Memory: `memory_bytes` for slices and for bytes on their way into the store, 49 bytes for each block
of the inputs, and the index of the output under way. The caller chooses the object ids and commits
the outputs.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from streamlog.compaction.execute.builder import OutputBuilder
from streamlog.compaction.execute.output import Output, begin_output
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.slices import Slice, SliceGet, slices
from streamlog.compaction.execute.spool import Spool
from streamlog.compaction.plan.planner import MergePlan
from streamlog.compaction.plan.planning import MergePlanRequest
from streamlog.compaction.plan.spec import Job, MergeOutcome
from streamlog.format.object.block import BlockRow
from streamlog.format.object.footer import ObjectIdentity
from streamlog.format.object.index import ObjectIndex, decode_index
from streamlog.format.rows import ObjectRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import get_exactly
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

S = TypeVar("S")
T = TypeVar("T")

GETS_IN_FLIGHT_MAX = 4


class Executor(Protocol):
    """Where plans are made and jobs run."""

    async def plan(self, asked: MergePlanRequest) -> MergePlan:
        """Errors: StoreUnavailable, Closed."""
        ...

    async def run(self, job: Job) -> MergeOutcome:
        """Every output is in the store on return. A cancelled or failed job leaves orphans.

        Errors: Corrupt (object key and range), ObjectNotFound (an input is gone),
        StoreUnavailable, DiskFull, Closed.
        """
        ...

    def set_busy(self, is_busy: bool) -> None:
        """Goes slowly while appends and reads need disk and network."""
        ...

    async def close(self) -> None:
        """Ends the job under way."""
        ...


@dataclass(slots=True)
class _Counts:
    bytes_read: int = 0
    bytes_written: int = 0
    gets: int = 0


class InlineExecutor:
    """Runs jobs in this process: `offload` reads and copies, the loop waits."""

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
        # What is left of the memory holds blocks that are packed anew, and the part that fills up.
        self._slices_bytes = max(memory_bytes * 5 // 8, 1)
        self._step_bytes = max(memory_bytes // 4, 1)

    async def plan(self, asked: MergePlanRequest) -> MergePlan:
        return await self._offload.run(Lane.CPU, asked.planned)

    async def run(self, job: Job) -> MergeOutcome:
        counts = _Counts()
        indexes = await self._indexes([one.row for one in job.spec.inputs], counts)
        cut = slices(job.spec, indexes, self._slices_bytes // 4, self._slices_bytes)
        writer = _OutputWriter(self, job, counts)
        present: _Fetched | None = None
        try:
            while (following := await self._offload.run(Lane.CPU, _next, cut)) is not None:
                if present is not None and not self._fit(present.slice, following):
                    await writer.write(present)
                    present = None
                reading = self._fetched(job, following, counts)
                if present is None:
                    present = await reading
                else:
                    present, _ = await _both(reading, writer.write(present))
            if present is not None:
                await writer.write(present)
        finally:
            writer.close()
        return MergeOutcome(writer.objects, counts.bytes_read, counts.bytes_written, counts.gets)

    def _fit(self, one: Slice, other: Slice) -> bool:
        return one.size_bytes + other.size_bytes <= self._slices_bytes

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

    async def _fetched(self, job: Job, fetched: Slice, counts: _Counts) -> _Fetched:
        slots = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)

        async def read(get: SliceGet) -> Buffer:
            key = data_key(job.spec.inputs[get.input].row.object_id)
            async with slots:
                return await self._get(key, get.start, get.end - get.start, counts)

        gets = fetched.gets()
        return _Fetched(fetched, gets, await _together([read(get) for get in gets]))

    async def _get(self, key: str, start: int, length: int, counts: _Counts) -> Buffer:
        await self._limit.take(length)
        data = await get_exactly(self._store, key, start, length)
        counts.gets += 1
        counts.bytes_read += length
        return data

    async def begin(self, job: Job, number: int) -> tuple[Output, OutputBuilder]:
        """Output `number` and its builder. Errors: DiskFull, StoreUnavailable."""
        identity = ObjectIdentity(
            job.cluster_id, job.tenure.node_id, job.tenure.node_epoch, job.object_ids[number]
        )
        planned = job.spec.outputs[number]
        output = await begin_output(
            self._store,
            data_key(identity.object_id),
            planned.size_bytes,
            self._spool,
            self._offload,
        )
        target_bytes = job.spec.block_target_bytes
        return output, OutputBuilder(identity, list(planned.rows), target_bytes, output)

    async def copy(self, output: Output, steps: Iterator[None]) -> None:
        """Copies as much output at a time as fits into memory. Burns CPU. Errors: Corrupt."""

        def step() -> bool:
            return any(output.written_bytes >= self._step_bytes for _ in steps)

        while await self._offload.run(Lane.CPU, step):
            await output.drain()
        await output.drain()

    async def finish(self, output: Output, builder: OutputBuilder) -> ObjectRow:
        """Completes the output, which is in the store on return."""
        row = await self._offload.run(Lane.CPU, builder.finish)
        await output.finish()
        return row


class _OutputWriter:
    """Writes a job's slices in order; `objects`: the outputs that are in the store."""

    def __init__(self, executor: InlineExecutor, job: Job, counts: _Counts) -> None:
        self._executor = executor
        self._job = job
        self._counts = counts
        self._output: Output | None = None
        self._builder: OutputBuilder | None = None
        self.objects: list[ObjectRow] = []

    async def write(self, fetched: _Fetched) -> None:
        """Writes the slice, whose bytes are free on return.

        Errors: Corrupt, StoreUnavailable, DiskFull.
        """
        if self._output is None or self._builder is None:
            self._output, self._builder = await self._executor.begin(self._job, len(self.objects))
        steps = _copy(self._job, self._builder, fetched)
        await self._executor.copy(self._output, steps)
        if fetched.slice.is_last:
            row = await self._executor.finish(self._output, self._builder)
            self._counts.bytes_written += row.size_bytes
            self.objects.append(row)
            self.close()

    def close(self) -> None:
        """Drops the output under way."""
        if self._output is not None:
            self._output.close()
        self._output = self._builder = None


class _Fetched:
    """A slice and the bytes of its blocks."""

    def __init__(self, fetched: Slice, gets: Sequence[SliceGet], data: Sequence[Buffer]) -> None:
        self.slice = fetched
        self._data: dict[int, list[tuple[int, memoryview]]] = {}
        for get, piece in zip(gets, data, strict=True):
            self._data.setdefault(get.input, []).append((get.start, memoryview(piece)))

    def block(self, number: int, block: BlockRow) -> memoryview:
        """The block's bytes in input `number`."""
        pieces = self._data[number]
        at = bisect_right(pieces, block.position, key=itemgetter(0)) - 1
        start = block.position - pieces[at][0]
        return pieces[at][1][start : start + block.length]


def _copy(job: Job, builder: OutputBuilder, fetched: _Fetched) -> Iterator[None]:
    """Copies the slice, one block a step. Errors: Corrupt."""
    keys = [data_key(one.row.object_id) for one in job.spec.inputs]
    for part in fetched.slice.parts:
        key = keys[part.input]
        builder.begin(part.stream_id, part.start)
        for block in part.blocks:
            builder.add(block, fetched.block(part.input, block), part.end, part.epoch, key)
            yield
        builder.finish_part(part.end, key)
    # Slices of the GETs' buffers must not outlive them in memory.
    builder.flush()


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


async def _both(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, S]) -> tuple[T, S]:
    """Both results; the first failure ends the other."""
    try:
        async with asyncio.TaskGroup() as group:
            one, other = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return one.result(), other.result()


def _first(error: BaseException) -> BaseException:
    """The failure that ended the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
