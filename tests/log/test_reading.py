"""What answers of a size cost in GETs, batch sizes and all."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from streamlog.codec.crc import crc32c
from streamlog.engine.config import MIB
from streamlog.format.entry import StreamEntry
from streamlog.format.object.build import build_object
from streamlog.format.object.footer import ObjectIdentity
from streamlog.log.partition.view.reading import fetch_batches
from streamlog.log.shared.state.segment_reader import SegmentReader
from streamlog.metadata.interface import StreamRow
from streamlog.model.batch import StreamState
from streamlog.objectstore.keys import data_key
from tests.engine.harness import World, run
from tests.engine.read.large_objects import CONFIG

TOTAL = 64 * MIB


@pytest.mark.parametrize(
    ("sizes", "max_bytes"),
    [
        ((128 << 10, 128 << 10), 1_000_000),
        (((16 << 10) + 61, (16 << 10) + 61), MIB),
        ((14_000, 17_000), MIB),
        ((100, 300_000), MIB),
        (((256 << 10) + 61, (256 << 10) + 61), 8 * MIB),
    ],
)
def test_a_consumer_far_behind_reads_in_large_gets(sizes: tuple[int, int], max_bytes: int) -> None:
    async def scenario() -> None:
        world = World("object", CONFIG)
        draw = random.Random(1)
        entries: list[StreamEntry] = []
        size = 0
        while size < TOTAL:
            payload = bytes(draw.randint(*sizes))
            entries.append(
                StreamEntry(1, 1, len(entries), 1, 0, (payload,), b"facts", crc32c(payload))
            )
            size += len(payload)
        built = build_object(ObjectIdentity("fake", 1, 1, 1), entries)
        await world.store.put(data_key(1), built.parts)
        world.metadata.ranges[1] = [(built.ranges[0], built.row)]
        end = len(entries)
        world.metadata.rows[1] = StreamRow(
            1, 1, world.metadata.tenure, 0, end, StreamState.OPEN, b"", {}
        )
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(1)
            segment = SimpleNamespace(
                base_offset=0,
                end_offset=end,
                size=size,
                data_shift=0,
                is_active=True,
                data=SimpleNamespace(stream_id=1),
            )
            position = answered = answers = 0
            while position < end:
                read = await fetch_batches(
                    SegmentReader([segment], {1: stream}, None),  # type: ignore[list-item]
                    position,
                    end,
                    max_bytes,
                    min_one_batch=True,
                )
                assert read.size_bytes <= max_bytes
                answered += read.size_bytes
                answers += 1
                position = read.next_offset
            assert answered == size
            # Answers are as large as batches let them be.
            assert answers <= TOTAL / (max_bytes - sizes[1]) + 2
            # Of 12, 28 and 24 MiB, and the index; some end with a block.
            assert len(world.store.gets) <= 6

    run(scenario)
