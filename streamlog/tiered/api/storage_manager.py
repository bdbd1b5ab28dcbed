"""RemoteStorageManager: the plug-in that keeps the bytes of remote segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from streamlog.runtime.buffers import Buffer
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, TopicIdPartition


class IndexType(Enum):
    """Which index of a segment; the value is what names of objects have (Kafka's IndexType)."""

    OFFSET = "OFFSET"
    TIMESTAMP = "TIMESTAMP"
    PRODUCER_SNAPSHOT = "PRODUCER_SNAPSHOT"
    TRANSACTION = "TRANSACTION"
    LEADER_EPOCH = "LEADER_EPOCH"


class SegmentFile(Protocol):
    """A file that is copied; nobody changes it meanwhile."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def path(self) -> Path | None:
        """Where it lies; None: in memory alone."""
        ...

    async def read(self, position: int, length: int) -> Buffer:
        """One byte at least, and `length` at most: a file may come in pieces. None at its end.

        Errors: StoreUnavailable.
        """
        ...


class LogSegmentData(NamedTuple):
    """The files of one segment. `transaction_index` None: no transaction was aborted in it.

    `producer_snapshot` holds the producers at the end of the segment. `leader_epoch_index` has the
    log's epochs up to the segment's end, as Kafka's leader-epoch-checkpoint.
    """

    log_segment: SegmentFile
    offset_index: SegmentFile
    time_index: SegmentFile
    transaction_index: SegmentFile | None
    producer_snapshot: SegmentFile
    leader_epoch_index: bytes

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return self.log_segment.size_bytes + sum(
            len(content) if isinstance(content, bytes) else content.size_bytes
            for _, content in self.indexes()
        )

    def indexes(self) -> Iterator[tuple[IndexType, SegmentFile | bytes]]:
        """Those that the segment has."""
        yield IndexType.OFFSET, self.offset_index
        yield IndexType.TIMESTAMP, self.time_index
        yield IndexType.PRODUCER_SNAPSHOT, self.producer_snapshot
        if self.transaction_index is not None:
            yield IndexType.TRANSACTION, self.transaction_index
        yield IndexType.LEADER_EPOCH, self.leader_epoch_index


class StoredFile(NamedTuple):
    """A file that lies in the remote storage; `name` is the plug-in's own."""

    topic_id: UUID
    partition: int
    segment_id: UUID
    name: str
    size_bytes: int
    modified_ms: int


class RemoteStorageManager(ABC):
    """Keeps the bytes of remote segments; which there are is kept by RemoteLogMetadataManager.

    Calls come from one event loop, several at a time, and must not block it: a plug-in over a
    library that blocks uses `asyncio.to_thread`. Every call may be repeated, after an error as well
    as after success, and must come to the same result. A call may be cancelled; what it leaves then
    goes with a later `delete_log_segment_data`. An exception of any kind is a failed try, which is
    repeated later; those named below mean more. Source: KIP-405.
    """

    names_have_ids: bool = True
    """Whether what is stored of a segment is named by its id. False: the deletion of one copy could
    take another of the same offsets, so a copy that does not end holds its partition up."""
    has_own_place: bool = False
    """Whether nobody but this cluster stores segments where `stored_files` looks. False: the purge
    passes over files of topics that the cluster does not know, which may be another cluster's."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """Called once, before all else, with the settings of `rsm.config.` less this prefix.

        Errors: InvalidConfig. The default takes none.
        """
        return

    @abstractmethod
    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Stores all files of the segment, durable on return.

        Returns what the plug-in wants to find in `metadata.custom_metadata` of later calls, at most
        128 bytes; None: nothing.
        """

    @abstractmethod
    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Buffer:
        """Bytes of the segment's log from one position to the other, both inclusive.

        Fewer at its end. Errors: ObjectNotFound (the segment is not there).
        """

    @abstractmethod
    async def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Buffer:
        """A whole index, as it was stored. Errors: ObjectNotFound (TRANSACTION: nothing was aborted
        there), Corrupt (the plug-in knows that it is another than it stored, or was stored and is
        gone)."""

    def check_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, data: Buffer
    ) -> None:
        """Looks at an index that the node has kept since `fetch_index`, in a file that may have
        been changed: one with an error is fetched anew. b"": there was none. It does no I/O.

        Errors: Corrupt. The default knows no more of an index than its form, which the node checks.
        """
        return

    @abstractmethod
    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Removes all files of the segment; those that are not there are no error."""

    async def delete_partition_data(self, partition: TopicIdPartition) -> None:
        """Removes what is left of a deleted partition when all its segments are gone: an empty
        folder, or what a copy left. The default leaves nothing behind."""
        return

    def stored_files(self) -> AsyncIterator[StoredFile] | None:
        """All files of segments that lie in the storage, for the purge of those that no metadata
        names, at most once a day; those of a partition one after another. A file whose segment,
        partition or topic the plug-in cannot tell is left out; of one whose age it cannot tell
        `modified_ms` is later than any time. None, the default: the plug-in does not list, and
        nothing is purged."""
        return None

    async def delete_stored_files(self, names: Sequence[str]) -> None:
        """Removes files of `stored_files`; those that are not there are no error."""
        raise NotImplementedError(f"{type(self).__name__} lists no files")

    async def delete_left_overs(self, partition: TopicIdPartition, until_ms: int) -> int:
        """Removes what is older than the time and no whole segment; how many files it was. Nothing
        that is known of the partition is as old. The default has no such files."""
        return 0

    async def close(self) -> None:
        """Frees what the plug-in holds. The default holds nothing."""
        return
