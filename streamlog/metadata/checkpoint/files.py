"""Checkpoint files as levels: an index in memory, blocks read by ranged GET through a small cache.

1. The base holds the oldest ranges of a stream, the delta later ones, and generations in memory the
   newest. Ranges of the delta hide those of the base at their offsets.
2. An object's entry in the delta hides the one in the base; `live` 0 means that it is dead.
3. Both files are immutable. A look-up that finds a file gone starts again with the newest levels.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import NamedTuple, TypeVar

from streamlog.errors import Corrupt
from streamlog.format.checkpoint.blocks import (
    BLOCK_BYTES_MAX,
    ObjectColumns,
    ObjectEntry,
    RangeGroup,
    decode_objects,
    decode_ranges,
)
from streamlog.format.checkpoint.tail import CheckpointTail, decode_tail, tail_crc
from streamlog.format.ranged_gets import plan_gets
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.keys.checkpoint import FileRef
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.object_reader import get_exactly
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

T = TypeVar("T")
DECODED_AT_ONCE = 8
"""Blocks decoded before other tasks may run: about 1 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelFile:
    """One checkpoint file: its name, and its index in memory."""

    ref: FileRef
    tail: CheckpointTail

    def range_bytes(self, first: int, last: int) -> tuple[int, int]:
        """[start, end) of range blocks first (inclusive) to last (exclusive)."""
        return self.tail.ranges.positions[first], self.tail.ranges.positions[last]

    def object_bytes(self, first: int, last: int) -> tuple[int, int]:
        """[start, end) of object blocks first (inclusive) to last (exclusive)."""
        return self.tail.objects.positions[first], self.tail.objects.positions[last]


@dataclass(frozen=True, slots=True)
class Levels:
    """The files of the checkpoint pointer; they cover everything up to `revision`."""

    revision: int = 0
    delta: LevelFile | None = None
    base: LevelFile | None = None


async def read_level(store: ObjectStore, ref: FileRef, offload: Offload) -> LevelFile:
    """One GET of the file's tail. Errors: ObjectNotFound, Corrupt, StoreUnavailable."""
    length = ref.size_bytes - ref.tail_position
    data = await get_exactly(store, ref.name, ref.tail_position, length)
    if length < 4 or tail_crc(data) != ref.tail_crc32c:
        raise Corrupt(
            f"the checkpoint file {ref.name} is not the one that the metadata names",
            object_key=ref.name,
            start=ref.tail_position,
            end=ref.size_bytes,
        )
    tail = await offload.run(Lane.CPU, decode_tail, data, ref.name, ref.tail_position)
    return LevelFile(ref, tail)


class BoundedGroup(NamedTuple):
    """A RangeGroup for look-ups; range i is [bounds[i], bounds[i + 1])."""

    stream_id: int
    bounds: array[int]
    objects: array[int]


class _FileBlock(NamedTuple):
    """Where a block of a checkpoint file lies, in bytes."""

    number: int
    position: int
    length: int


