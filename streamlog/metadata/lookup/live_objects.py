"""Lists live objects by id: those of the generations, the delta and the base, merged while read.

1. Object blocks are read without the cache, a few at a time, and not kept.
2. An entry of the delta hides the one in the base; an object of a generation is in neither file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from heapq import nsmallest

from streamlog.format.checkpoint.blocks import OBJECTS_PER_BLOCK, ObjectEntry, decode_objects
from streamlog.metadata.checkpoint.files import CheckpointReader, LevelFile, Levels
from streamlog.metadata.compaction_interface import LiveObject
from streamlog.metadata.fold.generation import Generation
from streamlog.metadata.interface import ObjectRow

RUN_BLOCKS_MAX = 16


def new_objects(generations: Sequence[Generation]) -> list[LiveObject]:
    """As CompactionMetadata.new_objects."""
    return [
        LiveObject(entry.row, entry.ranges)
        for generation in generations
        for entry in generation.objects.values()
        if entry.ranges > 0
    ]


async def find_live_objects(
    generations: Sequence[Generation],
    levels: Levels,
    reader: CheckpointReader,
    after: int,
    limit: int,
) -> list[LiveObject]:
    """Errors: ObjectNotFound (a file has gone), StoreUnavailable, Corrupt."""
    newest = nsmallest(
        limit,
        (
            (object_id, LiveObject(entry.row, entry.ranges))
            for generation in generations
            for object_id, entry in generation.objects.items()
            if object_id > after and entry.ranges > 0
        ),
        key=_first,
    )
    merged: list[LiveObject] = []
    index = 0
    async with aclosing(_in_files(levels, reader, after, limit)) as older:
        async for entry in older:
            while (
                index < len(newest) and newest[index][0] < entry.object_id and len(merged) < limit
            ):
                merged.append(newest[index][1])
                index += 1
            if len(merged) == limit:
                return merged
            merged.append(LiveObject(row_of(entry), entry.live))
    merged += [live for _, live in newest[index:]]
    return merged[:limit]


def row_of(entry: ObjectEntry) -> ObjectRow:
    return ObjectRow(
        entry.object_id,
        entry.size_bytes,
        entry.index_position,
        entry.index_length,
        entry.index_crc32c,
        entry.store,
    )


async def _in_files(
    levels: Levels, reader: CheckpointReader, after: int, limit: int
) -> AsyncGenerator[ObjectEntry, None]:
    async with (
        aclosing(_entries(levels.delta, reader, after, limit)) as newer,
        aclosing(_entries(levels.base, reader, after, limit)) as older,
    ):
        upper, lower = await anext(newer, None), await anext(older, None)
        while upper is not None or lower is not None:
            if lower is None or (upper is not None and upper.object_id <= lower.object_id):
                assert upper is not None
                if lower is not None and lower.object_id == upper.object_id:
                    lower = await anext(older, None)
                if upper.live:
                    yield upper
                upper = await anext(newer, None)
            else:
                yield lower
                lower = await anext(older, None)


async def _entries(
    level: LevelFile | None, reader: CheckpointReader, after: int, limit: int
) -> AsyncGenerator[ObjectEntry, None]:
    if level is None:
        return
    index = level.tail.objects
    first = max(index.block_of(after), 0)
    run = min(limit // OBJECTS_PER_BLOCK + 2, RUN_BLOCKS_MAX)
    while first < len(index):
        last = min(first + run, len(index))
        start, end = level.object_bytes(first, last)
        data = memoryview(await reader.read(level, start, end))
        for block in range(first, last):
            low, high = level.object_bytes(block, block + 1)
            columns = decode_objects(data[low - start : high - start], level.ref.name, low)
            for entry in columns.rows():
                if entry.object_id > after:
                    yield entry
        first = last


def _first(pair: tuple[int, LiveObject]) -> int:
    return pair[0]
