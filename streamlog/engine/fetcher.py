"""Reads a stream: its tail from memory, what lies before from objects.

1. Live ranges come from the fold, never from an object's own index: an object may hold ranges that
   another tenure's commit has replaced.
2. What is returned has no gap, or the read fails with Corrupt.
3. A missing object: the fold is asked again. A newer object, or a trim, explains it; an object that
   is still live and gone is Corrupt.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from streamlog.engine.block_reader import BlockReader
from streamlog.engine.config import ReadConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.read_ahead import Reader, Readers
from streamlog.engine.stream_core import StreamCore
from streamlog.errors import (
    Corrupt,
    ObjectNotFound,
    OffsetOutOfRange,
    StoreUnavailable,
    StreamlogError,
)
from streamlog.format.entry import StreamEntry
from streamlog.format.object_block import BlockRow
from streamlog.format.object_index import decode_attributes
from streamlog.metadata.interface import LiveRange, Metadata, ObjectRow
from streamlog.model.batch import (
    BatchAttributes,
    FetchContext,
    FetchResult,
    StoredBatch,
)
from streamlog.objectstore.keys import data_key
from streamlog.runtime.background import Background
from streamlog.runtime.clock import Clock

_LOOKUPS_MAX = 4
"""Looks at the fold before a missing object counts as lost."""
_INDEXES_AHEAD = 8
"""Index regions of later ranges that are read while the first ones are looked at."""
_base_offset = attrgetter("base_offset")


class Fetcher:
    def __init__(
        self,
        metadata: Metadata,
        blocks: BlockReader,
        config: ReadConfig,
        background: Background,
        clock: Clock,
        metrics: EngineMetrics,
    ) -> None:
        self._clock = clock
        self._metadata = metadata
        self._blocks = blocks
        self._background = background
        self._metrics = metrics
        self._readers = Readers(
            config.read_ahead_bytes_min,
            min(config.read_ahead_bytes_max, config.block_cache_bytes // 4),
        )

    async def fetch(
        self, core: StreamCore, start: int, end: int, max_bytes: int, context: FetchContext
    ) -> FetchResult:
        """As Stream.fetch."""
        _check(core, start, end)
        tail = core.tail
        if tail.first <= start < end:
            self._metrics.cache_hits.labels("tail").inc()
            entries = tail.read(start, end, max_bytes)
            return FetchResult(tuple([_stored(entry) for entry in entries]), True)
        batches: list[StoredBatch] = []
        size, position = 0, start
        if start < end:
            self._metrics.cache_misses.labels("tail").inc()
        while position < end and (size < max_bytes or not batches):
            if tail.first <= position:
                found: Sequence[StoredBatch] = [
                    _stored(entry) for entry in tail.read(position, end, max_bytes - size)
                ]
            else:
                try:
                    async with asyncio.timeout(self._delay_s(context)):
                        found = await self._cold(core, position, end, max_bytes - size, context)
                except TimeoutError:
                    raise StoreUnavailable(
                        f"stream {core.stream_id} could not be read before the deadline; retry",
                        operation="get",
                    ) from None
                except StreamlogError:
                    # What came before the failure is handed out; the next fetch meets it.
                    if not batches:
                        raise
                    break
                _check(core, position, end)
            batches += found
            size += sum(_size(batch) for batch in found)
            position = batches[-1].end_offset
        return FetchResult(tuple(batches), False)

    async def attributes(self, core: StreamCore, start: int, end: int) -> list[BatchAttributes]:
        """As Stream.attributes."""
        _check(core, start, end)
        found: list[BatchAttributes] = []
        position = start
        while position < end:
            if core.tail.first <= position:
                found += [
                    BatchAttributes(
                        entry.base_offset,
                        entry.record_count,
                        entry.base_timestamp_ms,
                        entry.attributes,
                    )
                    for entry in core.tail.read(position, end, 1 << 62)
                ]
                break
            found += await self._cold_attributes(core, position, end)
            _check(core, position, end)
            position = found[-1].base_offset + found[-1].record_count
        return found

    def _delay_s(self, context: FetchContext) -> float | None:
        return None if context.deadline is None else context.deadline - self._clock.monotonic()

    async def _cold(
        self, core: StreamCore, start: int, end: int, max_bytes: int, context: FetchContext
    ) -> list[StoredBatch]:
        """At least one batch from `start` on, out of objects."""
        reader, is_sequential = self._readers.at(core.stream_id, start)
        missing: ObjectNotFound | None = None
        for _ in range(_LOOKUPS_MAX):
            ranges = await self._ranges(core, start, end, missing)
            try:
                batches = await self._read(core, ranges, start, end, max_bytes, context)
            except ObjectNotFound as error:
                missing = error
                continue
            position = batches[-1].end_offset
            if is_sequential:
                self._read_ahead(core, reader, position, context)
            self._readers.moved(core.stream_id, reader, position)
            return batches
        raise _lost(core, missing)

    async def _cold_attributes(
        self, core: StreamCore, start: int, end: int
    ) -> list[BatchAttributes]:
        missing: ObjectNotFound | None = None
        for _ in range(_LOOKUPS_MAX):
            ranges = await self._ranges(core, start, end, missing)
            found: list[BatchAttributes] = []
            try:
                for number, live in enumerate(ranges):
                    self._load_indexes(ranges[number : number + _INDEXES_AHEAD])
                    region = await self._blocks.index(live.object)
                    found += decode_attributes(
                        region.data,
                        core.stream_id,
                        max(start, live.start),
                        min(end, live.end),
                        object_key=data_key(live.object.object_id),
                        index_position=live.object.index_position,
                    )
            except ObjectNotFound as error:
                missing = error
                continue
            _check_run(core, found, start, ranges[-1].object)
            return found
        raise _lost(core, missing)

    async def _ranges(
        self, core: StreamCore, start: int, end: int, missing: ObjectNotFound | None
    ) -> list[LiveRange]:
        """Live ranges that meet, from `start` on; not empty."""
        ranges = await self._metadata.locate(core.stream_id, start, end)
        position = start
        for live in ranges:
            if live.start > position:
                break
            position = live.end
        else:
            if ranges:
                if missing is not None:
                    key = data_key(ranges[0].object.object_id)
                    if key == missing.fields.get("object_key"):
                        raise _lost(core, missing)
                return ranges
        # Lost with what only memory held, or trimmed by a commit whose caller has no answer yet.
        row = self._metadata.stream(core.stream_id)
        if row is not None and row.epoch == core.epoch:
            core.start = max(core.start, row.start)
        _check(core, start, end)
        raise Corrupt(
            f"stream {core.stream_id} has no data at offset {position}, between its start "
            f"{core.start} and its end {core.confirm}: run fsck",
            object_key="",
            start=position,
            end=position,
        )

    async def _read(
        self,
        core: StreamCore,
        ranges: Sequence[LiveRange],
        start: int,
        end: int,
        max_bytes: int,
        context: FetchContext,
    ) -> list[StoredBatch]:
        wanted: list[tuple[LiveRange, BlockRow]] = []
        position, size = start, 0
        for number, live in enumerate(ranges):
            if number:
                # Ranges are small, then: the next ones' indexes will be needed too.
                self._load_indexes(ranges[number : number + _INDEXES_AHEAD])
            try:
                blocks = await self._blocks_of(core.stream_id, live, position, end)
            except StreamlogError:
                if not wanted:
                    raise
                break
            for index, block in enumerate(blocks):
                size += block.length
                if size >= max_bytes:
                    del blocks[index + 1 :]
                    break
            self._blocks.load(live.object, blocks, is_lagging=context.lagging)
            wanted += [(live, block) for block in blocks]
            position = live.end
            if size >= max_bytes:
                break
        batches: list[StoredBatch] = []
        position, size = start, 0
        for live, block in wanted:
            try:
                loaded = await self._blocks.block(live.object, block, is_lagging=context.lagging)
            except StreamlogError:
                if not batches:
                    raise
                break
            first = max(0, bisect_right(loaded, position, key=_base_offset) - 1)
            stop = min(end, live.end)
            for batch in loaded[first:]:
                batch_size = _size(batch)
                if batch.base_offset >= stop or (batches and size + batch_size > max_bytes):
                    break
                batches.append(batch)
                size += batch_size
            else:
                position = block.end
                continue
            break
        _check_run(core, batches, start, wanted[0][0].object)
        return batches

    def _load_indexes(self, ranges: Sequence[LiveRange]) -> None:
        for live in ranges:
            self._blocks.load_index(live.object)

    async def _blocks_of(
        self, stream_id: int, live: LiveRange, start: int, end: int
    ) -> list[BlockRow]:
        """The blocks of the live range that overlap [start, end); they leave no gap."""
        region = await self._blocks.index(live.object)
        first, last = max(start, live.start), min(end, live.end)
        blocks = region.index.blocks_for(stream_id, first, last)
        position = first
        for block in blocks:
            if block.start > position:
                break
            position = block.end
        if position < last:
            raise Corrupt(
                f"the index of {data_key(live.object.object_id)} has no block of stream "
                f"{stream_id} at offset {position}, which the metadata says is there: run fsck",
                object_key=data_key(live.object.object_id),
                start=live.object.index_position,
                end=live.object.index_position + live.object.index_length,
            )
        return blocks

    def _read_ahead(
        self, core: StreamCore, reader: Reader, position: int, context: FetchContext
    ) -> None:
        if not reader.is_busy and position < core.settled:
            reader.is_busy = True
            self._background.spawn(self._ahead(core, reader, position, context), name="read_ahead")

    async def _ahead(
        self, core: StreamCore, reader: Reader, start: int, context: FetchContext
    ) -> None:
        """Starts to load what the reader will ask for next, up to its window."""
        wanted: list[tuple[ObjectRow, list[BlockRow]]] = []
        size = fresh = 0
        try:
            for live in await self._metadata.locate(core.stream_id, start, core.settled):
                blocks = await self._blocks_of(core.stream_id, live, start, live.end)
                taken: list[BlockRow] = []
                for block in blocks:
                    taken.append(block)
                    size += block.length
                    if (live.object.object_id, block.position) not in self._blocks.blocks:
                        fresh += block.length
                    if size >= reader.window_bytes:
                        break
                wanted.append((live.object, taken))
                if size >= reader.window_bytes:
                    break
            # A half window at a time: few large GETs rather than one small one per fetch.
            if fresh * 2 >= size:
                for row, taken in wanted:
                    self._blocks.load(row, taken, is_lagging=context.lagging)
        except StreamlogError:
            # Nobody waits for it: the fetch that needs the block will meet the error itself.
            return
        finally:
            reader.is_busy = False


def _stored(entry: StreamEntry) -> StoredBatch:
    return StoredBatch(
        entry.base_offset,
        entry.record_count,
        entry.base_timestamp_ms,
        entry.parts,
        entry.attributes,
    )


def _size(batch: StoredBatch) -> int:
    return sum([len(part) for part in batch.parts])


def _check(core: StreamCore, start: int, end: int) -> None:
    if core.stop is not None:
        raise core.stop()
    if start < core.start or end > core.confirm or start > end:
        raise _out_of_range(core, start if start < core.start or start > end else end)


def _out_of_range(core: StreamCore, offset: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"offset {offset} is out of range: stream {core.stream_id} has {core.start} (inclusive) "
        f"to {core.confirm} (exclusive)",
        offset=offset,
        start_offset=core.start,
        end_offset=core.confirm,
    )


def _check_run(
    core: StreamCore,
    batches: Sequence[StoredBatch] | Sequence[BatchAttributes],
    start: int,
    row: ObjectRow,
) -> None:
    """The batches contain `start` and leave no gap."""
    position = start
    for batch in batches:
        if batch.base_offset > position or (position != start and batch.base_offset != position):
            break
        position = batch.base_offset + batch.record_count
    else:
        if batches:
            return
    raise Corrupt(
        f"stream {core.stream_id} has a gap at offset {position} in or after "
        f"{data_key(row.object_id)}: run fsck",
        object_key=data_key(row.object_id),
        start=0,
        end=row.size_bytes,
    )


def _lost(core: StreamCore, missing: ObjectNotFound | None) -> Corrupt:
    key = "" if missing is None else str(missing.fields.get("object_key", ""))
    return Corrupt(
        f"object {key} holds live data of stream {core.stream_id} and is not in the store: "
        "restore it from a copy, or run fsck to see what is affected",
        object_key=key,
        start=0,
        end=0,
    )
