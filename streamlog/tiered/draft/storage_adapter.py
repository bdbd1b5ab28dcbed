"""DraftStorageAdapter: a RemoteStorageManager made of a plug-in of KIP-405's first draft.

1. The draft names a segment by partition and base offset, and knows no topic id. Its partitions
   have the topic id in the topic's name. A deletion that comes when a later copy has the name does
   nothing.
2. The draft's storage keeps logs alone. A segment's indexes go into one record of a second segment,
   in a partition of their own (`index_bundle.py`). They are stored before the log: a log that is
   there has its indexes.
3. The draft reads from offsets, a node reads byte positions. The offset index and the plug-in's
   entries say which batch begins where; what is read begins at the last such batch before the
   position.
4. A copy that is cancelled is told to the plug-in, and waited for: the delete that follows must not
   be overtaken.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from streamlog.codec.batch import HEADER_BYTES, parse_header
from streamlog.errors import Corrupt, ObjectNotFound, StoreUnavailable
from streamlog.format.kafka_files import offset_index
from streamlog.format.kafka_files.properties import encode_id
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.keyed_lock import KeyedLock
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentFile,
)
from streamlog.tiered.draft.api import (
    DraftLogSegment,
    DraftRemoteStorageManager,
    RemoteLogIndexEntry,
    RemoteLogSegmentInfo,
)
from streamlog.tiered.draft.index_bundle import (
    bundle_batch,
    bundle_of,
    decode_bundle,
    encode_bundle,
)
from streamlog.tiered.storage.files import pieces

log = logging.getLogger(__name__)

SEGMENTS_KNOWN = 64
"""Segments whose entries and offset indexes are in memory: those that are read just now."""
CANCEL_S = 30
"""How long a plug-in may take to end a copy."""


def data_partition(partition: TopicIdPartition) -> TopicPartition:
    """Where the plug-in keeps the logs."""
    topic = f"{partition.topic}.{encode_id(partition.topic_id)}"
    return TopicPartition(topic, partition.partition)


def index_partition(partition: TopicIdPartition) -> TopicPartition:
    """Where the plug-in keeps the indexes."""
    of = data_partition(partition)
    return TopicPartition(f"{of.topic}.indexes", of.partition)


_Place = tuple[TopicIdPartition, int]
"""Partition and base offset."""


def _place_of(metadata: RemoteLogSegmentMetadata) -> _Place:
    return metadata.topic_id_partition, metadata.start_offset


class _BytesFile:
    """A SegmentFile in memory."""

    path: Path | None = None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    async def read(self, position: int, length: int) -> Buffer:
        return self._data[position : position + length]


@dataclass(frozen=True, slots=True)
class _Located:
    """`starts`: where each entry's data begins in the segment. `batches`: rising positions at which
    a batch begins, and an offset in it."""

    entries: Sequence[RemoteLogIndexEntry]
    starts: Sequence[int]
    batches: Sequence[tuple[int, int]]

    @property
    def size_bytes(self) -> int:
        return self.starts[-1] + self.entries[-1].data_length


class DraftStorageAdapter(RemoteStorageManager):
    """Owns the plug-in, and closes it."""

    names_have_ids = False

    def __init__(self, plugin: DraftRemoteStorageManager) -> None:
        self.plugin = plugin
        self._known: OrderedDict[RemoteLogSegmentId, _Located] = OrderedDict()
        self._turns = KeyedLock[_Place]()
        """A copy and the deletion of an earlier one have the same name for the plug-in."""
        self._holders: dict[_Place, UUID] = {}
        """Whose copy is at a place, of the copies that this process began."""

    def configure(self, configs: Mapping[str, str]) -> None:
        self.plugin.configure(configs)

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        """Errors: Corrupt (the entries do not have the segment), what the plug-in raises."""
        place = _place_of(metadata)
        async with self._turns.holding(place):
            self._holders[place] = metadata.remote_log_segment_id.id
            await self._copy_both(metadata, data)

    async def _copy_both(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        start, time_ms = metadata.start_offset, metadata.max_timestamp_ms
        batch = bundle_batch(encode_bundle(await _indexes(data)), start, time_ms)
        partition = metadata.topic_id_partition
        bundle = DraftLogSegment(start, start, time_ms, _BytesFile(batch))
        await self._copy(index_partition(partition), bundle)
        segment = DraftLogSegment(start, metadata.end_offset, time_ms, data.log_segment)
        entries = await self._copy(data_partition(partition), segment)
        _check_entries(metadata, entries, data.log_segment.size_bytes)

    async def _copy(
        self, partition: TopicPartition, segment: DraftLogSegment
    ) -> Sequence[RemoteLogIndexEntry]:
        copy = asyncio.ensure_future(self.plugin.copy_log_segment(partition, segment))
        try:
            return await asyncio.shield(copy)
        except asyncio.CancelledError:
            await self._cancel(partition, copy)
            raise

    async def _cancel(
        self, partition: TopicPartition, copy: asyncio.Future[Sequence[RemoteLogIndexEntry]]
    ) -> None:
        """Returns when the copy has ended, or cannot be made to end."""
        try:
            async with asyncio.timeout(CANCEL_S):
                await self.plugin.cancel_copying_log_segment(partition)
                await asyncio.wait({copy})
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything, or hang
            log.warning("the plug-in did not cancel a copy of %s: %r", partition, error)
        finally:
            copy.cancel()
        await asyncio.wait({copy}, timeout=CANCEL_S)
        if copy.done() and not copy.cancelled():
            copy.exception()  # The caller hears of its cancellation alone.

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Buffer:
        located = await self._located(metadata)
        end = min(end_position + 1, located.size_bytes)
        found = bisect_right(located.batches, start_position, key=lambda one: one[0]) - 1
        position, offset = located.batches[found]
        first, pieces = position, []
        while position < end:
            piece, offset = await self._read(located, metadata, position, offset, end - position)
            pieces.append(piece)
            position += len(piece)
        return memoryview(b"".join(pieces))[start_position - first : end - first]

    async def _read(
        self,
        located: _Located,
        metadata: RemoteLogSegmentMetadata,
        position: int,
        offset: int,
        max_bytes: int,
    ) -> tuple[Buffer, int]:
        """Whole batches from the position on, and an offset in the batch behind them.

        Errors: Corrupt (no whole batch came).
        """
        number = bisect_right(located.starts, position) - 1
        entry = located.entries[number]
        data = await self.plugin.read(entry, max_bytes, offset, True)
        left = located.starts[number] + entry.data_length - position
        length, behind = _whole_batches(memoryview(data)[:left])
        if not length or behind <= offset:
            raise Corrupt(
                f"the remote segment {metadata.remote_log_segment_id} has no whole batch at byte "
                f"{position}",
                object_key=str(metadata.remote_log_segment_id),
                start=position,
            )
        return memoryview(data)[:length], behind

    async def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Buffer:
        try:
            return (await self._bundle(metadata))[index_type]
        except KeyError:
            segment = metadata.remote_log_segment_id
            raise ObjectNotFound(f"{segment} has no {index_type.value} index") from None

    async def _bundle(self, metadata: RemoteLogSegmentMetadata) -> dict[IndexType, bytes]:
        of = metadata.remote_log_segment_id
        info = await self._info(index_partition(metadata.topic_id_partition), metadata)
        (entry,) = await self.plugin.get_remote_log_index_entries(info)
        data = await self.plugin.read(entry, entry.data_length, metadata.start_offset, True)
        return decode_bundle(bundle_of(data, of), of)

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """The log goes first: whoever finds it finds its indexes. Errors: StoreUnavailable."""
        self._known.pop(metadata.remote_log_segment_id, None)
        place, segment_id = _place_of(metadata), metadata.remote_log_segment_id.id
        async with self._turns.holding(place):
            # A later copy has replaced it, and is not to be deleted in its stead.
            if self._holders.get(place, segment_id) == segment_id:
                await self._delete_both(metadata)
                self._holders.pop(place, None)

    async def _delete_both(self, metadata: RemoteLogSegmentMetadata) -> None:
        partition = metadata.topic_id_partition
        for where in (data_partition(partition), index_partition(partition)):
            for info in await self._infos(where, metadata):
                if not await self.plugin.delete_log_segment(info):
                    raise StoreUnavailable(f"the plug-in has not deleted {info}; it is asked again")

    async def delete_partition_data(self, partition: TopicIdPartition) -> None:
        """As RemoteStorageManager.delete_partition_data. Errors: StoreUnavailable."""
        for where in (data_partition(partition), index_partition(partition)):
            if not await self.plugin.delete_topic_partition(where):
                raise StoreUnavailable(f"the plug-in has not deleted {where}; it is asked again")
        for place in [one for one in self._holders if one[0] == partition]:
            del self._holders[place]

    async def delete_left_overs(self, partition: TopicIdPartition, until_ms: int) -> int:
        """As RemoteStorageManager.delete_left_overs."""
        where = (data_partition(partition), index_partition(partition))
        return sum([await self.plugin.cleanup_log_until(one, until_ms) for one in where])

    async def close(self) -> None:
        await self.plugin.close()

    async def _infos(
        self, where: TopicPartition, metadata: RemoteLogSegmentMetadata
    ) -> list[RemoteLogSegmentInfo]:
        start = metadata.start_offset
        listed = await self.plugin.list_remote_segments(where, start)
        return [one for one in listed if one.base_offset == start]

    async def _info(
        self, where: TopicPartition, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentInfo:
        """Errors: ObjectNotFound."""
        for one in await self._infos(where, metadata):
            return one
        raise ObjectNotFound(f"{metadata.remote_log_segment_id} is not in the remote storage")

    async def _located(self, metadata: RemoteLogSegmentMetadata) -> _Located:
        key = metadata.remote_log_segment_id
        known = self._known.get(key)
        if known is None:
            info = await self._info(data_partition(metadata.topic_id_partition), metadata)
            entries = await self.plugin.get_remote_log_index_entries(info)
            _check_entries(metadata, entries, metadata.segment_size_bytes)
            index = await self.fetch_index(metadata, IndexType.OFFSET)
            known = self._known[key] = _locate(metadata, entries, index)
            if len(self._known) > SEGMENTS_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known


async def _indexes(data: LogSegmentData) -> dict[IndexType, Buffer]:
    files: dict[IndexType, SegmentFile | None] = {
        IndexType.OFFSET: data.offset_index,
        IndexType.TIMESTAMP: data.time_index,
        IndexType.PRODUCER_SNAPSHOT: data.producer_snapshot,
        IndexType.TRANSACTION: data.transaction_index,
    }
    found: dict[IndexType, Buffer] = {IndexType.LEADER_EPOCH: data.leader_epoch_index}
    for kind, file in files.items():
        if file is not None:
            found[kind] = b"".join([piece async for piece in pieces(file)])
    return found


def _check_entries(
    metadata: RemoteLogSegmentMetadata, entries: Sequence[RemoteLogIndexEntry], size_bytes: int
) -> None:
    """Errors: Corrupt."""
    size = sum(entry.data_length for entry in entries)
    last = metadata.start_offset - 1
    is_sound = size == size_bytes and bool(entries)
    for entry in entries:
        is_sound &= entry.data_length > 0 and last < entry.first_offset <= entry.last_offset
        last = entry.last_offset
    if not is_sound or last > metadata.end_offset:
        raise Corrupt(
            f"the plug-in has {len(entries)} entries of {size} bytes up to offset {last} for "
            f"{metadata.remote_log_segment_id}, which has {size_bytes} up to offset "
            f"{metadata.end_offset}",
            object_key=str(metadata.remote_log_segment_id),
        )


def _locate(
    metadata: RemoteLogSegmentMetadata, entries: Sequence[RemoteLogIndexEntry], index: Buffer
) -> _Located:
    starts: list[int] = []
    size = 0
    for entry in entries:
        starts.append(size)
        size += entry.data_length
    batches = dict(zip(starts, (entry.first_offset for entry in entries), strict=True))
    for number in range(len(index) // offset_index.ENTRY_BYTES):
        one = offset_index.entry_at(index, number)
        batches.setdefault(one.position, metadata.start_offset + one.offset)
    return _Located(entries, starts, sorted(batches.items()))


def _whole_batches(data: memoryview) -> tuple[int, int]:
    """Bytes of the whole batches at the beginning, and the offset behind them."""
    position, behind = 0, -1
    while len(data) - position >= HEADER_BYTES:
        header = parse_header(data, position)
        if header.length < 0 or position + header.size_bytes > len(data):
            break
        position += header.size_bytes
        behind = header.next_offset
    return position, behind
