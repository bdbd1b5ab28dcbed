"""Locating: an object that dies after its range was sent makes the caller try again, and objects of
large staged writes come in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from streamlog.errors import MetadataUnavailable
from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.rows import ObjectRow, Placement, Placements
from streamlog.metadata.compaction_interface import LiveObject, ObjectFiles
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.interface import CommitEntry, StreamEpoch
from streamlog.metadata.lookup.locating import (
    LOOKED_UP_MAX,
    PART_PLACEMENTS,
    LocateSection,
    Locating,
)
from tests.metadata.world import World, append, create


def test_an_object_that_dies_between_its_two_look_ups_is_no_corruption() -> None:
    async def main() -> None:
        async with World().tenure(1) as metadata:
            (stream,) = await create(metadata)
            await append(metadata, stream, 3)
            locating = Locating(metadata, [LocateSection(0, stream, 0, 0, 3, 100)])
            runs = [run async for part in locating.ranges() for run in part]
            assert [list(run.ends) for run in runs] == [[3]]
            await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
            await metadata.checkpoint()
            with pytest.raises(MetadataUnavailable, match="died") as raised:
                _ = [table async for table in locating.objects()]
            assert raised.value.is_retryable

    asyncio.run(main())


class StagedObjects:
    """A stream of which each record lies in an object of its own, attached to `streams` streams."""

    def __init__(self, objects: int, streams: int) -> None:
        places = Placements.of(Placement(stream, 0, 1) for stream in range(streams))
        self._placements = dict.fromkeys(range(objects), places)

    async def ranges(self, stream_id: int, start: int, end: int) -> Sequence[ObjectRange]:
        return [ObjectRange(offset, offset + 1, offset) for offset in range(start, end)]

    async def warm(self, sections: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
        return sections[-1][0] + 1, 0

    async def object(self, object_id: int) -> ObjectRow:
        return ObjectRow(object_id, 1000, 900, 100, 0, placements=self._placements[object_id])

    def attached(self) -> Mapping[int, Placements]:
        return self._placements

    def new_objects(self) -> list[LiveObject]:
        rows = [ObjectRow(object_id, 1000, 900, 100, 0) for object_id in self._placements]
        return [LiveObject(row, 1) for row in rows]

    def object_files(self) -> ObjectFiles:
        return ObjectFiles("", "")

    def object_blocks(self, file: str) -> AsyncIterator[Sequence[ObjectColumns]]:
        raise AssertionError("there is no file")


@pytest.mark.parametrize(("objects", "streams"), [(20, 3000), (LOOKED_UP_MAX + 1, 50)])
def test_placements_come_in_parts_because_each_is_encoded_in_one_turn_of_the_event_loop(
    objects: int, streams: int
) -> None:
    async def main() -> None:
        sections = [LocateSection(0, 7, 0, 0, objects, 1)]
        locating = Locating(StagedObjects(objects, streams), sections)
        assert len([run async for part in locating.ranges() for run in part]) > 0
        tables = [table async for table in locating.objects()]
        ids = [object_id for table in tables for object_id in table.ids]
        placements = [object_id for table in tables for object_id in table.placements]
        assert sorted(ids) == sorted(placements) == list(range(objects))
        sizes = [sum(map(len, table.placements.values())) for table in tables]
        assert sum(sizes) == objects * streams
        assert max(sizes) <= PART_PLACEMENTS

    asyncio.run(main())
