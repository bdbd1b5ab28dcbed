"""Quotas of clients over gRPC: set as settings, told in answers, waited for by the next request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from streamlog import errors
from streamlog.client.aio import Admin
from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.model.partition import TopicPartition
from streamlog.v1 import log_pb2
from streamlog.v1support.metadata import CLIENT_ID
from tests.engine.harness import until
from tests.support.kafka_wire import WireClient, connect, request_bytes
from tests.support.log_insides import factory_of
from tests.support.replacing import replace_method
from tests.support.running_node import RunningNode, running_node
from tests.support.server_harness import Answers, batch

ME = [(CLIENT_ID, "me")]
PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
THROTTLE_S = 0.4


@asynccontextmanager
async def limited_node(**settings: Any) -> AsyncIterator[tuple[RunningNode, Admin]]:
    """A node with the topic t, which also speaks Kafka's protocol."""
    async with (
        running_node(kafka_listen="127.0.0.1:0", **settings) as node,
        Admin(node.banner.grpc) as admin,
    ):
        await admin.create_topic("t", partitions=2)
        yield node, admin


def produced(size: int = 10_000, partition: int = 0) -> log_pb2.ProduceRequest:
    part = log_pb2.ProducePartition(partition=partition, record_batches=batch(bytes(size)))
    return log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic="t", partitions=[part])])


def fetched(partition: int = 0, most: int = 1 << 20) -> log_pb2.FetchRequest:
    part = log_pb2.FetchPartition(partition=partition, partition_max_bytes=most)
    return log_pb2.FetchRequest(topics=[log_pb2.FetchTopic(topic="t", partitions=[part])])


def rate_for(size_bytes: int, throttle_s: float = THROTTLE_S) -> str:
    """With which a first use of `size_bytes` throttles for about so long.

    The window's age in milliseconds counts, so that it may be one less.
    """
    return str(int(size_bytes / (10 + throttle_s)))


async def shown(admin: Admin, **resource: Any) -> dict[str, tuple[str, str]]:
    """Value and source of each quota."""
    entries = await admin.describe_configs(**resource)
    return {entry.name: (entry.value, entry.source) for entry in entries}


def test_quotas_are_settings_of_a_client_or_of_the_default_client() -> None:
    async def main() -> None:
        async with limited_node() as (_, admin):
            nothing = ("", "not set")
            assert await shown(admin, client="me") == dict.fromkeys(
                (PRODUCE, FETCH, REQUEST), nothing
            )
            await admin.alter_configs(client="me", configs={PRODUCE: "1000"})
            await admin.alter_configs(client_default=True, configs={PRODUCE: "7", REQUEST: "2.5"})
            assert await shown(admin, client="me") == {
                PRODUCE: ("1000", "client id"),
                FETCH: nothing,
                REQUEST: ("2.5", "default client id"),
            }
            await admin.alter_configs(client="me", configs={PRODUCE: None, FETCH: "3"})
            await admin.alter_configs(client="me", configs={FETCH: "4"}, validate_only=True)
            assert await shown(admin, client="me") == {
                PRODUCE: ("7", "default client id"),
                FETCH: ("3", "client id"),
                REQUEST: ("2.5", "default client id"),
            }
            assert (await shown(admin, client_default=True))[FETCH] == nothing

    asyncio.run(main())


