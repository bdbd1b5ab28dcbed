"""Reads runs of neighbouring blocks of a checkpoint file by one GET each, in small parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from streamlog.metadata.checkpoint.files import CheckpointReader, LevelFile
from streamlog.runtime.buffers import Buffer

RUN_BLOCKS = 64
"""Most blocks of one GET: about 1 MiB."""
STEP_BLOCKS = 8
"""Most blocks of one part: about 1 ms of work."""


async def runs(
    level: LevelFile, blocks: Sequence[int], reader: CheckpointReader, *, objects: bool
) -> AsyncIterator[tuple[int, int, Buffer]]:
    """(first, last, bytes) of neighbouring blocks in the sorted list, at most STEP_BLOCKS each."""
    place = level.object_bytes if objects else level.range_bytes
    index = 0
    while index < len(blocks):
        first, count = blocks[index], 1
        while (
            count < RUN_BLOCKS
            and index + count < len(blocks)
            and blocks[index + count] == first + count
        ):
            count += 1
        start, end = place(first, first + count)
        run = memoryview(await reader.read(level, start, end))
        for low in range(first, first + count, STEP_BLOCKS):
            high = min(low + STEP_BLOCKS, first + count)
            part_start, part_end = place(low, high)
            yield low, high, run[part_start - start : part_end - start]
        index += count


def block_in(
    level: LevelFile, block: int, first: int, run: Buffer, *, objects: bool = False
) -> memoryview:
    """The bytes of one block of a run that begins with block `first`."""
    place = level.object_bytes if objects else level.range_bytes
    origin, _ = place(first, first)
    start, end = place(block, block + 1)
    return memoryview(run)[start - origin : end - origin]
