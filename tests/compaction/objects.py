"""Real objects for the executor: built as the engine builds them, read back batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from streamlog.codec.crc import crc32c
from streamlog.compaction.plan.spec import (
    CompactionSpec,
    Job,
    OutputKind,
    Rows,
    SpecInput,
    SpecOutput,
)
from streamlog.format.entry import StreamEntry
from streamlog.format.object.block import decode_block
from streamlog.format.object.build import build_object
from streamlog.format.object.footer import ObjectIdentity, decode_footer
from streamlog.format.object.header import decode_header
from streamlog.format.object.index import decode_attributes, decode_index
from streamlog.format.rows import ObjectRow, RangeRow, Tenure
from streamlog.metadata.compaction_interface import CompactionPoint
from streamlog.model.batch import BatchAttributes
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key

CLUSTER = "cluster"
TENURE = Tenure(7, 9)
Batch = tuple[int, int, int, bytes, bytes]
"""Base offset, record count, timestamp, payload, attributes."""


class Streams:
    """Appends of random sizes, and the objects that hold them."""

    def __init__(self, store: ObjectStore, seed: int) -> None:
        self.store = store
        self.random = Random(seed)
        self.batches: dict[int, list[Batch]] = {}
        self.ends: dict[int, int] = {}
        self.inputs: list[SpecInput] = []

    def entry(self, stream_id: int, size_bytes: int, epoch: int = 1) -> StreamEntry:
        base = self.ends.get(stream_id, 0)
        count = self.random.randint(1, 5)
        payload = self.random.randbytes(size_bytes)
        attributes = self.random.randbytes(self.random.choice([0, 0, 16, 64]))
        stamp = self.random.randint(0, 1 << 40)
        self.ends[stream_id] = base + count
        self.batches.setdefault(stream_id, []).append((base, count, stamp, payload, attributes))
        return StreamEntry(
            stream_id, epoch, base, count, stamp, (payload,), attributes, crc32c(payload)
        )

    async def upload(
        self, sizes: Sequence[tuple[int, int]], *, epoch: int = 1, compression: str = "none"
    ) -> SpecInput:
        """An object with batches (stream id, bytes), in this order within each stream."""
        object_id = len(self.inputs) + 1
        entries = [self.entry(stream_id, size, epoch) for stream_id, size in sizes]
        entries.sort(key=lambda entry: entry.stream_id)
        built = build_object(
            ObjectIdentity(CLUSTER, 1, 1, object_id),
            entries,
            compression=compression,
            block_target_bytes=4096,
        )
        await self.store.put(data_key(object_id), built.parts)
        spec_input = SpecInput(built.row, Rows(built.ranges))
        self.inputs.append(spec_input)
        return spec_input


def job(spec: CompactionSpec, first_id: int = 1000) -> Job:
    ids = [first_id + number for number in range(len(spec.outputs))]
    return Job(spec, CLUSTER, TENURE, ids)


def spec(
    inputs: Sequence[SpecInput], outputs: Sequence[Sequence[RangeRow]], target: int = 4096
) -> CompactionSpec:
    return CompactionSpec(
        CompactionPoint(1, 1),
        inputs,
        [SpecOutput(OutputKind.STREAM_SET, Rows(rows), 0) for rows in outputs],
        target,
    )


async def read_object(
    store: ObjectStore, row: ObjectRow, object_id: int
) -> tuple[dict[int, list[Batch]], list[RangeRow], list[int]]:
    """Its batches by stream, the rows of its footer, the sizes of its blocks; all is checked."""
    key = data_key(object_id)
    data = memoryview(bytes(await store.get(key)))
    assert len(data) == row.size_bytes
    decode_header(data, object_key=key)
    region = data[row.index_position : row.index_position + row.index_length]
    index = decode_index(region, row, object_key=key)
    footer = decode_footer(data, size_bytes=len(data), object_key=key)
    assert footer.row == row
    assert footer.identity == ObjectIdentity(CLUSTER, *TENURE, object_id)
    by_stream: dict[int, list[Batch]] = {}
    sizes = []
    for block in index.blocks():
        sizes.append(block.length)
        piece = data[block.position : block.position + block.length]
        batches = decode_block(piece, block, object_key=key)
        by_stream.setdefault(block.stream_id, []).extend(
            (b.base_offset, b.record_count, b.base_timestamp_ms, bytes(b.parts[0]), b.attributes)
            for b in batches
        )
    for stream_id, own in by_stream.items():
        assert decode_attributes(region, stream_id, own[0][0], own[-1][0] + 1) == [
            BatchAttributes(base, count, stamp, attributes)
            for base, count, stamp, _, attributes in own
        ]
    return by_stream, footer.ranges, sizes
