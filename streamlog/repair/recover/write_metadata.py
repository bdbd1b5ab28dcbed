"""Writes recovered metadata: a checkpoint in the store, keys, and the cluster's name last.

1. Delete the keys of an earlier attempt, and write the lineage. No node opens the metadata without
   the cluster's name. Every later transaction compares the lineage's key, so that of two recoveries
   into one metadata store one ends.
2. Store the checkpoint files under names that were never used.
3. Write the keys: values, nodes, fences, counters, the recovery record (`r`), and the checkpoint
   pointer (`k`).
4. After `before_naming`, write the cluster's name, which makes the metadata whole.
Numbers that may have been in use without a trace are skipped: epochs, ids, the revision. Numbers
that an earlier recovery began with may all be without a trace, so each lineage has its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence

from streamlog.engine.cluster import CLUSTER_KEY, encode_cluster_id
from streamlog.engine.kv_client import stored_value
from streamlog.errors import Conflict
from streamlog.kvstore.interface import Delete, KVStore, Operation, Put, RevisionIs, prefix_end
from streamlog.log.topics import producer_ids
from streamlog.metadata.checkpoint.build import BuiltFile, build_checkpoint, take_snapshot
from streamlog.metadata.checkpoint.files import CheckpointReader, Levels
from streamlog.metadata.checkpoint.trailer import encode_trailer
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.fold.fold import Fold, StreamHeader
from streamlog.metadata.fold.generation import SPAN_MAX, NewObjectEntry
from streamlog.metadata.fold.staging import FoldedStaging
from streamlog.metadata.interface import EPOCH_MAX, RECOVERED_EPOCHS, Recovery, Tenure
from streamlog.metadata.keys import checkpoint, fence, head, id_block, node, recovery
from streamlog.metadata.keys import lineage as lineage_key
from streamlog.metadata.keys.checkpoint import CheckpointPointer, FileRef
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import Lineage
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.repair.recover.recovered import Recovered
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload

EPOCHS_AHEAD = RECOVERED_EPOCHS
"""Opens of a stream, and starts of a node, that may have left no trace in the store."""
NODE_EPOCHS_PER_LINEAGE = 1 << 12
BLOCKS_AHEAD = 1024
"""Id blocks that may have been handed out without a trace."""
BLOCKS_PER_LINEAGE = 1 << 16
REVISIONS_AHEAD = 1 << 24
PRODUCER_IDS_AHEAD = 1 << 32
"""More than can have been handed out since the highest was noted."""
PRODUCER_IDS_PER_LINEAGE = 1 << 40
PUTS_PER_TXN = 100
BYTES_PER_TXN = 1 << 20
WRITER_NODE = 0
"""Recoveries store checkpoint files under this node id, which no node has."""


async def write_metadata(
    kv: KVStore,
    store: ObjectStore,
    recovered: Recovered,
    files: Sequence[ObjectInfo],
    *,
    lineage: Lineage,
    clock: Clock,
    offload: Offload,
    before_naming: Callable[[], Awaitable[None]],
) -> None:
    """`files`: the checkpoint files in the store. After an interruption it can be run again.

    Errors: Conflict (another process writes there, too), StoreUnavailable, MetadataUnavailable;
    those of `before_naming`.
    """
    prefix = prefix_of(recovered.cluster_id)
    mine = await _begin(kv, prefix, lineage)
    await kv.raise_revision(recovered.revision_max + REVISIONS_AHEAD)
    revision = await kv.revision()
    fold = _fold(recovered, revision)
    config = MetadataConfig()
    built = await build_checkpoint(
        take_snapshot(fold),
        Levels(),
        {i: (died_ms or clock.now_ms(), revision) for i, died_ms in recovered.dead.items()},
        set(),
        0,
        0,
        now_ms=clock.now_ms(),
        reader=CheckpointReader(store, config.block_cache_bytes),
        offload=offload,
        config=config,
    )
    tenure = Tenure(WRITER_NODE, 1 + _last_attempt(files))
    base = None
    if built.base is not None:
        base = _ref(tenure, 1, built.base)
        await store.put(base.name, built.base.parts)
    named = CheckpointPointer(revision, {}, _ref(tenure, 2, built.delta), base)
    assert named.delta is not None
    trailer = encode_trailer(named, recovered.cluster_id)
    await store.put(named.delta.name, [*built.delta.parts, trailer])
    puts = _puts(recovered, fold, prefix, lineage, clock.now_ms())
    puts.append(Put(checkpoint.key(prefix), checkpoint.encode(named)))
    await _put_all(kv, puts, mine)
    await before_naming()
    name = Put(CLUSTER_KEY, encode_cluster_id(recovered.cluster_id))
    await _write(kv, [mine, RevisionIs(CLUSTER_KEY, 0)], [name])


async def _begin(kv: KVStore, prefix: bytes, mine: Lineage) -> RevisionIs:
    """Empties the metadata store and writes the lineage; the compare of later transactions."""
    key = lineage_key.key(prefix)
    previous = await kv.get(key)
    if previous is not None and lineage_key.decode(previous.value).number > mine.number:
        raise _overtaken()
    as_read = RevisionIs(key, previous.mod_revision if previous is not None else 0)
    await _write(kv, [as_read], [Delete(CLUSTER_KEY), Delete(prefix, prefix_end(prefix))])
    absent = [RevisionIs(key, 0), RevisionIs(CLUSTER_KEY, 0)]
    return RevisionIs(key, await _write(kv, absent, [Put(key, lineage_key.encode(mine))]))


async def _write(kv: KVStore, compares: Sequence[RevisionIs], then: Sequence[Operation]) -> int:
    """The revision of the writes. Errors: Conflict."""
    result = await kv.txn(compares, then)
    if not result.succeeded:
        raise _overtaken()
    return result.revision


def _overtaken() -> Conflict:
    return Conflict(
        "another process writes into the metadata store, too; stop it, and recover again with "
        "--overwrite"
    )


def _last_attempt(files: Sequence[ObjectInfo]) -> int:
    tenures = [checkpoint.tenure_of_name(info.key) for info in files]
    own = [t.node_epoch for t in tenures if t is not None and t.node_id == WRITER_NODE]
    return max(own, default=0)


def _ref(tenure: Tenure, number: int, file: BuiltFile) -> FileRef:
    return FileRef(tenure, number, file.size_bytes, file.tail_position, file.tail_crc32c)


def _fold(recovered: Recovered, revision: int) -> Fold:
    fold = Fold(revision)
    newest, counts = fold.newest, dict[int, int]()
    for stream_id, stream in sorted(recovered.streams.items()):
        epoch = min(stream.epoch + EPOCHS_AHEAD, EPOCH_MAX)
        info = StreamHeader(
            epoch, stream.holder, stream.is_open, stream.token, tuple(sorted(stream.tags.items()))
        )
        fold.add_stream(stream_id, info, stream.start, stream.end)
        if not stream.pieces:
            continue
        ranges = array("Q", (stream.pieces[0].start,))
        for start, end, object_id in stream.pieces:
            for low in range(start, end, SPAN_MAX):
                ranges.extend((min(low + SPAN_MAX, end), object_id))
                counts[object_id] = counts.get(object_id, 0) + 1
        newest.ranges[stream_id] = ranges
    for object_id, row in recovered.objects.items():
        newest.objects[object_id] = NewObjectEntry(row, counts[object_id], revision)
    fold.staging = FoldedStaging(recovered.staging)
    newest.records = 1
    return fold


def _puts(
    recovered: Recovered, fold: Fold, prefix: bytes, lineage: Lineage, now_ms: int
) -> list[Put]:
    window = MetadataConfig().put_window
    sealed = fence.Fence(False, 0, False, True, window, now_ms)
    puts = []
    first_free = max(
        recovered.producer_id_max + PRODUCER_IDS_AHEAD, lineage.number * PRODUCER_IDS_PER_LINEAGE
    )
    counter = producer_ids.KEY.namespace, producer_ids.KEY.name
    values = recovered.values | {counter: producer_ids.encode(first_free)}
    for (namespace, name), value in sorted(values.items()):
        puts.append(Put(prefix + f"u/{namespace}/".encode() + name, stored_value(value)))
    for tenure in sorted(fold.held):
        puts.append(Put(fence.key(prefix, tenure), fence.encode(sealed)))
        puts.append(Put(head.key(prefix, tenure), head.encode(0)))
    # All nodes get the same epoch: so one number separates tenures before the recovery from those
    # after it, even of nodes that left no trace.
    node_epoch_max = max(
        max(recovered.node_epochs.values(), default=0) + EPOCHS_AHEAD,
        lineage.number * NODE_EPOCHS_PER_LINEAGE,
    )
    for node_id in sorted(recovered.node_epochs):
        if node_id != WRITER_NODE:
            record = node.NodeEntry(node_epoch_max, False, window)
            puts.append(Put(node.key(prefix, node_id), node.encode(record)))
    object_blocks = _blocks_ahead(id_block.OBJECTS, recovered.object_id_max, lineage)
    stream_blocks = _blocks_ahead(id_block.STREAMS, recovered.stream_id_max, lineage)
    for kind, blocks in ((id_block.OBJECTS, object_blocks), (id_block.STREAMS, stream_blocks)):
        puts.append(Put(id_block.counter_key(prefix, kind), id_block.encode_counter(blocks)))
    rebuilt = Recovery(
        recovered.knows_deletions,
        now_ms,
        recovered.from_revision,
        node_epoch_max,
        (object_blocks + 1) << id_block.OBJECTS.block_bits,
    )
    puts.append(Put(recovery.key(prefix), recovery.encode(rebuilt)))
    return puts


def _blocks_ahead(kind: id_block.IdKind, highest: int, lineage: Lineage) -> int:
    seen = highest >> kind.block_bits
    return max(seen + BLOCKS_AHEAD, lineage.number * BLOCKS_PER_LINEAGE)


async def _put_all(kv: KVStore, puts: Sequence[Put], mine: RevisionIs) -> None:
    part: list[Operation] = []
    size = 0
    for put in puts:
        bytes_more = len(put.key) + len(put.value)
        if part and (len(part) == PUTS_PER_TXN or size + bytes_more > BYTES_PER_TXN):
            await _write(kv, [mine], part)
            part, size = [], 0
        part.append(put)
        size += bytes_more
    await _write(kv, [mine], part)
