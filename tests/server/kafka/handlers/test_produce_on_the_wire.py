"""Produce through a real socket: pipelining, no answers without acks, bytes that stay as sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from streamlog.codec.batch import HEADER_BYTES, BatchProducer, Compression
from streamlog.codec.records import encode_values
from streamlog.kafka.messages.produce_request import ProduceRequest
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import join
from streamlog.runtime.clock import SystemClock
from streamlog.server.kafka.call import KafkaCall, Reply, Route
from streamlog.settings.limits import LimitsConfig
from tests.server.kafka.handlers.produce_world import (
    NEWEST,
    ProduceWorld,
    batch,
    only,
    produce_request,
    produce_world,
)
from tests.support.kafka_wire import WireClient, request_bytes, wire
from tests.support.replacing import replace_method

VERSION = 9
MIB = 1 << 20


def request(correlation_id: int, records: bytes, **fields: Any) -> bytes:
    message = produce_request(records, **fields)
    return request_bytes(ApiKey.PRODUCE, VERSION, correlation_id, message)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ProduceWorld, WireClient]]:
    async with produce_world() as world, wire(world.produce.routes()) as served:
        client = await served.client()
        try:
            yield world, client
        finally:
            await client.close()


async def end_of(world: ProduceWorld) -> int:
    log = await world.logs.log(TopicPartition("t", 0))
    return int(log.log_end_offset)


def test_pipelined_requests_are_stored_and_answered_in_order() -> None:
    async def main() -> None:
        async with connected() as (_, client):
            count = 200
            sent = [request(number, batch(b"%d" % number)) for number in range(count)]
            client.send(b"".join(sent))
            for number in range(count):
                answered, response = await client.answer(ApiKey.PRODUCE, VERSION)
                assert (answered, only(response).base_offset) == (number, number)

    asyncio.run(main())


@pytest.mark.parametrize("size", [10, 70_000, MIB - 1000])
def test_what_is_stored_is_what_was_sent_but_for_offset_and_epoch(size: int) -> None:
    async def main() -> None:
        async with connected() as (world, client):
            values = [b"first", bytes(range(256)) * (size // 256 + 1)][:2]
            records = bytes(encode_values([values[0], values[1][:size]], timestamp_ms=1000).data)
            client.send(request(1, records) + request(2, records))
            for _ in range(2):
                await client.answer(ApiKey.PRODUCE, VERSION)
            log = await world.logs.log(TopicPartition("t", 0))
            for offset in (0, 2):
                stored = bytes(join((await log.fetch(offset, 1)).parts))
                assert stored[:8] == offset.to_bytes(8, "big")
                assert stored[8:12] == records[8:12]
                assert stored[16:] == records[16:]

    asyncio.run(main())


def test_every_codec_stays_as_the_client_compressed_it() -> None:
    async def main() -> None:
        async with connected() as (world, client):
            log = await world.logs.log(TopicPartition("t", 0))
            for number, codec in enumerate(Compression):
                records = bytes(
                    encode_values([b"v" * 1000], timestamp_ms=1000, compression=codec).data
                )
                client.send(request(number, records))
                _, response = await client.answer(ApiKey.PRODUCE, VERSION)
                assert only(response).error_code == 0
                stored = bytes(join((await log.fetch(number, 1)).parts))
                assert stored[HEADER_BYTES:] == records[HEADER_BYTES:]

    asyncio.run(main())


@pytest.mark.parametrize("version", [VERSION, NEWEST])
def test_an_answer_does_not_wait_for_the_partition_of_a_request_behind_it(version: int) -> None:
    """Both lay ready together, and the client would have sent the first one again."""

    async def main() -> None:
        async with connected() as (world, client):
            await world.send_one(batch(b"a"))
            topic_id = UUID(world.logs.topic("t").topic_id).bytes
            may_open, open_log = asyncio.Event(), world.logs.log

            async def held(partition: TopicPartition) -> AbstractLog:
                await may_open.wait()
                log: AbstractLog = await open_log(partition)
                return log

            replace_method(world.logs, "log", held)
            messages = [
                produce_request(batch(b"b"), topic_id=topic_id, partition=number)
                for number in (0, 1)
            ]
            client.send(
                b"".join(
                    request_bytes(ApiKey.PRODUCE, version, number, message)
                    for number, message in enumerate(messages)
                )
            )
            answered, response = await asyncio.wait_for(client.answer(ApiKey.PRODUCE, version), 10)
            assert (answered, only(response).base_offset) == (0, 1)
            may_open.set()
            answered, response = await client.answer(ApiKey.PRODUCE, version)
            assert (answered, only(response).base_offset) == (1, 0)

    asyncio.run(main())


def test_a_batch_that_is_too_large_leaves_the_connection_open() -> None:
    async def main() -> None:
        async with connected() as (_, client):
            client.send(request(1, batch(b"v" * 3 * MIB)) + request(2, batch(b"a")))
            _, refused = await client.answer(ApiKey.PRODUCE, VERSION)
            assert KafkaError(only(refused).error_code) is KafkaError.MESSAGE_TOO_LARGE
            _, stored = await client.answer(ApiKey.PRODUCE, VERSION)
            assert only(stored).base_offset == 0

    asyncio.run(main())


def test_requests_without_acks_are_stored_without_answers() -> None:
    async def main() -> None:
        async with connected() as (_, client):
            client.send(request(1, batch(b"a"), acks=0) + request(2, batch(b"b")))
            answered, response = await client.answer(ApiKey.PRODUCE, VERSION)
            assert (answered, only(response).base_offset) == (2, 1)

    asyncio.run(main())


def test_an_error_without_acks_ends_the_connection_after_the_answers_before_it() -> None:
    async def main() -> None:
        async with connected() as (world, client):
            client.send(request(1, batch(b"a")) + request(2, b"nonsense" * 20, acks=0))
            answered, response = await client.answer(ApiKey.PRODUCE, VERSION)
            assert (answered, only(response).base_offset) == (1, 0)
            assert await client.rest() == b""
            assert await end_of(world) == 1

    asyncio.run(main())


def test_a_requests_time_runs_from_its_arrival() -> None:
    """Not from when those before it have their places."""

    async def main() -> None:
        async with produce_world() as world:
            received: list[float | None] = []
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def slowly(call: KafkaCall, message: ProduceRequest) -> Reply:
                received.append(call.received_at)
                begun.set()
                await go_on.wait()
                return await world.produce.produce(call, message)

            routes = {ApiKey.PRODUCE: Route(slowly, is_pipelined=True)}
            async with wire(routes) as served:
                client = await served.client()
                client.send(request(1, batch(b"a")) + request(2, batch(b"b")))
                await begun.wait()
                before = SystemClock().monotonic()
                go_on.set()
                for number in (1, 2):
                    answered, response = await client.answer(ApiKey.PRODUCE, VERSION)
                    assert (answered, only(response).error_code) == (number, 0)
                await client.close()
            first, second = received
            assert first is not None
            assert first == second
            assert first <= before

    asyncio.run(main())


def test_a_batch_refused_above_the_bound_of_requests_comes_again_before_younger_ones() -> None:
    """The node does not know its producer yet, and would take the next one as its first."""

    def from_producer(sequence: int) -> bytes:
        producer = BatchProducer(7, 0, sequence)
        return bytes(encode_values([b"a"], timestamp_ms=1000, producer=producer).data)

    async def main() -> None:
        limits = LimitsConfig(requests_max=1)
        async with produce_world() as world, wire(world.produce.routes(), limits=limits) as served:
            client = await served.client()

            async def code(sequence: int) -> KafkaError:
                client.send(request(sequence, from_producer(sequence)))
                _, response = await client.answer(ApiKey.PRODUCE, VERSION)
                return KafkaError(only(response).error_code)

            served.resources.requests.begin()
            assert await code(0) is KafkaError.KAFKA_STORAGE_ERROR
            served.resources.requests.end("Fetch", "OK", None)
            assert await code(1) is KafkaError.KAFKA_STORAGE_ERROR
            assert [await code(sequence) for sequence in (0, 1)] == [KafkaError.NONE] * 2
            assert await end_of(world) == 2
            await client.close()

    asyncio.run(main())
