"""A RemoteStorageManager as a third party writes one: in memory, by the public interface alone.

A node names it by its path, so a test finds the one that the node made in `MemoryTier.made`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar

from streamlog.errors import InvalidConfig, ObjectNotFound
from streamlog.tiered.api import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteStorageManager,
    SegmentFile,
)

PATH = "tests.support.memory_tier:MemoryTier"


async def whole(file: SegmentFile | bytes) -> bytes:
    if isinstance(file, bytes):
        return file
    """A read may bring fewer bytes than it was asked for."""
    pieces: list[bytes] = []
    position = 0
    while position < file.size_bytes:
        pieces.append(bytes(await file.read(position, file.size_bytes - position)))
        position += len(pieces[-1])
    return b"".join(pieces)


class MemoryTier(RemoteStorageManager):
    made: ClassVar[list[MemoryTier]] = []

    def __init__(self) -> None:
        self.files: dict[RemoteLogSegmentId, dict[str, bytes]] = {}
        self.slow: dict[str, asyncio.Event] = {}
        """Topics → what reads of their segments wait for."""
        self.indexes: list[IndexType] = []
        """Those that were fetched, in order."""
        self.ranges: list[tuple[RemoteLogSegmentId, int, int]] = []
        """Those that were read, in order."""
        self.custom: bytes | None = None
        self.made.append(self)

    def configure(self, configs: Mapping[str, str]) -> None:
        unknown = sorted(configs)
        if unknown:
            raise InvalidConfig(f"a tier in memory has no setting {unknown[0]}", name=unknown[0])

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        files = {"LOG": await whole(data.log_segment)}
        for index_type, content in data.indexes():
            files[index_type.value] = await whole(content)
        self.files[metadata.remote_log_segment_id] = files
        return self.custom

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes:
        self.ranges.append((metadata.remote_log_segment_id, start_position, end_position))
        gate = self.slow.get(metadata.topic_id_partition.topic)
        if gate is not None:
            await gate.wait()
        return self._file(metadata, "LOG")[start_position : end_position + 1]

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        self.indexes.append(index_type)
        return self._file(metadata, index_type.value)

    def _file(self, metadata: RemoteLogSegmentMetadata, name: str) -> bytes:
        try:
            return self.files[metadata.remote_log_segment_id][name]
        except KeyError as error:
            raise ObjectNotFound(f"{metadata.remote_log_segment_id} has no {name}") from error

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.files.pop(metadata.remote_log_segment_id, None)
