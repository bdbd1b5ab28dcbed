"""The plug-ins that come with the program, each over a place whose files a test may change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.testing.clocks import ManualClock
from streamlog.tiered.api import IndexType, RemoteLogSegmentMetadata, RemoteStorageManager
from streamlog.tiered.storage.fsspec_storage_manager import FsspecStorageManager
from streamlog.tiered.storage.local_tiered_storage import LocalTieredStorage
from streamlog.tiered.storage.names import (
    FileKind,
    local_name,
    object_name,
    partition_folder,
    segment_key,
)
from streamlog.tiered.storage.object_storage_manager import ObjectRemoteStorageManager

PREFIX = "remote"


class InterruptedReads(ObjectRemoteStorageManager):
    """Something happens before the first read of a kind of file."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, PREFIX)
        self.events: dict[FileKind, Callable[[], Awaitable[None]]] = {}

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Buffer:
        await self.happen(None)
        return await super().fetch_log_segment(metadata, start_position, end_position)

    async def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Buffer:
        await self.happen(index_type)
        return await super().fetch_index(metadata, index_type)

    async def happen(self, kind: FileKind) -> None:
        event = self.events.pop(kind, None)
        if event is not None:
            await event()


class ChangeablePlace(NamedTuple):
    """`put` gives a file other bytes; None: it is gone."""

    storage: RemoteStorageManager
    get: Callable[[RemoteLogSegmentMetadata, FileKind], Awaitable[bytes]]
    put: Callable[[RemoteLogSegmentMetadata, FileKind, bytes | None], Awaitable[None]]


OpenPlace = Callable[[Path], AbstractAsyncContextManager[ChangeablePlace]]


@asynccontextmanager
async def object_place(_folder: Path) -> AsyncIterator[ChangeablePlace]:
    store = MemoryObjectStore(ManualClock())

    async def get(metadata: RemoteLogSegmentMetadata, kind: FileKind) -> bytes:
        return bytes(await store.get(segment_key(PREFIX, metadata, kind)))

    async def put(metadata: RemoteLogSegmentMetadata, kind: FileKind, data: bytes | None) -> None:
        key = segment_key(PREFIX, metadata, kind)
        if data is None:
            await store.delete([key])
        else:
            await store.put(key, [data])

    yield ChangeablePlace(InterruptedReads(store), get, put)


@asynccontextmanager
async def local_place(folder: Path) -> AsyncIterator[ChangeablePlace]:
    storage = LocalTieredStorage()
    storage.configure({"dir": str(folder)})
    yield _of_files(storage, folder / "kafka-tiered-storage", local_name)
    await storage.close()


@asynccontextmanager
async def fsspec_place(folder: Path) -> AsyncIterator[ChangeablePlace]:
    storage = FsspecStorageManager()
    storage.configure({"url": f"file://{folder}"})
    yield _of_files(storage, folder, object_name)
    await storage.close()


PLACES: list[OpenPlace] = [object_place, local_place, fsspec_place]


def _of_files(
    storage: RemoteStorageManager,
    root: Path,
    name: Callable[[RemoteLogSegmentMetadata, FileKind], str],
) -> ChangeablePlace:
    def path(metadata: RemoteLogSegmentMetadata, kind: FileKind) -> Path:
        return root / partition_folder(metadata.topic_id_partition) / name(metadata, kind)

    async def get(metadata: RemoteLogSegmentMetadata, kind: FileKind) -> bytes:
        return path(metadata, kind).read_bytes()

    async def put(metadata: RemoteLogSegmentMetadata, kind: FileKind, data: bytes | None) -> None:
        if data is None:
            path(metadata, kind).unlink()
        else:
            path(metadata, kind).write_bytes(data)

    return ChangeablePlace(storage, get, put)
