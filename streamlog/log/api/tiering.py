"""What a kind of log offers so that its older segments can live in a remote tier, and what it asks
of that tier.

The log start offset is the whole log's; the local log start offset is where its own segments begin.
Between the two, the tier answers. Source: KIP-405.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import AbstractLog, AbstractLogSegment
from streamlog.log.api.batch_reader import BatchReader
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer


class LocalFile(Protocol):
    """A file of a segment; nobody changes it while it is held."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def path(self) -> Path | None:
        """None: it lies in memory alone."""
        ...

    async def read(self, position: int, length: int) -> Buffer:
        """Fewer bytes than `length` at the end. Errors: StoreUnavailable."""
        ...


class LocalSegmentFiles(NamedTuple):
    """Kafka's files of one closed segment. `transaction_index` None: nothing was aborted there.

    `producer_snapshot` is of the segment's end; `leader_epochs` of all offsets before it.
    """

    log_segment: LocalFile
    offset_index: LocalFile
    time_index: LocalFile
    transaction_index: LocalFile | None
    producer_snapshot: LocalFile
    leader_epoch_index: bytes


AS_LONG_AS_A_LOOK_UP = inf
"""The deadline of whoever is no fetch, and cannot go on without an answer."""


class AbortedInTier(NamedTuple):
    """`is_complete`: no transaction that was aborted behind the tier's end has a record there.
    `is_late`: the tier has not answered by the deadline, and is asked again."""

    entries: Sequence[AbortedTxn]
    is_complete: bool
    is_late: bool = False


class RemoteTier(Protocol):
    """The older part of one log. Its offsets end at `highest_offset` (inclusive)."""

    @property
    def highest_offset(self) -> int:
        """Of what was copied; -1: nothing was. Local segments up to it may go."""
        ...

    def reader(self, deadline: float | None) -> BatchReader:
        """Reads batches that are no longer local.

        A read that the tier does not answer by the deadline (monotonic seconds; None: as long as
        the tier waits at most) gives an empty, paced run, and what arrives later is there for the
        next one. Its errors: OffsetOutOfRange (the segment is gone), StoreUnavailable (a try
        failed, and no other succeeded by then), Overloaded, Corrupt.
        """
        ...

    async def aborted_between(
        self, offset: int, end_offset: int, deadline: float | None = AS_LONG_AS_A_LOOK_UP
    ) -> AbortedInTier:
        """Transactions that have a record in the range and whose markers lie in the tier.

        `deadline`: of a fetch, as of `reader`. A look-up that comes too late is StoreUnavailable.
        Errors: as of reads.
        """
        ...

    async def first_at_or_after(
        self, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record in the range with such a timestamp.

        Errors: as of reads.
        """
        ...

    async def delete(self) -> None:
        """As Tiers.delete_partition, for the log's own."""
        ...

    def detached(self) -> None:
        """The log has ended: nothing more is copied. It returns at once."""
        ...


class Tiers(Protocol):
    """What keeps the remote tiers of a node's logs."""

    async def attach(self, log: TierableLog, topic_id: UUID) -> None:
        """Gives the log its tier, before anybody uses it. Errors: Unavailable, Corrupt."""
        ...

    async def delete_partition(self, partition: TopicPartition, topic_id: UUID) -> None:
        """All of the partition goes from the tier, also if this process ends before: that is
        certain on return, and the work goes on behind it. Errors: Unavailable."""
        ...


class TierableLog(AbstractLog):
    """A log whose oldest segments may leave it without their records leaving the log."""

    @abstractmethod
    def attach_tier(self, tier: RemoteTier) -> None:
        """From now on the tier answers for what is no longer local: called after the open, and when
        a node that had stopped the partition has a role in it again. Errors: as of a fetch of a log
        that has ended."""

    @property
    @abstractmethod
    def topic_config(self) -> TopicConfig:
        """The settings that it follows now."""

    @property
    @abstractmethod
    def local_log_start_offset(self) -> int: ...

    @property
    @abstractmethod
    def copied_end_offset(self) -> int:
        """End (exclusive) of what the tier has: local segments up to there may go."""

    @property
    @abstractmethod
    def leader_epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, first offset) from the log start on, rising."""

    @abstractmethod
    def restore_epochs(self, older: Sequence[tuple[int, int]]) -> None:
        """Takes epochs before those that it knows: they begin below its first one, which may be the
        last of them."""

    @abstractmethod
    def segment_files(
        self, segment: AbstractLogSegment
    ) -> AbstractAsyncContextManager[LocalSegmentFiles]:
        """Holds the files of a closed, durable segment: they stay readable, whatever is deleted.

        Errors: Invalid (it is gone, or active), StoreUnavailable.
        """
