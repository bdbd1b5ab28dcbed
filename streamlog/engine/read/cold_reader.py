"""Reads records that are not in memory any more out of objects.

1. The fold names the live ranges, never an object's own index: an object may hold ranges that
   another tenure's commit has replaced.
2. A read returns batches without a gap, or fails with Corrupt.
3. If an object is missing, the read folds everything committed so far and looks up again. Usually
   another object or a trim has replaced the missing one; if it is still live, the read fails with
   Corrupt.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from streamlog.engine.config import ReadConfig
from streamlog.engine.read.block_load import Block
from streamlog.engine.read.block_reader import BlockReader, IndexRegion
from streamlog.engine.read.object_scan import ObjectScans, StreamPart
from streamlog.engine.read.read_ahead import Reader, Readers
from streamlog.engine.read.read_checks import check_offsets, check_run, check_seam, gap
from streamlog.engine.stream_core import StreamCore
from streamlog.errors import Corrupt, ObjectNotFound, StoreUnavailable, StreamlogError
from streamlog.format.object.block import (
    BATCH_BYTES,
    BLOCK_HEADER_BYTES,
    BlockCompression,
    BlockRow,
)
from streamlog.format.object.index import attributes_in
from streamlog.metadata.interface import LiveRange, ObjectRow, StreamView
from streamlog.model.batch import BatchAttributes, FetchContext, StoredBatch
from streamlog.objectstore.keys import data_key
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

_LOOKUPS_MAX = 8
"""How often objects may be replaced and deleted under one read."""
_INDEXES_AHEAD = 8
"""Index regions of later ranges that are loaded while the first ones are used."""
_LOOK_BYTES = 64 * 1024
"""A fetch of less at the stream's start may be a mere look at it."""
_RANGES_AHEAD = 32
"""Ranges passed by one step of reading ahead: each may need two GETs."""
_ASKED_BYTES_MIN = 64 * 1024
"""Least charge of a GET ahead, which bounds the number of small ones."""
_YIELD_BATCHES = 1024
"""Batches that one step of the event loop returns at most."""
_base_offset = attrgetter("base_offset")


