"""A log engine without streams works under the same manager: topics, retention, deletion."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories, LogKind
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded, read
from tests.log.list_log import ListLogFactory

DAY_MS = 24 * 3_600_000


@asynccontextmanager
async def manager(factory, clock):
    opened = await LogManager.open(
        LogFactories({LogKind.SHARED: factory}),
        BasicKV(),
        LogEnvironment(clock, SeededRandom(3), LogConfig(), LogMetrics(CollectorRegistry())),
        Leadership(1),
    )
    yield opened
    await opened.close()


def test_retention_and_deletion_of_a_plain_list():
    async def body():
        factory, clock = ListLogFactory(), ManualClock()
        async with manager(factory, clock) as logs:
            batch = encoded([b"x" * 400])
            configs = {
                "internal.segment.bytes": str(2 * len(batch)),
                "retention.bytes": str(5 * len(batch)),
                "retention.ms": str(DAY_MS),
            }
            await logs.create_topic("t", 2, configs)
            log = await logs.log(TopicPartition("t", 0))
            for _ in range(12):
                await append(log, encoded([b"x" * 400], at_ms=clock.now_ms()))
            await logs.retention_tick()
            assert (log.log_start_offset, log.log_end_offset) == (6, 12)
            assert log.size_bytes == 6 * len(batch)
            await log.delete_records(9)
            await logs.retention_tick()
            assert [s.base_offset for s in log.segments] == [8, 10]
            assert [r[0] for r in await read(log)] == [9, 10, 11]
            clock.advance(2 * DAY_MS)
            await logs.retention_tick()
            assert (log.log_start_offset, log.size_bytes) == (12, 0)
            assert logs.describe_partition(TopicPartition("t", 0)).storage_ids == {}
            await logs.delete_topic("t")
            assert not log.is_open
            assert not any(log.is_open for log in factory.logs.values())

    asyncio.run(body())
