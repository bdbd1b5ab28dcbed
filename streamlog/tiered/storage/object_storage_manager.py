"""ObjectRemoteStorageManager: remote segments are objects of the engine's own kind of store.

1. Each file of a segment is an object; the log is the last one that is stored.
2. An index goes up whole. A log goes up in pieces where the store takes them: a copy holds one
   piece of 4 MiB and what the store keeps back, in a folder 1 MiB, on S3 a part (16 MiB by default;
   a segment that one PUT may have is held whole). A store that takes whole objects only (memory,
   `client=obstore`) gets the whole log at once: one copy at a time holds as much memory as its
   segment has bytes, and the others wait.
3. A write that makes an object visible runs to its end although its copy is cancelled, so that the
   delete that follows finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from streamlog.objectstore.interface import (
    FULL_RATE,
    ObjectStore,
    ObjectUpload,
    SendRate,
    upload_to,
)
from streamlog.objectstore.keys import check_key
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.cancellation import to_its_end
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.api.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentFile,
    StoredFile,
)
from streamlog.tiered.storage.files import files_of, pieces, range_length
from streamlog.tiered.storage.index_checksums import IndexChecksums, as_stored, check_stored
from streamlog.tiered.storage.names import KINDS, parsed_key, segment_key


class ObjectRemoteStorageManager(RemoteStorageManager):
    """Over a store that the caller opens and closes.

    Calls raise what the store raises: StoreUnavailable, OutcomeUnknown, DiskFull, Internal.
    """

    has_own_place = True

    def __init__(self, store: ObjectStore, prefix: str, rate: SendRate = FULL_RATE) -> None:
        """`prefix`: the beginning of all keys, of one cluster alone. `rate`: of segments on their
        way to it. Errors: InvalidName."""
        self._store = store
        self._rate = rate
        self._prefix = check_key(prefix)
        self._whole = asyncio.Lock()

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        checksums = IndexChecksums()
        for kind, content in files_of(data):
            key = segment_key(self._prefix, metadata, kind)
            if kind is not None or isinstance(content, bytes):
                await self._put(key, [piece async for piece in checksums.pieces(kind, content)])
                continue
            upload = upload_to(self._store, key, content.size_bytes, self._rate)
            if upload is not None:
                await _send(upload, content)
                continue
            async with self._whole:
                await self._put(key, [piece async for piece in pieces(content)])
        return checksums.custom_metadata()

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Buffer:
        """Errors: also Invalid, for a start past the end of the segment."""
        length = range_length(start_position, end_position)
        key = segment_key(self._prefix, metadata, None)
        return await self._store.get(key, start_position, length)

    async def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Buffer:
        """As RemoteStorageManager.fetch_index."""
        key = segment_key(self._prefix, metadata, index_type)
        return await as_stored(metadata, index_type, self._store.get(key))

    def check_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, data: Buffer
    ) -> None:
        check_stored(metadata, index_type, data)

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        keys = [segment_key(self._prefix, metadata, kind) for kind in KINDS]
        await to_its_end(self._store.delete(keys))

    async def stored_files(self) -> AsyncIterator[StoredFile]:
        """As RemoteStorageManager.stored_files: 1000 objects a request."""
        token: str | None = None
        while True:
            page = await self._store.list(f"{self._prefix}/", token=token)
            for info in page.objects:
                ids = parsed_key(self._prefix, info.key)
                if ids is not None:
                    yield StoredFile(*ids, info.key, info.size_bytes, info.modified_ms)
            token = page.next_token
            if token is None:
                return

    async def delete_stored_files(self, names: Sequence[str]) -> None:
        await to_its_end(self._store.delete(names))

    async def _put(self, key: str, parts: Sequence[Buffer]) -> None:
        await to_its_end(self._store.put(key, parts))


async def _send(upload: ObjectUpload, content: SegmentFile) -> None:
    try:
        async for piece in pieces(content):
            await upload.write([piece])
        await to_its_end(upload.finish())
    except BaseException:
        upload.give_up()
        raise
