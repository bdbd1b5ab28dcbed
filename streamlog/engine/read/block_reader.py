"""Loads index regions and data blocks from the store: each only once, neighbours in one GET.

1. Loads run in tasks of their own: a cancelled reader stops no load, and readers of the same block
   wait for the same load.
2. Blocks that arrived in one buffer are kept and dropped together.
3. A GET under way is charged to the block cache; GETs wait while those under way fill it.
4. Small objects are read whole, with their index: their blocks need no GETs of their own.
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
from streamlog.format.object.block import BlockCompression, BlockRow
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
"""Less is decoded on the loop: the hand-over to a thread and back would cost more."""
_WHOLE_BYTES_MAX = 16 * 1024
"""A GET this small is not decoded on the thread that receives it, either."""


@dataclass(frozen=True, slots=True)
class IndexRegion:
    """An object's decoded index; `data`: the region's bytes, which hold the batch attributes;
    `body`: a small object's bytes before the region."""

    index: ObjectIndex
    data: memoryview
    body: memoryview | None


class BlockReader:
    """Owns the block cache and the index cache."""

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
        # labels() for each block of each fetch would cost as much as the look-up.
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
        """Bytes read from the store so far."""
        self.blocks: BlockCache = SingleFlightCache(config.block_cache_bytes)
        self.indexes: SingleFlightCache[int, IndexRegion] = SingleFlightCache(
            config.index_cache_bytes
        )

    async def index(self, row: ObjectRow, *, with_body: bool = True) -> IndexRegion:
        """`with_body`: the caller will want the blocks too, so a small object is read whole.

        Errors: ObjectNotFound, Corrupt, StoreUnavailable.
        """
        cached = self.indexes.peek(row.object_id)
        if cached is not None:
            self._count("index", 1, 0)
            return cached
        self._count("index", 0, 1)
        self.load_index(row, with_body=with_body)
        future = self.indexes.pending(row.object_id)
        assert future is not None
        return await asyncio.shield(future)

    def has(self, row: ObjectRow, block: BlockRow) -> bool:
        """Whether the block is in the cache or being loaded."""
        return (row.object_id, block.position) in self.blocks

    def load_index(self, row: ObjectRow, *, with_body: bool = True) -> None:
        """Starts to load the object's index, unless it is cached or being loaded."""
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
        """Starts to load those of an object's blocks that are neither cached nor being loaded, and
        returns them. `blocks` is in order; a GET ends with the block that reaches `get_bytes_max`.
        """
        missing = [block for block in blocks if (row.object_id, block.position) not in self.blocks]
        for get in plan_gets(missing, get_bytes_max, self._gap_bytes_max):
            self._start(row, get.blocks, is_catch_up)
        return missing

    def held(
        self, row: ObjectRow, blocks: Sequence[BlockRow]
    ) -> list[Block | asyncio.Future[Block]]:
        """The blocks for which `load` was just called: each loaded, or the future of its load.

        Errors of a load: ObjectNotFound, Corrupt, StoreUnavailable. Wait for it through
        `asyncio.shield`.
        """
        held: list[Block | asyncio.Future[Block]] = []
        misses = 0
        for block in blocks:
            key = (row.object_id, block.position)
            loaded = self.blocks.peek(key)
            if loaded is not None:
                held.append(loaded)
                continue
            future = self.blocks.pending(key)
            assert future is not None
            held.append(future)
            misses += 1
        self._count("block", len(held) - misses, misses)
        return held

    def retire(self, row: ObjectRow, block: BlockRow) -> None:
        """A reader in sequence has passed the block, so it is dropped first."""
        self.blocks.retire((row.object_id, block.position))

    def forget(self, object_id: int) -> None:
        """Drops what is cached of an object that is gone from the store."""
        self.indexes.discard(lambda key: key == object_id)
        self.blocks.discard(lambda key: key[0] == object_id)

    def _start(self, row: ObjectRow, run: Sequence[BlockRow], is_catch_up: bool) -> None:
        for block in run:
            self.blocks.begin((row.object_id, block.position))
        load = BlockLoad(self.blocks, row, run, self._piece_bytes)
        task = self._background.spawn(self._load_blocks(load, row, run, is_catch_up), name="blocks")
        # In a callback, because a task that is cancelled before its first step runs no code.
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
                # Else a small object's damaged body would stay cached after its repair.
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
        """Whether the run is small enough to be decoded on the loop."""
        is_plain = all(block.compression == BlockCompression.NONE for block in run)
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
