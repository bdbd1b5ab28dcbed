"""Indexes of remote segments in files of this node (Kafka's remote-log-index-cache).

1. An index is fetched once, however many ask for it, and lies in a file of Kafka's name
   (`<base offset>_<uuid><suffix>`) until there is no room, or its segment is deleted.
2. All files together have at most `bytes_max`; those that were not used for longest go first. An
   index that is in use stays.
3. What is read from a file is checked as what was fetched is, by its form and by the plug-in,
   which may have its checksum: a damaged one is fetched anew, and one that was fetched damaged is
   an error and never used.
4. At the start all files of other names go, and those with a name are taken as they are.
5. Where this node's disk fails, or is full, an index is fetched and not kept, and a file may stay
   until it is written anew: nobody is kept from what is in the store.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID

from streamlog.errors import Corrupt, DiskFull, ObjectNotFound, StoreUnavailable
from streamlog.format.kafka_files import offset_index, time_index
from streamlog.format.kafka_files.properties import decode_id, encode_id
from streamlog.format.kafka_files.transaction_index import decode_aborted
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.keyed_lock import KeyedLock
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.offload import Lane, Offload
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.api.storage_manager import IndexType

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FOLDER = "remote-log-index-cache"
Fetch = Callable[[RemoteLogSegmentMetadata, IndexType], Awaitable[Buffer]]
Check = Callable[[RemoteLogSegmentMetadata, IndexType, Buffer], None]
SUFFIXES = {
    IndexType.OFFSET: ".index",
    IndexType.TIMESTAMP: ".timeindex",
    IndexType.TRANSACTION: ".txnindex",
}
_NAME = re.compile(r"(\d{20})_([A-Za-z0-9_-]{22})(\.index|\.timeindex|\.txnindex)\Z", re.ASCII)
_TEMPORARY = ".tmp"


class IndexKey(NamedTuple):
    base_offset: int
    unique: UUID
    index_type: IndexType

    @property
    def file_name(self) -> str:
        suffix = SUFFIXES[self.index_type]
        return f"{self.base_offset:020d}_{encode_id(self.unique)}{suffix}"


class RemoteIndexCache:
    """`tree` has the folder of the cache, which is made with the first index. `fetch` and `check`
    are the plug-in's."""

    def __init__(
        self, tree: FolderTree, fetch: Fetch, check: Check, offload: Offload, bytes_max: int
    ) -> None:
        self._tree = tree
        self._fetch = fetch
        self._check = check
        self._offload = offload
        self._bytes_max = bytes_max
        self._sizes: OrderedDict[IndexKey, int] = OrderedDict()
        """Of the files, those that were not used for longest first."""
        self._turns = KeyedLock[IndexKey]()
        self._made: GrowingFolder | None = None
        self._is_disk_sound = True
        self.size_bytes = 0

    async def load(self) -> None:
        """Takes over what the folder has. Errors: StoreUnavailable."""
        for key, size in (await self._run(self._look_around)).items():
            self._sizes[key] = size
            self.size_bytes += size
        await self._make_room()

    def _look_around(self) -> dict[IndexKey, int]:
        found: dict[IndexKey, int] = {}
        if FOLDER not in self._tree.folders():
            return found
        types = {suffix: kind for kind, suffix in SUFFIXES.items()}
        for name in self._folder.list():
            parts = _NAME.match(name)
            if parts is None:
                self._folder.remove(name)
                continue
            unique = decode_id(name, parts[2])
            file = self._folder.open(name)
            try:
                found[IndexKey(int(parts[1]), unique, types[parts[3]])] = file.size()
            finally:
                file.close()
        return found

    async def get(self, segment: RemoteLogSegmentMetadata, index_type: IndexType) -> Buffer:
        """The whole index; of a TRANSACTION one that is not there b"".

        Errors: what the fetch raises, Corrupt.
        """
        key = IndexKey(segment.start_offset, segment.remote_log_segment_id.id, index_type)
        async with self._turns.holding(key):
            data = await self._stored(key, segment)
            return await self._fetched(key, segment) if data is None else data

    async def _stored(self, key: IndexKey, segment: RemoteLogSegmentMetadata) -> Buffer | None:
        if key not in self._sizes:
            return None
        self._sizes.move_to_end(key)
        try:
            data = await self._run(self._read, key.file_name)
            check_index(key, segment, data)
            self._check(segment, key.index_type, data)
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
            log.warning("an index of the remote tier is fetched anew: %s", error)
            self._leave_out(key)
            return None
        return data

    async def _fetched(self, key: IndexKey, segment: RemoteLogSegmentMetadata) -> Buffer:
        try:
            data = await self._fetch(segment, key.index_type)
        except ObjectNotFound:
            if key.index_type is not IndexType.TRANSACTION:
                raise
            data = b""
        check_index(key, segment, data)
        with self._told():
            await self._run(self._write, key.file_name, data)
            self.size_bytes += len(data) - self._sizes.pop(key, 0)
            self._sizes[key] = len(data)
            await self._make_room()
        return data

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A failure of this node's disk, once until the disk works again, is told in the log."""
        try:
            yield
        except (DiskFull, StoreUnavailable) as error:
            if self._is_disk_sound:
                log.warning("indexes of the remote tier are not kept, or not removed: %s", error)
            self._is_disk_sound = False
        else:
            self._is_disk_sound = True

    def distrust(self, segment: RemoteLogSegmentMetadata, index_type: IndexType) -> None:
        """The index does not tell what is in the segment: the next one who asks gets it anew."""
        self._leave_out(
            IndexKey(segment.start_offset, segment.remote_log_segment_id.id, index_type)
        )

    def _leave_out(self, key: IndexKey) -> None:
        """It may be gone: an index is evicted, and its segment deleted, while its file is read."""
        self.size_bytes -= self._sizes.pop(key, 0)

    async def _make_room(self) -> None:
        names: list[str] = []
        while self.size_bytes > self._bytes_max and len(self._sizes) > 1:
            key, size = self._sizes.popitem(last=False)
            self.size_bytes -= size
            names.append(key.file_name)
        if names:
            await self._run(self._remove, names)

    async def forget(self, segment: RemoteLogSegmentMetadata) -> None:
        """The segment is deleted."""
        unique = segment.remote_log_segment_id.id
        keys = [key for key in self._sizes if key.unique == unique]
        for key in keys:
            self._leave_out(key)
        if keys:
            with self._told():
                await self._run(self._remove, [key.file_name for key in keys])

    @property
    def _folder(self) -> GrowingFolder:
        """It may be made: ask for it off the loop. Errors: OSError."""
        if self._made is None:
            self._made = self._tree.make(FOLDER)
        return self._made

    def _read(self, name: str) -> bytes:
        file = self._folder.open_to_read(name)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def _write(self, name: str, data: Buffer) -> None:
        """Its content is durable before it has its name: a torn one could pass for a sound one."""
        temporary = name + _TEMPORARY
        self._remove([temporary])
        try:
            file = self._folder.create(temporary)
            try:
                file.append([data])
                file.sync()
            finally:
                file.close()
            self._folder.rename(temporary, name)
        except OSError:
            # It would take room, and count for nothing.
            self._remove([temporary])
            raise

    def _remove(self, names: list[str]) -> None:
        for name in names:
            try:
                self._folder.remove(name)
            except FileNotFoundError:
                continue

    async def _run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        try:
            return await self._offload.run(Lane.READ, work, *arguments)
        except OSError as error:
            doing = "using the indexes of the remote tier"
            raise typed_os_error(error, str(self._tree), doing, StoreUnavailable) from error


def check_index(key: IndexKey, segment: RemoteLogSegmentMetadata, data: Buffer) -> None:
    """Errors: Corrupt."""
    span = segment.end_offset - segment.start_offset + 1
    if key.index_type is IndexType.OFFSET:
        size = max(segment.segment_size_bytes, 1)
        is_sound = offset_index.sound_prefix(data, span, size) == len(data)
    elif key.index_type is IndexType.TIMESTAMP:
        is_sound = time_index.sound_times(data, span) == len(data)
    else:
        last = segment.start_offset - 1
        is_sound = True
        for entry in decode_aborted(data):
            # An entry lies in the segment of its marker.
            is_sound &= last < entry.last_offset <= segment.end_offset
            is_sound &= 0 <= entry.first_offset < entry.last_offset
            last = entry.last_offset
    if not is_sound:
        raise Corrupt(
            f"the {key.index_type.value} index of the remote segment "
            f"{segment.remote_log_segment_id} is damaged",
            object_key=str(segment.remote_log_segment_id),
        )
