"""Objects as compaction writes them, in an engine's store, and readers of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from streamlog.codec.crc import crc32c
from streamlog.engine.config import ReadConfig
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.format.entry import StreamEntry
from streamlog.format.object.build import build_object
from streamlog.format.object.footer import ObjectIdentity
from streamlog.metadata.interface import StreamRow
from streamlog.model.batch import StreamState
from streamlog.objectstore.keys import data_key
from tests.engine.harness import QUICK, World

PAYLOAD = bytes(range(256)) * 512
"""128 KiB."""
CONFIG = dataclasses.replace(QUICK, read=ReadConfig())


async def store_object(
    world: World, object_id: int, streams: Sequence[tuple[int, int]], batches: int
) -> None:
    """One object with `batches` of each (stream, first offset), as a compaction would write it."""
    metadata = world.metadata
    entries = [
        StreamEntry(stream_id, 1, first + number, 1, 0, (PAYLOAD,), b"", crc32c(PAYLOAD))
        for stream_id, first in streams
        for number in range(batches)
    ]
    built = build_object(ObjectIdentity("fake", 1, 1, object_id), entries)
    await world.store.put(data_key(object_id), built.parts)
    for row in built.ranges:
        metadata.ranges.setdefault(row.stream_id, []).append((row, built.row))
        metadata.rows[row.stream_id] = StreamRow(
            row.stream_id, 1, metadata.tenure, 0, row.end, StreamState.OPEN, b"", {}
        )


async def read_through(streams: EngineStreamClient, stream_id: int, hint: int) -> int:
    stream = await streams.open_stream(stream_id)
    position = size = 0
    while position < stream.confirm_offset:
        batches = (await stream.fetch(position, stream.confirm_offset, hint)).batches
        size += sum(len(part) for batch in batches for part in batch.parts)
        position = batches[-1].end_offset
    return size
