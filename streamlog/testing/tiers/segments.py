"""Segments in memory, for tests of plug-ins of tiered storage."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from streamlog.errors import StoreUnavailable
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.rand import SeededRandom
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import IndexType, LogSegmentData, SegmentFile

RECORDS = 1000
"""How many offsets a segment has."""


@dataclass(frozen=True, slots=True)
class BytesFile:
    """A SegmentFile in memory."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def path(self) -> Path | None:
        return None

    async def read(self, position: int, length: int) -> Buffer:
        return memoryview(self.data)[position : position + length]


class HeldFile:
    """A file of which no byte behind `held_at` is read before `release`; or whose reads fail there.

    It stands for a slow disk, and a cancelled copy stops in it.
    """

    def __init__(self, data: bytes, held_at: int, *, fails: bool = False) -> None:
        self._file = BytesFile(data)
        self._held_at = held_at
        self._fails = fails
        self._released = asyncio.Event()
        self.reached = asyncio.Event()

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def path(self) -> Path | None:
        return None

    async def read(self, position: int, length: int) -> Buffer:
        if position + length > self._held_at and not self._released.is_set():
            if position < self._held_at:
                return await self._file.read(position, self._held_at - position)
            self.reached.set()
            if self._fails:
                raise StoreUnavailable("the disk fails in this test")
            await self._released.wait()
        return await self._file.read(position, length)

    def release(self) -> None:
        self._released.set()


class SegmentMaker:
    """Segments that differ in all that may differ; equal ones for equal seeds.

    Bytes are random: a storage plug-in does not look into them.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = SeededRandom(seed)
        self.topic_id = self.uuid()

    def uuid(self) -> UUID:
        return self._random.uuid()

    def bytes(self, count: int) -> bytes:
        return self._random.bytes(count)

    def data(
        self,
        size_bytes: int = 10_000,
        *,
        log_segment: SegmentFile | None = None,
        has_aborted: bool = False,
    ) -> LogSegmentData:
        """`log_segment`: in place of one of `size_bytes`. `has_aborted`: a transaction was aborted
        there."""
        return LogSegmentData(
            BytesFile(self.bytes(size_bytes)) if log_segment is None else log_segment,
            BytesFile(self.bytes(160)),
            BytesFile(self.bytes(240)),
            BytesFile(self.bytes(68)) if has_aborted else None,
            BytesFile(self.bytes(106)),
            b"0\n2\n0 0\n%d 10\n" % (1 + int(self._random.random() * 1000)),
        )

    def metadata(
        self,
        data: LogSegmentData,
        *,
        topic: str = "topic",
        topic_id: UUID | None = None,
        partition: int = 0,
        start_offset: int = 0,
        segment_id: UUID | None = None,
    ) -> RemoteLogSegmentMetadata:
        """Of a copy that has begun. Without a `segment_id` it is a new one."""
        topic_partition = TopicIdPartition(topic_id or self.topic_id, topic, partition)
        return RemoteLogSegmentMetadata(
            RemoteLogSegmentId(topic_partition, segment_id or self.uuid()),
            start_offset,
            start_offset + RECORDS - 1,
            1_700_000_000_000,
            0,
            1_700_000_000_000,
            data.log_segment.size_bytes,
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            {0: start_offset},
            is_txn_index_empty=data.transaction_index is None,
        )


async def indexes_of(data: LogSegmentData) -> Mapping[IndexType, bytes]:
    """The bytes of each index that a segment has."""
    files = {
        IndexType.OFFSET: data.offset_index,
        IndexType.TIMESTAMP: data.time_index,
        IndexType.PRODUCER_SNAPSHOT: data.producer_snapshot,
        IndexType.TRANSACTION: data.transaction_index,
    }
    read = {
        kind: bytes(await file.read(0, file.size_bytes))
        for kind, file in files.items()
        if file is not None
    }
    return {**read, IndexType.LEADER_EPOCH: data.leader_epoch_index}
