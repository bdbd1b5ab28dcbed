"""Order: answers come in the order of requests; produce is pipelined, everything else waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamlog.errors import Overloaded, StoreUnavailable, StreamlogError
from streamlog.kafka.messages.describe_cluster_request import DescribeClusterRequest
from streamlog.kafka.messages.describe_log_dirs_request import DescribeLogDirsRequest
from streamlog.kafka.messages.describe_topic_partitions_request import (
    DescribeTopicPartitionsRequest,
)
from streamlog.kafka.messages.list_offsets_request import ListOffsetsRequest
from streamlog.kafka.messages.metadata_request import MetadataRequest
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.logs import client_id, trace_id
from streamlog.server.kafka.call import KafkaCall, Message, Route
from streamlog.server.kafka.handlers.table import handlers, join
from streamlog.server.kafka.transport.connection import JOINED_MAX
from streamlog.server.kafka.transport.send import AnswerSender
from streamlog.settings.limits import LimitsConfig
from tests.engine.harness import until
from tests.server.kafka.transport.scenes import Scene, closing, fetch, list_offsets, produce
from tests.support.kafka_handlers import kafka_handlers
from tests.support.kafka_wire import API_VERSIONS, request_bytes, sized, wire


def test_produce_is_begun_in_order_and_answered_in_order_whatever_is_durable_first() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            for number in range(4):
                client.send(produce(number))
                await until(lambda: len(scene.begun) > number)  # noqa: B023
            assert [one.correlation_id for one in scene.begun] == [0, 1, 2, 3]
            for reply in reversed(scene.begun):
                reply.let_go()
            answers = [(await client.answer(ApiKey.PRODUCE, 9))[0] for _ in range(4)]
            assert answers == [0, 1, 2, 3]

    asyncio.run(main())


def test_produce_requests_that_lie_ready_together_go_to_the_handler_in_one_call() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(b"".join(produce(number) for number in range(5)) + list_offsets(5))
            for _ in range(5):
                await client.answer(ApiKey.PRODUCE, 9)
            await client.answer(ApiKey.LIST_OFFSETS, 6)
            assert scene.groups == [[0, 1, 2, 3, 4]]

    asyncio.run(main())


def test_answers_that_are_ready_together_share_writes_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many, a client reads the first ones while the next ones are made."""
    sent: list[int] = []
    send = AnswerSender.send

    def recorded(sender: AnswerSender, pieces: Sequence[Buffer]) -> None:
        sent.append(sum(map(len, pieces)))
        send(sender, pieces)

    monkeypatch.setattr(AnswerSender, "send", recorded)

    async def main() -> None:
        scene = Scene()
        requests = 2 * JOINED_MAX + 1
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(b"".join(produce(number) for number in range(requests)))
            await until(lambda: len(scene.begun) == requests)
            for reply in reversed(scene.begun):
                reply.let_go()
            for number in range(requests):
                assert (await client.answer(ApiKey.PRODUCE, 9))[0] == number
            size = sent[-1]
            assert sent == [JOINED_MAX * size, JOINED_MAX * size, size]

    asyncio.run(main())


def test_another_request_waits_for_the_answers_before_it() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(produce(1) + list_offsets(2) + produce(3))
            await until(lambda: len(scene.begun) == 1)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not scene.listed
            scene.begun[0].let_go()
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 1
            assert (await client.answer(ApiKey.LIST_OFFSETS, 6))[0] == 2
            await until(lambda: len(scene.begun) == 2)
            scene.begun[1].let_go()
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 3

    asyncio.run(main())


def test_a_fetch_that_waits_holds_up_what_is_behind_it() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(fetch(1) + produce(2))
            await until(lambda: scene.fetches == [1])
            for _ in range(5):
                await asyncio.sleep(0)
            assert not scene.begun
            scene.fetched.set()
            assert (await client.answer(ApiKey.FETCH, 12))[0] == 1
            await until(lambda: len(scene.begun) == 1)
            scene.begun[0].let_go()
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 2

    asyncio.run(main())


def test_connections_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            waiting, other = await served.client(), await served.client()
            waiting.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            assert await other.is_served()
            scene.fetched.set()
            await waiting.answer(ApiKey.FETCH, 12)

    asyncio.run(main())


