"""Locates sections of streams in objects, as columns, for readers that read the store themselves.

1. Ranges come first, in parts of about PART_RANGES. Many ranges may name one object.
2. Then come the rows of the objects: of those named, or of all live ones where that is cheaper than
   one look-up for each. An object's row never changes, so that a row may be sent twice.
3. Objects that were staged have a placement for each of their streams. These come in parts of about
   PART_PLACEMENTS, because a commit may attach a million of them.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from streamlog.errors import Conflict, MetadataUnavailable, ObjectNotFound
from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.rows import Placements
from streamlog.metadata.compaction_interface import LiveObject, ObjectFiles
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.interface import ObjectRow
from streamlog.model.located import LocatedRun, ObjectTable

PART_RANGES = 8192
"""Most ranges of one message, which takes about 1 ms to make."""
PART_PLACEMENTS = 8192
"""Most placements of one message, or those of one object; it takes about 10 ms to make."""
SECTIONS_AHEAD = 1024
"""Sections for which one read-ahead reads blocks."""
LOOKED_UP_MAX = 1000
"""For more objects, all entries are read, at 37 bytes each."""
_SCANS_MAX = 8
"""Tries to read all entries while new checkpoints delete the files."""


class LocateSection(NamedTuple):
    """Offsets [start, end) of a window's partition; `shift` more is the offset in the stream."""

    window: int
    stream_id: int
    shift: int
    start: int
    end: int
    size_bytes: int


class LookupPort(Protocol):
    """The look-ups that locating needs of the metadata."""

    async def ranges(self, stream_id: int, start: int, end: int) -> Sequence[ObjectRange]:
        """The first live ranges that overlap [start, end), clipped to the stream's start."""
        ...

    async def warm(self, sections: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
        """Reads blocks ahead for `ranges` calls of (stream id, start, end).

        Returns the place, (stream id, offset), up to which blocks were read.
        """
        ...

    def attached(self) -> Mapping[int, Placements]:
        """Object id → where the object was attached, for live objects that were staged once."""
        ...

    async def object(self, object_id: int) -> ObjectRow | None: ...

    def object_files(self) -> ObjectFiles: ...

    def object_blocks(self, file: str) -> AsyncIterator[Sequence[ObjectColumns]]: ...

    def new_objects(self) -> list[LiveObject]: ...


class Locating:
    """Makes one answer: read `ranges()` to its end, then `objects()`.

    Errors of both: StoreUnavailable, MetadataUnavailable, Conflict (try again).
    """

    def __init__(self, lookup: LookupPort, sections: Sequence[LocateSection]) -> None:
        self._lookup = lookup
        self._sections = sorted(sections, key=lambda section: (section.stream_id, section.start))
        self._warm_to = (0, 0)
        self._named: set[int] = set()

    async def ranges(self) -> AsyncIterator[list[LocatedRun]]:
        """Runs of ranges by stream. A run ends where a section has no object (any more, or yet)."""
        runs: list[LocatedRun] = []
        count = 0
        for number, section in enumerate(self._sections):
            offset = section.start
            while offset < section.end:
                await self._warm(number, offset)
                run = await _run(self._lookup, section, offset, PART_RANGES - count)
                if run is None:
                    break
                runs.append(run)
                if len(self._named) <= LOOKED_UP_MAX:
                    self._named.update(run.objects)
                count += len(run.ends)
                offset = run.end
                if count >= PART_RANGES:
                    yield runs
                    runs, count = [], 0
        if runs:
            yield runs

    async def _warm(self, number: int, offset: int) -> None:
        """Reads ahead when the last read-ahead is used up."""
        first = self._sections[number]
        if (first.stream_id, offset + first.shift) < self._warm_to:
            return
        ahead = self._sections[number : number + SECTIONS_AHEAD]
        bounds = [(s.stream_id, s.start + s.shift, s.end + s.shift) for s in ahead]
        bounds[0] = (first.stream_id, offset + first.shift, first.end + first.shift)
        self._warm_to = await self._lookup.warm(bounds)
        if number + SECTIONS_AHEAD < len(self._sections):
            following = self._sections[number + SECTIONS_AHEAD]
            self._warm_to = min(self._warm_to, (following.stream_id, 0))

    async def objects(self) -> AsyncIterator[ObjectTable]:
        """The rows of every object that the ranges name, and perhaps of other live objects."""
        if len(self._named) <= LOOKED_UP_MAX:
            for table in _parts(*await self._looked_up()):
                yield table
                await asyncio.sleep(0)
            return
        for _ in range(_SCANS_MAX):
            try:
                async for table in self._scanned():
                    yield table
                return
            except ObjectNotFound:
                continue
        raise Conflict("checkpoints came faster than objects could be read; try again")

    async def _looked_up(self) -> tuple[ObjectTable, dict[int, Placements]]:
        table = ObjectTable()
        placements: dict[int, Placements] = {}
        for object_id in sorted(self._named):
            row = await self._lookup.object(object_id)
            if row is None:
                # A trim and a checkpoint came since its range was sent.
                raise MetadataUnavailable(f"object {object_id} died meanwhile; try again")
            table.append(object_id, row.index_position, row.index_length, row.index_crc32c)
            if row.placements:
                placements[object_id] = Placements.of(row.placements)
        return table, placements

    async def _scanned(self) -> AsyncIterator[ObjectTable]:
        # Without an await in between: a checkpoint moves new objects into a file.
        files = self._lookup.object_files()
        placements = dict(self._lookup.attached())
        new = ObjectTable()
        for live in self._lookup.new_objects():
            row = live.row
            new.append(row.object_id, row.index_position, row.index_length, row.index_crc32c)
        for table in _parts(new, placements):
            yield table
            await asyncio.sleep(0)
        for file in files:
            if file:
                async for blocks in self._lookup.object_blocks(file):
                    table = ObjectTable()
                    for block in blocks:
                        _, positions, lengths, crcs, _, _ = block.others
                        table.extend(ObjectTable(block.ids, positions, lengths, crcs))
                    yield table
                    await asyncio.sleep(0)


def _parts(rows: ObjectTable, placements: Mapping[int, Placements]) -> Iterator[ObjectTable]:
    """The rows, with placements of their objects and others; then the other placements."""
    part, count = rows, 0
    for object_id, places in placements.items():
        if count and count + len(places) > PART_PLACEMENTS:
            yield part
            part, count = ObjectTable(), 0
        part.placements[object_id] = places
        count += len(places)
    yield part


async def _run(
    lookup: LookupPort, section: LocateSection, start: int, most: int
) -> LocatedRun | None:
    """The first run of adjacent ranges from `start` on; None: there is none."""
    shift, end = section.shift, section.end + section.shift
    ends, objects = array("q"), array("Q")
    first, offset = -1, start + shift
    while offset < end and len(ends) < most:
        ranges = await lookup.ranges(section.stream_id, offset, end)
        if not ranges or (first >= 0 and ranges[0].start > offset):
            break
        if first < 0:
            first = max(ranges[0].start, offset)
        for number in range(1, len(ranges)):
            if ranges[number].start != ranges[number - 1].end:
                ranges = ranges[:number]
                break
        ends.extend([r.end - shift for r in ranges])
        objects.extend([r.object_id for r in ranges])
        offset = ranges[-1].end
        # Lets the follower and other requests run.
        await asyncio.sleep(0)
    if first < 0:
        return None
    ends[-1] = min(ends[-1], section.end)
    first -= shift
    size = section.size_bytes * (ends[-1] - first) // (section.end - section.start)
    return LocatedRun(section.window, section.stream_id, first, shift, ends, objects, size)
