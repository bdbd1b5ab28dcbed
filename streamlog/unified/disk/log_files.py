"""The files of one partition that change: what a group of appends does to them, in order.

    AppendBatches  batches lie behind those of the active segment
    Roll           the active segment's data and indexes are durable, then the next one is there,
                   with the snapshot of the producers at its first offset; a sync of the folder
                   ends it
    Epochs         a new leader-epoch-checkpoint, before the first batch of the epoch

It blocks, but for `start`, by which a thread in C makes an append for the event loop. A lock keeps
a thread that is still writing when its caller has given up apart from the `close` that follows.
After an error the files are not changed again: whoever opens the partition
next cuts the active segment to `synced`, because pages of a failed write-back stay readable and
clean. Before that, a failed write is followed by a sync of what was written before it, which may
have been acknowledged; a failed sync is not. Readers open files of their own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple, TypeVar

from streamlog.format.kafka_files.names import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from streamlog.format.kafka_files.transaction_index import AbortedTxn, encode_aborted
from streamlog.runtime.buffers import Buffer, Parts
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.runtime.disk.system_folder import SystemGrowingFile
from streamlog.runtime.writer_threads import WriterThreads
from streamlog.unified.disk.files import replace_file, write_new

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOP_CHECK_S = 1.0
"""How often a thread that waits for the lock looks whether the loop is still there."""
GROUP_BYTES = 8 << 20
"""Bytes of one group: as much is on its way to the disk while others gather. One batch may be
larger."""


class AppendBatches(NamedTuple):
    """Whole batches."""

    parts: Parts


class IndexFiles(NamedTuple):
    """The index entries of one segment, packed as in its files."""

    base_offset: int
    offsets: Buffer
    times: Buffer
    aborted: Sequence[AbortedTxn]


class Roll(NamedTuple):
    """The segment `sealed` gets no more batches; the next one begins at `base_offset`."""

    sealed: IndexFiles
    base_offset: int
    snapshot: bytes


class Epochs(NamedTuple):
    """The content of the leader-epoch-checkpoint."""

    data: bytes


Step = AppendBatches | Roll | Epochs


class SyncedTo(NamedTuple):
    """Bytes of the segment that are durable; those behind them may not be."""

    base_offset: int
    size_bytes: int


class LogFiles:
    """The active segment's file is open from `open` on, until `close`."""

    def __init__(self, folder: GrowingFolder, base_offset: int, active: GrowingFile) -> None:
        self.folder = folder
        self._base_offset = base_offset
        self._active = active
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the last append by `start`."""
        self._wanted_by: list[None] = []
        """One for each thread that waits for the lock: the loop would not let them in."""
        self._is_closed = False
        self._failure: OSError | None = None
        self._is_lost = False
        """Whether a sync of the active segment has failed."""
        self.synced = SyncedTo(base_offset, active.size())

    @property
    def is_wanted(self) -> bool:
        """Whether a thread waits until it may change the files."""
        return bool(self._wanted_by)

    @classmethod
    def open(cls, folder: GrowingFolder, base_offset: int) -> LogFiles:
        """The segment's file is there, and durable as it is. Errors: OSError."""
        return cls(folder, base_offset, folder.open(file_name(base_offset, LOG)))

    def carry_out(self, steps: Sequence[Step], *, sync: bool) -> None:
        """`sync`: all of them are durable on return; else only what they need. Errors: OSError."""
        with self._changing():
            self._carry_out(steps)
            if sync:
                self._sync()

    def start(
        self,
        steps: Sequence[Step],
        threads: WriterThreads,
        done: Callable[[OSError | None], None],
        *,
        sync: bool,
    ) -> bool:
        """As `carry_out`, by a thread in C and for the event loop, where that can be; else False.

        `done` is called later, once. After an error `rescue` is due. Errors: OSError.
        """
        parts = [part for step in steps if isinstance(step, AppendBatches) for part in step.parts]
        is_append = parts and all(isinstance(step, AppendBatches) for step in steps)
        if not is_append or self.is_wanted or not self._lock.acquire(blocking=False):
            return False
        active = self._active

        def ended(error: OSError | None, is_written: bool) -> None:
            if error is not None:
                self._failure = error
                self._is_lost = is_written
            elif sync:
                self.synced = SyncedTo(self._base_offset, active.size())
            self._lock.release()
            done(error)

        is_begun = False
        try:
            if self._is_closed or self._failure is not None:
                raise self._unusable()
            if isinstance(active, SystemGrowingFile):
                self._loop = asyncio.get_running_loop()
                is_begun = active.append_by(threads, parts, ended, is_synced=sync)
        finally:
            if not is_begun:
                self._lock.release()
        return is_begun

    def rescue(self) -> None:
        """Behind an append of `start` that failed: syncs what was written before it."""
        with self._held():
            if not self._is_closed:
                self._rescue_once()

    def _rescue_once(self) -> None:
        if self._failure is not None and not self._is_lost:
            self._rescue()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The lock, for a thread. Errors: OSError (the loop that has it was closed before it was
        told what became of its append: the file may still be written)."""
        while not self._lock.acquire(timeout=LOOP_CHECK_S):
            if self._loop is not None and self._loop.is_closed():
                raise OSError(errno.EBADF, "the event loop ended in a write", str(self.folder))
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _next_in_line(self) -> Iterator[None]:
        """As `_held`, before the loop's next append."""
        self._wanted_by.append(None)
        is_in_line = True
        try:
            with self._held():
                self._wanted_by.pop()
                is_in_line = False
                yield
        finally:
            if is_in_line:
                self._wanted_by.pop()

    def _unusable(self) -> OSError:
        if self._is_closed or self._failure is None:
            return OSError(errno.EBADF, "the partition's files were closed", str(self.folder))
        return self._failure

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Errors: OSError, the first one again where there was one."""
        with self._next_in_line():
            if self._is_closed or self._failure is not None:
                raise self._unusable()
            try:
                yield
            except OSError as error:
                self._failure = error
                if not self._is_lost:
                    self._rescue()
                raise

    def _rescue(self) -> None:
        """A first error stays the one that is told."""
        try:
            self._sync()
        except OSError as error:
            log.warning("what was written before could not be synced either: %s", error)

    def _carry_out(self, steps: Sequence[Step]) -> None:
        parts: list[Buffer] = []
        for step in steps:
            if isinstance(step, AppendBatches):
                parts += step.parts
                continue
            self._append(parts)
            parts = []
            if isinstance(step, Roll):
                self._roll(step)
            else:
                replace_file(self.folder, LEADER_EPOCHS, step.data)
        self._append(parts)

    def _append(self, parts: Sequence[Buffer]) -> None:
        if parts:
            self._active.append(parts)

    def _sync(self) -> None:
        size = self._active.size()
        if self.synced.size_bytes != size:
            self._is_lost = True
            self._active.sync()
            self._is_lost = False
            self.synced = SyncedTo(self._base_offset, size)

    def _roll(self, step: Roll) -> None:
        self._sync()
        self._write_indexes(step.sealed)
        write_new(self.folder, file_name(step.base_offset, SNAPSHOT), step.snapshot)
        following = self.folder.create(file_name(step.base_offset, LOG))
        self._active.close()
        self._active, self._base_offset = following, step.base_offset
        self.synced = SyncedTo(step.base_offset, 0)
        self.folder.sync()

    def _write_indexes(self, indexes: IndexFiles) -> None:
        """Durable but for their names."""
        base = indexes.base_offset
        write_new(self.folder, file_name(base, INDEX), indexes.offsets)
        write_new(self.folder, file_name(base, TIME_INDEX), indexes.times)
        if indexes.aborted:
            write_new(self.folder, file_name(base, TXN_INDEX), encode_aborted(indexes.aborted))

    def exclusively(self, work: Callable[[], T]) -> T:
        """Calls `work`, which changes the partition's names, with nothing else under way. Errors:
        OSError."""
        with self._changing():
            return work()

    def replace(self, name: str, data: bytes) -> None:
        """A small file of the partition, durable on return, as are all batches before it. Errors:
        OSError."""
        with self._changing():
            self._sync()
            replace_file(self.folder, name, data)

    def finish(self, indexes: IndexFiles, end_offset: int, snapshot: bytes) -> None:
        """Writes down what Kafka does when it closes a log; durable on return. Errors: OSError."""
        with self._changing():
            self._sync()
            self._write_indexes(indexes)
            write_new(self.folder, file_name(end_offset, SNAPSHOT), snapshot)
            self.folder.sync()

    def close(self) -> None:
        """Waits for what a thread is writing; a second call does nothing."""
        with self._held():
            if not self._is_closed:
                self._rescue_once()  # Of an append whose caller was gone when it failed.
                self._is_closed = True
                self._active.close()