def test_acks_0_has_no_answer_and_its_error_ends_the_connection_behind_earlier_answers() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(produce(1, acks=0) + produce(2) + produce(3, acks=0) + produce(4))
            await until(lambda: len(scene.begun) == 4)
            scene.begun[2].let_go(closing())
            for at in (0, 1, 3):
                scene.begun[at].let_go()
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 2
            assert await client.rest() == b""
            assert served.ended("refused") == 1

    asyncio.run(main())


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.LIST_OFFSETS])
def test_a_handlers_error_is_the_apis_own_answer(api: ApiKey) -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            scene.failure = StoreUnavailable("the store is away")
            client.send(produce(1) if api is ApiKey.PRODUCE else list_offsets(1))
            if api is ApiKey.PRODUCE:
                _, response = await client.answer(api, 9)
                (topic,) = response.responses
                (part,) = topic.partition_responses
                assert (topic.name, part.index) == ("t", 0)
                assert part.error_code == KafkaError.KAFKA_STORAGE_ERROR
                assert part.error_message == "the store is away"
            else:
                _, response = await client.answer(api, 6)
                (part,) = response.topics[0].partitions
                assert part.error_code == KafkaError.KAFKA_STORAGE_ERROR
            assert await client.is_served()

    asyncio.run(main())


def test_an_error_that_comes_with_the_reply_is_the_answer_of_that_request_alone() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(produce(1) + produce(2))
            await until(lambda: len(scene.begun) == 2)
            scene.begun[0].let_go(Overloaded("full"))
            scene.begun[1].let_go()
            _, failed = await client.answer(ApiKey.PRODUCE, 9)
            _, stored = await client.answer(ApiKey.PRODUCE, 9)
            assert failed.responses[0].partition_responses[0].error_code != 0
            assert stored.responses == []

    asyncio.run(main())


@pytest.mark.parametrize("request_bytes", [produce(1), fetch(1), produce(1) + produce(2)])
def test_a_bug_in_a_handler_ends_its_connection_alone(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            other, client = await served.client(), await served.client()
            scene.failure = KeyError("a bug")
            client.send(request_bytes)
            assert await client.rest() == b""
            assert served.ended("bug") == 1
            assert await other.is_served()

    asyncio.run(main())
    (line, _) = caplog.records
    assert line.exc_info is not None
    assert line.__dict__["trace_id"].endswith("-1")


@pytest.mark.parametrize(("api", "request_bytes"), [("PRODUCE", produce(1)), ("FETCH", fetch(1))])
def test_a_bug_in_the_answer_to_an_error_is_counted_and_logged_as_one(
    api: str, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def error_response(call: KafkaCall, request: Message, error: StreamlogError) -> Message:
        raise KeyError("a bug")

    async def main() -> None:
        scene = Scene()
        routes = scene.routes()
        routes[ApiKey[api]] = replace(routes[ApiKey[api]], error_response=error_response)
        async with wire(routes) as served:
            client = await served.client()
            scene.failure = Overloaded("full")
            client.send(request_bytes)
            assert await client.rest() == b""
            assert served.ended("bug") == 1

    asyncio.run(main())
    (line, _) = caplog.records
    assert line.message == "request failed by a bug"
    assert line.__dict__["trace_id"].endswith("-1")


def test_a_bug_in_a_reply_ends_its_connection_alone() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            other, client = await served.client(), await served.client()
            client.send(produce(1))
            await until(lambda: len(scene.begun) == 1)
            scene.begun[0].let_go(RuntimeError("a bug"))
            assert await client.rest() == b""
            assert served.ended("bug") == 1
            assert await other.is_served()

    asyncio.run(main())


@pytest.mark.parametrize("request_bytes", [produce(1), fetch(1)])
def test_a_request_that_waits_for_something_cancelled_does_not_keep_its_client_waiting(
    request_bytes: bytes,
) -> None:
    """Such as work of a part that was closed; nobody cancelled the connection itself."""

    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            scene.failure = asyncio.CancelledError()
            client.send(request_bytes)
            assert await asyncio.wait_for(client.rest(), 5) == b""
            assert served.ended("bug") == 1

    asyncio.run(main())


def test_a_reply_that_waits_for_something_cancelled_does_not_keep_its_client_waiting() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(produce(1))
            await until(lambda: len(scene.begun) == 1)
            scene.begun[0].let_go(asyncio.CancelledError())
            assert await asyncio.wait_for(client.rest(), 5) == b""
            assert served.ended("bug") == 1

    asyncio.run(main())


def test_a_client_that_leaves_ends_its_fetch_and_abandons_its_replies() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            producer, consumer = await served.client(), await served.client()
            producer.send(produce(1) + produce(2) + fetch(3))
            consumer.send(fetch(9))
            await until(lambda: len(scene.begun) == 2 and scene.fetches == [9])
            await producer.close()
            await consumer.close()
            await until(lambda: served.connections.count == 0)
            await until(lambda: scene.cancelled == [9])
            assert scene.begun[1].is_abandoned

    asyncio.run(main())


def test_requests_before_one_that_is_no_request_are_served_and_answered() -> None:
    """As in Kafka: each is taken in its turn, whatever lies behind it."""
    broken = sized(produce(3)[4:-8])

    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(produce(1) + produce(2) + broken)
            await until(lambda: len(scene.begun) == 2)
            for reply in scene.begun:
                reply.let_go()
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 1
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 2
            assert await client.rest() == b""
            assert served.ended("refused") == 1

    asyncio.run(main())


def test_requests_above_the_nodes_bound_are_refused_in_their_apis_own_words() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes(), limits=LimitsConfig(requests_max=1)) as served:
            holder, client = await served.client(), await served.client()
            holder.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            client.send(produce(2))
            _, response = await client.answer(ApiKey.PRODUCE, 9)
            (part,) = response.responses[0].partition_responses
            assert part.error_code == KafkaError.KAFKA_STORAGE_ERROR
            assert not scene.begun
            client.send(produce(3, acks=0))
            assert await client.rest() == b""
            scene.fetched.set()
            await holder.answer(ApiKey.FETCH, 12)
            assert await holder.is_served()

    asyncio.run(main())


def test_versions_are_told_above_the_nodes_bound_too() -> None:
    """aiokafka and librdkafka would take the node for one that is too old to know the request."""

    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes(), limits=LimitsConfig(requests_max=1)) as served:
            holder, client = await served.client(), await served.client()
            holder.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            response = await client.ask(ApiKey.API_VERSIONS, 3, API_VERSIONS)
            assert response.error_code == 0
            scene.fetched.set()
            await holder.answer(ApiKey.FETCH, 12)

    asyncio.run(main())


