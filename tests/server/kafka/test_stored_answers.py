"""Answers of one stored batch: byte by byte what the generated encoder makes of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from streamlog.kafka.messages.produce_request import PartitionProduceData, ProduceRequest
from streamlog.kafka.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response, response_codec
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.kafka.call import Encoded
from streamlog.server.kafka.stored_answer import StoredAnswers
from streamlog.server.services.records.requests import ProducePartitionResult
from tests.server.kafka.handlers.produce_world import (
    NEWEST,
    ProduceWorld,
    batch,
    only,
    produce_request,
    produce_world,
)

API = APIS[ApiKey.PRODUCE]
NUMBERS = (-1, 0, 1, 127, 1 << 31, (1 << 63) - 1)
NAMES = ("t", "a.b_c-d", "x" * 126, "y" * 127, "z" * 249)


def generated(
    version: int, name: str, topic_id: bytes, index: int, result: ProducePartitionResult
) -> bytes:
    part = PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[part])
    codec = response_codec(ApiKey.PRODUCE)
    return b"".join(codec.encode(ProduceResponse(responses=[topic]), version))


@pytest.mark.parametrize("version", range(3, API.last + 1))
def test_every_version_is_as_the_generated_encoder_makes_it(version: int) -> None:
    rng, answers = random.Random(version), StoredAnswers()
    for _ in range(400):
        name = rng.choice(NAMES)
        topic_id = rng.choice((bytes(16), b"\xf1" * 16, rng.randbytes(16)))
        index = rng.choice((0, 1, 1 << 30, (1 << 31) - 1))
        base, append_time_ms, start = (rng.choice((*NUMBERS, rng.getrandbits(62))) for _ in "abc")
        result = ProducePartitionResult(index, None, base, append_time_ms, start)
        made = answers.encode(version, name, topic_id, index, result)
        assert made == generated(version, name, topic_id, index, result)


async def final_response(world: ProduceWorld, request: ProduceRequest, version: int) -> Any:
    reply = await world.reply(request, version)
    await reply.wait()
    return reply.final_response()


@pytest.mark.parametrize("version", range(3, NEWEST + 1))
def test_a_request_of_one_stored_batch_is_answered_encoded(version: int) -> None:
    async def main() -> None:
        async with produce_world() as world:
            topic_id = UUID(world.logs.topic("t").topic_id).bytes
            for base_offset in (0, 2):
                request = produce_request(batch(b"a", b"b"), topic_id=topic_id)
                answer = await final_response(world, request, version)
                assert isinstance(answer, Encoded)
                data = memoryview(b"".join(answer.pieces))
                response: Any = decode_response(ApiKey.PRODUCE, version, data, 0)
                part = only(response)
                assert (part.error_code, part.base_offset) == (0, base_offset)

    asyncio.run(main())


def test_errors_and_several_partitions_have_the_whole_response() -> None:
    async def main() -> None:
        async with produce_world() as world:
            refused = await final_response(world, produce_request(b"no batch"), 9)
            assert only(refused).error_code == KafkaError.INVALID_RECORD
            unknown = await final_response(world, produce_request(batch(b"a"), topic="u"), 9)
            assert only(unknown).error_code == KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            assert await final_response(world, produce_request(batch(b"a"), acks=0), 9) is None
            several = produce_request(batch(b"a"))
            more = PartitionProduceData(index=7, records=memoryview(batch(b"a")))
            several.topic_data[0].partition_data = [*several.topic_data[0].partition_data, more]
            answer = await final_response(world, several, 9)
            codes = [part.error_code for part in answer.responses[0].partition_responses]
            assert codes == [0, KafkaError.UNKNOWN_TOPIC_OR_PARTITION]

    asyncio.run(main())
