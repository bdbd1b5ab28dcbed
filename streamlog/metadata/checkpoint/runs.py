"""Runs of neighbouring blocks of a checkpoint file, read by one GET, looked at in small parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from streamlog.metadata.checkpoint.files import BlockReader, LevelFile
from streamlog.runtime.buffers import Buffer

RUN_BLOCKS = 64
"""Blocks read by one GET: about 1 MiB."""
STEP_BLOCKS = 8
"""Blocks that one call looks at: about 1 ms."""


async def runs(
    level: LevelFile, blocks: Sequence[int], reader: BlockReader, *, objects: bool
) -> AsyncIterator[tuple[int, int, Buffer]]:
    """(first, last, bytes) for neighbours of the sorted list, at most STEP_BLOCKS at once."""
    place = level.object_bytes if objects else level.range_bytes
    at = 0
    while at < len(blocks):
        first, count = blocks[at], 1
        while (
            count < RUN_BLOCKS and at + count < len(blocks) and blocks[at + count] == first + count
        ):
            count += 1
        start, end = place(first, first + count)
        run = memoryview(await reader.read(level, start, end))
        for low in range(first, first + count, STEP_BLOCKS):
            high = min(low + STEP_BLOCKS, first + count)
            part_start, part_end = place(low, high)
            yield low, high, run[part_start - start : part_end - start]
        at += count


def block_in(
    level: LevelFile, block: int, first: int, run: Buffer, *, objects: bool = False
) -> memoryview:
    """A block of a run that begins with block `first`."""
    place = level.object_bytes if objects else level.range_bytes
    origin, _ = place(first, first)
    start, end = place(block, block + 1)
    return memoryview(run)[start - origin : end - origin]
