"""Gets index regions and data blocks out of the store, each once, neighbours in one GET.

Loads run in the reader's own tasks: a caller that goes away stops nothing, and whoever asks for the
same block meanwhile waits for the same load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.cache.single_flight import SingleFlightCache
from streamlog.engine.config import ReadConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.errors import Closed, StreamlogError
from streamlog.format.object_block import BlockRow, decode_block
from streamlog.format.object_index import ObjectIndex, decode_index
from streamlog.metadata.interface import ObjectRow
from streamlog.model.batch import StoredBatch
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.background import Background
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

GET_BYTES_MAX = 4 << 20
"""Neighbouring blocks share a GET up to this size: the first ones arrive while others are read."""
_GETS_MAX = 16
_INLINE_BYTES_MAX = 16 * 1024
"""Smaller blocks are decoded on the loop: the way to a thread and back would cost more."""
_BATCH_BYTES = 200
"""Memory of one decoded batch beside its payload."""


@dataclass(frozen=True, slots=True)
class IndexRegion:
    """An object's decoded index, and the region's bytes for the attributes in it."""

    index: ObjectIndex
    data: Buffer


BlockKey = tuple[int, int]
"""Object id, position."""


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
        self._gets = asyncio.Semaphore(_GETS_MAX)
        self._lagging_gets = asyncio.Semaphore(config.lagging_reads_max)
        self.blocks: SingleFlightCache[BlockKey, Sequence[StoredBatch]] = SingleFlightCache(
            config.block_cache_bytes
        )
        self.indexes: SingleFlightCache[int, IndexRegion] = SingleFlightCache(
            config.index_cache_bytes
        )

    async def index(self, row: ObjectRow) -> IndexRegion:
        """Errors: ObjectNotFound, Corrupt, StoreUnavailable."""
        found = self.indexes.peek(row.object_id)
        self._count("index", found is not None)
        if found is not None:
            return found
        self.load_index(row)
        future = self.indexes.pending(row.object_id)
        assert future is not None
        return await asyncio.shield(future)

    def load_index(self, row: ObjectRow) -> None:
        """Starts to read the object's index, if it is not here yet."""
        if row.object_id not in self.indexes:
            self.indexes.begin(row.object_id)
            self._background.spawn(self._load_index(row), name="index")

    def load(self, row: ObjectRow, blocks: Sequence[BlockRow], *, is_lagging: bool = False) -> None:
        """Starts to read those of an object's blocks, given in order, that are not here yet."""
        run: list[BlockRow] = []
        run_bytes = 0
        for block in blocks:
            if (row.object_id, block.position) in self.blocks:
                continue
            if run and (
                run[-1].position + run[-1].length != block.position
                or run_bytes + block.length > GET_BYTES_MAX
            ):
                self._start(row, run, is_lagging)
                run, run_bytes = [], 0
            run.append(block)
            run_bytes += block.length
        if run:
            self._start(row, run, is_lagging)

    async def block(
        self, row: ObjectRow, block: BlockRow, *, is_lagging: bool = False
    ) -> Sequence[StoredBatch]:
        """Errors: ObjectNotFound, Corrupt, StoreUnavailable."""
        key = (row.object_id, block.position)
        found = self.blocks.peek(key)
        self._count("block", found is not None)
        if found is not None:
            return found
        if self.blocks.pending(key) is None:
            self.load(row, [block], is_lagging=is_lagging)
        future = self.blocks.pending(key)
        assert future is not None
        return await asyncio.shield(future)

    def _start(self, row: ObjectRow, run: Sequence[BlockRow], is_lagging: bool) -> None:
        for block in run:
            self.blocks.begin((row.object_id, block.position))
        self._background.spawn(self._load_blocks(row, run, is_lagging), name="blocks")

    async def _load_index(self, row: ObjectRow) -> None:
        key = data_key(row.object_id)
        try:
            async with self._gets:
                data = await self._store.get(key, row.index_position, row.index_length)
            self._metrics.get_bytes.inc(len(data))
            region = IndexRegion(decode_index(data, row, object_key=key), data)
        except StreamlogError as error:
            self.indexes.fail(row.object_id, error)
        except asyncio.CancelledError:
            self.indexes.fail(row.object_id, _closed())
            raise
        else:
            size_bytes = len(data) + region.index.memory_bytes
            self.indexes.finish(row.object_id, region, size_bytes)

    async def _load_blocks(self, row: ObjectRow, run: Sequence[BlockRow], is_lagging: bool) -> None:
        key = data_key(row.object_id)
        start = run[0].position
        done = 0
        try:
            async with self._lagging_gets if is_lagging else self._gets:
                length = run[-1].position + run[-1].length - start
                data = await self._store.get(key, start, length)
            self._metrics.get_bytes.inc(len(data))
            view = memoryview(data)
            for block in run:
                at = block.position - start
                batches = await self._decode(view[at : at + block.length], block, key, is_lagging)
                size_bytes = len(batches) * _BATCH_BYTES + sum(
                    len(batch.parts[0]) for batch in batches
                )
                self.blocks.finish((row.object_id, block.position), batches, size_bytes)
                done += 1
        except StreamlogError as error:
            for block in run[done:]:
                self.blocks.fail((row.object_id, block.position), error)
        except asyncio.CancelledError:
            for block in run[done:]:
                self.blocks.fail((row.object_id, block.position), _closed())
            raise

    async def _decode(
        self, data: memoryview, block: BlockRow, key: str, is_lagging: bool
    ) -> Sequence[StoredBatch]:
        if block.length <= _INLINE_BYTES_MAX:
            return decode_block(data, block, object_key=key)
        lane = Lane.READ if is_lagging else Lane.CPU
        return await self._offload.run(lane, _decode, data, block, key)

    def _count(self, cache: str, is_hit: bool) -> None:
        counter = self._metrics.cache_hits if is_hit else self._metrics.cache_misses
        counter.labels(cache).inc()


def _decode(data: memoryview, block: BlockRow, key: str) -> Sequence[StoredBatch]:
    return decode_block(data, block, object_key=key)


def _closed() -> Closed:
    return Closed("the engine was closed during the read")
