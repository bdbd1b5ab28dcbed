"""The remote tiers of a node in a tool on its data: they are there, and nobody opens them.

A log keeps where it begins and can be appended to. What is in the tier alone is not read, and no
partition is deleted: its files would go, and what the tier has of it stay for good.
"""

from __future__ import annotations

from uuid import UUID

from streamlog.errors import PolicyViolation, StoreUnavailable
from streamlog.log.api.batch_reader import BatchReader, BatchRun
from streamlog.log.api.tiering import (
    AS_LONG_AS_A_LOOK_UP,
    AbortedInTier,
    RemoteTier,
    TierableLog,
    Tiers,
)
from streamlog.model.partition import TopicPartition


class UnopenedTiers(Tiers):
    async def attach(self, log: TierableLog, topic_id: UUID) -> None:
        """As Tiers.attach."""
        if log.topic_config.remote_storage_enable:
            log.attach_tier(_UnopenedTier(log.topic_partition))

    async def delete_partition(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Errors: PolicyViolation."""
        raise _stays(partition)


class _UnopenedTier(RemoteTier, BatchReader):
    highest_offset = -1

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition

    def reader(self, deadline: float | None) -> BatchReader:
        """As RemoteTier.reader."""
        return self

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        """Errors: StoreUnavailable."""
        raise self._unread()

    async def aborted_between(
        self, offset: int, end_offset: int, deadline: float | None = AS_LONG_AS_A_LOOK_UP
    ) -> AbortedInTier:
        """Errors: StoreUnavailable."""
        raise self._unread()

    async def first_at_or_after(
        self, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> tuple[int, int] | None:
        """Errors: StoreUnavailable."""
        raise self._unread()

    async def delete(self) -> None:
        """Errors: PolicyViolation."""
        raise _stays(self._partition)

    def detached(self) -> None:
        """As RemoteTier.detached."""

    def _unread(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the remote tier of {self._partition} is not open in this process: ask its node",
            waiting_helps=False,
        )


def _stays(partition: TopicPartition) -> PolicyViolation:
    return PolicyViolation(
        f"{partition} may have records in a remote tier, which is not open in this process: its "
        "node deletes it"
    )
