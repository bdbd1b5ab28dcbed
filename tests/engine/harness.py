"""An engine over fakes that outlive it, so that it can crash and come back."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from streamlog.engine.config import AppendConfig, ReadConfig, StreamEngineConfig, UploadConfig
from streamlog.engine.engine import Engine, EngineParts
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.errors import Corrupt, StoreUnavailable
from streamlog.model.batch import AppendResult, RecordBatch, StoredBatch
from streamlog.model.stream import Stream
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import Offload, ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.wal.config import WalMode
from tests.engine.fakes import FakeMetadata, FakeWal
from tests.engine.remote import InlineOffload, LoopClock

TIMEOUT_S = 60.0
QUICK = StreamEngineConfig(
    append=AppendConfig(retry_backoff_ms=1, retry_backoff_ms_max=5, drain_timeout_ms=2000),
    upload=UploadConfig(upload_interval_ms=5),
)
NO_CACHE = dataclasses.replace(QUICK, read=ReadConfig(tail_cache_bytes=0))


class FlakyStore(MemoryObjectStore):
    """Fails `puts_to_fail` PUTs, half of them after they took place; counts requests."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.puts_to_fail = 0
        self.puts = 0
        self.gets: list[tuple[str, int, int | None]] = []

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        self.puts += 1
        if self.puts_to_fail:
            self.puts_to_fail -= 1
            if self.puts_to_fail % 2:
                await super().put(key, parts, if_absent=if_absent)
            raise StoreUnavailable("away", operation="put")
        return await super().put(key, parts, if_absent=if_absent)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        self.gets.append((key, start, length))
        return await super().get(key, start, length)


class World:
    """Store, metadata and WAL, which outlive a crash of the engine."""

    def __init__(
        self, mode: WalMode, config: StreamEngineConfig = QUICK, *, is_virtual: bool = False
    ) -> None:
        """`is_virtual`: for `virtually`; deadlines pass when nothing else is left to do."""
        self.mode: WalMode = mode
        self.clock: Clock = LoopClock() if is_virtual else SystemClock()
        self._new_offload: Callable[[], Offload] = InlineOffload if is_virtual else ThreadOffload
        self.config = config
        self.metadata = FakeMetadata()
        self.store = FlakyStore()
        self.wal = FakeWal() if mode == "disk" else None

    @property
    def gate(self) -> asyncio.Event:
        """Appends become durable while it is set."""
        return self.metadata.gate if self.wal is None else self.wal.gate

    @asynccontextmanager
    async def engine(
        self, *, crash: bool = False
    ) -> AsyncIterator[tuple[EngineStreamClient, Engine]]:
        """An engine; closed at the end, or killed (`crash`)."""
        offload = self._new_offload()
        engine = Engine(
            EngineParts(
                self.mode,
                self.metadata.as_metadata,
                self.store,
                None if self.wal is None else self.wal.as_wal,
                self.clock,
                SeededRandom(1),
                offload,
                CollectorRegistry(),
                False,
            ),
            self.config,
        )
        await engine.start()
        try:
            yield EngineStreamClient(engine), engine
        finally:
            await (engine.kill() if crash else engine.close())
            await offload.close()
            self.metadata.next_tenure()


def damaged_range(error: BaseException) -> range:
    """The bytes of the object that the error tells of."""
    assert isinstance(error, Corrupt)
    assert isinstance(error.start, int)
    assert isinstance(error.end, int)
    return range(error.start, error.end)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs the scenario in a new event loop, for a bounded time."""
    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


def batch(payload: bytes, *, records: int = 1, attributes: bytes = b"") -> RecordBatch:
    return RecordBatch(records, 1000, (payload,), attributes)


def sent(append: Awaitable[AppendResult]) -> asyncio.Future[AppendResult]:
    """The append as a future."""
    return asyncio.ensure_future(append)


def payloads(batches: Sequence[StoredBatch]) -> list[bytes]:
    return [b"".join(stored.parts) for stored in batches]


async def read_all(stream: Stream, start: int | None = None, hint: int = 1 << 20) -> list[bytes]:
    """Every payload from `start` on, fetch by fetch."""
    read: list[bytes] = []
    position = stream.start_offset if start is None else start
    end = stream.confirm_offset
    while position < end:
        result = await stream.fetch(position, end, hint)
        read += payloads(result.batches)
        position = result.batches[-1].end_offset
    return read


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds."""
    while not condition():  # noqa: ASYNC110 - any state may be waited for
        await asyncio.sleep(0.001)


async def error_of(awaitable: Awaitable[object]) -> BaseException | None:
    """The error that it raises, or None."""
    (result,) = await asyncio.gather(awaitable, return_exceptions=True)
    return result if isinstance(result, BaseException) else None
