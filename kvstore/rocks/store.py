"""RocksKVStore: the contract over one RocksDB, with group commit.

Operations queue up while a write is under way. The next META call takes them all and makes them
durable with one synced write batch. Reads run on the same thread, so never during a write; a key
that RocksDB has in memory is read on the loop when no write is under way (about 2 µs).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from streamlog.errors import (
    Closed,
    Internal,
    MetadataUnavailable,
    Overloaded,
    StreamlogError,
)
from streamlog.kvstore.interface import StoredKeyValue
from streamlog.kvstore.rocks.core import RocksCore, Work
from streamlog.kvstore.rocks.database import RocksDatabase
from streamlog.kvstore.settings import KVSettings
from streamlog.kvstore.store import LocalStore
from streamlog.kvstore.transaction import Staging
from streamlog.runtime.clock import Clock
from streamlog.runtime.disk.folders import make_folder, typed_os_error
from streamlog.runtime.disk.lockfile import Lock, hold
from streamlog.runtime.offload import Lane, Offload, run_owned

log = logging.getLogger(__name__)

T = TypeVar("T")

LOCK_NAME = "streamlog.lock"


@dataclass(slots=True)
class _Queued:
    work: Work
    size_bytes: int
    done: asyncio.Future[Any]


class RocksKVStore(LocalStore):
    """Made by `open`. One process at a time can open a folder."""

    def __init__(
        self, core: RocksCore, lock: Lock, clock: Clock, offload: Offload, settings: KVSettings
    ) -> None:
        super().__init__(clock, core.revision, settings, is_new=core.is_new)
        self._core = core
        self._lock = lock
        self._offload = offload
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._drain: asyncio.Task[None] | None = None
        self._is_writing = False
        self._published = asyncio.Event()
        self._publish((), core.revision, core.leases.next_deadline())

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        clock: Clock,
        offload: Offload,
        settings: KVSettings | None = None,
    ) -> RocksKVStore:
        """Opens the folder, and makes it if it is absent.

        Errors: DataInUse (pid, host), Corrupt, UnsupportedVersion, DiskFull, MetadataUnavailable.
        """
        settings = settings or KVSettings()
        folder = os.path.abspath(path)
        core = RocksCore(RocksDatabase(folder, settings))

        def close(lock: Lock) -> None:
            try:
                core.close()
            finally:
                lock.release()

        opening = partial(_open, core, folder, clock.monotonic())
        lock = await run_owned(offload, Lane.META, opening, close)
        return cls(core, lock, clock, offload, settings)

    # writes

    async def _submit(self, work: Callable[[Staging, float], T], size_bytes: int) -> T:
        if self._queued_bytes + size_bytes > self._settings.queue_bytes_max:
            raise Overloaded(
                f"{self._queued_bytes} bytes of metadata writes wait for the disk already",
                queued_bytes=self._queued_bytes,
                bound_bytes=self._settings.queue_bytes_max,
            )
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Queued(work, size_bytes, done))
        self._queued_bytes += size_bytes
        if self._drain is None or self._drain.done():
            self._drain = self._tasks().spawn(self._drain_queue(), name="commit")
        return await done

    async def _drain_queue(self) -> None:
        """Runs while operations are queued; a bug fails all of them, and the store."""
        group: list[_Queued] = []
        try:
            while self._queue:
                group = self._take_group()
                await self._commit(group)
        except Exception as error:
            self._fail([*group, *self._queue], Internal(f"the metadata store broke: {error!r}"))
            self._queue.clear()
            raise
        finally:
            self._is_writing = False

    def _take_group(self) -> list[_Queued]:
        """The next operations in order, without those whose caller was cancelled."""
        group: list[_Queued] = []
        size = 0
        while self._queue and len(group) < self._settings.group_operations_max:
            size += self._queue[0].size_bytes
            if group and size > self._settings.group_bytes_max:
                break
            queued = self._queue.popleft()
            self._queued_bytes -= queued.size_bytes
            if not queued.done.done():
                group.append(queued)
        return group

    async def _commit(self, group: list[_Queued]) -> None:
        self._is_writing = True
        works = [queued.work for queued in group]
        done = await self._offload.run(Lane.META, self._core.run, works, self._clock.monotonic())
        self._publish(done.batches, done.revision, done.next_deadline)
        self._is_writing = False
        self._published.set()
        self._published = asyncio.Event()
        if done.failure is not None:
            self._fail(group, done.failure)
            return
        for queued, outcome in zip(group, done.outcomes, strict=True):
            if isinstance(outcome, StreamlogError):
                self._fail([queued], outcome)
            elif not queued.done.done():
                queued.done.set_result(outcome)

    def _fail(self, group: Sequence[_Queued], error: StreamlogError) -> None:
        for queued in group:
            if not queued.done.done():
                # Each caller gets its own instance, because of the traceback.
                own = type(error)(error.message, **error.fields)
                own.__cause__ = error.__cause__
                queued.done.set_exception(own)

    # reads

    async def _read_key(self, key: bytes) -> StoredKeyValue | None:
        if not self._is_writing:
            is_known, kv = self._core.database.peek(key)
            if is_known:
                return kv
        await self._ensure_open()
        kv, found_at = await self._offload.run(Lane.META, self._core.read, key)
        await self._until_published(found_at)
        return kv

    async def _read_range(
        self, start: bytes, end: bytes, limit: int
    ) -> tuple[Sequence[StoredKeyValue], int]:
        if start >= end:
            return (), self._revision
        await self._ensure_open()
        cursor, found_at = await self._offload.run(Lane.META, self._core.open_range, start, end)
        kvs: list[StoredKeyValue] = []
        try:
            more = True
            while more and (not limit or len(kvs) < limit):
                page, more = await self._offload.run(
                    Lane.META, cursor.page, self._settings.page_bytes_max, limit - len(kvs)
                )
                kvs += page
        finally:
            cursor.close()
        await self._until_published(found_at)
        return kvs, found_at

    async def _ensure_open(self) -> None:
        """Reopens the database by an empty write, if a failed write has closed it."""
        if not self._core.database.is_open and not self._is_closed:
            await self._submit(lambda staging, now: None, 0)

    async def _until_published(self, revision: int) -> None:
        """Waits until watchers can have the changes that a read has seen."""
        while self._revision < revision:
            if self._is_closed:
                raise Closed("the key-value store was closed")
            await self._published.wait()

    async def _close_backend(self) -> None:
        queue, self._queue = self._queue, deque()
        self._queued_bytes = 0
        self._fail(list(queue), Closed("the key-value store was closed; nothing happened"))
        if self._drain is not None:
            await asyncio.wait([self._drain])
        try:
            await self._offload.run(Lane.META, self._core.close)
        finally:
            self._lock.release()


def _open(core: RocksCore, folder: str, now: float) -> Lock:
    try:
        make_folder(folder)
    except OSError as error:
        raise typed_os_error(
            error, folder, "making the metadata folder", MetadataUnavailable
        ) from error
    lock = hold(os.path.join(folder, LOCK_NAME), MetadataUnavailable)
    try:
        core.open(now)
    except BaseException:
        lock.release()
        raise
    return lock
