"""Gets index regions and data blocks out of the store, each once, neighbours in one GET.

1. Loads run in tasks of their own: a caller that goes away stops nothing, and whoever asks for the
   same block meanwhile waits for the same load.
2. The blocks of one GET share its memory, so the cache keeps and drops them together.
3. A GET under way is charged to the block cache; GETs wait while those under way fill it.
4. Small objects come whole, with their index: their blocks need no GET of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamlog.cache.single_flight import SingleFlightCache
from streamlog.engine.byte_gate import ByteGate
from streamlog.engine.config import ReadConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.errors import Closed, Corrupt, Invalid, ObjectNotFound, StreamlogError
from streamlog.format.object_block import BlockRow, Compression, decode_block
from streamlog.format.object_index import ObjectIndex, decode_index
from streamlog.metadata.interface import ObjectRow
from streamlog.model.batch import StoredBatch
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.background import Background
from streamlog.runtime.offload import Lane, Offload

_GETS_MAX = 16
_INLINE_INDEX_BYTES_MAX = 16 * 1024
_INLINE_BYTES_MAX = 256 * 1024
_INLINE_BATCHES_MAX = 64
"""Less than that is decoded on the loop: the way to a thread and back would cost more."""
_FIRST_SLICE_BYTES = 1 << 20
_SLICE_BYTES = 16 << 20
"""Blocks of one GET that are decoded by one call. A thread takes up to a millisecond to get the
interpreter, and as long to give the result back; who waits for the first block waits for few."""
_BATCH_BYTES = 200
"""Memory of one decoded batch beside its payload."""


@dataclass(frozen=True, slots=True)
class IndexRegion:
    """An object's decoded index, the region's bytes for the attributes in it, and of a small object
    all that lies before it."""

    index: ObjectIndex
    data: memoryview
    body: memoryview | None


BlockKey = tuple[int, int]
"""Object id, position."""
Blocks = Sequence[StoredBatch]
_Decoded = tuple[list[Blocks], Corrupt | None]
"""Of the blocks before the first damaged one, and what is wrong with that."""


class BlockReader:
    def __init__(
        self,
        store: ObjectStore,
        offload: Offload,
        config: ReadConfig,
        background: Background,
        metrics: EngineMetrics,
    ) -> None:
        self._store = store
        self._offload = offload
        self._background = background
        self._metrics = metrics
        kinds = ("index", "block")
        # By kind: labels() for each block of each fetch would cost as much as the look-up.
        self._hits = {kind: metrics.cache_hits.labels(kind) for kind in kinds}
        self._misses = {kind: metrics.cache_misses.labels(kind) for kind in kinds}
        self._gap_bytes_max = config.get_gap_bytes_max
        self._small_object_bytes = config.small_object_bytes
        self._gets = asyncio.Semaphore(_GETS_MAX)
        self._lagging_gets = asyncio.Semaphore(config.lagging_reads_max)
        self._gate = ByteGate(config.block_cache_bytes)
        self.blocks: SingleFlightCache[BlockKey, Blocks] = SingleFlightCache(
            config.block_cache_bytes
        )
        self.indexes: SingleFlightCache[int, IndexRegion] = SingleFlightCache(
            config.index_cache_bytes
        )

    async def index(self, row: ObjectRow, *, with_body: bool = True) -> IndexRegion:
        """`with_body`: its blocks will be wanted too, so a small object is read whole.

        Errors: ObjectNotFound, Corrupt, StoreUnavailable.
        """
        found = self.indexes.peek(row.object_id)
        self._count("index", found is not None)
        if found is not None:
            return found
        self.load_index(row, with_body=with_body)
        future = self.indexes.pending(row.object_id)
        assert future is not None
        return await asyncio.shield(future)

    def has(self, row: ObjectRow, block: BlockRow) -> bool:
        """The block is here, or on its way."""
        return (row.object_id, block.position) in self.blocks

    def load_index(self, row: ObjectRow, *, with_body: bool = True) -> None:
        """Starts to read the object's index, if it is not here yet."""
        if row.object_id not in self.indexes:
            self.indexes.begin(row.object_id)
            self._background.spawn(self._load_index(row, with_body), name="index")

    def load(
        self,
        row: ObjectRow,
        blocks: Sequence[BlockRow],
        get_bytes_max: int,
        *,
        is_lagging: bool = False,
    ) -> int:
        """Starts to read those of an object's blocks, given in order, that are not here yet.

        A GET ends with the block that reaches `get_bytes_max`. The bytes of blocks that are on
        their way now and were not before.
        """
        run: list[BlockRow] = []
        started = 0
        for block in blocks:
            if (row.object_id, block.position) in self.blocks:
                continue
            if run:
                end = run[-1].position + run[-1].length
                is_full = end - run[0].position >= get_bytes_max
                if is_full or block.position - end > self._gap_bytes_max:
                    self._start(row, run, is_lagging)
                    run = []
            run.append(block)
            started += block.length
        if run:
            self._start(row, run, is_lagging)
        return started

    def held(self, row: ObjectRow, block: BlockRow) -> Blocks | asyncio.Future[Blocks]:
        """A block for which `load` was called just now: loaded, or the load under way.

        Errors of the load: ObjectNotFound, Corrupt, StoreUnavailable. Wait for it through
        `asyncio.shield`.
        """
        key = (row.object_id, block.position)
        found = self.blocks.peek(key)
        self._count("block", found is not None)
        if found is not None:
            return found
        future = self.blocks.pending(key)
        assert future is not None
        return future

    def retire(self, row: ObjectRow, block: BlockRow) -> None:
        """A reader in sequence has gone past the block."""
        self.blocks.retire((row.object_id, block.position))

    def forget(self, object_id: int) -> None:
        """The object is gone from the store; what is here of it will not be asked for."""
        self.indexes.discard(lambda key: key == object_id)
        self.blocks.discard(lambda key: key[0] == object_id)

    def _start(self, row: ObjectRow, run: Sequence[BlockRow], is_lagging: bool) -> None:
        for block in run:
            self.blocks.begin((row.object_id, block.position))
        self._background.spawn(self._load_blocks(row, run, is_lagging), name="blocks")

    async def _load_index(self, row: ObjectRow, with_body: bool) -> None:
        key = data_key(row.object_id)
        end = row.index_position + row.index_length
        is_whole = with_body and end <= self._small_object_bytes
        start = 0 if is_whole else row.index_position
        try:
            async with self._gets:
                data = await self._get(key, start, end - start)
            region = data[row.index_position - start :]
            if len(region) <= _INLINE_INDEX_BYTES_MAX:
                index = decode_index(region, row, object_key=key)
            else:
                index = await self._offload.run(Lane.CPU, _decode_index, region, row, key)
        except StreamlogError as error:
            self.indexes.fail(row.object_id, error)
        except asyncio.CancelledError:
            self.indexes.fail(row.object_id, _closed())
            raise
        else:
            body = data[: row.index_position] if is_whole else None
            self.indexes.finish(
                row.object_id, IndexRegion(index, region, body), len(data) + index.memory_bytes
            )

    async def _load_blocks(self, row: ObjectRow, run: Sequence[BlockRow], is_lagging: bool) -> None:
        key = data_key(row.object_id)
        start = run[0].position
        length = run[-1].position + run[-1].length - start
        left = list(reversed(run))
        reserved = 0
        group = object()
        try:
            region = self.indexes.peek(row.object_id)
            if region is not None and region.body is not None:
                view = region.body[start : start + length]
            else:
                lane = self._lagging_gets if is_lagging else self._gets
                async with lane, self._gate.passing(length):
                    reserved = length
                    self.blocks.reserve(length)
                    view = await self._get(key, start, length)
            for blocks in _slices(run):
                at = blocks[0].position - start
                until = blocks[-1].position + blocks[-1].length - start
                decoded, error = await self._decode(view[at:until], blocks, key, is_lagging)
                for block, batches in zip(blocks, decoded, strict=False):
                    returned = min(reserved, block.length)
                    reserved -= returned
                    self.blocks.reserve(-returned)
                    left.pop()
                    self.blocks.finish(
                        (row.object_id, block.position), batches, _memory_bytes(batches), group
                    )
                if error is not None:
                    raise error
        except StreamlogError as error:
            if isinstance(error, Corrupt):
                # A small object's damaged body must not outlive its repair in the store.
                self.indexes.discard(lambda key: key == row.object_id)
            self._fail(row, left, error)
        except asyncio.CancelledError:
            self._fail(row, left, _closed())
            raise
        finally:
            self.blocks.reserve(-reserved)

    async def _get(self, key: str, start: int, length: int) -> memoryview:
        try:
            data = await self._store.get(key, start, length)
        except ObjectNotFound:
            raise
        except Invalid as error:
            raise Corrupt(
                f"{key} ends before byte {start}, where the metadata says that it has data: run "
                "fsck",
                object_key=key,
                start=start,
                end=start + length,
            ) from error
        self._metrics.get_bytes.inc(len(data))
        return memoryview(data)

    def _fail(self, row: ObjectRow, blocks: Sequence[BlockRow], error: StreamlogError) -> None:
        for block in blocks:
            self.blocks.fail((row.object_id, block.position), error)

    async def _decode(
        self, data: memoryview, blocks: Sequence[BlockRow], key: str, is_lagging: bool
    ) -> _Decoded:
        is_plain = all(block.compression == Compression.NONE for block in blocks)
        bytes_max = _INLINE_BYTES_MAX if is_plain else _INLINE_BYTES_MAX // 16
        count = sum(block.batch_count for block in blocks)
        if len(data) <= bytes_max and count <= _INLINE_BATCHES_MAX:
            return _decode(data, blocks, key)
        lane = Lane.READ if is_lagging else Lane.CPU
        return await self._offload.run(lane, _decode, data, blocks, key)

    def _count(self, cache: str, is_hit: bool) -> None:
        (self._hits if is_hit else self._misses)[cache].inc()


def _memory_bytes(batches: Sequence[StoredBatch]) -> int:
    return sum([len(batch.parts[0]) for batch in batches]) + len(batches) * _BATCH_BYTES


def _slices(run: Sequence[BlockRow]) -> Iterator[list[BlockRow]]:
    """The blocks of one GET in order, as many at a time as are decoded together."""
    found: list[BlockRow] = []
    size, size_max = 0, _FIRST_SLICE_BYTES
    for block in run:
        if found and size + block.length > size_max:
            yield found
            found, size, size_max = [], 0, _SLICE_BYTES
        found.append(block)
        size += block.length
    yield found


def _decode(data: memoryview, blocks: Sequence[BlockRow], key: str) -> _Decoded:
    found: list[Blocks] = []
    start = blocks[0].position
    try:
        for block in blocks:
            at = block.position - start
            found.append(decode_block(data[at : at + block.length], block, object_key=key))
    except Corrupt as error:
        return found, error
    return found, None


def _decode_index(data: memoryview, row: ObjectRow, key: str) -> ObjectIndex:
    return decode_index(data, row, object_key=key)


def _closed() -> Closed:
    return Closed("the engine was closed during the read")
