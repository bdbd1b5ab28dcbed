"""A task's pieces out of objects: GETs are under way while earlier data is decoded.

1. *Visits*: one object after another, each with all parts of pieces that come next and lie in it,
   so that one GET brings neighbouring streams of an object. Within a piece the order is that of
   offsets; an object is visited twice if the orders of two pieces contradict each other.
2. The loop's thread reads indexes ahead and keeps as many GETs under way as BYTES_AHEAD allows; the
   task's thread takes their data in order.
3. A chunk is the record batches of one partition in one GET.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from streamlog.errors import ObjectNotFound
from streamlog.model.located import AbortedSpan
from streamlog.reading.blocks import (
    ObjectIndex,
    ObjectRow,
    ObjectStore,
    PlannedGet,
    StreamBlocks,
    data_key,
    get_exactly,
    object_row,
    payloads,
    plan_part_gets,
    read_index,
)
from streamlog.runtime.buffers import Buffer
from streamlog.spark.plan.types import ServicePiece, StorePiece, TaskPlan, as_service
from streamlog.spark.read.worker import Worker

BYTES_AHEAD = 32 << 20
VISITS_AHEAD = 16


class Part(NamedTuple):
    """Offsets start to end (exclusive) of a piece, in one object; `piece` is its number."""

    piece: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Visit:
    row: ObjectRow
    parts: Sequence[Part]


class Chunk(NamedTuple):
    """Record batches of a partition, joined; offsets from start to end (exclusive) count.

    `aborted`: transactions whose batches do not count.
    """

    topic: str
    partition: int
    start: int
    end: int
    data: Buffer
    aborted: tuple[AbortedSpan, ...] = ()


def visits(plan: TaskPlan) -> Iterator[Visit]:
    """Visits in an order that keeps the order of each partition."""
    numbers_of = {object_id: number for number, object_id in enumerate(plan.objects.ids)}
    pieces = {n: piece for n, piece in enumerate(plan.pieces) if isinstance(piece, StorePiece)}
    later: dict[tuple[str, int], deque[int]] = {}
    for number, piece in pieces.items():
        later.setdefault((piece.topic, piece.partition), deque()).append(number)
    # By object: the pieces whose next part lies in it, one piece of each partition at a time.
    waiting: dict[int, list[int]] = {}
    for numbers in later.values():
        number = numbers.popleft()
        waiting.setdefault(pieces[number].objects[0], []).append(number)
    done = dict.fromkeys(pieces, 0)
    while waiting:
        object_id = next(iter(waiting))
        parts: list[Part] = []
        for number in sorted(waiting.pop(object_id)):
            piece, index = pieces[number], done[number]
            start = piece.ends[index - 1] if index else piece.start
            parts.append(Part(number, start, piece.ends[index]))
            index = done[number] = index + 1
            if index == len(piece.ends):
                following = later[piece.topic, piece.partition]
                if not following:
                    continue
                number, index = following.popleft(), 0
            waiting.setdefault(pieces[number].objects[index], []).append(number)
        yield Visit(object_row(plan.objects, numbers_of[object_id]), parts)


class _Get(NamedTuple):
    """A GET of one object's blocks, under way or done."""

    key: str
    planned: PlannedGet[Part]
    data: asyncio.Task[Buffer]


