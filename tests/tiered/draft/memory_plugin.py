"""A storage plug-in as KIP-405's first draft has it: it imports the public interface alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from struct import Struct

from streamlog.model.partition import TopicPartition
from streamlog.tiered.draft import (
    DraftLogSegment,
    DraftRemoteStorageManager,
    RemoteLogIndexEntry,
    RemoteLogSegmentInfo,
)

_HEAD = Struct(">qi")
"""A record batch's base offset, and its length behind this."""
_DELTA = Struct(">23xi")
_TIMES = Struct(">27xqq")


def batches_of(data: bytes) -> list[tuple[int, int, bytes]]:
    """First offset, last offset and bytes of each."""
    found, position = [], 0
    while position < len(data):
        base, length = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + length
        (delta,) = _DELTA.unpack_from(data, position)
        found.append((base, base + delta, data[position:end]))
        position = end
    return found


class _Stored:
    def __init__(self, segment: DraftLogSegment, data: bytes) -> None:
        self.end_offset = segment.last_offset
        self.max_timestamp_ms = segment.max_timestamp_ms
        self.data = data
        self.entries: list[RemoteLogIndexEntry] = []


class MemoryPlugin(DraftRemoteStorageManager):
    """Segments by partition and base offset. `entry_batches`: how many an entry has.

    `hold` makes copies wait half-way; their bytes lie in `temporary` then.
    """

    def __init__(self) -> None:
        self.configs: Mapping[str, str] = {}
        self.segments: dict[tuple[TopicPartition, int], _Stored] = {}
        self.temporary: dict[TopicPartition, int] = {}
        """Time of what a copy left."""
        self.entry_batches = 3
        self.free = asyncio.Event()
        self.free.set()
        self.waits = asyncio.Event()
        self._copies: dict[TopicPartition, asyncio.Task[object]] = {}
        self.cancelled: list[TopicPartition] = []
        self.deleted: list[TopicPartition] = []
        self.is_stubborn = False
        self.fails_to_cancel = False

    def configure(self, configs: Mapping[str, str]) -> None:
        self.configs = configs

    async def copy_log_segment(
        self, topic_partition: TopicPartition, log_segment: DraftLogSegment
    ) -> Sequence[RemoteLogIndexEntry]:
        current = asyncio.current_task()
        assert current is not None
        self._copies[topic_partition] = current
        self.temporary[topic_partition] = log_segment.max_timestamp_ms
        data = bytes(await log_segment.log.read(0, log_segment.log.size_bytes))
        if not self.free.is_set():
            self.waits.set()
            await self.free.wait()
        stored = _Stored(log_segment, data)
        found = batches_of(data)
        for first in range(0, len(found), self.entry_batches):
            run = found[first : first + self.entry_batches]
            begin_ms, _ = _TIMES.unpack_from(run[0][2])
            stored.entries.append(
                RemoteLogIndexEntry(
                    run[0][0],
                    run[-1][1],
                    begin_ms,
                    max(_TIMES.unpack_from(one[2])[1] for one in run),
                    sum(len(one[2]) for one in run),
                    f"{topic_partition.topic}/{topic_partition.partition}/{log_segment.base_offset}"
                    f"@{first}".encode(),
                )
            )
        self.segments[topic_partition, log_segment.base_offset] = stored
        del self.temporary[topic_partition], self._copies[topic_partition]
        return stored.entries

    async def cancel_copying_log_segment(self, topic_partition: TopicPartition) -> None:
        self.cancelled.append(topic_partition)
        if self.fails_to_cancel:
            raise OSError("no connection")
        self._copies.pop(topic_partition).cancel()

    async def list_remote_segments(
        self, topic_partition: TopicPartition, min_base_offset: int = 0
    ) -> Sequence[RemoteLogSegmentInfo]:
        return [
            RemoteLogSegmentInfo(topic_partition, base, stored.end_offset)
            for (of, base), stored in sorted(self.segments.items(), key=lambda one: one[0])
            if of == topic_partition and base >= min_base_offset
        ]

    async def get_remote_log_index_entries(
        self, remote_log_segment: RemoteLogSegmentInfo
    ) -> Sequence[RemoteLogIndexEntry]:
        key = remote_log_segment.topic_partition, remote_log_segment.base_offset
        return self.segments[key].entries

    async def delete_log_segment(self, remote_log_segment: RemoteLogSegmentInfo) -> bool:
        if self.is_stubborn:
            return False
        key = remote_log_segment.topic_partition, remote_log_segment.base_offset
        self.segments.pop(key, None)
        return True

    async def delete_topic_partition(self, topic_partition: TopicPartition) -> bool:
        self.deleted.append(topic_partition)
        self.temporary.pop(topic_partition, None)
        for key in [one for one in self.segments if one[0] == topic_partition]:
            del self.segments[key]
        return True

    async def cleanup_log_until(
        self, topic_partition: TopicPartition, clean_up_till_ms: int
    ) -> int:
        if self.temporary.get(topic_partition, clean_up_till_ms) < clean_up_till_ms:
            del self.temporary[topic_partition]
            return 1
        return 0

    async def read(
        self,
        remote_log_index_entry: RemoteLogIndexEntry,
        max_bytes: int,
        start_offset: int,
        min_one_message: bool,
    ) -> bytes:
        path, _, number = remote_log_index_entry.rdi.decode().rpartition("@")
        topic, partition, base = path.rsplit("/", 2)
        stored = self.segments[TopicPartition(topic, int(partition)), int(base)]
        found = batches_of(stored.data)[int(number) :][: self.entry_batches]
        wanted = [one[2] for one in found if one[1] >= start_offset]
        data = b"".join(wanted)[:max_bytes]
        return wanted[0] if min_one_message and len(data) < len(wanted[0]) else data
