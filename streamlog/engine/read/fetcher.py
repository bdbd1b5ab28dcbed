"""Reads a stream: its tail from memory, older records from objects."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

from streamlog.engine.config import ReadConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.read.block_reader import BlockReader
from streamlog.engine.read.cold_reader import ColdReader
from streamlog.engine.read.read_checks import check_offsets
from streamlog.engine.stream_core import StreamCore
from streamlog.errors import Corrupt, StoreUnavailable, StreamlogError
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import SessionInfo, StreamView
from streamlog.model.batch import (
    BatchAttributes,
    FetchContext,
    FetchResult,
    Priority,
    ReadMode,
    StoredBatch,
)
from streamlog.runtime.buffers import parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.catch_up_throttle import ReadThrottle

_NO_DEADLINE = nullcontext()


class FetcherMetadata(SessionInfo, StreamView, Protocol):
    """Where offsets lie, and whether newer metadata explains a missing object."""


class Fetcher:
    """Serves `Stream.fetch` and `Stream.attributes`."""

    def __init__(
        self,
        metadata: FetcherMetadata,
        blocks: BlockReader,
        config: ReadConfig,
        background: Background,
        clock: Clock,
        metrics: EngineMetrics,
        throttle: ReadThrottle,
    ) -> None:
        self._clock = clock
        self._metadata = metadata
        self._hits = metrics.cache_hits.labels("tail")
        self._misses = metrics.cache_misses.labels("tail")
        self._throttle = throttle
        self._cold = ColdReader(metadata, blocks, config, background, clock)

    async def fetch(
        self, core: StreamCore, start: int, end: int, max_bytes: int, context: FetchContext
    ) -> FetchResult:
        """As Stream.fetch."""
        check_offsets(core, start, end)
        tail = core.tail
        if tail.first <= start < end:
            self._hits.inc()
            entries = tail.read(start, end, max_bytes)
            # A reader that is on its way through the tail has only just left the objects. Others
            # that are still there, mostly its own in other streams, do not give way to it.
            is_at_end = entries[-1].end_offset >= end
            if is_at_end and context.priority is not Priority.BACKGROUND:
                self._throttle.note_foreground_io()
            return FetchResult(tuple([_stored(entry) for entry in entries]), True)
        batches: list[StoredBatch] = []
        max_bytes = max(max_bytes, 1)
        size, position = 0, start
        if start < end:
            if context.read_mode is not ReadMode.IMMEDIATE:
                return await self._fetch_throttled(core, start, end, max_bytes, context)
            self._misses.inc()
        last = 0
        # Stops when one more batch as large as the last would not fit, which saves a look-up.
        while position < end and (size + last <= max_bytes or not batches):
            if tail.first <= position:
                part = [_stored(entry) for entry in tail.read(position, end, max_bytes - size)]
                part_bytes = sum([parts_size(batch.parts) for batch in part])
            else:
                try:
                    async with self._until_deadline(core, context):
                        part, part_bytes = await self._read_cold(
                            core, position, end, max_bytes - size, context
                        )
                except StreamlogError:
                    # Batches before the failure are returned; the next fetch gets the error.
                    if not batches:
                        raise
                    break
                check_offsets(core, position, end)
            batches += part
            size += part_bytes
            last = max(parts_size(batches[-1].parts), 1)
            position = batches[-1].end_offset
        return FetchResult(tuple(batches), False)

    async def _read_cold(
        self, core: StreamCore, start: int, end: int, max_bytes: int, context: FetchContext
    ) -> tuple[list[StoredBatch], int]:
        try:
            return await self._cold.read(core, start, end, max_bytes, context)
        except Corrupt as error:
            damage = error
        raise await self._metadata.lineage.reason_for(damage)

    async def _cold_attributes(
        self, core: StreamCore, start: int, end: int
    ) -> list[BatchAttributes]:
        try:
            return await self._cold.attributes(core, start, end)
        except Corrupt as error:
            damage = error
        raise await self._metadata.lineage.reason_for(damage)

    async def _fetch_throttled(
        self, core: StreamCore, start: int, end: int, max_bytes: int, context: FetchContext
    ) -> FetchResult:
        """One piece out of objects, once the throttle admits it; not what follows in the tail."""
        if context.read_mode is ReadMode.SKIP and not self._throttle.admits_now:
            return FetchResult((), is_paced=True)
        async with (
            self._until_deadline(core, context),
            self._throttle.admitted(max_bytes) as grant,
        ):
            check_offsets(core, start, end)
            unthrottled = dataclasses.replace(context, read_mode=ReadMode.IMMEDIATE)
            result = await self.fetch(core, start, end, grant.bytes_max, unthrottled)
            grant.used_bytes = sum([parts_size(batch.parts) for batch in result.batches])
        return dataclasses.replace(result, is_paced=grant.is_paced)

    async def attributes(self, core: StreamCore, start: int, end: int) -> list[BatchAttributes]:
        """As Stream.attributes."""
        check_offsets(core, start, end)
        attributes: list[BatchAttributes] = []
        position = start
        while position < end:
            if core.tail.first <= position:
                attributes += [
                    BatchAttributes(
                        entry.base_offset,
                        entry.record_count,
                        entry.base_timestamp_ms,
                        entry.attributes,
                    )
                    for entry in core.tail.read(position, end, 1 << 62, batches_max=1 << 62)
                ]
                break
            attributes += await self._cold_attributes(core, position, end)
            check_offsets(core, position, end)
            position = attributes[-1].base_offset + attributes[-1].record_count
        return attributes

    def _until_deadline(
        self, core: StreamCore, context: FetchContext
    ) -> AbstractAsyncContextManager[None]:
        """Errors: StoreUnavailable when the context's deadline passes first."""
        return _NO_DEADLINE if context.deadline is None else self._until(core, context.deadline)

    @asynccontextmanager
    async def _until(self, core: StreamCore, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()):
                yield
        except TimeoutError:
            raise StoreUnavailable(
                f"stream {core.stream_id} could not be read before the deadline; retry",
                operation="get",
            ) from None


def _stored(entry: StreamEntry) -> StoredBatch:
    return StoredBatch(
        entry.base_offset,
        entry.record_count,
        entry.base_timestamp_ms,
        entry.parts,
        entry.attributes,
    )