class PieceReader:
    """Reads one task's pieces; iterate `chunks` once."""

    def __init__(self, worker: Worker, store: ObjectStore, plan: TaskPlan) -> None:
        self._worker = worker
        self._store = store
        self._plan = plan
        self._room = BYTES_AHEAD
        self._has_room = asyncio.Event()
        self._items: asyncio.Queue[_Get | Visit] = asyncio.Queue(VISITS_AHEAD)
        """A Visit stands for an object that was deleted."""
        self._gets: set[asyncio.Task[Buffer]] = set()

    def chunks(self) -> Iterator[Chunk | ServicePiece]:
        """Chunks in order; a ServicePiece stands for records of an object that was deleted.

        Errors: Corrupt, StoreUnavailable.
        """
        producing = self._worker.run(self._start())
        try:
            while True:
                item = self._worker.run(self._next(producing))
                if item is None:
                    return
                if isinstance(item, Visit):
                    yield from self._gone(item)
                    continue
                try:
                    data = self._worker.run(_done(item.data))
                except ObjectNotFound:
                    yield from self._gone_blocks(item)
                    continue
                finally:
                    self._worker.call(self._give_back, item.planned.length)
                for part, batches in payloads(item.key, item.planned, data):
                    piece = self._plan.pieces[part.piece]
                    assert isinstance(piece, StorePiece)
                    yield Chunk(
                        piece.topic, piece.partition, part.start, part.end, batches, piece.aborted
                    )
        finally:
            self._worker.call(self._stop, producing)

    def _stop(self, producing: asyncio.Task[None]) -> None:
        """Cancels everything that is still under way."""
        producing.cancel()
        for get in self._gets:
            get.cancel()

    async def _start(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._produce())

    async def _next(self, producing: asyncio.Task[None]) -> _Get | Visit | None:
        """The next item; items come before the error that ended production. None: the end."""
        while True:
            if self._items.empty() and producing.done():
                producing.result()
                return None
            getting = asyncio.get_running_loop().create_task(self._items.get())
            await asyncio.wait((getting, producing), return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            getting.cancel()

    def _gone(self, visit: Visit) -> Iterator[ServicePiece]:
        for part in visit.parts:
            piece = self._plan.pieces[part.piece]
            yield as_service(piece, part.start, part.end)

    def _gone_blocks(self, item: _Get) -> Iterator[ServicePiece]:
        """The object was deleted after its index was read."""
        for part, blocks in groupby(item.planned.blocks, key=attrgetter("part")):
            piece = self._plan.pieces[part.piece]
            assert isinstance(piece, StorePiece)
            rows = [block.row for block in blocks]
            start = max(part.start, rows[0].start - piece.shift)
            end = min(part.end, rows[-1].end - piece.shift)
            yield as_service(piece, start, end)

    # on the loop's thread

    async def _produce(self) -> None:
        indexes: deque[tuple[Visit, asyncio.Task[tuple[ObjectIndex, memoryview | None]]]] = deque()
        loop = asyncio.get_running_loop()
        source = visits(self._plan)
        try:
            while True:
                while len(indexes) < VISITS_AHEAD:
                    visit = next(source, None)
                    if visit is None:
                        break
                    indexes.append((visit, loop.create_task(read_index(self._store, visit.row))))
                    indexes[-1][1].add_done_callback(_retrieve_error)
                if not indexes:
                    break
                visit, loading = indexes.popleft()
                try:
                    index, body = await loading
                except ObjectNotFound:
                    await self._items.put(visit)
                    continue
                key = data_key(visit.row.object_id)
                for planned in plan_part_gets(visit.row, index, self._stream_parts(visit)):
                    await self._take_room(planned.length)
                    data = loop.create_task(self._get(key, planned, body))
                    self._gets.add(data)
                    data.add_done_callback(self._ended)
                    await self._items.put(_Get(key, planned, data))
        finally:
            for _, loading in indexes:
                loading.cancel()

    def _ended(self, get: asyncio.Task[Buffer]) -> None:
        self._gets.discard(get)
        _retrieve_error(get)

    async def _take_room(self, length: int) -> None:
        """Waits for room; a GET larger than BYTES_AHEAD goes alone."""
        while self._room < min(length, BYTES_AHEAD):
            self._has_room.clear()
            await self._has_room.wait()
        self._room -= length

    def _give_back(self, length: int) -> None:
        self._room += length
        self._has_room.set()

    async def _get(self, key: str, planned: PlannedGet[Part], body: memoryview | None) -> Buffer:
        if body is not None:
            return body[planned.start : planned.end]
        return await get_exactly(self._store, key, planned.start, planned.length)

    def _stream_parts(self, visit: Visit) -> Iterator[StreamBlocks[Part]]:
        for part in visit.parts:
            piece = self._plan.pieces[part.piece]
            assert isinstance(piece, StorePiece)
            shift = piece.shift
            yield StreamBlocks(piece.stream_id, part.start + shift, part.end + shift, part)


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Keeps asyncio from logging the error of a task that is never awaited."""
    if not task.cancelled():
        task.exception()


async def _done(task: asyncio.Task[Buffer]) -> Buffer:
    return await asyncio.shield(task)
