"""LocalTieredStorage: remote segments in a folder, as Kafka's own class of this name lays it out.

    <dir>/kafka-tiered-storage/<topic>-<partition>-<topic id>/<base offset>-<segment id>.log
                                                                                        .index
                                                                                        .timeindex
                                                                                        .snapshot
                                                                                        .txnindex
                                                                    .leader_epoch_checkpoint

The folder may be a mounted one, of NFS for example. Segments that Kafka's class stored are read,
and the other way round. Unlike there, a copy is durable on return, replaces an earlier one, and a
crash leaves no half file under a segment's name. Source: LocalTieredStorage,
RemoteLogSegmentFileset and RemoteTopicPartitionDirectory, in package
org.apache.kafka.server.log.remote.storage of the test jar of kafka-storage 4.1.1.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from typing import TypeVar, TypeVarTuple

from streamlog.errors import InvalidConfig
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.cancellation import to_its_end
from streamlog.runtime.offload import Lane, Offload, ThreadOffload
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.api.storage_manager import IndexType, LogSegmentData, RemoteStorageManager
from streamlog.tiered.storage.configs import check_known, required
from streamlog.tiered.storage.files import files_of, range_length
from streamlog.tiered.storage.index_checksums import IndexChecksums, as_stored, check_stored
from streamlog.tiered.storage.local_files import FilesOnTheirWay, FolderOfTier
from streamlog.tiered.storage.names import (
    KINDS,
    FileKind,
    local_name,
    local_stem,
    partition_folder,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DIR = "dir"


class LocalTieredStorage(RemoteStorageManager):
    """A copy holds 4 MiB of a segment at a time. Calls raise StoreUnavailable, DiskFull."""

    def __init__(self, offload: Offload | None = None) -> None:
        """Without `offload` it has threads of its own: a mounted folder that hangs holds up no
        other work."""
        self._offload: Offload = ThreadOffload() if offload is None else offload
        self._owns_offload = offload is None
        self._tier: FolderOfTier | None = None
        self._copies = itertools.count()

    def configure(self, configs: Mapping[str, str]) -> None:
        """`dir`: the folder, made when it is not there. Errors: InvalidConfig."""
        check_known(configs, (DIR,))
        self._tier = FolderOfTier(os.path.abspath(required(configs, DIR, "/mnt/tier")))

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        folder = partition_folder(metadata.topic_id_partition)
        files = FilesOnTheirWay(self._configured(), folder, next(self._copies))
        checksums = IndexChecksums()
        try:
            for kind, content in files_of(data):
                await self._write(files.begin, local_name(metadata, kind))
                async for piece in checksums.pieces(kind, content):
                    await self._write(files.write, piece)
                await self._write(files.end)
            await self._write(files.publish)
        finally:
            await self._write(files.discard)
        return checksums.custom_metadata()

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
        folder = partition_folder(metadata.topic_id_partition)
        names = [local_name(metadata, kind) for kind in KINDS]
        await self._write(self._configured().delete, folder, names, local_stem(metadata))

    async def close(self) -> None:
        if self._owns_offload:
            await self._offload.close()

    async def _read(
        self, metadata: RemoteLogSegmentMetadata, kind: FileKind, position: int, length: int | None
    ) -> bytes:
        folder = partition_folder(metadata.topic_id_partition)
        name = local_name(metadata, kind)
        tier = self._configured()
        return await self._offload.run(Lane.GET, tier.read, folder, name, position, length)

    async def _write(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await to_its_end(self._offload.run(Lane.STORE, fn, *args))

    def _configured(self) -> FolderOfTier:
        if self._tier is None:
            raise InvalidConfig(f"LocalTieredStorage lacks its setting {DIR}", name=DIR)
        return self._tier
