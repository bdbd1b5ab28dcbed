"""FsspecStorageManager: remote segments in a file system that fsspec knows, HDFS first of all.

    <url>/<topic>-<partition>-<topic id>/<base offset>.<segment id>.<kind>

1. Settings are `url` (hdfs://, webhdfs://, file://, …), `exclusive` and `storage_options.<name>`,
   the arguments of the file system's class. Such a value is JSON where it can be read as JSON, else
   text: 8020 is a number, "8020" in quotes is text.
2. The library is optional (`pip install 'streamlog-engine[fsspec]'`), and so is what it asks for in
   its turn, such as pyarrow and Hadoop's client for hdfs://. It blocks, and has its own threads.
3. Files are written under their names; a copy that ends early leaves a part of them, which the
   delete removes. How durable a closed file is, the file system says: HDFS has it on as many nodes
   as it was told. Files of file:// are synced.
4. Listings, for the purge, take one call for the URL's folder and one for each partition's. A file
   of which the file system does not say when it was changed is young for ever.
5. Two clusters may have one URL: topics have ids. So the purge passes over topics that its cluster
   does not know, unless `exclusive` is true.

Source: KIP-405, whose first RemoteStorageManager was one for HDFS.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar, TypeVarTuple

from streamlog.errors import Invalid, InvalidConfig
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.cancellation import to_its_end
from streamlog.runtime.concurrency.gather import gather_all
from streamlog.runtime.offload import Lane, Offload, ThreadOffload, run_owned
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, TopicIdPartition
from streamlog.tiered.api.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    StoredFile,
)
from streamlog.tiered.storage.configs import check_known, required, truth
from streamlog.tiered.storage.files import files_of, range_length
from streamlog.tiered.storage.fsspec_files import (
    FsspecFileInWork,
    FsspecFiles,
    ListedEntry,
    check_url,
)
from streamlog.tiered.storage.index_checksums import IndexChecksums, as_stored, check_stored
from streamlog.tiered.storage.names import (
    KINDS,
    FileKind,
    object_name,
    parsed_folder,
    parsed_object_name,
    partition_folder,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

URL = "url"
EXCLUSIVE = "exclusive"
OPTIONS = "storage_options."
FOLDERS_AT_ONCE = 4
"""Are listed at a time, by half of the threads that read segments."""
YOUNG_MS = (1 << 63) - 1


class FsspecStorageManager(RemoteStorageManager):
    """A copy holds 4 MiB of a segment at a time, and what the file system keeps back.

    Calls raise StoreUnavailable, whatever the library raises.
    """

    def __init__(self, offload: Offload | None = None) -> None:
        """Without `offload` it has threads of its own."""
        self._offload: Offload = ThreadOffload() if offload is None else offload
        self._owns_offload = offload is None
        self._files: FsspecFiles | None = None

    def configure(self, configs: Mapping[str, str]) -> None:
        """Connects to nothing yet. Errors: InvalidConfig (also where a package is missing)."""
        check_known(configs, (URL, EXCLUSIVE), OPTIONS)
        self.has_own_place = truth(configs, EXCLUSIVE)
        url = required(configs, URL, "hdfs://namenode:8020/tier")
        options = {
            name.removeprefix(OPTIONS): _value(text)
            for name, text in configs.items()
            if name.startswith(OPTIONS)
        }
        check_url(url)
        self._files = FsspecFiles(url, options)

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        files, folder = self._configured(), partition_folder(metadata.topic_id_partition)
        checksums = IndexChecksums()
        await self._write(files.make, folder)
        for kind, content in files_of(data):
            name = object_name(metadata, kind)
            await self._copy(files, folder, name, checksums.pieces(kind, content))
        await self._write(files.sync, folder)
        return checksums.custom_metadata()

    async def _copy(
        self, files: FsspecFiles, folder: str, name: str, content: AsyncIterator[Buffer]
    ) -> None:
        file = await run_owned(
            self._offload, Lane.STORE, lambda: files.begin(folder, name), FsspecFileInWork.give_up
        )
        try:
            async for piece in content:
                await self._write(file.write, piece)
            await self._write(file.finish)
        finally:
            await self._write(file.give_up)

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Buffer:
        length = range_length(start_position, end_position)
        return await self._read(metadata, None, start_position, length)

    async def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Buffer:
        """As RemoteStorageManager.fetch_index."""
        return await as_stored(metadata, index_type, self._read(metadata, index_type, 0, None))

    def check_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, data: Buffer
    ) -> None:
        check_stored(metadata, index_type, data)

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        files, folder = self._configured(), partition_folder(metadata.topic_id_partition)
        names = [object_name(metadata, kind) for kind in KINDS]
        await self._write(files.delete, folder, names)

    async def delete_partition_data(self, partition: TopicIdPartition) -> None:
        """As RemoteStorageManager.delete_partition_data."""
        await self._write(self._configured().delete_folder, partition_folder(partition))

    async def stored_files(self) -> AsyncIterator[StoredFile]:
        """As RemoteStorageManager.stored_files."""
        files = self._configured()
        folders = [
            (one.name, partition)
            for one in await self._list(files, "")
            if one.is_folder and (partition := parsed_folder(one.name)) is not None
        ]
        for first in range(0, len(folders), FOLDERS_AT_ONCE):
            some = folders[first : first + FOLDERS_AT_ONCE]
            listings = await gather_all(self._list(files, name) for name, _ in some)
            for (name, partition), listed in zip(some, listings, strict=True):
                for one in listed:
                    segment_id = None if one.is_folder else parsed_object_name(one.name)
                    if segment_id is not None:
                        yield StoredFile(
                            partition.topic_id,
                            partition.partition,
                            segment_id,
                            f"{name}/{one.name}",
                            one.size_bytes,
                            YOUNG_MS if one.modified_ms is None else one.modified_ms,
                        )

    async def delete_stored_files(self, names: Sequence[str]) -> None:
        """Errors: Invalid, for a name that `stored_files` does not tell."""
        by_folder: dict[str, list[str]] = {}
        for one in names:
            folder, _, name = one.rpartition("/")
            if parsed_folder(folder) is None or parsed_object_name(name) is None:
                raise Invalid(f"{one[:80]!r} is no file of a remote segment")
            by_folder.setdefault(folder, []).append(name)
        for folder, some in by_folder.items():
            await self._write(self._configured().delete, folder, some)

    async def _list(self, files: FsspecFiles, folder: str) -> Sequence[ListedEntry]:
        return await self._offload.run(Lane.GET, files.list, folder)

    async def close(self) -> None:
        if self._owns_offload:
            await self._offload.close()

    async def _read(
        self, metadata: RemoteLogSegmentMetadata, kind: FileKind, start: int, length: int | None
    ) -> Buffer:
        files, folder = self._configured(), partition_folder(metadata.topic_id_partition)
        name = object_name(metadata, kind)
        return await self._offload.run(Lane.GET, files.read, folder, name, start, length)

    async def _write(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await to_its_end(self._offload.run(Lane.STORE, fn, *args))

    def _configured(self) -> FsspecFiles:
        if self._files is None:
            raise InvalidConfig(f"FsspecStorageManager lacks its setting {URL}", name=URL)
        return self._files


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
