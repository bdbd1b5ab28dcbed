"""Sections of streams → the objects they lie in, in columns, for readers that go to the store.

1. Ranges first, in parts of about PART_RANGES. An object may be named by many.
2. Then what must be known of the objects: of those named, or of all that live, when that is cheaper
   than to look each up. An object's row never changes, so one that is told twice is told the same.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from streamlog.errors import Conflict, MetadataUnavailable, ObjectNotFound
from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.rows import Placements
from streamlog.metadata.compaction_interface import LiveObject, ObjectFiles
from streamlog.metadata.fold.overlay import FoundRange
from streamlog.metadata.interface import ObjectRow
from streamlog.model.located import LocatedRun, ObjectTable

PART_RANGES = 8192
"""A message of so many takes about 1 ms to make."""
SECTIONS_AHEAD = 1024
"""Looked at when blocks are read ahead."""
LOOKED_UP_MAX = 1000
"""More objects are found by reading all entries, at 37 bytes each."""
_SCANS_MAX = 8
"""Scans of files that a checkpoint took away meanwhile."""


class Section(NamedTuple):
    """Offsets start to end (exclusive) of a window's partition, in a stream, shifted."""

    window: int
    stream_id: int
    shift: int
    start: int
    end: int
    size_bytes: int


class Places(Protocol):
    """The look-ups that locating needs."""

    async def ranges(self, stream_id: int, start: int, end: int) -> Sequence[FoundRange]:
        """Live ranges that overlap [start, end), the first ones, clipped to the stream's start."""
        ...

    async def warm(self, sections: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
        """Reads ahead for `ranges` of (stream id, start, end); the place up to which it did."""
        ...

    def attached(self) -> Mapping[int, Placements]:
        """By object id: those that were staged, and where they were attached."""
        ...

    async def object(self, object_id: int) -> ObjectRow | None: ...

    def object_files(self) -> ObjectFiles: ...

    def object_blocks(self, file: str) -> AsyncIterator[Sequence[ObjectColumns]]: ...

    def new_objects(self) -> list[LiveObject]: ...


class Locating:
    """One answer: `ranges()` to its end, then `objects()`.

    Errors of both: StoreUnavailable, MetadataUnavailable, Conflict (try again).
    """

    def __init__(self, places: Places, sections: Sequence[Section]) -> None:
        self._places = places
        self._sections = sorted(sections, key=lambda one: (one.stream_id, one.start))
        self._warm_to = (0, 0)
        self._named: set[int] = set()

    async def ranges(self) -> AsyncIterator[list[LocatedRun]]:
        """By stream. A run ends where a section has no object (any more, or yet)."""
        runs: list[LocatedRun] = []
        count = 0
        for number, section in enumerate(self._sections):
            at = section.start
            while at < section.end:
                await self._warm(number, at)
                run = await _run(self._places, section, at, PART_RANGES - count)
                if run is None:
                    break
                runs.append(run)
                if len(self._named) <= LOOKED_UP_MAX:
                    self._named.update(run.objects)
                count += len(run.ends)
                at = run.end
                if count >= PART_RANGES:
                    yield runs
                    runs, count = [], 0
        if runs:
            yield runs

    async def _warm(self, number: int, at: int) -> None:
        """Reads ahead once what was read ahead is used up."""
        first = self._sections[number]
        if (first.stream_id, at + first.shift) < self._warm_to:
            return
        ahead = self._sections[number : number + SECTIONS_AHEAD]
        places = [(one.stream_id, one.start + one.shift, one.end + one.shift) for one in ahead]
        places[0] = (first.stream_id, at + first.shift, first.end + first.shift)
        self._warm_to = await self._places.warm(places)
        if number + SECTIONS_AHEAD < len(self._sections):
            following = self._sections[number + SECTIONS_AHEAD]
            self._warm_to = min(self._warm_to, (following.stream_id, 0))

    async def objects(self) -> AsyncIterator[ObjectTable]:
        """Every object that the ranges name, and perhaps others."""
        if len(self._named) <= LOOKED_UP_MAX:
            yield await self._looked_up()
            return
        for _ in range(_SCANS_MAX):
            try:
                async for table in self._scanned():
                    yield table
                return
            except ObjectNotFound:
                continue
        raise Conflict("checkpoints came faster than objects could be read; try again")

    async def _looked_up(self) -> ObjectTable:
        table = ObjectTable()
        for object_id in sorted(self._named):
            row = await self._places.object(object_id)
            if row is None:
                # A trim and a checkpoint since its range was told.
                raise MetadataUnavailable(f"object {object_id} died meanwhile; try again")
            table.append(object_id, row.index_position, row.index_length, row.index_crc32c)
            if row.placements:
                table.placements[object_id] = row.placements
        return table

    async def _scanned(self) -> AsyncIterator[ObjectTable]:
        files = self._places.object_files()
        table = ObjectTable(placements=dict(self._places.attached()))
        for one in self._places.new_objects():
            row = one.row
            table.append(row.object_id, row.index_position, row.index_length, row.index_crc32c)
        yield table
        for file in files:
            if file:
                async for blocks in self._places.object_blocks(file):
                    table = ObjectTable()
                    for block in blocks:
                        _, positions, lengths, crcs, _, _ = block.others
                        table.extend(ObjectTable(block.ids, positions, lengths, crcs))
                    yield table
                    await asyncio.sleep(0)


async def _run(places: Places, section: Section, start: int, most: int) -> LocatedRun | None:
    """The first ranges that meet, from `start` or later on."""
    shift, end = section.shift, section.end + section.shift
    ends, objects = array("q"), array("Q")
    first, at = -1, start + shift
    while at < end and len(ends) < most:
        found = await places.ranges(section.stream_id, at, end)
        if not found or (first >= 0 and found[0].start > at):
            break
        if first < 0:
            first = max(found[0].start, at)
        for number in range(1, len(found)):
            if found[number].start != found[number - 1].end:
                found = found[:number]
                break
        ends.extend([one.end - shift for one in found])
        objects.extend([one.object_id for one in found])
        at = found[-1].end
        # The fold goes on, and others are served, meanwhile.
        await asyncio.sleep(0)
    if first < 0:
        return None
    ends[-1] = min(ends[-1], section.end)
    first -= shift
    size = section.size_bytes * (ends[-1] - first) // (section.end - section.start)
    return LocatedRun(section.window, section.stream_id, first, shift, ends, objects, size)
