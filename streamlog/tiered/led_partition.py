"""What a node's RemoteLogManager knows of one partition."""

from __future__ import annotations

import asyncio

from streamlog.log.api.tiering import TierableLog
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, TopicIdPartition
from streamlog.tiered.metrics import RemoteLogMetrics
from streamlog.tiered.reading.partition_tier import PartitionTier


class LedPartition:
    """One log that this node leads or follows, and its tier. The manager changes all of it."""

    def __init__(
        self, tier: PartitionTier, metrics: RemoteLogMetrics, *, is_leader: bool = True
    ) -> None:
        self.tier = tier
        self.is_leader = is_leader
        """A follower copies and deletes nothing: it looks what the leader did."""
        self._metrics = metrics
        self.remote = (0, 0)
        """Segments and bytes in the tier, as of the last expiration."""
        self.turn = asyncio.Lock()
        """Of the load, the copies, the purge's clean-up, and the deletion of all that is remote."""
        self.is_loaded = False
        """Whether `highest_offset` is what the metadata says."""
        self.missing: tuple[int, int] | None = None
        """Offsets (end exclusive) that were in neither tier when it was loaded, or cleaned up."""
        self.has_left_overs = True
        """Whether copies may have been begun that nobody finishes."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.waits_for_quota = False
        """Whether the copy task waits for room in the quota, and has begun no copy meanwhile."""
        self.retries: dict[str, asyncio.Task[None]] = {}
        """Of tasks that failed: they wait to be begun again."""
        self.is_given_up = False
        """Whether the tier was turned off, and nothing is left in it."""
        self.failures: dict[str, int] = {}
        """How often a task failed since it last did not."""
        self.failure: str | None = None
        self.failed_since = 0.0
        """The monotonic second at which `failure` began."""

    @property
    def log(self) -> TierableLog:
        return self.tier.log

    @property
    def partition(self) -> TopicIdPartition:
        return self.tier.partition

    @property
    def has_lost(self) -> bool:
        """Whether offsets are missing behind the log start."""
        return self.missing is not None and self.log.log_start_offset < self.missing[1]

    def copied(self, segment: RemoteLogSegmentMetadata) -> None:
        self.tier.highest_offset = max(self.tier.highest_offset, segment.end_offset)
        self._metrics.copied(self.partition.topic, segment.segment_size_bytes)

    def cut_off(self) -> list[asyncio.Task[None]]:
        """Cancels the partition's tasks; those that are still to end."""
        for retry in self.retries.values():
            retry.cancel()
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        return tasks
