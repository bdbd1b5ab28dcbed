"""InitProducerId: ids for idempotent producers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.errors import (
    Internal,
    MetadataUnavailable,
    OutcomeUnknown,
    Overloaded,
    StreamlogError,
    Unauthorized,
)
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.messages.init_producer_id_response import InitProducerIdResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import Operation, RequestContext, Resource
from tests.server.kafka.handlers.produce_world import (
    ProduceWorld,
    call,
    produce_world,
    world_over,
)


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


class Refusing:
    """Logs whose metadata cannot give ids."""

    def __init__(self, error: StreamlogError) -> None:
        self._error = error

    async def init_producer_id(self, *_: object) -> tuple[int, int]:
        raise self._error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MetadataUnavailable("away"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (OutcomeUnknown("perhaps"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (Internal("a bug"), KafkaError.UNKNOWN_SERVER_ERROR),
    ],
)
def test_without_metadata_every_client_is_made_to_ask_again(
    error: StreamlogError, code: KafkaError
) -> None:
    async def main() -> None:
        answer = await ask(world_over(Refusing(error)), transactional_id=None)
        assert KafkaError(answer.error_code) is code
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)

    asyncio.run(main())


def test_a_node_under_too_many_requests_makes_clients_ask_again() -> None:
    """Refused before the handler has seen it."""
    routes = world_over(Refusing(Internal("not asked"))).producer_ids.routes()
    respond = routes[ApiKey.INIT_PRODUCER_ID].error_response
    assert respond is not None
    answer = respond(call(5), InitProducerIdRequest(), Overloaded("20000 requests"))
    assert isinstance(answer, InitProducerIdResponse)
    assert KafkaError(answer.error_code) is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
