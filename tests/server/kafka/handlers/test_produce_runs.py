"""Produce requests that lie ready together: one call for each log, and no promise less."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import encode_values
from streamlog.errors import Unauthorized
from streamlog.kafka.messages.produce_request import ProduceRequest
from streamlog.kafka.messages.produce_response import PartitionProduceResponse
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.kafka.protocol.topic_ids import id_bytes
from streamlog.log import AbstractLog, LogAppend, TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.server.context import Operation, RequestContext, Resource
from tests.server.kafka.handlers.produce_world import (
    NEWEST,
    NEWEST_WITH_NAMES,
    ProduceWorld,
    batch,
    call,
    only,
    produce_request,
    produce_world,
    response_of,
)
from tests.support.replacing import replace_method

Sent = tuple[int, ProduceRequest]
"""Version and request."""


async def together(world: ProduceWorld, sent: Sequence[Sent]) -> list[PartitionProduceResponse]:
    """The answers to requests that one call takes."""
    replies = await world.produce.produce_many([(call(version), one) for version, one in sent])
    return [only(await response_of(reply)) for reply in replies]


def named(records: bytes, **fields: Any) -> Sent:
    return NEWEST_WITH_NAMES, produce_request(records, **fields)


def idempotent(sequence: int) -> bytes:
    return bytes(
        encode_values([b"v"], timestamp_ms=1000, producer=BatchProducer(7, 0, sequence)).data
    )


class StandingClock(SystemClock):
    """However slow the machine is, requests that lie ready hold the loop for no time at all."""

    def __init__(self) -> None:
        self._began = super().monotonic()

    def monotonic(self) -> float:
        return self._began


def calls_of(log: AbstractLog) -> list[int]:
    """The sizes of the runs that the log gets from now on."""
    sizes: list[int] = []
    append_many = log.append_many

    async def counted(appends: Sequence[LogAppend]) -> Any:
        sizes.append(len(appends))
        return await append_many(appends)

    replace_method(log, "append_many", counted)
    return sizes


def test_each_log_gets_all_its_batches_in_one_call_in_their_order() -> None:
    async def main() -> None:
        async with produce_world(clock=StandingClock()) as world:
            topic = world.logs.topic("t")
            await world.send_one(batch())
            log = await world.logs.log(TopicPartition("t", 0))
            other = await world.logs.log(TopicPartition("t", 1))
            sizes, others = calls_of(log), calls_of(other)
            # The name and the id mean one log, whose order is that of the requests.
            by_id = id_bytes(topic.topic_id)
            answers = await together(
                world,
                [
                    named(idempotent(0)),
                    (NEWEST, produce_request(idempotent(1), topic="", topic_id=by_id)),
                    named(batch(), partition=1),
                    named(idempotent(2)),
                    (NEWEST, produce_request(idempotent(3), topic="", topic_id=by_id)),
                ],
            )
            assert [(one.error_code, one.base_offset) for one in answers] == [
                (0, 1),
                (0, 2),
                (0, 0),
                (0, 3),
                (0, 4),
            ]
            assert (sizes, others) == ([4], [1])

    asyncio.run(main())


def test_an_error_of_one_request_leaves_the_others_as_they_are() -> None:
    def authorize(context: RequestContext, operation: Operation, resource: Resource) -> None:
        if resource.name == "secret":
            raise Unauthorized("not for you")

    async def main() -> None:
        async with produce_world(authorize) as world:
            damaged = bytearray(batch(b"damaged"))
            damaged[-1] ^= 1
            answers = await together(
                world,
                [
                    named(batch(b"a")),
                    named(bytes(damaged)),
                    named(batch(b"b"), topic="none"),
                    named(batch(b"c"), topic="secret"),
                    named(idempotent(0)),
                    named(idempotent(9)),
                    named(batch(b"d")),
                ],
            )
            assert [(KafkaError(one.error_code).name, one.base_offset) for one in answers] == [
                ("NONE", 0),
                ("CORRUPT_MESSAGE", -1),
                ("UNKNOWN_TOPIC_OR_PARTITION", -1),
                ("TOPIC_AUTHORIZATION_FAILED", -1),
                ("NONE", 1),
                ("OUT_OF_ORDER_SEQUENCE_NUMBER", -1),
                ("NONE", 2),
            ]

    asyncio.run(main())


def test_requests_before_one_that_opens_a_log_have_their_places_first() -> None:
    async def main() -> None:
        async with produce_world(clock=StandingClock()) as world:
            await world.send_one(batch())
            log = await world.logs.log(TopicPartition("t", 0))
            sizes, ends = calls_of(log), []
            open_log = world.logs.log

            async def opened(partition: TopicPartition) -> AbstractLog:
                ends.append(log.log_end_offset)
                found: AbstractLog = await open_log(partition)
                return found

            world.logs.log = opened
            sent = [named(batch()), named(batch(), partition=1), named(batch())]
            answers = await together(world, sent)
            assert [one.base_offset for one in answers] == [1, 0, 2]
            assert (sizes, ends) == ([1, 1], [2])

    asyncio.run(main())
