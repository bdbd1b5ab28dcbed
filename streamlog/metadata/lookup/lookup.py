"""Looks up a stream's ranges and objects' rows: in memory first, then in checkpoint files.

1. Newer ranges hide older ones: the patches of a generation hide its ranges and those of all older
   generations and files; the delta hides the base. An older layer is asked only for the gaps that
   the newer ones leave.
2. For neighbouring offsets at most one range block and one object block of each file are read,
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
    CheckpointReader,
    Levels,
    blocks_of,
    find_object,
    find_ranges,
)
from streamlog.metadata.checkpoint.loader import MetadataState
from streamlog.metadata.checkpoint.runs import block_in, runs
from streamlog.metadata.compaction_interface import LiveObject, ObjectFiles
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.fold.generation import covers, find_in_all
from streamlog.metadata.fold.overlay import ObjectRange, fill
from streamlog.metadata.interface import LiveRange, ObjectRow
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.lookup.live_objects import find_live_objects, row_of

T = TypeVar("T")
PARTS_AT_ONCE = 256
U64_MAX = (1 << 64) - 1


class Lookup:
    def __init__(self, follower: Follower, reader: CheckpointReader) -> None:
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

    async def ranges(self, stream_id: int, start: int, end: int) -> list[ObjectRange]:
        """The first live ranges that overlap [start, end), clipped to the stream's start."""
        fold = self._follower.state.fold
        window = _window(fold, stream_id, start, end)
        if window is None or covers(fold.generations, stream_id, window.start):
            return _in_memory(fold, stream_id, window)
        return await self._with_levels(lambda state: self._ranges(state, stream_id, start, end))

    async def _live_objects(self, state: MetadataState, after: int, limit: int) -> list[LiveObject]:
        attached = state.fold.staging.attached
        objects = await find_live_objects(
            state.fold.generations, state.levels, self._reader, after, limit
        )
        if not attached:
            return objects
        return [replace(live, row=_placed(attached, live.row)) for live in objects]

    async def warm(self, sections: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
        """Reads blocks ahead, in large GETs, for `ranges` of (stream id, start, end), in order.

        Returns the first place, (stream id, offset), for which no block was read.
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
                # A newer checkpoint has deleted it; the look-ups will use the newer files.
                return place
        return place

    async def _locate(
        self, state: MetadataState, stream_id: int, start: int, end: int, limit: int
    ) -> list[LiveRange]:
        # Reads all it needs of the state before the first wait, because the fold goes on meanwhile.
        seen, window = _Seen.of(state), _window(state.fold, stream_id, start, end)
        if window is None:
            return []
        newest = find_in_all(state.fold.generations, stream_id, window.start, window.end, limit)
        objects = {r.object_id: self._in_memory(state, r.object_id) for r in newest}
        live: list[LiveRange] = []
        for low, high, object_id in await self._with_files(
            seen.levels, stream_id, newest, window, limit
        ):
            if live and live[-1].end == low and live[-1].object.object_id == object_id:
                live[-1] = live[-1]._replace(end=high)
                continue
            row = objects.get(object_id)
            if row is None:
                row = objects[object_id] = await self._object(state, seen, object_id)
            if row is None:
                raise Corrupt(
                    f"the metadata has no entry for object {object_id}, in which stream "
                    f"{stream_id} has offsets {low} to {high}"
                )
            live.append(LiveRange(max(low, window.first), high, row))
        return live

    async def _ranges(
        self, state: MetadataState, stream_id: int, start: int, end: int
    ) -> list[ObjectRange]:
        """As `locate`, without the objects' rows; clipped to the stream's start."""
        levels, window = state.levels, _window(state.fold, stream_id, start, end)
        if window is None:
            return []
        newest = find_in_all(
            state.fold.generations, stream_id, window.start, window.end, PARTS_AT_ONCE
        )
        ranges = await self._with_files(levels, stream_id, newest, window, PARTS_AT_ONCE)
        return _clipped(ranges, window.first)

    async def _with_files(
        self,
        levels: Levels,
        stream_id: int,
        newest: Sequence[ObjectRange],
        window: _Window,
        limit: int,
    ) -> list[ObjectRange]:
        async def in_files(start: int, end: int, room: int) -> list[ObjectRange]:
            newer: list[ObjectRange] = []
            if levels.delta is not None:
                newer = await find_ranges(self._reader, levels.delta, stream_id, start, end, room)
            return await _filled(newer, start, end, room, in_base)

        async def in_base(start: int, end: int, room: int) -> list[ObjectRange]:
            if levels.base is None:
                return []
            return await find_ranges(self._reader, levels.base, stream_id, start, end, room)

        return await _filled(newest, window.start, window.end, limit, in_files)

    async def _object(self, state: MetadataState, seen: _Seen, object_id: int) -> ObjectRow | None:
        row = self._in_memory(state, object_id)
        if row is not None:
            return row
        for level in (seen.levels.delta, seen.levels.base):
            if level is not None:
                entry = await find_object(self._reader, level, object_id)
                if entry is not None:
                    return _placed(seen.attached, row_of(entry)) if entry.live else None
        return None

    def _in_memory(self, state: MetadataState, object_id: int) -> ObjectRow | None:
        for generation in reversed(state.fold.generations):
            entry = generation.objects.get(object_id)
            if entry is not None:
                return entry.row
        staged = state.fold.staging.staged.get(object_id)
        return None if staged is None else staged.row

    async def _with_levels(self, look: Callable[[MetadataState], Awaitable[T]]) -> T:
        """Runs the look-up, and again when a newer checkpoint has deleted the files meanwhile."""
        while True:
            state = self._follower.state
            put_at = state.checkpoint_revision
            try:
                return await look(state)
            except ObjectNotFound as error:
                await self._follower.replaced(put_at, error)


class _Seen(NamedTuple):
    """Checkpoint files, and where objects in them were attached; the two belong together."""

    levels: Levels
    attached: Mapping[int, Placements]

    @classmethod
    def of(cls, state: MetadataState) -> _Seen:
        return cls(state.levels, state.fold.staging.attached)


def _placed(attached: Mapping[int, Placements], row: ObjectRow) -> ObjectRow:
    """The row with its placements, which a checkpoint's object entry does not hold."""
    placements = attached.get(row.object_id)
    return row if placements is None else replace(row, placements=placements)


class _Window(NamedTuple):
    """The wanted offsets [start, end) that the stream has; `first` is the stream's start."""

    first: int
    start: int
    end: int


def _in_memory(fold: Fold, stream_id: int, window: _Window | None) -> list[ObjectRange]:
    if window is None:
        return []
    ranges = find_in_all(fold.generations, stream_id, window.start, window.end, PARTS_AT_ONCE)
    return _clipped(ranges, window.first)


def _clipped(ranges: list[ObjectRange], first: int) -> list[ObjectRange]:
    """Only the first range can begin before the stream does."""
    if ranges and ranges[0].start < first:
        ranges[0] = ranges[0]._replace(start=first)
    return ranges


def _window(fold: Fold, stream_id: int, start: int, end: int) -> _Window | None:
    if stream_id not in fold.info:
        return None
    first = fold.starts[stream_id]
    # A record that is being folded shows its ranges before its objects; the ends move last.
    low, high = max(start, first), min(end, fold.ends[stream_id])
    return _Window(first, low, high) if low < high else None


async def _filled(
    upper: Sequence[ObjectRange],
    start: int,
    end: int,
    limit: int,
    below: Callable[[int, int, int], Awaitable[list[ObjectRange]]],
) -> list[ObjectRange]:
    filling = fill(upper, start, end, limit)
    try:
        gap = next(filling)
        while True:
            gap = filling.send(await below(*gap))
    except StopIteration as done:
        ranges: list[ObjectRange] = done.value
        return ranges