def test_brokers_and_topics_are_told_above_the_nodes_bound_too() -> None:
    """Java's listTopics takes an answer without topics for that of a cluster that has none."""

    async def main() -> None:
        scene = Scene()
        limits = LimitsConfig(requests_max=1)
        async with (
            kafka_handlers() as node,
            wire({**join(handlers(node.services)), **scene.routes()}, limits=limits) as served,
        ):
            await node.logs.create_topic("t", 1)
            holder, client = await served.client(), await served.client()
            holder.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            for version in (1, 8, 12, 13):
                response = await client.ask(ApiKey.METADATA, version, MetadataRequest(topics=None))
                assert [topic.name for topic in response.topics] == ["t"], version
                assert len(response.brokers) == 1
            described = await client.ask(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest()
            )
            assert [(topic.name, topic.error_code) for topic in described.topics] == [("t", 0)]
            cluster = await client.ask(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
            assert (cluster.error_code, len(cluster.brokers)) == (0, 1)
            scene.fetched.set()
            await holder.answer(ApiKey.FETCH, 12)

    asyncio.run(main())


def test_a_refusal_above_the_nodes_bound_that_no_answer_can_say_ends_the_connection() -> None:
    """An answer without log directories would say that the node has none."""

    async def main() -> None:
        async def described(call: KafkaCall, request: Message) -> Message:
            raise AssertionError("it is above the bound")

        scene = Scene()
        routes = {**scene.routes(), ApiKey.DESCRIBE_LOG_DIRS: Route(described)}
        async with wire(routes, limits=LimitsConfig(requests_max=1)) as served:
            holder, old, new = [await served.client() for _ in range(3)]
            holder.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            request = DescribeLogDirsRequest(topics=None)
            response = await new.ask(ApiKey.DESCRIBE_LOG_DIRS, 3, request)
            assert response.error_code == KafkaError.KAFKA_STORAGE_ERROR
            old.send(request_bytes(ApiKey.DESCRIBE_LOG_DIRS, 2, 1, request))
            assert await old.rest() == b""
            assert served.ended("refused") == 1
            scene.fetched.set()
            await holder.answer(ApiKey.FETCH, 12)

    asyncio.run(main())


def test_a_handler_knows_who_calls_and_its_log_lines_do_too() -> None:
    calls: list[tuple[KafkaCall, str, str]] = []

    async def versions(call: KafkaCall, request: object) -> None:
        calls.append((call, trace_id.get(), client_id.get()))

    async def main() -> None:
        async with wire({ApiKey.LIST_OFFSETS: Route(versions)}) as served:
            client = await served.client()
            client.send(list_offsets(41))
            assert await client.is_served()
            port = client.writer.get_extra_info("sockname")[1]
            (call, trace, name), *_ = calls
            assert call.context.client_id == name == "test"
            assert call.context.trace_id == trace
            assert trace.endswith("-41")
            assert call.context.peer == f"127.0.0.1:{port}"
            assert (call.listener, call.advertised) == ("kafka", ("example", 9092))
            assert call.frame_bytes == len(list_offsets(41)) - 4

    asyncio.run(main())


def test_a_long_client_id_is_cut() -> None:
    names: list[str] = []

    async def listed(call: KafkaCall, request: object) -> None:
        names.append(call.context.client_id)

    async def main() -> None:
        async with wire({ApiKey.LIST_OFFSETS: Route(listed)}) as served:
            client = await served.client()
            message = ListOffsetsRequest()
            client.send(request_bytes(ApiKey.LIST_OFFSETS, 6, 1, message, "n" * 5000))
            assert await client.is_served()

    asyncio.run(main())
    assert names == ["n" * 255]
