"""InitProducerId with a transactional id: the newest epoch, KIP-360, and errors by version."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import Operation
from tests.server.kafka.transactions.asking import LASTING, PASSING, begun
from tests.support.kafka_handlers import KafkaHandlers, all_but, kafka_handlers

VERSIONS = range(6)
NOBODY = ProducerIdAndEpoch(-1, -1)


async def init(
    node: KafkaHandlers, version: int = 5, **fields: Any
) -> tuple[KafkaError, ProducerIdAndEpoch]:
    request = InitProducerIdRequest(
        **{"transactional_id": "tx", "transaction_timeout_ms": 60_000, **fields}
    )
    answer = await node.ask(ApiKey.INIT_PRODUCER_ID, version, request)
    return KafkaError(answer.error_code), ProducerIdAndEpoch(
        answer.producer_id, answer.producer_epoch
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_each_instance_has_the_next_epoch(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            code, first = await init(node, version)
            assert code is KafkaError.NONE
            assert await init(node, version) == (KafkaError.NONE, (first.producer_id, 1))
            assert node.coordinator.calls[-1] == ("init_producer_id", "tx", 60_000, None)

    asyncio.run(main())


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_has_an_epoch_raises_it_unless_it_is_fenced(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            old = await begun(node)
            named = {"producer_id": old.producer_id, "producer_epoch": old.producer_epoch}
            assert await init(node, version, **named) == (KafkaError.NONE, (old.producer_id, 1))
            fenced = (
                KafkaError.INVALID_PRODUCER_EPOCH if version < 4 else KafkaError.PRODUCER_FENCED
            )
            assert await init(node, version, **named) == (fenced, NOBODY)

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 5])
def test_time_outs_out_of_range(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            for timeout_ms in (0, -1, 900_001, 2**31 - 1, -(2**31)):
                refused = await init(node, version, transaction_timeout_ms=timeout_ms)
                assert refused == (KafkaError.INVALID_TRANSACTION_TIMEOUT, NOBODY)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, KafkaError.INVALID_REQUEST),
        ({"producer_id": 4}, KafkaError.INVALID_REQUEST),
        ({"producer_epoch": 4}, KafkaError.INVALID_REQUEST),
        ({"transactional_id": "closed"}, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_requests_that_are_refused(fields: dict[str, Any], code: KafkaError) -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.WRITE, "closed"))) as node:
            assert await init(node, **fields) == (code, NOBODY)
            assert node.coordinator.calls == []

    asyncio.run(main())


def test_the_coordinators_errors() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            for version, (error, code) in product((0, 5), PASSING + LASTING):
                node.coordinator.fails("init_producer_id", error)
                assert await init(node, version) == (code, NOBODY)

    asyncio.run(main())
