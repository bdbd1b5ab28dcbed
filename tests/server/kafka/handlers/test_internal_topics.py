"""`__transaction_state` for clients: shown, read, and neither written nor changed."""

from __future__ import annotations

import asyncio

from streamlog.errors import InvalidName
from streamlog.kafka.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from streamlog.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from streamlog.kafka.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from streamlog.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from streamlog.kafka.messages.describe_topic_partitions_request import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.server.context import RequestContext
from streamlog.server.services.records.requests import ProduceCall, ProducePartition, ProduceTopic
from tests.server.kafka.handlers.produce_world import batch, produce_request, produce_world
from tests.support.kafka_handlers import KafkaHandlers, kafka_handlers

NAME = "__transaction_state"


async def _made(node: KafkaHandlers) -> None:
    await node.logs.create_internal_topic(NAME, 2, {})


def test_it_is_shown_as_internal() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await _made(node)
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=NAME)])
            (found,) = (await node.ask(ApiKey.METADATA, 12, asked)).topics
            assert (found.error_code, found.is_internal) == (0, True)
            described = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=NAME)], response_partition_limit=10
            )
            (shown,) = (await node.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, described)).topics
            assert (shown.error_code, shown.is_internal, len(shown.partitions)) == (0, True, 2)

    asyncio.run(main())


def test_it_is_neither_made_nor_changed_nor_deleted() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            create = CreateTopicsRequest(
                topics=[CreatableTopic(name=NAME, num_partitions=1, replication_factor=1)],
                timeout_ms=10_000,
            )
            (made,) = (await node.ask(ApiKey.CREATE_TOPICS, 7, create)).topics
            assert made.error_code == KafkaError.INVALID_TOPIC_EXCEPTION
            await _made(node)
            (made,) = (await node.ask(ApiKey.CREATE_TOPICS, 7, create)).topics
            assert made.error_code == KafkaError.TOPIC_ALREADY_EXISTS
            topics = [CreatePartitionsTopic(name=NAME, count=9, assignments=None)]
            grow = CreatePartitionsRequest(topics=topics, timeout_ms=10_000)
            (grown,) = (await node.ask(ApiKey.CREATE_PARTITIONS, 3, grow)).results
            assert grown.error_code == KafkaError.POLICY_VIOLATION
            for state in (
                DeleteTopicState(name=NAME),
                DeleteTopicState(name=None, topic_id=node.topic_id(NAME)),
            ):
                delete = DeleteTopicsRequest(topics=[state], timeout_ms=10_000)
                (deleted,) = (await node.ask(ApiKey.DELETE_TOPICS, 6, delete)).responses
                assert deleted.error_code == KafkaError.POLICY_VIOLATION
            place = DeleteRecordsPartition(partition_index=0, offset=0)
            cut = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=NAME, partitions=[place])], timeout_ms=10_000
            )
            (topic,) = (await node.ask(ApiKey.DELETE_RECORDS, 2, cut)).topics
            assert topic.partitions[0].error_code == KafkaError.INVALID_TOPIC_EXCEPTION
            found = node.logs.topic(NAME)
            assert found is not None
            assert found.partitions == 2

    asyncio.run(main())


def test_it_is_not_written_by_its_name_nor_by_its_id() -> None:
    async def main() -> None:
        async with produce_world() as world:
            await world.logs.create_internal_topic(NAME, 1, {})
            found = world.logs.topic(NAME)
            topic_id = bytes.fromhex(found.topic_id.replace("-", ""))
            for version, request in (
                (9, produce_request(batch(b"a"), topic=NAME)),
                (13, produce_request(batch(b"a"), topic="", topic_id=topic_id)),
            ):
                response = await world.send(request, version)
                [part] = response.responses[0].partition_responses
                assert part.error_code == KafkaError.INVALID_TOPIC_EXCEPTION
            # The service, which other protocols use, refuses as well.
            call = ProduceCall([ProduceTopic(NAME, [ProducePartition(0, batch(b"a"))])])
            sequenced = await world.service.sequence(RequestContext(), call)
            assert isinstance(sequenced.results()[0].partitions[0].error, InvalidName)
            log = await world.logs.log(TopicPartition(NAME, 0))
            assert log.log_end_offset == 0

    asyncio.run(main())
