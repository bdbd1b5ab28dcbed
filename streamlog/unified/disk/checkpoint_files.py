"""The checkpoint files at the top of a log folder: one offset for each partition.

A change is noted at once and written by `save`; calls that wait while the file is written share the
next write, so that many partitions that change together cost few writes.

A write that finds no room for its temporary file has changed nothing. One that fails behind that
leaves the old file or the new one: what it would have changed is in doubt until the next write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from threading import Lock
from typing import TypeVar, TypeVarTuple

from streamlog.errors import StoreUnavailable, StreamlogError
from streamlog.format.kafka_files.checkpoints import decode_offsets, encode_offsets
from streamlog.model.partition import TopicPartition
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.offload import Lane, Offload
from streamlog.unified.disk.files import read_if_there, write_temporary
from streamlog.unified.disk.folder_writes import FolderWrites

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class OffsetCheckpoint:
    """One file. An unreadable one counts as empty: Kafka does so, too."""

    def __init__(
        self, name: str, top: GrowingFolder, offload: Offload, writes: FolderWrites
    ) -> None:
        self._name = name
        self._top = top
        self._offload = offload
        self._writes = writes
        self._offsets: dict[TopicPartition, int] = {}
        self._durable: dict[TopicPartition, int] = {}
        """Those of the last write that ended well."""
        self._in_doubt: set[TopicPartition] = set()
        """Those that a write may have changed since."""
        self._lock = asyncio.Lock()
        self._changes = 0
        self._saved = 0
        self._writing = Lock()
        self._renamed = 0
        """Changes of the last write that went as far as the rename."""
        self._written = 0

    async def load(self) -> None:
        """Errors: StoreUnavailable."""
        data = await self._run(read_if_there, self._top, self._name)
        if data is None:
            return
        try:
            self._offsets = decode_offsets(self._name, data)
            self._durable = dict(self._offsets)
        except StreamlogError as error:
            log.warning("%s is passed over: %s", self._name, error)

    def get(self, partition: TopicPartition) -> int:
        """0: the file does not have it."""
        return self._offsets.get(partition, 0)

    def find(self, partition: TopicPartition) -> int:
        """-1: the file does not have it."""
        return self._offsets.get(partition, -1)

    def note(self, partition: TopicPartition, offset: int) -> None:
        if self._offsets.get(partition) != offset:
            self._offsets[partition] = offset
            self._changes += 1

    async def change(self, partition: TopicPartition, offset: int) -> None:
        """Durable on return. Errors: StoreUnavailable, DiskFull: with `has_no_side_effects` the
        offset is as before, here and in the file."""
        before = self._offsets.get(partition)
        self.note(partition, offset)
        try:
            await self.save()
        except StreamlogError as error:
            error.has_no_side_effects = partition not in self._in_doubt
            if error.has_no_side_effects:
                self._put_back(partition, before)
            raise

    def _put_back(self, partition: TopicPartition, offset: int | None) -> None:
        if offset is None:
            self.forget(partition)
        else:
            self.note(partition, offset)

    async def lower(self, partition: TopicPartition, end_offset: int) -> None:
        """The log ends there: an offset behind that is of records that were lost. Durable on
        return. Errors: StoreUnavailable (the offset is as before)."""
        before = self.find(partition)
        if before <= end_offset:
            return
        self.note(partition, end_offset)
        try:
            await self.save()
        except BaseException:
            self.note(partition, before)
            raise

    def forget(self, partition: TopicPartition) -> None:
        if self._offsets.pop(partition, None) is not None:
            self._changes += 1

    def is_durable(self, partition: TopicPartition) -> bool:
        """Whether the file has what was noted of the partition, whatever it lacks of others."""
        is_certain = partition not in self._in_doubt
        return is_certain and self._durable.get(partition) == self._offsets.get(partition)

    @property
    def is_saved(self) -> bool:
        return self._saved >= self._changes

    async def save(self) -> None:
        """What was noted by now is durable on return. Errors: StoreUnavailable."""
        wanted = self._changes
        async with self._lock:
            if self._saved >= wanted:
                return
            written, offsets = self._changes, dict(self._offsets)
            in_doubt = self._in_doubt
            self._in_doubt = in_doubt | {one for one, _ in self._durable.items() ^ offsets.items()}
            try:
                with self._writes.of(f"a write of {self._name}", self._name):
                    await self._run(self._write, written, encode_offsets(offsets))
            except StreamlogError:
                if self._renamed < written:
                    self._in_doubt = in_doubt
                raise
            self._saved, self._durable, self._in_doubt = written, offsets, set()

    def _write(self, changes: int, data: bytes) -> None:
        """A caller that was cancelled leaves its thread writing: the next one waits for it."""
        with self._writing:
            if changes > self._written:
                temporary = write_temporary(self._top, self._name, data)
                self._renamed = changes
                self._top.rename(temporary, self._name)
                self._top.sync()
                self._written = changes

    async def _run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        try:
            return await self._offload.run(Lane.FILES, work, *arguments)
        except OSError as error:
            doing = f"the checkpoint {self._name}"
            raise typed_os_error(error, str(self._top), doing, StoreUnavailable) from error
