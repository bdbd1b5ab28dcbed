"""DescribeProducers: who wrote to a partition."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import encode_values
from streamlog.errors import Invalid
from streamlog.kafka.messages.describe_producers_request import (
    DescribeProducersRequest,
    TopicRequest,
)
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.services import log as log_service
from streamlog.settings.limits import LimitsConfig
from tests.server.kafka.handlers.produce_world import batch, call, produce_world


def test_idempotent_producers_are_listed_with_their_newest_batch() -> None:
    async def main() -> None:
        async with produce_world() as world:
            for producer in (
                BatchProducer(7, 2, 0),
                BatchProducer(7, 2, 2),
                BatchProducer(8, 0, 5),
            ):
                values = [b"a", b"b"]
                data = encode_values(values, timestamp_ms=1000, producer=producer).data
                assert (await world.send_one(bytes(data))).error_code == 0
            await world.send_one(batch(b"without an id"))
            topics = [
                TopicRequest(name="t", partition_indexes=[0, 1, 2]),
                TopicRequest(name="none", partition_indexes=[0]),
            ]
            answer = await world.describe_producers.describe_producers(
                call(0), DescribeProducersRequest(topics=topics)
            )
            [written, empty, beyond], [unknown] = [topic.partitions for topic in answer.topics]
            assert [
                (one.producer_id, one.producer_epoch, one.last_sequence)
                for one in written.active_producers
            ] == [(7, 2, 3), (8, 0, 6)]
            for one in written.active_producers:
                assert one.last_timestamp > 0
                assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)
            assert (empty.error_code, list(empty.active_producers)) == (0, [])
            for missing in (beyond, unknown):
                code = KafkaError(missing.error_code)
                assert code is KafkaError.UNKNOWN_TOPIC_OR_PARTITION
                assert missing.error_message

    asyncio.run(main())


def test_an_answer_lists_so_many_producers_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_service, "PRODUCERS_MAX", 5)

    async def main() -> None:
        async with produce_world() as world:
            for producer_id in range(3):
                producer = BatchProducer(producer_id, 0, 0)
                data = encode_values([b"a"], timestamp_ms=1000, producer=producer).data
                assert (await world.send_one(bytes(data))).error_code == 0
            topics = [TopicRequest(name="t", partition_indexes=[0] * 40)]
            answer = await world.describe_producers.describe_producers(
                call(0), DescribeProducersRequest(topics=topics)
            )
            parts = answer.topics[0].partitions
            assert [len(one.active_producers) for one in parts] == [3, 3] + [0] * 38
            refused = [KafkaError(one.error_code) for one in parts[2:]]
            assert refused == [KafkaError.INVALID_REQUEST] * 38
            assert "fewer partitions" in (parts[2].error_message or "")

    asyncio.run(main())


def test_a_request_names_so_many_partitions_at_most() -> None:
    async def main() -> None:
        async with produce_world(limits=LimitsConfig(partitions_per_request_max=3)) as world:
            topics = [TopicRequest(name="t", partition_indexes=[0] * 4)]
            with pytest.raises(Invalid):
                await world.describe_producers.describe_producers(
                    call(0), DescribeProducersRequest(topics=topics)
                )

    asyncio.run(main())