class ColdReader:
    """Reads objects, for fetches and ahead of them."""

    def __init__(
        self,
        metadata: StreamView,
        blocks: BlockReader,
        config: ReadConfig,
        background: Background,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._background = background
        self._get_bytes_max = config.get_bytes_max
        self._index_bytes_ahead = config.index_cache_bytes // 4
        self._scans = ObjectScans(config, clock)
        self._readers = Readers(config, clock, self._scans)

    async def read(
        self, core: StreamCore, start: int, end: int, max_bytes: int, context: FetchContext
    ) -> tuple[list[StoredBatch], int]:
        """At least one batch from `start` on, and the size of all payloads."""
        reader, is_sequential = self._readers.at(core.stream_id, start)
        begins = start == core.start and max_bytes >= _LOOK_BYTES
        in_steps = reader if is_sequential or begins else None
        missing: ObjectNotFound | None = None
        kept = reader.ranges_from(start, end)
        for _ in range(_LOOKUPS_MAX):
            ranges = kept or await self._ranges(core, start, end, missing)
            read = _Read(core, start, end, max_bytes, in_steps, context)
            try:
                batches, size = await self._read(read, ranges)
            except ObjectNotFound as error:
                self._forget(error, ranges)
                # Ranges kept from an earlier fetch may be outdated: only a fresh look-up counts.
                missing, kept = (missing, ()) if kept else (error, ())
                continue
            position = batches[-1].end_offset
            reader.located(ranges, read.ranges, position)
            reader.consumed(position)
            is_at_end = position >= core.confirm
            self._readers.moved(core.stream_id, reader, start, position, is_at_end=is_at_end)
            if (
                is_sequential
                and not reader.is_busy
                and reader.asked_until < core.committed
                and self._readers.may_go_ahead(reader)
            ):
                reader.is_busy = True
                self._background.spawn(self._go_ahead(core, reader, position), name="read_ahead")
            return batches, size
        raise _lost(core, missing)

    async def attributes(self, core: StreamCore, start: int, end: int) -> list[BatchAttributes]:
        """Attributes of at least one batch from `start` on."""
        missing: ObjectNotFound | None = None
        for _ in range(_LOOKUPS_MAX):
            ranges = await self._ranges(core, start, end, missing)
            attributes: list[BatchAttributes] = []
            yield_at = _YIELD_BATCHES
            try:
                for number, live in enumerate(ranges):
                    ahead = ranges[number : number + _INDEXES_AHEAD]
                    self._load_indexes(ahead, with_body=False)
                    region = await self._blocks.index(live.object, with_body=False)
                    attributes += attributes_in(
                        region.index,
                        region.data,
                        core.stream_id,
                        max(start, live.start),
                        min(end, live.end),
                        index_position=live.object.index_position,
                    )
                    if len(attributes) >= yield_at:
                        yield_at = len(attributes) + _YIELD_BATCHES
                        await asyncio.sleep(0)
            except ObjectNotFound as error:
                missing = error
                self._forget(error, ranges)
                continue
            check_run(core, attributes, start, ranges[-1].object)
            return attributes
        raise _lost(core, missing)

    async def _ranges(
        self, core: StreamCore, start: int, end: int, missing: ObjectNotFound | None
    ) -> list[LiveRange]:
        """Adjacent live ranges from `start` on; not empty. `missing`: the error of the last try."""
        missing_key = None
        if missing is not None:
            missing_key = missing.object_key
            await self._metadata.catch_up()
        ranges = await self._metadata.locate(core.stream_id, start, end)
        position = start
        for live in ranges:
            if live.start > position:
                break
            if missing_key is not None and data_key(live.object.object_id) == missing_key:
                raise _lost(core, missing, live.object)
            position = live.end
        else:
            if ranges:
                return ranges
        # The stream may be lost, or trimmed by a commit whose caller has no answer yet.
        row = self._metadata.stream(core.stream_id)
        if row is not None and row.epoch == core.epoch:
            core.start = max(core.start, row.start)
        check_offsets(core, start, end)
        raise Corrupt(
            f"stream {core.stream_id} has no data at offset {position}, between its start "
            f"{core.start} and its end {core.confirm}: run fsck",
            object_key="",
            start=position,
            end=position,
        )

    def _forget(self, error: ObjectNotFound, ranges: Sequence[LiveRange]) -> None:
        for object_id in {live.object.object_id for live in ranges}:
            if data_key(object_id) == error.object_key:
                self._blocks.forget(object_id)

    async def _read(
        self, read: _Read, ranges: Sequence[LiveRange]
    ) -> tuple[list[StoredBatch], int]:
        position, size = read.start, 0
        for number, live in enumerate(ranges):
            if number:
                # The first range was not enough, so ranges are small: load more indexes.
                self._load_indexes(ranges[number : number + _INDEXES_AHEAD])
            try:
                region = await self._blocks.index(live.object)
                size += self._want(read, live, region, position, read.max_bytes - size)
                read.ranges += 1
            except StreamlogError:
                if not read.wanted:
                    raise
                break
            position = live.end
            if size >= read.max_bytes:
                break
        return await self._hand_out(read, ranges[0].object)

    def _want(
        self, read: _Read, live: LiveRange, region: IndexRegion, position: int, max_bytes: int
    ) -> int:
        """Starts to load the range's blocks from `position` on until `max_bytes` is met.

        Returns their size. For a reader in sequence, a block that is not cached starts a step of
        reading ahead.
        """
        row, reader = live.object, read.reader
        stop = min(read.end, live.end)
        blocks: list[BlockRow] = []
        wanted = size = step = fresh = 0
        is_end = True
        until = position
        near = -1 if reader is None else reader.near_block
        first = region.index.number_at(read.core.stream_id, position, near)
        for block in _blocks(region, read.core.stream_id, first, position, live.end):
            if size < max_bytes and block.start < stop:
                if reader is not None and not step and not self._blocks.has(row, block):
                    step = self._readers.step(reader)
                wanted += 1
                size += _payload_bytes(block, position)
                until = block.end
            elif fresh >= step:
                is_end = False
                break
            blocks.append(block)
            fresh += block.length if step else 0
        if until < stop and size < max_bytes:
            raise _no_block(read.core, live, until)
        started = self._blocks.load(
            row, blocks, step or self._get_bytes_max, is_catch_up=read.is_catch_up
        )
        own = {block.position for block in started}
        if reader is not None:
            reader.near_block = first + wanted - 1
            if step:
                started_bytes = sum([block.length for block in started])
                reader.asked(blocks[-1].end, min(started_bytes, max(step, size)))
        held = self._blocks.held(row, blocks[:wanted])
        read.wanted += [
            (live, block, load, block.position in own)
            for block, load in zip(blocks, held, strict=False)
        ]
        if is_end and blocks and region.body is None:
            last = blocks[-1]
            part = StreamPart(blocks[0].position, last.position + last.length, first + len(blocks))
            self._scan_ahead(read, row, region, part, is_cached=not started)
        return size

    def _scan_ahead(
        self, read: _Read, row: ObjectRow, region: IndexRegion, part: StreamPart, *, is_cached: bool
    ) -> None:
        """Reads the object's next streams ahead if the part belongs to a scan of the object."""
        wanted = self._scans.note_read(row.object_id, part, is_cached=is_cached)
        if wanted is None:
            return
        scan, bytes_max = wanted
        ahead: list[BlockRow] = []
        until = scan.until
        try:
            for block in region.index.blocks_from(scan.next_number):
                end = block.position + block.length
                if block.position < until or end - scan.until > bytes_max:
                    break
                ahead.append(block)
                until = end
        except Corrupt:
            pass  # The reader that asks for the damaged block gets the error.
        if ahead:
            self._blocks.load(row, ahead, bytes_max, is_catch_up=read.is_catch_up)
            next_number = scan.next_number + len(ahead)
            self._scans.note_read_ahead(scan, ahead[0].position, until, next_number)

    async def _hand_out(self, read: _Read, first: ObjectRow) -> tuple[list[StoredBatch], int]:
        batches: list[StoredBatch] = []
        position, size, yield_at = read.start, 0, _YIELD_BATCHES
        for live, row, held, is_own in read.wanted:
            try:
                if isinstance(held, asyncio.Future):
                    block = await self._loaded(read, live, row, held, is_own=is_own)
                else:
                    block = held
            except StreamlogError:
                if not batches:
                    raise
                break
            stop = min(read.end, live.end)
            room = read.max_bytes - size
            if _fits(row, position, stop, room):
                wanted, is_last = block, False
            else:
                wanted, is_last = _cut(block.batches, position, stop, room, is_empty=not batches)
            if wanted.batches:
                # Within a block batches are adjacent, else it would not have been decoded.
                check_seam(read.core, wanted.batches[0], position, live.object, begins=not batches)
                batches += wanted.batches
                size += wanted.size_bytes
            if is_last:
                break
            position = row.end
            if read.reader is not None:
                self._blocks.retire(live.object, row)
            if len(batches) >= yield_at:
                yield_at = len(batches) + _YIELD_BATCHES
                await asyncio.sleep(0)
        if not batches:
            raise gap(read.core, read.start, first)
        return batches, size

    async def _loaded(
        self,
        read: _Read,
        live: LiveRange,
        row: BlockRow,
        load: asyncio.Future[Block],
        *,
        is_own: bool,
    ) -> Block:
        """A load that another read began may fail because of its other blocks: this block is then
        loaded alone."""
        try:
            return await asyncio.shield(load)
        except (Corrupt, StoreUnavailable):
            if is_own:
                raise
        self._blocks.load(live.object, [row], self._get_bytes_max, is_catch_up=read.is_catch_up)
        (held,) = self._blocks.held(live.object, [row])
        return await asyncio.shield(held) if isinstance(held, asyncio.Future) else held

    async def _go_ahead(self, core: StreamCore, reader: Reader, position: int) -> None:
        """Starts the reader's next GET, or several if objects are small."""
        try:
            start = max(reader.asked_until, position)
            if start >= core.committed:
                return
            step = self._readers.step(reader)
            size = 0
            ranges = await self._metadata.locate(
                core.stream_id, start, core.committed, limit=_RANGES_AHEAD
            )
            for number, live in enumerate(ranges):
                # Only the end of an object cuts a GET: the rest of a step would make small GETs.
                if size >= step or (number and not self._readers.may_go_ahead(reader)):
                    return
                self._load_indexes(ranges[number : number + _INDEXES_AHEAD])
                region = await self._blocks.index(live.object)
                blocks: list[BlockRow] = []
                taken = 0
                first = region.index.number_at(core.stream_id, start)
                for block in _blocks(region, core.stream_id, first, start, live.end):
                    if taken >= step:
                        break
                    blocks.append(block)
                    taken += block.length
                if not blocks:
                    return
                self._blocks.load(live.object, blocks, step, is_catch_up=True)
                start = blocks[-1].end
                # Without the last block's excess: else two GETs would fill the share of three.
                reader.asked(start, max(_ASKED_BYTES_MIN, min(taken, step)))
                size += taken
        except StreamlogError:
            # The fetch that needs the block will get the error itself.
            return
        finally:
            reader.is_busy = False

    def _load_indexes(self, ranges: Sequence[LiveRange], *, with_body: bool = True) -> None:
        """Loads the first index, and the next ones within this reader's part of the index cache."""
        size = 0
        for number, live in enumerate(ranges):
            size += live.object.index_length
            if number and size > self._index_bytes_ahead:
                return
            self._blocks.load_index(live.object, with_body=with_body)


_Wanted = tuple[LiveRange, BlockRow, Block | asyncio.Future[Block], bool]
"""Range, block, the block's data or load, and whether this fetch began the load."""


class _Read:
    """One fetch from objects. `reader` None: it reads nothing ahead."""

    __slots__ = ("core", "end", "is_catch_up", "max_bytes", "ranges", "reader", "start", "wanted")

    def __init__(
        self,
        core: StreamCore,
        start: int,
        end: int,
        max_bytes: int,
        reader: Reader | None,
        context: FetchContext,
    ) -> None:
        self.core = core
        self.start = start
        self.end = end
        self.max_bytes = max_bytes
        self.reader = reader
        self.is_catch_up = context.is_catch_up or (reader is not None and reader.window_bytes > 0)
        self.ranges = 0
        """Number of ranges used."""
        self.wanted: list[_Wanted] = []


def _blocks(
    region: IndexRegion, stream_id: int, number: int, start: int, stop: int
) -> Iterator[BlockRow]:
    """The stream's blocks from block `number`, which contains `start`, up to `stop` or a gap."""
    index, position = region.index, start
    while number < len(index):
        block = index.block(number)
        if block.stream_id != stream_id or block.start > position or block.start >= stop:
            return
        yield block
        number, position = number + 1, block.end


def _payload_bytes(block: BlockRow, position: int) -> int:
    """Estimated payload from `position` on, for records of equal size; less than the truth if
    compressed."""
    size = block.length - BLOCK_HEADER_BYTES - BATCH_BYTES * block.batch_count
    if position <= block.start:
        return size
    return size * (block.end - position) // (block.end - block.start)


def _fits(block: BlockRow, position: int, stop: int, max_bytes: int) -> bool:
    """Whether all batches are certainly wanted. A look at each would cost as much as the rest."""
    return (
        position <= block.start
        and block.end <= stop
        and block.compression == BlockCompression.NONE
        and _payload_bytes(block, position) <= max_bytes
    )


def _cut(
    batches: Sequence[StoredBatch], start: int, stop: int, max_bytes: int, *, is_empty: bool
) -> tuple[Block, bool]:
    """The batches from the offset `start` on, before `stop` and within `max_bytes`, but at least
    one if `is_empty`; and whether later batches were left out."""
    first = max(0, bisect_right(batches, start, key=_base_offset) - 1)
    size = 0
    for number in range(first, len(batches)):
        batch_size = len(batches[number].parts[0])
        is_wanted = is_empty and number == first
        if batches[number].base_offset >= stop or (size + batch_size > max_bytes and not is_wanted):
            return Block(batches[first:number], size), True
        size += batch_size
    return Block(batches[first:], size), False


def _no_block(core: StreamCore, live: LiveRange, position: int) -> Corrupt:
    row = live.object
    return Corrupt(
        f"the index of {data_key(row.object_id)} has no block of stream {core.stream_id} at "
        f"offset {position}, which the metadata says is there: run fsck",
        object_key=data_key(row.object_id),
        start=row.index_position,
        end=row.index_position + row.index_length,
    )


def _lost(
    core: StreamCore, missing: ObjectNotFound | None, row: ObjectRow | None = None
) -> Corrupt:
    key = "" if missing is None else missing.object_key
    return Corrupt(
        f"object {key} holds live data of stream {core.stream_id} and is not in the store: "
        "restore it from a copy, or run fsck to see what is affected",
        object_key=key,
        start=0,
        end=0 if row is None else row.size_bytes,
    )