@pytest.mark.parametrize(
    ("resource", "changes", "reason"),
    [
        ({"client": "me"}, {"configs": {PRODUCE: "-1"}}, "greater than 0"),
        ({"client": "me"}, {"configs": {PRODUCE: "soon"}}, "give a number"),
        ({"client": "me"}, {"configs": {"retention.ms": "1"}}, "unknown quota"),
        ({"client": "me"}, {"configs": {"retention.ms": None}}, "unknown quota"),
        ({"client": "me"}, {"append": {PRODUCE: "1"}}, "no list"),
        ({"client": ""}, {"configs": {PRODUCE: "1"}}, "empty"),
        ({"client_default": True}, {"configs": {FETCH: "0.5"}}, "whole number"),
    ],
)
def test_wrong_quotas_are_refused(
    resource: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    async def main() -> None:
        async with limited_node() as (_, admin):
            with pytest.raises(errors.Invalid, match=reason):
                await admin.alter_configs(**resource, **changes)
            assert set((await shown(admin, client="me")).values()) == {("", "not set")}

    asyncio.run(main())


def test_calls_of_a_throttled_client_wait_and_those_of_others_do_not() -> None:
    async def main() -> None:
        async with limited_node() as (node, admin):
            size, throttle_s = len(produced().SerializeToString()), 2.0
            await admin.alter_configs(client="me", configs={PRODUCE: rate_for(size, throttle_s)})
            began = time.monotonic()
            answer = await node.log.Produce(produced(), metadata=ME)
            assert throttle_s * 1000 - 10 <= answer.throttle_time_ms < throttle_s * 1000 + 100
            next_call = asyncio.ensure_future(node.log.Produce(produced(1), metadata=ME))
            for _ in range(5):
                assert (await node.log.Produce(produced(1))).throttle_time_ms == 0
                await node.log.Fetch(fetched(), metadata=ME)
            assert not next_call.done()
            await next_call
            assert time.monotonic() - began >= throttle_s * 0.95

    asyncio.run(main())


def test_a_stream_of_produce_requests_tells_its_throttle_and_is_not_read_meanwhile() -> None:
    async def main() -> None:
        async with limited_node() as (node, admin):
            request = log_pb2.ProduceStreamRequest(correlation_id=1, request=produced())
            rate = rate_for(len(request.SerializeToString()))
            await admin.alter_configs(client="me", configs={PRODUCE: rate})
            call = node.log.ProduceStream(metadata=ME)
            answers = Answers(call)
            began = time.monotonic()
            await call.write(request)
            await call.write(log_pb2.ProduceStreamRequest(correlation_id=2, request=produced(1)))
            first = await answers.read()
            assert first.correlation_id == 1
            assert first.response.throttle_time_ms >= THROTTLE_S * 1000 - 10
            second = await answers.read()
            assert second.correlation_id == 2
            assert time.monotonic() - began >= THROTTLE_S * 0.95
            await call.done_writing()

    asyncio.run(main())


def test_a_fetch_tells_its_throttle_beside_its_records_and_the_next_one_waits() -> None:
    async def main() -> None:
        async with limited_node() as (node, admin):
            await node.log.Produce(produced(100_000))
            size = len((await node.log.Fetch(fetched())).SerializeToString())
            await admin.alter_configs(client="me", configs={FETCH: rate_for(size)})
            began = time.monotonic()
            answer = await node.log.Fetch(fetched(), metadata=ME)
            assert answer.topics[0].partitions[0].next_offset == 1
            assert answer.throttle_time_ms >= THROTTLE_S * 1000 - 10
            await node.log.Fetch(fetched(), metadata=ME)
            assert time.monotonic() - began >= THROTTLE_S * 0.95

    asyncio.run(main())


def test_time_above_the_quota_delays_any_call_of_the_client() -> None:
    async def main() -> None:
        async with limited_node() as (node, admin):
            await admin.alter_configs(client="me", configs={REQUEST: "0.000001"})
            part = log_pb2.ListOffsetsPartition(partition=0, timestamp_ms=-1)
            topic = log_pb2.ListOffsetsTopic(topic="t", partitions=[part])
            offsets = log_pb2.ListOffsetsRequest(topics=[topic])
            began = time.monotonic()
            await node.log.ListOffsets(offsets, metadata=ME)
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await node.log.ListOffsets(offsets, metadata=ME, timeout=0.2)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await node.log.Produce(produced(1), metadata=ME)
            assert time.monotonic() - began >= 0.95
            labels = {"client_id": "me", "quota": REQUEST}
            assert node.metric("streamlog_client_throttle_seconds_total", **labels) >= 2

    asyncio.run(main())


async def kafka_client(node: RunningNode) -> WireClient:
    [endpoint] = [one for one in node.banner.listeners if one.name == "kafka"]
    return await connect(int(endpoint.address.rsplit(":", 1)[1]))


def kafka_produce(correlation_id: int, client_id: str, size: int = 10_000) -> bytes:
    part = PartitionProduceData(index=0, records=batch(bytes(size)))
    topic = TopicProduceData(name="t", partition_data=[part])
    message = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    return request_bytes(ApiKey.PRODUCE, 9, correlation_id, message, client_id)


def test_both_protocols_charge_one_quota() -> None:
    async def main() -> None:
        async with limited_node() as (node, admin):
            rate = rate_for(len(kafka_produce(1, "me")))
            await admin.alter_configs(client="me", configs={PRODUCE: rate})
            client = await kafka_client(node)
            client.send(kafka_produce(1, "me"))
            _, response = await client.answer(ApiKey.PRODUCE, 9)
            assert response.responses[0].partition_responses[0].error_code == 0
            assert response.throttle_time_ms > 0
            answer = await node.log.Produce(produced(), metadata=ME)
            assert answer.throttle_time_ms > 5000, "twice the ten seconds' worth"
            await client.close()

    asyncio.run(main())


def test_a_polite_client_goes_on_beside_a_rogue_on_real_sockets() -> None:
    """The rogue sends whatever the answers say; its connection carries a few requests, no more."""

    async def main() -> None:
        async with limited_node() as (node, admin):
            await admin.alter_configs(client="rogue", configs={PRODUCE: "10000"})
            rogue, polite = await kafka_client(node), await kafka_client(node)
            throttles: list[int] = []

            async def flood() -> None:
                data = kafka_produce(1, "rogue", 50_000)
                rogue.send(data * 10)
                while True:
                    _, response = await rogue.answer(ApiKey.PRODUCE, 9)
                    throttles.append(response.throttle_time_ms)
                    rogue.send(data)

            flooding = asyncio.create_task(flood())
            for number in range(50):
                polite.send(kafka_produce(number, "polite", 100))
                correlation_id, response = await polite.answer(ApiKey.PRODUCE, 9)
                assert (correlation_id, response.throttle_time_ms) == (number, 0)
            async with asyncio.timeout(20):
                await until(lambda: bool(throttles and throttles[-1]))
            assert len(throttles) <= 4, "100,000 bytes may be used at once"
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            await rogue.close()
            await polite.close()

    asyncio.run(main())


def test_a_fetch_is_cut_to_what_the_client_may_have_at_once() -> None:
    async def main() -> None:
        async with limited_node() as (node, admin):
            for _ in range(10):
                await node.log.Produce(produced(10_000))
            await admin.alter_configs(client="me", configs={FETCH: "3500"})
            request = fetched()
            request.min_bytes, request.max_wait_ms = 90_000, 20_000
            answer = await node.log.Fetch(request, metadata=ME)
            assert answer.topics[0].partitions[0].next_offset == 3
            assert answer.throttle_time_ms == 0
            client = await kafka_client(node)
            part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic="t", partitions=[part])]
            wide = FetchRequest(max_wait_ms=20_000, min_bytes=90_000, topics=topics)
            client.send(request_bytes(ApiKey.FETCH, 12, 1, wide, "me"))
            _, response = await client.answer(ApiKey.FETCH, 12)
            records = response.responses[0].partitions[0].records
            assert 10_000 < len(records) < 15_000, "both have the one quota: a batch is left"
            assert response.throttle_time_ms > 0
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("listener", ["grpc", "kafka"])
def test_a_poll_without_records_takes_nothing_from_other_fetches_of_its_client(
    listener: str,
) -> None:
    """Consumers at the end of their logs poll again and again, for as much as a client may ask."""

    async def main() -> None:
        async with limited_node() as (node, admin):
            for _ in range(3):
                await node.log.Produce(produced(10_000))
            await admin.alter_configs(client="me", configs={FETCH: "3500"})
            client = await kafka_client(node)
            part = FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic="t", partitions=[part])]
            ask = FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=topics)
            if listener == "kafka":
                client.send(request_bytes(ApiKey.FETCH, 12, 1, ask, "me"))
            else:
                request = fetched()
                request.topics[0].partitions[0].fetch_offset = 3
                request.min_bytes, request.max_wait_ms = 1, 20_000
                idle = node.log.Fetch(request, metadata=ME)
            async with asyncio.timeout(20):
                await until(lambda: node.metric("streamlog_long_polls") == 1)
            answer = await node.log.Fetch(fetched(), metadata=ME)
            assert answer.topics[0].partitions[0].next_offset == 3
            await node.log.Produce(produced(100))
            if listener == "kafka":
                _, response = await client.answer(ApiKey.FETCH, 12)
                assert response.responses[0].partitions[0].records
            else:
                assert (await idle).topics[0].partitions[0].next_offset == 4
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("awaited", ["open", "fetch"])
def test_a_fetch_that_waits_for_the_store_takes_no_more_than_it_may_read(awaited: str) -> None:
    """Of a partition that opens nothing yet, and of one that is read what was asked for of it."""

    async def main() -> None:
        async with limited_node() as (node, admin), asyncio.timeout(60):
            for _ in range(3):
                await node.log.Produce(produced(10_000))
            assert node.node.engine is not None
            owner: object = factory_of(node.node.engine.logs)
            if awaited == "fetch":
                await node.log.Produce(produced(100, partition=1))
                owner = await node.node.engine.logs.log(TopicPartition("t", 1))
            real, waits, may_go_on = getattr(owner, awaited), asyncio.Event(), asyncio.Event()

            async def slow(*args: Any, **kwargs: Any) -> Any:
                waits.set()
                await may_go_on.wait()
                return await real(*args, **kwargs)

            replace_method(owner, awaited, slow)
            await admin.alter_configs(client="me", configs={FETCH: "3500"})
            waiting = node.log.Fetch(
                fetched(1, 1 << 20 if awaited == "open" else 1000), metadata=ME
            )
            await waits.wait()
            answer = await node.log.Fetch(fetched(), metadata=ME)
            assert answer.topics[0].partitions[0].next_offset == 3
            may_go_on.set()
            [late] = (await waiting).topics[0].partitions
            assert late.next_offset == (awaited == "fetch")

    asyncio.run(main())


