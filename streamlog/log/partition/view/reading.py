"""How much one fetch returns: `max_bytes` and `min_one_batch`, the same for every kind of log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from streamlog.errors import Internal, StreamlogError
from streamlog.log.api.batch_reader import BatchReader
from streamlog.runtime.buffers import Buffer, parts_size

TURN_BATCHES = 512
"""Batches that are read before other work of the event loop has its turn: about 1 ms."""


@dataclass(slots=True)
class BatchesRead:
    """Whole batches; `next_offset` follows the last one. `is_paced` as in BatchRun."""

    next_offset: int
    parts: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    batches: int = 0
    is_paced: bool = False


async def fetch_batches(
    reader: BatchReader, offset: int, end_offset: int, max_bytes: int, *, min_one_batch: bool
) -> BatchesRead:
    """Batches from the one with `offset` up to `end_offset` (exclusive), at most `max_bytes`.

    `min_one_batch` returns the first batch even where it is larger, and waits for it. An error
    after the first run is left to the next fetch. Errors: those of the reader.
    """
    read = BatchesRead(offset)
    last_bytes, turn_at = 1, TURN_BATCHES
    while read.next_offset < end_offset:
        room = max_bytes - read.size_bytes
        # A batch as large as the last one would not fit.
        if room < last_bytes and (read.batches or not min_one_batch):
            break
        position, is_required = read.next_offset, min_one_batch and not read.batches
        try:
            run = await reader.read(position, end_offset, room, is_required=is_required)
        except StreamlogError:
            if not read.batches:
                raise
            return read
        if run.is_too_large:
            return read
        first, before, is_full = len(read.parts), read.size_bytes, False
        for batch in run.batches:
            size = parts_size(batch.parts)
            if read.size_bytes + size > max_bytes and (read.batches or not min_one_batch):
                is_full = True
                break
            last_bytes = size or 1
            read.parts += batch.parts
            read.size_bytes += size
            read.batches += 1
            read.next_offset = batch.end_offset - run.shift
        if 0 < 2 * (read.size_bytes - before) < run.held_bytes:
            # An answer that counts a few bytes would keep all that was read with them.
            read.parts[first:] = [b"".join(read.parts[first:])]
        if is_full:
            return read
        if not run.batches:
            read.next_offset = max(position, min(run.empty_until, end_offset))
        # A gap alone is no answer to anybody: the fetch goes on behind it.
        if run.is_paced and (read.batches or read.next_offset == position):
            read.is_paced = True
            return read
        if read.batches >= turn_at:
            turn_at = read.batches + TURN_BATCHES
            await asyncio.sleep(0)
        if read.next_offset == position:
            raise Internal(f"the log's medium returned nothing at offset {position}")
    return read
