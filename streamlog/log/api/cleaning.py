"""What a kind of log offers to be cleaned, beside AbstractLog.

A shared log can implement a replacement by a new slice and one meta record, a log on files by
`.cleaned` and `.swap`, a list by one assignment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from streamlog.log.api.abstract_log import AbstractLog, AbstractLogSegment
from streamlog.runtime.buffers import Buffer


class LastRecordOfProducer(NamedTuple):
    """What an active producer's state needs of the log (Kafka's LastRecord)."""

    last_data_offset: int
    """-1: the producer has only markers here."""
    producer_epoch: int


class AbortedRange(NamedTuple):
    """An aborted transaction from its first batch to its marker, both inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int


class SegmentReplacement(ABC):
    """One new segment on its way to take the place of old ones. Readers see the old ones."""

    @abstractmethod
    async def append(self, batches: Buffer) -> None:
        """Adds whole batches, in order, at the offsets that they say. They need not be durable."""

    @abstractmethod
    async def commit(self) -> None:
        """Swaps: all readers see the new segment, or none does, after a crash as well.

        Durable on return. The new segment spans the offsets of the old ones, whatever batches are
        in it, and may have none. Where a marker is gone, or has no record any more, fetches no
        longer tell its aborted transaction: a reader that never meets the marker would hide the
        producer's next transaction. Fetches under way finish on the old ones, whose bytes go after
        `file.delete.delay.ms`. Cancelling it leaves the swap done or not done. Errors: Invalid (an
        old one was deleted meanwhile; nothing is swapped), StoreUnavailable.
        """

    @abstractmethod
    async def abandon(self) -> None:
        """Gives up what was written; the log is as before. Does nothing after a commit."""


class CleanableLog(AbstractLog):
    """A log that the cleaner can work on. One cleaner at a time uses it."""

    @property
    @abstractmethod
    def clean_end_offset(self) -> int:
        """End (exclusive) of what was cleaned before; -1: nothing was, or the log forgot."""

    @abstractmethod
    async def set_clean_end_offset(self, offset: int) -> None:
        """Keeps it with the log's own metadata.

        Durable on return. After a crash an older one may be found: the range is cleaned again.
        """

    @abstractmethod
    def read_for_cleaning(
        self, segment: AbstractLogSegment, start_offset: int
    ) -> AsyncIterator[Buffer]:
        """All batches of the segment from the one with `start_offset` on, in whole batches.

        Batches below the log's start may be missing. A piece has some MiB at most, or one batch.
        Errors: StoreUnavailable, Corrupt.
        """

    @abstractmethod
    async def aborted_transactions(
        self, start_offset: int, end_offset: int
    ) -> Sequence[AbortedRange]:
        """Those of which any offset lies in the range; others may be listed, too."""

    @abstractmethod
    def last_records_of_producers(self) -> Mapping[int, LastRecordOfProducer]:
        """By producer id, of all producers that have not expired."""

    @abstractmethod
    def first_batch_timestamp_ms(self, segment: AbstractLogSegment) -> int:
        """Of the segment's first batch (Kafka: of its first record); ≤ 0: not known."""

    @abstractmethod
    async def replace_segments(self, old: Sequence[AbstractLogSegment]) -> SegmentReplacement:
        """Begins a segment for the place of neighbouring, inactive ones.

        Errors: Invalid (they are not neighbours, active, or gone meanwhile).
        """
