"""Gets index regions and data blocks out of the store, each once, neighbours in one GET.

1. Loads run in tasks of their own: a caller that goes away stops nothing, and whoever asks for the
   same block meanwhile waits for the same load.
2. Blocks that arrived in one piece of memory are kept and dropped together.
3. A GET under way is charged to the block cache; GETs wait while those under way fill it.
4. Small objects come whole, with their index: their blocks need no GET of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.cache.single_flight import SingleFlightCache
from streamlog.engine.config import ReadConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.read.block_load import Block, BlockCache, BlockLoad
from streamlog.errors import Closed, Corrupt, StreamlogError
from streamlog.format.object.block import BlockRow, Compression
from streamlog.format.object.index import ObjectIndex, decode_index
from streamlog.format.ranged_gets import index_range, plan_gets
from streamlog.metadata.interface import ObjectRow
from streamlog.objectstore.interface import ObjectStore, PiecewiseStore, tell_pieces
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import past_end_is_corrupt
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.byte_semaphore import ByteSemaphore
from streamlog.runtime.offload import Lane, Offload

_GETS_MAX = 16
_INLINE_INDEX_BYTES_MAX = 16 * 1024
_INLINE_BYTES_MAX = 256 * 1024
_INLINE_BATCHES_MAX = 64
"""Less than that is decoded on the loop: the way to a thread and back would cost more."""
_WHOLE_BYTES_MAX = 16 * 1024
"""Nor is a GET so small decoded on the thread that receives it."""


@dataclass(frozen=True, slots=True)
class IndexRegion:
    """An object's decoded index, the region's bytes for the attributes in it, and of a small object
    all that lies before it."""

    index: ObjectIndex
    data: memoryview
    body: memoryview | None


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
        self._piece_bytes = config.get_piece_bytes
        self._pieces = store if isinstance(store, PiecewiseStore) else None
        self._gets = asyncio.Semaphore(_GETS_MAX)
        self._catch_up_gets = asyncio.Semaphore(config.catch_up_reads_max)
        self._get_bytes = ByteSemaphore(config.block_cache_bytes)
        self.received_bytes = 0
        """Read from the store so far."""
        self.blocks: BlockCache = SingleFlightCache(config.block_cache_bytes)
        self.indexes: SingleFlightCache[int, IndexRegion] = SingleFlightCache(
            config.index_cache_bytes
        )

    async def index(self, row: ObjectRow, *, with_body: bool = True) -> IndexRegion:
        """`with_body`: its blocks will be wanted too, so a small object is read whole.

        Errors: ObjectNotFound, Corrupt, StoreUnavailable.
        """
        found = self.indexes.peek(row.object_id)
        if found is not None:
            self._count("index", 1, 0)
            return found
        self._count("index", 0, 1)
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
            task = self._background.spawn(self._load_index(row, with_body), name="index")
            task.add_done_callback(lambda done: self._index_ended(row.object_id, done))

    def load(
        self,
        row: ObjectRow,
        blocks: Sequence[BlockRow],
        get_bytes_max: int,
        *,
        is_catch_up: bool = False,
    ) -> list[BlockRow]:
        """Starts to read those of an object's blocks, given in order, that are not here yet.

        A GET ends with the block that reaches `get_bytes_max`. Those that are on their way now and
        were not before.
        """
        missing = [block for block in blocks if (row.object_id, block.position) not in self.blocks]
        for get in plan_gets(missing, get_bytes_max, self._gap_bytes_max):
            self._start(row, get.blocks, is_catch_up)
        return missing

    def held(
        self, row: ObjectRow, blocks: Sequence[BlockRow]
    ) -> list[Block | asyncio.Future[Block]]:
        """Blocks for which `load` was called just now: each loaded, or its load under way.

        Errors of a load: ObjectNotFound, Corrupt, StoreUnavailable. Wait for it through
        `asyncio.shield`.
        """
        found: list[Block | asyncio.Future[Block]] = []
        misses = 0
        for block in blocks:
            key = (row.object_id, block.position)
            loaded = self.blocks.peek(key)
            if loaded is not None:
                found.append(loaded)
                continue
            future = self.blocks.pending(key)
            assert future is not None
            found.append(future)
            misses += 1
        self._count("block", len(found) - misses, misses)
        return found

    def retire(self, row: ObjectRow, block: BlockRow) -> None:
        """A reader that reads ahead has gone past the block."""
        self.blocks.retire((row.object_id, block.position))

    def forget(self, object_id: int) -> None:
        """The object is gone from the store; what is here of it will not be asked for."""
        self.indexes.discard(lambda key: key == object_id)
        self.blocks.discard(lambda key: key[0] == object_id)

    def _start(self, row: ObjectRow, run: Sequence[BlockRow], is_catch_up: bool) -> None:
        for block in run:
            self.blocks.begin((row.object_id, block.position))
        load = BlockLoad(self.blocks, row, run, self._piece_bytes)
        task = self._background.spawn(self._load_blocks(load, row, run, is_catch_up), name="blocks")
        # Not within the task: one that is cancelled before its first step has none.
        task.add_done_callback(lambda _: load.close(_closed()))

    async def _load_index(self, row: ObjectRow, with_body: bool) -> None:
        key = data_key(row.object_id)
        start, end = index_range(row, self._small_object_bytes if with_body else 0)
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
        else:
            body = data[: row.index_position] if start == 0 else None
            self.indexes.finish(
                row.object_id, IndexRegion(index, region, body), len(data) + index.memory_bytes
            )

    def _index_ended(self, object_id: int, done: asyncio.Task[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            self.indexes.fail(object_id, _closed())

    async def _load_blocks(
        self, load: BlockLoad, row: ObjectRow, run: Sequence[BlockRow], is_catch_up: bool
    ) -> None:
        try:
            region = self.indexes.peek(row.object_id)
            if region is not None and region.body is not None:
                body = region.body[load.start : load.start + load.length]
                await self._decode(load, run, body, is_catch_up)
            else:
                lane = self._catch_up_gets if is_catch_up else self._gets
                async with lane, self._get_bytes.holding(load.length):
                    load.reserve()
                    await self._receive(load, run, data_key(row.object_id), is_catch_up)
        except StreamlogError as error:
            if isinstance(error, Corrupt):
                # A small object's damaged body must not outlive its repair in the store.
                self.indexes.discard(lambda key: key == row.object_id)
            load.close(error)

    async def _receive(
        self, load: BlockLoad, run: Sequence[BlockRow], key: str, is_catch_up: bool
    ) -> None:
        whole_bytes = min(_WHOLE_BYTES_MAX, self._piece_bytes)
        if self._pieces is None or load.length <= whole_bytes:
            data = await self._get(key, load.start, load.length)
            await self._decode(load, run, data, is_catch_up)
            return
        try:
            with past_end_is_corrupt(key, load.start, load.length):
                await self._pieces.get_pieces(key, load.start, load.sizes, load.arrived)
            load.finish()
        finally:
            self._received(load.received_bytes)

    def _received(self, size_bytes: int) -> None:
        self.received_bytes += size_bytes
        self._metrics.get_bytes.inc(size_bytes)

    async def _get(self, key: str, start: int, length: int) -> memoryview:
        with past_end_is_corrupt(key, start, length):
            data = await self._store.get(key, start, length)
        self._received(len(data))
        return memoryview(data)

    async def _decode(
        self, load: BlockLoad, run: Sequence[BlockRow], data: memoryview, is_catch_up: bool
    ) -> None:
        if self._is_small(run, load.length):
            load.decode(data)
            return
        lane = Lane.READ if is_catch_up else Lane.CPU
        await self._offload.run(lane, tell_pieces, data, load.sizes, load.arrived)
        load.finish()

    def _is_small(self, run: Sequence[BlockRow], length: int) -> bool:
        """So little that it is decoded on the loop."""
        is_plain = all(block.compression == Compression.NONE for block in run)
        bytes_max = _INLINE_BYTES_MAX if is_plain else _INLINE_BYTES_MAX // 16
        count = sum(block.batch_count for block in run)
        return length <= min(bytes_max, self._piece_bytes) and count <= _INLINE_BATCHES_MAX

    def _count(self, cache: str, hits: int, misses: int) -> None:
        if hits:
            self._hits[cache].inc(hits)
        if misses:
            self._misses[cache].inc(misses)


def _decode_index(data: memoryview, row: ObjectRow, key: str) -> ObjectIndex:
    return decode_index(data, row, object_key=key)


def _closed() -> Closed:
    return Closed("the engine was closed during the read")
