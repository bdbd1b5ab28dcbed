"""Fetches of partitions of which some are throttled, since other readers go first."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from streamlog.log.api.abstract_log import Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from streamlog.v1 import log_pb2
from tests.support.server_fakes import ListLog
from tests.support.server_harness import batch, running


class FarBehind(ListLog):
    """Its readers get one batch at a time, and only for an answer that has nothing yet."""

    async def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        deadline: float | None = None,
    ) -> LogFetch:
        fetched = await super().fetch(
            offset, 1 if min_one_batch else 0, min_one_batch=min_one_batch, isolation=isolation
        )
        return dataclasses.replace(fetched, is_paced=True)


def fetch(*partitions: int, **fields: Any) -> log_pb2.FetchRequest:
    parts = [log_pb2.FetchPartition(partition=partition) for partition in partitions]
    topic = log_pb2.FetchTopic(topic="t", partitions=parts)
    return log_pb2.FetchRequest(topics=[topic], **fields)


def next_offsets(answer: log_pb2.FetchResponse) -> list[int]:
    return [part.next_offset for part in answer.topics[0].partitions]


def test_a_throttled_partition_holds_no_other_partition_up() -> None:
    async def main() -> None:
        async with running() as node:
            for number in range(2):
                key = TopicPartition("t", number)
                log = node.logs.open[key] = (FarBehind if number else ListLog)(key)
                for _ in range(3):
                    await (await log.append(batch(b"value")))
            # A throttled partition answers with a piece, though more was asked for and is there.
            wanted = {"min_bytes": 1 << 20, "max_wait_ms": 30_000}
            async with asyncio.timeout(25):
                assert next_offsets(await node.log_stub.Fetch(fetch(1, **wanted))) == [1]
                assert next_offsets(await node.log_stub.Fetch(fetch(1, 0, **wanted))) == [1, 3]
                assert next_offsets(await node.log_stub.Fetch(fetch(0, 1, **wanted))) == [3, 0]

    asyncio.run(main())
