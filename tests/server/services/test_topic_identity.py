"""Topics that are deleted and created again under the same name, seen through gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from streamlog import errors
from streamlog.model.partition import TopicPartition
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.support.log_insides import factory_of, topics_of
from tests.support.replacing import replace_method
from tests.support.running_node import RunningNode, running_node
from tests.support.server_harness import batch, running, with_limits


async def create(node: RunningNode, name: str = "t", partitions: int = 1) -> str:
    new = admin_pb2.NewTopic(name=name, partitions=partitions)
    [made] = (await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))).topics
    assert not made.HasField("error"), made.error.message
    return str(made.topic_id)


async def delete(node: RunningNode, name: str = "t") -> None:
    [gone] = (await node.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(names=[name]))).topics
    assert not gone.HasField("error"), gone.error.message


def produce_request(topic_id: str = "", partition: int = 0) -> log_pb2.ProduceRequest:
    part = log_pb2.ProducePartition(partition=partition, record_batches=batch(b"v"))
    topic = log_pb2.ProduceTopic(topic="t", topic_id=topic_id, partitions=[part])
    return log_pb2.ProduceRequest(topics=[topic])


def fetch_request(topic_id: str = "", **fields: Any) -> log_pb2.FetchRequest:
    part = log_pb2.FetchPartition(partition=0, fetch_offset=0)
    topic = log_pb2.FetchTopic(topic="t", topic_id=topic_id, partitions=[part])
    return log_pb2.FetchRequest(topics=[topic], **fields)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def error_of(response: Any) -> errors.StreamlogError | None:
    [part] = response.topics[0].partitions
    return from_proto(part.error) if part.HasField("error") else None


async def all_errors(node: RunningNode, topic_id: str) -> list[errors.StreamlogError | None]:
    """Errors of produce, pipelined produce, fetch, list offsets and delete records."""
    stream = node.log.ProduceStream()
    await stream.write(log_pb2.ProduceStreamRequest(request=produce_request(topic_id)))
    await stream.done_writing()
    answer = await stream.read()
    listed = log_pb2.ListOffsetsTopic(
        topic="t", topic_id=topic_id, partitions=[log_pb2.ListOffsetsPartition(timestamp_ms=-2)]
    )
    deleted = log_pb2.DeleteRecordsTopic(
        topic="t", topic_id=topic_id, partitions=[log_pb2.DeleteRecordsPartition(offset=0)]
    )
    return [
        error_of(await node.log.Produce(produce_request(topic_id))),
        error_of(answer.answers[0].response),
        error_of(await node.log.Fetch(fetch_request(topic_id))),
        error_of(await node.log.ListOffsets(log_pb2.ListOffsetsRequest(topics=[listed]))),
        error_of(await node.log.DeleteRecords(log_pb2.DeleteRecordsRequest(topics=[deleted]))),
    ]


def test_requests_that_name_a_topics_id_reach_no_other_topic() -> None:
    async def main() -> None:
        async with running_node() as node:
            old = await create(node)
            assert await all_errors(node, old) == [None] * 5
            await delete(node)
            for error in await all_errors(node, old):
                assert type(error) in (errors.UnknownTopicId, errors.UnknownTopicOrPartition)
            new = await create(node)
            assert new != old
            for error in await all_errors(node, old):
                assert type(error) is errors.InconsistentTopicId
                assert error.fields["topic_id"] == old
                assert error.fields["current_topic_id"] == new
                assert error.is_retryable
            assert await all_errors(node, new) == [None] * 5

    asyncio.run(main())


def test_no_topic_is_created_for_a_request_that_names_an_id() -> None:
    async def main() -> None:
        async with running_node(**{"broker.auto.create.topics.enable": "true"}) as node:
            error = error_of(await node.log.Produce(produce_request("an id")))
            assert isinstance(error, errors.UnknownTopicOrPartition)
            assert node.node.engine is not None
            assert node.node.engine.logs.topic("t") is None
            assert error_of(await node.log.Produce(produce_request())) is None

    asyncio.run(main())


@pytest.mark.parametrize("is_named", [True, False], ids=["with id", "without id"])
@pytest.mark.parametrize("is_made_anew", [True, False], ids=["made anew", "deleted"])
def test_long_polls_of_a_deleted_topic_end_with_an_error_that_says_so(
    is_named: bool, is_made_anew: bool
) -> None:
    async def main() -> None:
        async with running_node() as node, asyncio.timeout(30):
            topic_id = await create(node)
            request = fetch_request(topic_id if is_named else "", max_wait_ms=300_000)
            poll = asyncio.ensure_future(node.log.Fetch(request))
            await eventually(lambda: node.metric("streamlog_long_polls") == 1)
            await delete(node)
            if is_made_anew:
                await create(node)
            error = error_of(await poll)
            assert isinstance(error, errors.UnknownTopicOrPartition), error

    asyncio.run(main())


def test_a_produce_overtaken_by_its_topics_deletion_does_not_reach_the_next_topic() -> None:
    """The request has no id. Once it ended with Closed, and a retry stored in the next topic."""

    async def main() -> None:
        async with running_node() as node, asyncio.timeout(30):
            await create(node)
            assert error_of(await node.log.Produce(produce_request())) is None
            engine = node.node.engine
            assert engine is not None
            held, may_go = asyncio.Event(), asyncio.Event()
            real = engine.offload.run

            async def slow(lane: Any, fn: Any, *args: Any) -> Any:
                if fn.__name__ == "encode_plain_records":
                    held.set()
                    await may_go.wait()
                return await real(lane, fn, *args)

            replace_method(engine.offload, "run", slow)
            request = produce_request()
            request.topics[0].partitions[0].ClearField("record_batches")
            request.topics[0].partitions[0].records.records.add(value=b"v")
            late = asyncio.ensure_future(node.log.Produce(request))
            await held.wait()
            await delete(node)
            await create(node)
            may_go.set()
            assert type(error_of(await late)) is errors.UnknownTopicOrPartition

    asyncio.run(main())


def test_a_partition_that_opens_while_its_topic_is_deleted_elsewhere_does_not_stay() -> None:
    """A node that learns of the deletion closes its open logs; this log is not open yet."""

    async def main() -> None:
        async with running_node() as node:
            await create(node)
            engine = node.node.engine
            assert engine is not None
            partition = TopicPartition("t", 0)
            topics, factory = topics_of(engine.logs), factory_of(engine.logs)
            opening, opened = asyncio.Event(), asyncio.Event()
            real = factory.open

            async def slow(*args: Any) -> Any:
                log = await real(*args)
                opening.set()
                await opened.wait()
                return log

            replace_method(factory, "open", slow)
            asking = asyncio.ensure_future(node.log.Fetch(fetch_request()))
            await opening.wait()
            topics._drop("t")  # As the watch does, when another node has deleted the topic.
            opened.set()
            assert isinstance(error_of(await asking), errors.UnknownTopicOrPartition)
            assert engine.logs.open_log(partition) is None
            lines = [line for metric in engine.registry.collect() for line in metric.samples]
            assert not [line for line in lines if line.labels.get("topic") == "t"]

    asyncio.run(main())


def test_metric_lines_of_a_deleted_topic_do_not_come_back() -> None:
    async def main() -> None:
        async with running() as node:
            log = await node.logs.log(TopicPartition("t", 0))
            await node.log_stub.Produce(produce_request())
            await node.log_stub.Fetch(fetch_request())
            for direction in ("in", "out"):
                assert node.metric(f"streamlog_topic_records_{direction}_total", topic="t") == 1
            log.hold()
            late = asyncio.ensure_future(node.log_stub.Produce(produce_request()))
            await eventually(lambda: log.log_end_offset == 2)
            await node.service.services.admin.delete_topic(None, "t")  # type: ignore[arg-type]
            log.let_go()
            assert error_of(await late) is None
            node.service.services.topic_metrics.fetched("t", 1, 1)
            lines = [line for metric in node.registry.collect() for line in metric.samples]
            assert not [line for line in lines if line.labels.get("topic") == "t"]

    asyncio.run(main())


def test_the_error_of_too_many_partitions_names_the_bound() -> None:
    async def main() -> None:
        async with running(with_limits(partitions_per_request_max=3)) as node:
            fetch = fetch_request()
            produce = produce_request()
            for request in (fetch, produce):
                request.topics[0].partitions.extend([request.topics[0].partitions[0]] * 3)  # type: ignore[list-item]
            for call, request in (("Fetch", fetch), ("Produce", produce)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(node.log_stub, call)(request)
                error = from_rpc_error(caught.value, may_have_happened=False)
                assert type(error) is errors.Invalid
                assert error.fields == {"partitions": 4, "max_partitions": 3}

    asyncio.run(main())


def test_delete_records_ends_at_its_timeout() -> None:
    async def main() -> None:
        async with running_node() as node:
            await create(node, partitions=2)
            for partition in (0, 1):
                await node.log.Produce(produce_request(partition=partition))
            assert node.node.engine is not None
            log = node.node.engine.logs.open_log(TopicPartition("t", 0))
            assert log is not None
            parts = [
                log_pb2.DeleteRecordsPartition(partition=number, offset=1) for number in (0, 1)
            ]
            topic = log_pb2.DeleteRecordsTopic(topic="t", partitions=parts)
            request = log_pb2.DeleteRecordsRequest(topics=[topic], timeout_ms=1)
            async with log._removing:  # type: ignore[attr-defined]
                first, second = (await node.log.DeleteRecords(request)).topics[0].partitions
            assert isinstance(from_proto(first.error), errors.OutcomeUnknown)
            assert isinstance(from_proto(second.error), errors.DeadlinePassed)
            request.timeout_ms = 30_000
            for part in (await node.log.DeleteRecords(request)).topics[0].partitions:
                assert not part.HasField("error"), part.error.message
                assert part.log_start_offset == 1
            request.timeout_ms = -1
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.log.DeleteRecords(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(main())