def test_a_session_of_a_throttled_consumer_goes_on() -> None:
    async def main() -> None:
        async with limited_node() as (node, admin):
            await node.log.Produce(produced(1000))
            client = await kafka_client(node)

            async def ask(**fields: Any) -> Any:
                request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, **fields)
                client.send(request_bytes(ApiKey.FETCH, 12, 1, request, "me"))
                return (await client.answer(ApiKey.FETCH, 12))[1]

            part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic="t", partitions=[part])]
            opened = await ask(session_epoch=0, topics=topics)
            session_id = opened.session_id
            assert session_id
            await admin.alter_configs(client="me", configs={FETCH: "100"})
            throttled = await ask(session_id=session_id, session_epoch=1, topics=topics)
            assert (throttled.error_code, throttled.session_id) == (0, session_id)
            assert throttled.throttle_time_ms > 0
            await admin.alter_configs(client="me", configs={FETCH: None})
            later = await ask(session_id=session_id, session_epoch=2)
            assert (later.error_code, later.session_id) == (0, session_id)
            assert later.throttle_time_ms == 0
            await client.close()

    asyncio.run(main())


def test_quotas_survive_a_restart(tmp_path: Any) -> None:
    async def main() -> None:
        data = str(tmp_path / "data")
        async with limited_node(data=data) as (_, admin):
            await admin.alter_configs(client="me", configs={PRODUCE: "1"})
        async with running_node(data=data) as node:
            answer = await node.log.Produce(produced(), metadata=ME)
            assert answer.throttle_time_ms == 11_000

    asyncio.run(main())