class CheckpointReader:
    """Reads blocks of checkpoint files, and caches the decoded ones (LRU)."""

    def __init__(self, store: ObjectStore, cache_bytes: int) -> None:
        self._store = store
        self.blocks_max = max(cache_bytes // BLOCK_BYTES_MAX, 4)
        self._cache: OrderedDict[tuple[str, int], object] = OrderedDict()
        self.gets = 0

    async def ranges(self, level: LevelFile, block: int) -> list[BoundedGroup]:
        return await self._block(level, level.range_bytes(block, block + 1), _decode_bounded)

    async def objects(self, level: LevelFile, block: int) -> ObjectColumns:
        return await self._block(level, level.object_bytes(block, block + 1), decode_objects)

    async def warm_ranges(self, level: LevelFile, blocks: Sequence[int]) -> None:
        """Reads those of the sorted blocks that are not cached, neighbours by one GET."""
        name, positions = level.ref.name, level.tail.ranges.positions
        missing = [
            _FileBlock(block, positions[block], positions[block + 1] - positions[block])
            for block in blocks
            if (name, positions[block]) not in self._cache
        ]
        for get in plan_gets(missing, get_bytes=level.ref.size_bytes, gap_bytes_max=0):
            data = await self.read(level, get.start, get.end)
            for block in get.blocks:
                decoded = _decode_bounded(get.block_bytes(data, block), name, block.position)
                self._keep((name, block.position), decoded)
                if block.number % DECODED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def read(self, level: LevelFile, start: int, end: int) -> Buffer:
        """The bytes of a run of blocks, without the cache."""
        self.gets += 1
        return await get_exactly(self._store, level.ref.name, start, end - start)

    async def _block(
        self,
        level: LevelFile,
        place: tuple[int, int],
        decode: Callable[[Buffer, str, int], T],
    ) -> T:
        key = (level.ref.name, place[0])
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached  # type: ignore[return-value]
        block = decode(await self.read(level, *place), level.ref.name, place[0])
        self._keep(key, block)
        return block

    def _keep(self, key: tuple[str, int], block: object) -> None:
        self._cache[key] = block
        while len(self._cache) > self.blocks_max:
            self._cache.popitem(last=False)


async def find_ranges(
    reader: CheckpointReader, level: LevelFile, stream_id: int, start: int, end: int, limit: int
) -> list[ObjectRange]:
    """The level's first ranges, up to `limit`, that overlap [start, end), in order."""
    index = level.tail.ranges
    block = max(index.block_of(stream_id, start), 0)
    ranges: list[ObjectRange] = []
    while (
        block < len(index)
        and len(ranges) < limit
        and (index.streams[block], index.starts[block]) < (stream_id, end)
    ):
        groups = await reader.ranges(level, block)
        first = bisect_right(groups, (stream_id, start), key=_place) - 1
        for group in islice(groups, max(first, 0), None):
            if _place(group) >= (stream_id, end) or len(ranges) >= limit:
                break
            if group.stream_id == stream_id and group.bounds[-1] > start:
                ranges += find_in_group(group, start, end, limit - len(ranges))
        block += 1
    return ranges


def blocks_of(
    level: LevelFile, sections: Iterable[tuple[int, int, int]], most: int
) -> tuple[list[int], tuple[int, int]]:
    """The first `most` range blocks that hold the sorted (stream id, start, end), and the place,
    (stream id, offset), up to which these are all.
    """
    index = level.tail.ranges
    blocks: list[int] = []
    for stream_id, start, end in sections:
        block = max(index.block_of(stream_id, start), 0)
        if blocks:
            block = max(block, blocks[-1])
        while block < len(index) and (index.streams[block], index.starts[block]) < (stream_id, end):
            if not blocks or blocks[-1] != block:
                if len(blocks) >= most:
                    return blocks, (index.streams[block], index.starts[block])
                blocks.append(block)
            block += 1
    return blocks, ((1 << 64) - 1, 0)


async def find_object(
    reader: CheckpointReader, level: LevelFile, object_id: int
) -> ObjectEntry | None:
    block = level.tail.objects.block_of(object_id)
    if block < 0:
        return None
    return (await reader.objects(level, block)).find(object_id)


def groups_of(groups: Sequence[RangeGroup], stream_id: int) -> Sequence[RangeGroup]:
    low = bisect_left(groups, stream_id, key=_stream_id)
    return groups[low : bisect_right(groups, stream_id, low, key=_stream_id)]


def find_in_group(group: BoundedGroup, start: int, end: int, limit: int) -> list[ObjectRange]:
    bounds = group.bounds
    low = max(bisect_right(bounds, start) - 1, 0)
    high = min(bisect_left(bounds, end, low), len(bounds) - 1, low + limit)
    ends = bounds[low + 1 : high + 1]
    return list(map(ObjectRange, bounds[low:high], ends, group.objects[low:high]))


def _decode_bounded(block: Buffer, name: str, position: int) -> list[BoundedGroup]:
    return [
        BoundedGroup(
            group.stream_id,
            array("Q", accumulate(group.counts, initial=group.start)),
            group.objects,
        )
        for group in decode_ranges(block, name, position)
    ]


def _stream_id(group: RangeGroup) -> int:
    return group.stream_id


def _place(group: BoundedGroup) -> tuple[int, int]:
    return group.stream_id, group.bounds[0]
