"""InitProducerId: ids for idempotent producers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.errors import Unauthorized
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.messages.init_producer_id_response import InitProducerIdResponse
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import Operation, RequestContext, Resource
from tests.server.kafka.handlers.produce_world import ProduceWorld, call, produce_world


async def ask(world: ProduceWorld, **fields: Any) -> InitProducerIdResponse:
    request = InitProducerIdRequest(**fields)
    return await world.producer_ids.init_producer_id(call(5), request)


def test_each_producer_gets_an_id_of_its_own() -> None:
    async def main() -> None:
        async with produce_world() as world:
            answers = [await ask(world, transactional_id=None) for _ in range(3)]
            assert len({answer.producer_id for answer in answers}) == 3
            assert all(answer.producer_id >= 0 for answer in answers)
            assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}

    asyncio.run(main())


def test_a_producer_that_names_its_id_gets_a_new_one() -> None:
    async def main() -> None:
        async with produce_world() as world:
            old = await ask(world, transactional_id=None)
            new = await ask(
                world, transactional_id=None, producer_id=old.producer_id, producer_epoch=3
            )
            assert new.error_code == 0
            assert new.producer_id != old.producer_id
            assert new.producer_epoch == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": "tx"}, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"transactional_id": ""}, KafkaError.INVALID_REQUEST),
        ({"transactional_id": None, "producer_id": 4}, KafkaError.INVALID_REQUEST),
        ({"transactional_id": None, "producer_epoch": 4}, KafkaError.INVALID_REQUEST),
    ],
)
def test_requests_that_are_refused(fields: dict[str, object], error: KafkaError) -> None:
    async def main() -> None:
        async with produce_world() as world:
            answer = await ask(world, **fields)
            assert KafkaError(answer.error_code) is error
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)

    asyncio.run(main())


def test_who_may_not_write_gets_no_id() -> None:
    def refuse(context: RequestContext, operation: Operation, resource: Resource) -> None:
        raise Unauthorized("not yours", principal=context.principal)

    async def main() -> None:
        async with produce_world(refuse) as world:
            answer = await ask(world, transactional_id=None)
            assert KafkaError(answer.error_code) is KafkaError.CLUSTER_AUTHORIZATION_FAILED

    asyncio.run(main())
