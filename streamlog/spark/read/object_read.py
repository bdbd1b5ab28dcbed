"""A task's pieces out of objects: ranged GETs under way while what came before is decoded.

1. *Visits*: one object after another, each with all parts of pieces that come next and lie in it,
   so that neighbouring streams of an object are one GET. Within a piece the order is that of
   offsets; an object is visited twice where the pieces' orders contradict one another.
2. The loop's thread reads index regions ahead and keeps GETs of about GET_BYTES under way, as
   many as BYTES_AHEAD allows; the task's thread takes them in order.
3. A chunk is the record batches of one partition, as they lie in one GET.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from streamlog.errors import Corrupt, ObjectNotFound
from streamlog.format.object.block import BlockRow, decode_payload
from streamlog.format.object.index import ObjectIndex, decode_index, is_unplaced
from streamlog.format.ranged_gets import RangedGet, index_range, plan_gets
from streamlog.format.rows import ObjectRow, Placement
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import GET_BYTES, get_exactly
from streamlog.runtime.buffers import Buffer
from streamlog.spark.plan.types import ServicePiece, StorePiece, TaskPlan, as_service
from streamlog.spark.read.worker import Worker

BYTES_AHEAD = 32 << 20
SMALL_OBJECT_BYTES = 1 << 20
"""An object up to this size is read whole, index and all, by one GET."""
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
    """Record batches of a partition, joined; those of offsets start to end (exclusive) count."""

    topic: str
    partition: int
    start: int
    end: int
    data: Buffer


def visits(plan: TaskPlan) -> Iterator[Visit]:
    """In an order that keeps each partition's."""
    objects, row_of = plan.objects, {one: at for at, one in enumerate(plan.objects.ids)}
    pieces = {n: one for n, one in enumerate(plan.pieces) if isinstance(one, StorePiece)}
    rest: dict[tuple[str, int], deque[int]] = {}
    for number, piece in pieces.items():
        rest.setdefault((piece.topic, piece.partition), deque()).append(number)
    # Who waits at which object: of each partition one piece at a time.
    waiting: dict[int, list[int]] = {}
    for numbers in rest.values():
        number = numbers.popleft()
        waiting.setdefault(pieces[number].objects[0], []).append(number)
    done = dict.fromkeys(pieces, 0)
    while waiting:
        object_id = next(iter(waiting))
        parts: list[Part] = []
        for number in sorted(waiting.pop(object_id)):
            piece, at = pieces[number], done[number]
            start = piece.ends[at - 1] if at else piece.start
            parts.append(Part(number, start, piece.ends[at]))
            at = done[number] = at + 1
            if at == len(piece.ends):
                behind = rest[piece.topic, piece.partition]
                if not behind:
                    continue
                number, at = behind.popleft(), 0
            waiting.setdefault(pieces[number].objects[at], []).append(number)
        row = row_of[object_id]
        yield Visit(
            ObjectRow(
                object_id,
                0,
                objects.index_positions[row],
                objects.index_lengths[row],
                objects.index_crcs[row],
                placements=tuple(Placement(*one) for one in objects.placements.get(object_id, ())),
            ),
            parts,
        )


class _PartBlock(NamedTuple):
    """A block, and the part that it is read for."""

    block: BlockRow
    part: Part

    @property
    def position(self) -> int:
        return self.block.position

    @property
    def length(self) -> int:
        return self.block.length


class _Get(NamedTuple):
    """A GET of one object's blocks that is under way."""

    key: str
    planned: RangedGet[_PartBlock]
    data: asyncio.Task[Buffer]


