"""Builds the seed's index of a partition's remote records (`format/remote_index.py`).

It says for every offset what a reader of the node is told: the segment that the metadata manager
names under the leader epoch that the log has there. The log's epochs come from the newest segment,
which carries them, so that the build needs no log. Runs of offsets that one segment answers for
become one entry each. An entry's RDI is the segment's id (16 bytes) and where its data begins in
the segment (u32).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple, Protocol
from uuid import UUID

from streamlog.codec.batch import HEADER_BYTES, LENGTH_END, BatchHeader, parse_header
from streamlog.errors import Corrupt, CorruptMessage
from streamlog.format.kafka_files import offset_index
from streamlog.format.kafka_files.checkpoints import decode_epochs
from streamlog.format.remote_index import RemoteIndexEntry
from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import IndexType, RemoteStorageManager

_RDI = Struct(">16sI")
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class SegmentLookup(Protocol):
    """What the build asks of the metadata: a RemoteLogMetadataManager, or what it left behind."""

    async def list_remote_log_segments(
        self, partition: TopicIdPartition
    ) -> Sequence[RemoteLogSegmentMetadata]: ...

    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None: ...


class RemoteDataId(NamedTuple):
    """Where an entry's data is: from a byte of a segment on."""

    segment_id: UUID
    position: int

    def encode(self) -> bytes:
        return _RDI.pack(self.segment_id.bytes, self.position)

    @classmethod
    def decode(cls, rdi: bytes) -> RemoteDataId:
        """Errors: Corrupt."""
        if len(rdi) != _RDI.size:
            raise Corrupt(f"a remote data identifier of {len(rdi)} bytes is none of this program")
        segment_id, position = _RDI.unpack(rdi)
        return cls(UUID(bytes=segment_id), position)


async def remote_index_entries(
    partition: TopicIdPartition, metadata: SegmentLookup, storage: RemoteStorageManager
) -> list[RemoteIndexEntry]:
    """Of all finished segments that readers see, in the order of offsets.

    Errors: those of the plug-ins; Corrupt.
    """
    listed = await metadata.list_remote_log_segments(partition)
    finished = [one for one in listed if one.state is _FINISHED]
    if not finished:
        return []
    newest = max(finished, key=lambda one: (one.epochs[-1], one.end_offset))
    name = f"the leader epochs of {newest.remote_log_segment_id}"
    epochs = decode_epochs(name, await storage.fetch_index(newest, IndexType.LEADER_EPOCH))
    entries: list[RemoteIndexEntry] = []
    for first, last, segment in await _runs(partition, metadata, finished, epochs):
        position, header = await _batch_with(storage, segment, first)
        entries.append(
            RemoteIndexEntry(
                first,
                last,
                header.base_timestamp_ms,
                segment.max_timestamp_ms,
                segment.segment_size_bytes - position,
                RemoteDataId(segment.remote_log_segment_id.id, position).encode(),
            )
        )
    return entries


async def _runs(
    partition: TopicIdPartition,
    metadata: SegmentLookup,
    finished: Sequence[RemoteLogSegmentMetadata],
    epochs: Sequence[tuple[int, int]],
) -> list[tuple[int, int, RemoteLogSegmentMetadata]]:
    """First offset, last offset and the segment that has them. The answer can change at the ends of
    segments and epochs alone, so the manager is asked once between each two of them."""
    edges = {first for _, first in epochs}
    for one in finished:
        edges |= {one.start_offset, one.end_offset + 1, *one.segment_leader_epochs.values()}
    borders = sorted(edges)
    runs: list[tuple[int, int, RemoteLogSegmentMetadata]] = []
    for first, behind in pairwise(borders):
        epoch = max((one for one, begin in epochs if begin <= first), default=-1)
        segment = await metadata.remote_log_segment_metadata(partition, epoch, first)
        if segment is None:
            continue
        if runs and runs[-1][1] + 1 == first and runs[-1][2] == segment:
            first = runs.pop()[0]
        runs.append((first, behind - 1, segment))
    return runs


async def _batch_with(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, offset: int
) -> tuple[int, BatchHeader]:
    """Where the batch with the offset begins, or the first one behind it; and its header.

    Errors: Corrupt.
    """
    position = 0
    if offset != segment.start_offset:
        index = await storage.fetch_index(segment, IndexType.OFFSET)
        floor = offset_index.floor_entry(index, offset - segment.start_offset)
        position = 0 if floor is None else floor.position
    while position < segment.segment_size_bytes:
        data = await storage.fetch_log_segment(segment, position, position + HEADER_BYTES - 1)
        try:
            header = parse_header(memoryview(data))
        except CorruptMessage as error:
            raise _damaged(segment, position, str(error)) from error
        if header.last_offset >= offset:
            return position, header
        position += max(header.size_bytes, LENGTH_END)
    raise _damaged(segment, position, f"offset {offset} is not in it")


def _damaged(segment: RemoteLogSegmentMetadata, position: int, what: str) -> Corrupt:
    return Corrupt(
        f"the remote segment {segment.remote_log_segment_id} is damaged at byte {position}: {what}",
        object_key=str(segment.remote_log_segment_id),
        start=position,
    )
