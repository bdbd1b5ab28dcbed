"""Where a stream's offsets lie, what is known of an object: memory first, then checkpoint files.

1. What is newer hides what is older: patches of a generation its ranges and all before it, the
   delta the base. Only the gaps that the newer leaves are asked of the older.
2. At most one range block and one object block of each file are read for neighbouring offsets,
   through the cache.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from streamlog.errors import Corrupt, ObjectNotFound
from streamlog.format.checkpoint.blocks import ObjectColumns, decode_objects
from streamlog.format.rows import Placements
from streamlog.metadata.checkpoint.files import (
    BlockReader,
    Levels,
    blocks_of,
    find_object,
    find_ranges,
)
from streamlog.metadata.checkpoint.loader import State
from streamlog.metadata.checkpoint.runs import block_in, runs
from streamlog.metadata.compaction_interface import LiveObject, ObjectFiles
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.fold.generation import covers, find_in_all
from streamlog.metadata.fold.overlay import FoundRange, fill
from streamlog.metadata.interface import LiveRange, ObjectRow
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.lookup.live_objects import find_live_objects, row_of

T = TypeVar("T")
PARTS_AT_ONCE = 256
U64_MAX = (1 << 64) - 1


class Lookup:
    def __init__(self, follower: Follower, reader: BlockReader) -> None:
        self._follower = follower
        self._reader = reader

    async def locate(self, stream_id: int, start: int, end: int, limit: int) -> list[LiveRange]:
        """As Metadata.locate."""
        return await self._with_levels(
            lambda state: self._locate(state, stream_id, start, end, limit)
        )

    async def object(self, object_id: int) -> ObjectRow | None:
        """As Metadata.object."""
        return await self._with_levels(
            lambda state: self._object(state, _Seen.of(state), object_id)
        )

    async def live_objects(self, after: int, limit: int) -> list[LiveObject]:
        """As CompactionMetadata.live_objects."""
        return await self._with_levels(lambda state: self._live_objects(state, after, limit))

    def object_files(self) -> ObjectFiles:
        """As CompactionMetadata.object_files."""
        levels = self._follower.state.levels
        return ObjectFiles(
            "" if levels.base is None else levels.base.ref.name,
            "" if levels.delta is None else levels.delta.ref.name,
        )

    async def object_blocks(self, file: str) -> AsyncIterator[Sequence[ObjectColumns]]:
        """As CompactionMetadata.object_blocks."""
        levels = self._follower.state.levels
        for level in (levels.base, levels.delta):
            if level is not None and level.ref.name == file:
                break
        else:
            raise ObjectNotFound(f"the checkpoint file {file} is not in use", object_key=file)
        blocks = range(len(level.tail.objects))
        async for first, last, run in runs(level, blocks, self._reader, objects=True):
            yield [
                decode_objects(block_in(level, block, first, run, objects=True), file)
                for block in range(first, last)
            ]

    async def ranges(self, stream_id: int, start: int, end: int) -> list[FoundRange]:
        """Live ranges that overlap [start, end), the first ones, clipped to the stream's start."""
        fold = self._follower.state.fold
        window = _window(fold, stream_id, start, end)
        if window is None or covers(fold.generations, stream_id, window.start):
            return _in_memory(fold, stream_id, window)
        return await self._with_levels(lambda state: self._ranges(state, stream_id, start, end))

    async def _live_objects(self, state: State, after: int, limit: int) -> list[LiveObject]:
        attached = state.fold.staging.attached
        found = await find_live_objects(
            state.fold.generations, state.levels, self._reader, after, limit
        )
        if not attached:
            return found
        return [replace(one, row=_placed(attached, one.row)) for one in found]

    async def warm(self, sections: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
        """Reads ahead, in large GETs, for `ranges` of (stream id, start, end) in that order: the
        first place, (stream id, offset), of which nothing was read ahead.
        """
        levels = self._follower.state.levels
        place = (U64_MAX, 0)
        for level in (levels.delta, levels.base):
            if level is None:
                continue
            blocks, end = blocks_of(level, sections, self._reader.blocks_max // 4)
            place = min(place, end)
            try:
                await self._reader.warm_ranges(level, blocks)
            except ObjectNotFound:
                # A newer checkpoint took it away; the look-ups will find the newer files.
                return place
        return place

    async def _locate(
        self, state: State, stream_id: int, start: int, end: int, limit: int
    ) -> list[LiveRange]:
        # Everything of the state is looked at before the first wait: the fold goes on meanwhile.
        seen, window = _Seen.of(state), _window(state.fold, stream_id, start, end)
        if window is None:
            return []
        newest = find_in_all(state.fold.generations, stream_id, window.start, window.end, limit)
        known = {r.object_id: self._in_memory(state, r.object_id) for r in newest}
        rows: list[LiveRange] = []
        for one in await self._with_files(seen.levels, stream_id, newest, window, limit):
            if rows and rows[-1].end == one.start and rows[-1].object.object_id == one.object_id:
                rows[-1] = rows[-1]._replace(end=one.end)
                continue
            row = known.get(one.object_id)
            if row is None:
                row = known[one.object_id] = await self._object(state, seen, one.object_id)
            if row is None:
                raise Corrupt(
                    f"the metadata has no entry for object {one.object_id}, in which stream "
                    f"{stream_id} has offsets {one.start} to {one.end}"
                )
            rows.append(LiveRange(max(one.start, window.first), one.end, row))
        return rows

    async def _ranges(self, state: State, stream_id: int, start: int, end: int) -> list[FoundRange]:
        """Without looking at their objects: clipped to the stream's start."""
        levels, window = state.levels, _window(state.fold, stream_id, start, end)
        if window is None:
            return []
        newest = find_in_all(
            state.fold.generations, stream_id, window.start, window.end, PARTS_AT_ONCE
        )
        found = await self._with_files(levels, stream_id, newest, window, PARTS_AT_ONCE)
        return _clipped(found, window.first)

    async def _with_files(
        self,
        levels: Levels,
        stream_id: int,
        newest: Sequence[FoundRange],
        window: _Window,
        limit: int,
    ) -> list[FoundRange]:
        async def in_files(start: int, end: int, room: int) -> list[FoundRange]:
            newer: list[FoundRange] = []
            if levels.delta is not None:
                newer = await find_ranges(self._reader, levels.delta, stream_id, start, end, room)
            return await _filled(newer, start, end, room, in_base)

        async def in_base(start: int, end: int, room: int) -> list[FoundRange]:
            if levels.base is None:
                return []
            return await find_ranges(self._reader, levels.base, stream_id, start, end, room)

        return await _filled(newest, window.start, window.end, limit, in_files)

    async def _object(self, state: State, seen: _Seen, object_id: int) -> ObjectRow | None:
        known = self._in_memory(state, object_id)
        if known is not None:
            return known
        for level in (seen.levels.delta, seen.levels.base):
            if level is not None:
                entry = await find_object(self._reader, level, object_id)
                if entry is not None:
                    return _placed(seen.attached, row_of(entry)) if entry.live else None
        return None

    def _in_memory(self, state: State, object_id: int) -> ObjectRow | None:
        for generation in reversed(state.fold.generations):
            entry = generation.objects.get(object_id)
            if entry is not None:
                return entry.row
        staged = state.fold.staging.staged.get(object_id)
        return None if staged is None else staged.row

    async def _with_levels(self, look: Callable[[State], Awaitable[T]]) -> T:
        """Looks again when a newer checkpoint has taken the files away."""
        while True:
            state = self._follower.state
            put_at = state.checkpoint_revision
            try:
                return await look(state)
            except ObjectNotFound as error:
                await self._follower.replaced(put_at, error)


class _Seen(NamedTuple):
    """What belongs together: files, and where objects in them were attached."""

    levels: Levels
    attached: Mapping[int, Placements]

    @classmethod
    def of(cls, state: State) -> _Seen:
        return cls(state.levels, state.fold.staging.attached)


def _placed(attached: Mapping[int, Placements], row: ObjectRow) -> ObjectRow:
    """A checkpoint's entry does not say where the object was attached."""
    places = attached.get(row.object_id)
    return row if places is None else replace(row, placements=places)


class _Window(NamedTuple):
    """Offsets asked for that the stream has; `first`: its start."""

    first: int
    start: int
    end: int


def _in_memory(fold: Fold, stream_id: int, window: _Window | None) -> list[FoundRange]:
    if window is None:
        return []
    found = find_in_all(fold.generations, stream_id, window.start, window.end, PARTS_AT_ONCE)
    return _clipped(found, window.first)


def _clipped(found: list[FoundRange], first: int) -> list[FoundRange]:
    """Only the first of them can begin before the stream does."""
    if found and found[0].start < first:
        found[0] = found[0]._replace(start=first)
    return found


def _window(fold: Fold, stream_id: int, start: int, end: int) -> _Window | None:
    if stream_id not in fold.info:
        return None
    first = fold.starts[stream_id]
    # A record that is being folded shows its ranges before its objects; the ends move last.
    low, high = max(start, first), min(end, fold.ends[stream_id])
    return _Window(first, low, high) if low < high else None


async def _filled(
    upper: Sequence[FoundRange],
    start: int,
    end: int,
    limit: int,
    below: Callable[[int, int, int], Awaitable[list[FoundRange]]],
) -> list[FoundRange]:
    filling = fill(upper, start, end, limit)
    try:
        gap = next(filling)
        while True:
            gap = filling.send(await below(*gap))
    except StopIteration as done:
        found: list[FoundRange] = done.value
        return found