class ObjectReader:
    """Reads one task's pieces; iterate `chunks` once."""

    def __init__(self, worker: Worker, store: ObjectStore, plan: TaskPlan) -> None:
        self._worker = worker
        self._store = store
        self._plan = plan
        self._room = BYTES_AHEAD
        self._has_room = asyncio.Event()
        self._items: asyncio.Queue[_Get | Visit] = asyncio.Queue(VISITS_AHEAD)
        """A Visit: its object is gone."""
        self._gets: set[asyncio.Task[Buffer]] = set()

    def chunks(self) -> Iterator[Chunk | ServicePiece]:
        """In order; a ServicePiece stands for what was in an object that is gone.

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
                yield from self._chunks_of(item, data)
        finally:
            self._worker.call(self._stop, producing)

    def _stop(self, producing: asyncio.Task[None]) -> None:
        """Nobody will take what is still under way."""
        producing.cancel()
        for get in self._gets:
            get.cancel()

    async def _start(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._produce())

    async def _next(self, producing: asyncio.Task[None]) -> _Get | Visit | None:
        """What was produced is handed out before the error that ended it; None: the end."""
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
        """The object went after its index was read."""
        for part, blocks in groupby(item.planned.blocks, key=attrgetter("part")):
            piece = self._plan.pieces[part.piece]
            assert isinstance(piece, StorePiece)
            rows = [one.block for one in blocks]
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
                    indexes.append((visit, loop.create_task(self._index(visit.row))))
                    indexes[-1][1].add_done_callback(_seen)
                if not indexes:
                    break
                visit, loading = indexes.popleft()
                try:
                    index, body = await loading
                except ObjectNotFound:
                    await self._items.put(visit)
                    continue
                key = data_key(visit.row.object_id)
                for planned in plan_gets(self._blocks(visit, index, key), GET_BYTES):
                    await self._take_room(planned.length)
                    view = None if body is None else body[planned.start : planned.end]
                    data = loop.create_task(self._get(key, planned, view))
                    self._gets.add(data)
                    data.add_done_callback(self._ended)
                    await self._items.put(_Get(key, planned, data))
        finally:
            for _, loading in indexes:
                loading.cancel()

    def _ended(self, get: asyncio.Task[Buffer]) -> None:
        self._gets.discard(get)
        _seen(get)

    async def _take_room(self, length: int) -> None:
        """A GET larger than all room goes alone."""
        while self._room < min(length, BYTES_AHEAD):
            self._has_room.clear()
            await self._has_room.wait()
        self._room -= length

    def _give_back(self, length: int) -> None:
        self._room += length
        self._has_room.set()

    async def _get(
        self, key: str, planned: RangedGet[_PartBlock], view: memoryview | None
    ) -> Buffer:
        if view is not None:
            return view
        return await get_exactly(self._store, key, planned.start, planned.length)

    async def _index(self, row: ObjectRow) -> tuple[ObjectIndex, memoryview | None]:
        """And of a small object all that lies before the index."""
        key = data_key(row.object_id)
        start, end = index_range(row, SMALL_OBJECT_BYTES)
        data = await get_exactly(self._store, key, start, end - start)
        region = data[row.index_position - start :]
        index = decode_index(region, row, object_key=key)
        if is_unplaced(region, row):
            # It died while the plan was made, and where its records lay was forgotten.
            raise ObjectNotFound(f"{key} is in no stream any more", object_key=key)
        return index, data[: row.index_position] if start == 0 else None

    def _blocks(self, visit: Visit, index: ObjectIndex, key: str) -> Iterator[_PartBlock]:
        """The blocks of the visit's parts, in order. Errors: Corrupt."""
        for part in visit.parts:
            piece = self._plan.pieces[part.piece]
            assert isinstance(piece, StorePiece)
            at, end = part.start + piece.shift, part.end + piece.shift
            for block in index.blocks_for(piece.stream_id, at, end):
                if block.start > at:
                    break
                at = block.end
                yield _PartBlock(block, part)
            if at < end:
                raise Corrupt(
                    f"the index of {key} has no block of stream {piece.stream_id} at offset {at}, "
                    "which the metadata says is there: run fsck",
                    object_key=key,
                    start=visit.row.index_position,
                    end=visit.row.index_position + visit.row.index_length,
                )

    # on the task's thread

    def _chunks_of(self, item: _Get, data: Buffer) -> Iterator[Chunk]:
        blocks, payloads = item.planned.blocks, list[Buffer]()
        for number, one in enumerate(blocks):
            stored, part = item.planned.block_bytes(data, one), one.part
            payloads.append(decode_payload(stored, one.block, object_key=item.key))
            is_last = number + 1 == len(blocks)
            if is_last or blocks[number + 1].part != part:
                piece = self._plan.pieces[part.piece]
                joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
                yield Chunk(piece.topic, piece.partition, part.start, part.end, joined)
                payloads = []


def _seen(task: asyncio.Task[Any]) -> None:
    """What failed behind an earlier failure is nobody's to hear of."""
    if not task.cancelled():
        task.exception()


async def _done(task: asyncio.Task[Buffer]) -> Buffer:
    return await asyncio.shield(task)
