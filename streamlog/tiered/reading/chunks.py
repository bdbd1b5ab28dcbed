"""Chunks of remote segments in memory: what one ranged GET brings serves many small fetches.

1. A chunk is loaded by one task, however many readers wait for it, and the task goes on when they
   stop waiting: a store that is slower than a fetch may wait still makes progress, because the next
   fetch finds the chunk here.
2. A reader that goes through a segment has its next chunk loaded ahead, and two more while those
   that nobody has read yet have no more than half of the memory: what is loaded for many readers at
   a time must not push out what the first of them are still to read.
3. Memory is bounded: chunks that were not used for longest go first. Loads under way are bounded,
   too: `loads` run at a time, and beyond `pending_max` of them a read is refused.
4. A failed load is tried again with back-off while somebody waits for it; one that does not end is
   given up after `load_timeout_ms`, and counts as failed. A segment that is gone, damaged or of a
   newer version is told at once, and is no outage.
5. What proves damaged may have been changed on its way, and is loaded anew: at once, and then once
   a second, because the storage may have nothing else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from streamlog.errors import (
    Corrupt,
    NotFound,
    Overloaded,
    StoreUnavailable,
    StreamlogError,
    UnsupportedVersion,
)
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background, why_ended
from streamlog.tiered.api.segments import RemoteLogSegmentId, RemoteLogSegmentMetadata
from streamlog.tiered.reading.failures import RemoteFailures
from streamlog.tiered.reading.plugin_calls import PluginCalls

ANEW_S = 1.0
"""How often what is damaged is loaded anew: a consumer may try again at once, without end."""
Load = Callable[[RemoteLogSegmentMetadata, int, int], Awaitable[Buffer]]
"""Bytes from one position to the other, both inclusive."""


@dataclass(frozen=True, slots=True)
class ChunkConfig:
    """Bytes in memory, bytes of a chunk, loads at a time and loads under way at most."""

    cache_bytes: int = 64 << 20
    chunk_bytes: int = 4 << 20
    loads: int = 10
    pending_max: int = 100
    retry_ms: int = 100
    retry_ms_max: int = 2_000
    load_timeout_ms: int = 30_000


class ChunkKey(NamedTuple):
    segment_id: RemoteLogSegmentId
    number: int


class ChunkCache:
    def __init__(
        self,
        load: Load,
        config: ChunkConfig,
        clock: Clock,
        failures: RemoteFailures,
        calls: PluginCalls,
        background: Background,
    ) -> None:
        self._load = load
        self._config = config
        self._clock = clock
        self._failures = failures
        self._calls = calls
        self._background = background
        self._kept: OrderedDict[ChunkKey, Buffer] = OrderedDict()
        self._bytes = 0
        self._loading: dict[ChunkKey, asyncio.Future[Buffer]] = {}
        self._unread: set[ChunkKey] = set()
        """Those in memory, or on their way, that nobody has read."""
        self._wanted: dict[ChunkKey, int] = {}
        """How many readers wait for a load."""
        self._asked_anew: dict[Hashable, float] = {}
        """What was damaged, and when it was asked for again."""
        self._turns = asyncio.Semaphore(config.loads)
        self.loads = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def size_bytes_max(self) -> int:
        return self._config.cache_bytes

    @property
    def chunk_bytes(self) -> int:
        return self._config.chunk_bytes

    @property
    def pending_max(self) -> int:
        """How many loads may be under way; more are refused."""
        return self._config.pending_max

    @property
    def pending(self) -> int:
        return len(self._loading)

    @property
    def has_room_far_ahead(self) -> bool:
        """Whether chunks may be loaded for which nobody will ask next."""
        return 2 * (len(self._unread) + 1) * self._config.chunk_bytes <= self._config.cache_bytes

    async def get(
        self, segment: RemoteLogSegmentMetadata, number: int, deadline: float
    ) -> Buffer | None:
        """The chunk; None: it is not there by the deadline, and comes later.

        Errors: StoreUnavailable (a load failed and none has succeeded by the deadline),
        NotFound, Corrupt (the plug-in says so, or returned other bytes), UnsupportedVersion,
        Overloaded, Internal (a bug).
        """
        key = ChunkKey(segment.remote_log_segment_id, number)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            self._unread.discard(key)
            return found
        loading = self._begin(segment, key, is_required=True)
        assert loading is not None
        self._wanted[key] = self._wanted.get(key, 0) + 1
        try:
            left_s = max(deadline - self._clock.monotonic(), 0)
            await asyncio.wait({loading}, timeout=left_s)
        finally:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
        if loading.done():
            self._unread.discard(key)
            return loading.result()
        if self._failures.is_lasting:
            raise self._failures.error(f"reading {key.segment_id}")
        return None

    def late(self, segment: RemoteLogSegmentMetadata) -> StoreUnavailable:
        """What somebody is told who cannot go on without the chunk."""
        what = f"reading {segment.remote_log_segment_id}"
        if self._failures.is_lasting:
            return self._failures.error(what)
        return StoreUnavailable(f"{what}: the remote storage has not answered in time; try again")

    def ahead(self, segment: RemoteLogSegmentMetadata, number: int) -> None:
        """Loads the chunk if there is room for it."""
        key = ChunkKey(segment.remote_log_segment_id, number)
        is_there = number * self._config.chunk_bytes < segment.segment_size_bytes
        if is_there and key not in self._kept:
            self._begin(segment, key, is_required=False)

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """The segment is deleted."""
        for key in [key for key in self._kept if key.segment_id == segment_id]:
            self._drop(key)

    def load_anew(self, segment_id: RemoteLogSegmentId, numbers: Iterable[int]) -> None:
        """The chunks have damage: the next reader of each has it loaded, where that is due."""
        for number in numbers:
            key = ChunkKey(segment_id, number)
            if key in self._kept and self.asks_anew(key):
                self._drop(key)

    def asks_anew(self, what: Hashable) -> bool:
        """Whether what proved damaged may be asked for again, which is noted then."""
        now = self._clock.monotonic()
        self._asked_anew = {one: at for one, at in self._asked_anew.items() if now - at < ANEW_S}
        if what in self._asked_anew:
            return False
        self._asked_anew[what] = now
        return True

    def _drop(self, key: ChunkKey) -> None:
        self._bytes -= len(self._kept.pop(key))
        self._unread.discard(key)

    def _begin(
        self, segment: RemoteLogSegmentMetadata, key: ChunkKey, *, is_required: bool
    ) -> asyncio.Future[Buffer] | None:
        loading = self._loading.get(key)
        if loading is not None:
            return loading
        most = self._config.pending_max if is_required else self._config.loads
        if len(self._loading) >= most:
            if not is_required:
                return None
            raise Overloaded(
                f"{len(self._loading)} reads of the remote storage are under way, as many as "
                "remote.log.reader.max.pending.tasks allows: fetch again later"
            )
        loading = asyncio.get_running_loop().create_future()
        self._loading[key] = loading
        self._unread.add(key)
        task = self._background.spawn(self._run(segment, key, loading), name="load")
        task.add_done_callback(lambda task: self._ended(key, loading, task))
        return loading

    def _ended(
        self, key: ChunkKey, loading: asyncio.Future[Buffer], task: asyncio.Task[None]
    ) -> None:
        self._loading.pop(key, None)
        if key not in self._kept:
            self._unread.discard(key)
        if not loading.done():
            loading.set_exception(
                why_ended(task, "the node stops: fetch again elsewhere, or later")
            )
        loading.exception()  # Those who wait get it; a load ahead is asked for again.

    async def _run(
        self, segment: RemoteLogSegmentMetadata, key: ChunkKey, loading: asyncio.Future[Buffer]
    ) -> None:
        try:
            data = await self._loaded(segment, key)
        except StreamlogError as error:
            loading.set_exception(error)
            return
        self._keep(key, data)
        loading.set_result(data)

    async def _loaded(self, segment: RemoteLogSegmentMetadata, key: ChunkKey) -> Buffer:
        config, retry_ms = self._config, self._config.retry_ms
        first = key.number * config.chunk_bytes
        last = min(first + config.chunk_bytes, segment.segment_size_bytes) - 1
        doing = f"reading {key.segment_id}"
        while True:
            try:
                async with self._turns:
                    self.loads += 1
                    data = await self._calls.run(
                        doing, config.load_timeout_ms, lambda: self._load(segment, first, last)
                    )
            except (NotFound, Corrupt, UnsupportedVersion):
                raise  # Of this segment: another try would find the same.
            except Exception as error:
                # A plug-in may raise anything: the outage is shown, and ends with a success.
                self._failures.failed(error)
                if key not in self._wanted:
                    raise self._failures.error(doing) from error
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, config.retry_ms_max)
                continue
            self._failures.succeeded()
            if len(data) != last - first + 1:
                raise Corrupt(
                    f"the remote segment {key.segment_id} has {len(data)} bytes from position "
                    f"{first} on, and should have {last - first + 1}",
                    object_key=str(key.segment_id),
                    start=first,
                    end=last + 1,
                )
            return data

    def _keep(self, key: ChunkKey, data: Buffer) -> None:
        self._kept[key] = data
        self._bytes += len(data)
        while self._bytes > self._config.cache_bytes and len(self._kept) > 1:
            passed, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest)
            self._unread.discard(passed)
