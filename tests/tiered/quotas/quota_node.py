"""A node with the quotas of its settings, and with several tiered partitions, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from streamlog.log.api.log_factory import TopicIdentity
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.catch_up_throttle import NO_THROTTLE, ReadThrottle
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import LogSegmentData, RemoteLogSegmentMetadata
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.remote_log_manager import TierQuotas
from streamlog.unified.unified_log import UnifiedLog
from streamlog.wiring.tiers import tier_quotas
from tests.tiered.harness import BreakableStorage, TieredLogUnderTest, VirtualClock

RATE = 2_000
"""Bytes a second: with as few as these an hour of a quota is some segments of some KB."""
OVERHEAD_BYTES = 80
"""What a batch of one value is longer than its value, at most."""


class Copy(NamedTuple):
    """One that a node has begun."""

    begun_s: float
    partition: int
    size_bytes: int


class SlowStorage(BreakableStorage):
    """A copy takes `copy_s`. Remembers all."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []
        self.copy_s = 0.0

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        partition = metadata.remote_log_segment_id.topic_id_partition.partition
        begun_s = asyncio.get_running_loop().time()
        self.copies.append(Copy(begun_s, partition, data.log_segment.size_bytes))
        await asyncio.sleep(self.copy_s)
        return await super().copy_log_segment_data(metadata, data)


class QuotaNode(TieredLogUnderTest):
    logs: list[UnifiedLog]
    tier_quotas: TierQuotas
    """Those in force."""

    def __init__(
        self,
        config: RemoteLogConfig,
        partitions: int,
        segment_bytes: int,
        clock: VirtualClock,
        throttle: ReadThrottle,
    ) -> None:
        self.slow = SlowStorage()
        configs = {"internal.segment.bytes": str(segment_bytes)}
        tree = TornTree(SeededRandom(1))
        super().__init__(tree, configs, config, self.slow, clock, throttle)
        self._partitions = partitions

    def quotas(self, registry: CollectorRegistry) -> TierQuotas:
        self.tier_quotas = tier_quotas(self.config, self.clock, registry)
        return self.tier_quotas

    async def start(self) -> None:
        await self.open_node()
        self.topic_id = self.random.uuid()
        topic = TopicIdentity("t", self.topic_id, "attempt")
        numbers = range(self._partitions)
        handles = await self.factory.create(topic, numbers, self.topic_config)
        self.logs = []
        for number, handle in zip(numbers, handles, strict=True):
            partition = TopicPartition("t", number)
            opened = await self.factory.open(partition, handle, self.topic_config, _failed)
            assert isinstance(opened, UnifiedLog)
            self.logs.append(opened)
        self.log = self.logs[0]

    async def stop(self) -> None:
        for log in self.logs:
            await log.close()
        await self.folder.close()
        await self.manager.close()

    async def fill(self, log: UnifiedLog, segments: int, batch_bytes: int | None = None) -> None:
        """So many closed segments of one batch each, or of several."""
        segment_bytes = int(self.configs["internal.segment.bytes"])
        size = batch_bytes or segment_bytes
        for _ in range(segments):
            for _ in range(segment_bytes // size):
                value = bytes(max(1, size - OVERHEAD_BYTES))
                await append(log, encoded([value], at_ms=self.clock.now_ms()))
            await log.roll()

    async def configure_all(self, **configs: str) -> None:
        await self.configure(**configs)
        for log in self.logs:
            await log.configure(self.topic_config)

    def quota_metric(self, name: str) -> float:
        value = self.registry.get_sample_value(f"streamlog_remote_{name}")
        assert value is not None
        return value


@asynccontextmanager
async def quota_node(
    config: RemoteLogConfig,
    *,
    partitions: int = 1,
    segment_bytes: int = 1000,
    clock: VirtualClock | None = None,
    throttle: ReadThrottle = NO_THROTTLE,
) -> AsyncIterator[QuotaNode]:
    node = QuotaNode(config, partitions, segment_bytes, clock or VirtualClock(), throttle)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def rates_over(uses: Sequence[tuple[float, int]], length_s: float) -> list[float]:
    """In quotas, from the begin of each use to that of the first one `length_s` later or more.

    `uses`: when, and how many bytes.
    """
    found = []
    for first, (begun, _) in enumerate(uses):
        used = 0
        for at, size in uses[first:]:
            if at - begun >= length_s - 0.001:
                found.append(used / (at - begun) / RATE)
                break
            used += size
    return found


def most_above(uses: Sequence[tuple[float, int]], length_s: float) -> float:
    """Bytes above what the quota pays, in any time of `length_s` or more from one use to another,
    with both of them."""
    found = 0.0
    for first, (begun, _) in enumerate(uses):
        used = 0
        for at, size in uses[first:]:
            used += size
            if at - begun >= length_s:
                found = max(found, used - RATE * (at - begun))
    return found


def _failed(_log: object, error: Exception) -> None:
    raise AssertionError(error)
