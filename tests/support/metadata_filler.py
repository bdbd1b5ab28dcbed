"""Makes stores that look as if many objects had been committed, by writing a base checkpoint.

A million objects take seconds and no commits: what opening and look-ups cost then can be measured.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from streamlog.format.checkpoint.blocks import (
    OBJECTS_PER_BLOCK,
    ObjectEntry,
    RangeGroup,
    encode_objects,
)
from streamlog.format.checkpoint.state import CheckpointState, DeadTable, StreamTable, encode_state
from streamlog.format.checkpoint.tail import CheckpointTail, ObjectBlockIndex, encode_tail, tail_crc
from streamlog.kvstore.interface import KVStore, Operation, Put
from streamlog.metadata.checkpoint.merge_ranges import RangeChange, RangeMerger
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import checkpoint, fence, head, id_block, node
from streamlog.metadata.keys.checkpoint import CheckpointPointer, FileRef, TenureMark
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.concurrency.steps import run

RANGES_PER_OBJECT = 4
RECORDS_PER_RANGE = 10
OBJECT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Filled:
    """`tenure` wrote everything and is sealed and drained; `streams` are open at epoch 1."""

    tenure: Tenure
    streams: range
    objects: range
    end_offset: int
    """The end of the first stream; the other streams may end one range earlier."""


async def fill_metadata(
    kv: KVStore,
    store: ObjectStore,
    *,
    cluster_id: str,
    node_id: int,
    objects: int,
    streams: int = 1000,
    object_bytes: int = OBJECT_BYTES,
) -> Filled:
    """`objects` objects with ranges of 4 streams each, in an empty cluster; no data is stored.

    `streams` is a multiple of 4. A node of that id that opens next takes the streams over.
    """
    tenure, prefix = Tenure(node_id, 1), prefix_of(cluster_id)
    blocks = 1 + objects // id_block.OBJECTS.block_ids
    first_object = 1 << id_block.OBJECTS.block_bits
    first_stream = 1 << id_block.STREAMS.block_bits
    base_ref = await _put_base(
        store, tenure, first_object, objects, first_stream, streams, object_bytes
    )
    ends = [_ranges_of(i, objects, streams) * RECORDS_PER_RANGE for i in range(streams)]
    table = StreamTable(
        array("Q", range(first_stream, first_stream + streams)),
        array("I", [1] * streams),
        array("I", [0] * streams),
        array("Q", [0] * streams),
        array("Q", ends),
        bytes([1]) * streams,
        {},
        [tenure],
    )
    state = encode_state(CheckpointState(table, DeadTable(), array("Q"), 0, objects))
    delta_ref = await _put(store, tenure, 2, [*_empty()], CheckpointTail(state=state))
    mark = TenureMark(1, 0, first_object + objects)
    sealed = fence.Fence(False, 0, False, True, 64)
    revision = await kv.revision()
    puts: list[Operation] = [
        Put(node.key(prefix, node_id), node.encode(node.NodeEntry(1, False, 64))),
        Put(fence.key(prefix, tenure), fence.encode(sealed)),
        Put(head.key(prefix, tenure), head.encode(1)),
        Put(id_block.counter_key(prefix, id_block.OBJECTS), id_block.encode_counter(blocks)),
        Put(id_block.counter_key(prefix, id_block.STREAMS), id_block.encode_counter(1)),
        Put(
            checkpoint.key(prefix),
            checkpoint.encode(CheckpointPointer(revision, {tenure: mark}, delta_ref, base_ref)),
        ),
    ]
    for kind, count in ((id_block.OBJECTS, blocks), (id_block.STREAMS, 1)):
        for block in range(1, count + 1):
            puts.append(Put(id_block.block_key(prefix, kind, block), id_block.encode_owner(tenure)))
    await kv.txn([], puts)
    return Filled(
        tenure,
        range(first_stream, first_stream + streams),
        range(first_object, first_object + objects),
        ends[0],
    )


def _ranges_of(stream: int, objects: int, streams: int) -> int:
    return len(range(stream // RANGES_PER_OBJECT, objects, streams // RANGES_PER_OBJECT))


async def _put_base(
    store: ObjectStore,
    tenure: Tenure,
    first_object: int,
    objects: int,
    first_stream: int,
    streams: int,
    object_bytes: int,
) -> FileRef:
    step = streams // RANGES_PER_OBJECT
    changes: dict[int, RangeChange] = {}
    for i in range(streams):
        ids = array("Q", range(first_object + i // RANGES_PER_OBJECT, first_object + objects, step))
        if ids:
            counts = array("I", [RECORDS_PER_RANGE]) * len(ids)
            group = RangeGroup(first_stream + i, 0, counts, ids)
            changes[first_stream + i] = RangeChange(added=[group])
    merger = RangeMerger(CheckpointTail().ranges, 0, changes, "")
    written = run(merger.finish())
    index, parts = ObjectBlockIndex(), written.parts
    index.positions[0] = written.index.positions[-1]
    for low in range(first_object, first_object + objects, OBJECTS_PER_BLOCK):
        high = min(low + OBJECTS_PER_BLOCK, first_object + objects)
        block = encode_objects(
            [
                ObjectEntry(i, object_bytes, object_bytes - 4096, 4000, i & 0xFFFF, 4, 0)
                for i in range(low, high)
            ]
        )
        parts.append(block)
        index.ids.append(low)
        index.positions.append(index.positions[-1] + len(block))
    return await _put(
        store, tenure, 1, parts, CheckpointTail(written.index, index, written.ranges, objects)
    )


async def _put(
    store: ObjectStore, tenure: Tenure, number: int, parts: list[Buffer], tail: CheckpointTail
) -> FileRef:
    encoded, position = encode_tail(tail), parts_size(parts)
    ref = FileRef(tenure, number, position + len(encoded), position, tail_crc(encoded))
    await store.put(ref.name, [*parts, encoded])
    return ref


def _empty() -> list[Buffer]:
    return run(RangeMerger(CheckpointTail().ranges, 0, {}, "").finish()).parts


__all__ = ["Filled", "fill_metadata"]
