"""The storage plug-in of KIP-405's first draft, in Python.

Names are the draft's in snake_case; docs/seed-names.md says what became of each. What the draft
threw as an IOException may be any exception here. Calls come from one event loop and must not block
it. Source: KIP-405, version 36.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamlog.format.remote_index import RemoteIndexEntry
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.tiered.api.storage_manager import SegmentFile

RemoteLogIndexEntry = RemoteIndexEntry
"""The draft's name. Its `rdi` is what the plug-in finds the data by."""


@dataclass(frozen=True, slots=True)
class DraftLogSegment:
    """What is copied: the draft's LogSegment. `log` holds whole record batches, `last_offset` is
    inclusive."""

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    log: SegmentFile


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentInfo:
    """A segment that the storage has. `end_offset` is inclusive; `props` are the plug-in's."""

    topic_partition: TopicPartition
    base_offset: int
    end_offset: int
    props: Mapping[str, str] = field(default_factory=dict)


class DraftRemoteStorageManager(ABC):
    """Keeps segments under their partition and base offset. A later copy replaces an earlier one.

    A partition's topic has the topic id behind a dot, so that a topic that is made again under its
    old name meets nothing of the one before.
    """

    def configure(self, configs: Mapping[str, str]) -> None:
        """Called once, before all else, with the settings of `rsm.config.` less this prefix."""
        return

    @abstractmethod
    async def copy_log_segment(
        self, topic_partition: TopicPartition, log_segment: DraftLogSegment
    ) -> Sequence[RemoteLogIndexEntry]:
        """Stores the segment, durable on return. The entries have its data without a gap, in order,
        and each begins and ends with a batch."""

    @abstractmethod
    async def cancel_copying_log_segment(self, topic_partition: TopicPartition) -> None:
        """Ends a copy that is under way; what it has stored may stay until `cleanup_log_until`."""

    @abstractmethod
    async def list_remote_segments(
        self, topic_partition: TopicPartition, min_base_offset: int = 0
    ) -> Sequence[RemoteLogSegmentInfo]:
        """Whole segments from the base offset on, by base offset."""

    @abstractmethod
    async def get_remote_log_index_entries(
        self, remote_log_segment: RemoteLogSegmentInfo
    ) -> Sequence[RemoteLogIndexEntry]:
        """Those that its copy returned."""

    @abstractmethod
    async def delete_log_segment(self, remote_log_segment: RemoteLogSegmentInfo) -> bool:
        """False: it is still there."""

    @abstractmethod
    async def delete_topic_partition(self, topic_partition: TopicPartition) -> bool:
        """Removes all of the partition, what copies left among it. False: something is there."""

    @abstractmethod
    async def cleanup_log_until(
        self, topic_partition: TopicPartition, clean_up_till_ms: int
    ) -> int:
        """Removes what is older, files of copies that never ended among it; how much it was."""

    @abstractmethod
    async def read(
        self,
        remote_log_index_entry: RemoteLogIndexEntry,
        max_bytes: int,
        start_offset: int,
        min_one_message: bool,
    ) -> Buffer:
        """Batches of the entry's data from the first one on whose last offset is not before the
        start offset. The last one may be cut off at `max_bytes`; if that is the first one,
        `min_one_message` has it come whole."""

    async def close(self) -> None:
        """Frees what the plug-in holds. The default holds nothing."""
        return
