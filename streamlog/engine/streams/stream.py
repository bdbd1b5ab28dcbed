"""An open stream: the Stream protocol over one StreamCore."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from streamlog.engine.append.sequencer import Sequencer
from streamlog.engine.read.fetcher import Fetcher
from streamlog.engine.stream_core import StreamCore
from streamlog.model.batch import (
    APPEND,
    FETCH,
    AppendContext,
    AppendResult,
    BatchAttributes,
    FetchContext,
    FetchResult,
    RecordBatch,
    Reservation,
)
from streamlog.runtime.concurrency.run_ack import RunAck


class StreamChanges(Protocol):
    """Changes of a stream other than appends; each is an entry of a commit record."""

    async def set_token(self, core: StreamCore, token: bytes, context: AppendContext) -> None: ...

    async def trim(self, core: StreamCore, new_start_offset: int) -> None: ...

    async def close_core(self, core: StreamCore) -> None: ...

    async def destroy_core(self, core: StreamCore) -> None: ...


class EngineStream:
    """One epoch of a stream; unusable once a later epoch is opened."""

    __slots__ = ("_changes", "_core", "_fetcher", "_sequencer")

    def __init__(
        self, core: StreamCore, sequencer: Sequencer, fetcher: Fetcher, changes: StreamChanges
    ) -> None:
        self._core = core
        self._sequencer = sequencer
        self._fetcher = fetcher
        self._changes = changes

    def __repr__(self) -> str:
        core = self._core
        return (
            f"<stream {core.stream_id} epoch {core.epoch}: "
            f"{core.start} ≤ {core.confirm} ≤ {core.next}>"
        )

    @property
    def stream_id(self) -> int:
        return self._core.stream_id

    @property
    def stream_epoch(self) -> int:
        return self._core.epoch

    @property
    def start_offset(self) -> int:
        return self._core.start

    @property
    def confirm_offset(self) -> int:
        return self._core.confirm

    @property
    def next_offset(self) -> int:
        return self._core.next

    @property
    def tail_offset(self) -> int:
        return self._core.tail.first

    def append(
        self, batch: RecordBatch, context: AppendContext = APPEND
    ) -> asyncio.Future[AppendResult]:
        return self._sequencer.append(self._core, batch, context)

    async def reserve(self, size_bytes: int, context: AppendContext = APPEND) -> Reservation:
        return await self._sequencer.reserve(self._core, size_bytes, context)

    def try_reserve_run(self, sizes: Sequence[int]) -> Reservation | None:
        return self._sequencer.try_reserve_run(self._core, sizes)

    def append_run(
        self, batches: Sequence[RecordBatch], reservation: Reservation, trace_ids: Sequence[str]
    ) -> RunAck:
        return self._sequencer.append_run(self._core, batches, reservation, trace_ids)

    async def set_fencing_token(self, token: bytes, context: AppendContext = APPEND) -> None:
        await self._changes.set_token(self._core, token, context)

    async def fetch(
        self,
        start_offset: int,
        end_offset: int,
        max_bytes_hint: int,
        context: FetchContext = FETCH,
    ) -> FetchResult:
        return await self._fetcher.fetch(
            self._core, start_offset, end_offset, max_bytes_hint, context
        )

    async def attributes(self, start_offset: int, end_offset: int) -> Sequence[BatchAttributes]:
        return await self._fetcher.attributes(self._core, start_offset, end_offset)

    async def wait_confirmed(self, offset: int) -> None:
        future = self._core.wait_for(offset)
        try:
            await future
        finally:
            self._core.forget(future)

    async def trim(self, new_start_offset: int) -> None:
        await self._changes.trim(self._core, new_start_offset)

    async def close(self) -> None:
        await self._changes.close_core(self._core)

    async def destroy(self) -> None:
        await self._changes.destroy_core(self._core)
