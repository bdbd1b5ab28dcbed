"""Many idempotent producers of one partition, over gRPC on a real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog import errors
from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import encode_values
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto
from tests.support.running_node import RunningNode, running_node


async def create(node: RunningNode) -> None:
    new = admin_pb2.NewTopic(name="t", partitions=1)
    await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))


async def produced(
    node: RunningNode, producer_id: int, sequence: int = 0
) -> log_pb2.ProducePartitionResult:
    data = encode_values(
        [b"v"], timestamp_ms=1, producer=BatchProducer(producer_id, 0, sequence)
    ).data
    part = log_pb2.ProducePartition(record_batches=bytes(data))
    topic = log_pb2.ProduceTopic(topic="t", partitions=[part])
    response = await node.log.Produce(log_pb2.ProduceRequest(topics=[topic]))
    result = response.topics[0].partitions[0]
    assert isinstance(result, log_pb2.ProducePartitionResult)
    return result


def test_more_producers_than_one_append_can_list_are_remembered(tmp_path: Path) -> None:
    """Once their checkpoint and snapshot were one append each, which ended the partition."""
    settings = {
        "data": str(tmp_path / "data"),
        "engine.append.batch_bytes_max": "4096",
        "log.checkpoint_interval_batches": "50",
        "log.meta_compaction_bytes": "8000",
        "broker.message.max.bytes": "2000",
    }
    count = 300

    async def main() -> None:
        async with running_node(**settings) as node:
            await create(node)
            answers = await asyncio.gather(*(produced(node, number) for number in range(count)))
            assert not [answer.error.message for answer in answers if answer.HasField("error")]
            offsets = [answer.base_offset for answer in answers]
            assert sorted(offsets) == list(range(count))
            for number in (0, count - 1):
                assert (await produced(node, number, 1)).base_offset >= count
            assert node.metric("streamlog_log_producer_ids") == count
            assert node.metric("streamlog_log_failed_partitions_total") == 0
        async with running_node(**settings) as node:
            again = await asyncio.gather(*(produced(node, number) for number in range(count)))
            assert [answer.base_offset for answer in again] == offsets
            assert all(answer.duplicate for answer in again)
            assert node.metric("streamlog_log_producer_ids") == count

    asyncio.run(main())


def test_at_the_bound_new_producers_wait_for_one_that_is_silent() -> None:
    async def main() -> None:
        bound = {"log.producer_ids_max": "3", "log.producer_idle_ms_min": "600000"}
        async with running_node(**bound) as node:
            await create(node)
            for producer_id in (1, 2, 3):
                assert not (await produced(node, producer_id)).HasField("error")
            error = from_proto((await produced(node, 4)).error)
            assert isinstance(error, errors.QuotaExceeded)
            assert error.is_retryable
            assert error.fields["retry_after_ms"] == 10_000
            assert (await produced(node, 1)).duplicate
            assert (await produced(node, 2, 1)).base_offset == 3
            assert node.metric("streamlog_log_producers_refused_total") == 1
            assert node.metric("streamlog_log_producer_ids") == 3
            assert node.metric("streamlog_log_producer_ids_per_partition_bound") == 3

    asyncio.run(main())


def test_at_the_bound_the_producer_silent_for_longest_is_forgotten() -> None:
    async def main() -> None:
        bound = {"log.producer_ids_max": "3", "log.producer_idle_ms_min": "0"}
        async with running_node(**bound) as node:
            await create(node)
            for producer_id in (1, 2, 3):
                await produced(node, producer_id)
            await produced(node, 1, 1)
            assert (await produced(node, 4)).base_offset == 4
            assert (await produced(node, 1, 1)).duplicate
            assert (await produced(node, 3)).duplicate
            assert (await produced(node, 4)).duplicate
            assert not (await produced(node, 2)).duplicate
            assert node.metric("streamlog_log_producer_ids") == 3

    asyncio.run(main())
