"""FindCoordinator: who coordinates a transactional id, in every version; groups are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.errors import CoordinatorNotAvailable, Internal, StoreUnavailable, StreamlogError
from streamlog.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import Operation
from tests.support.kafka_handlers import (
    ADVERTISED,
    NODE_ID,
    KafkaHandlers,
    all_but,
    kafka_handlers,
)

GROUP, TRANSACTION, SHARE = 0, 1, 2
ONE_KEY = range(4)
SEVERAL_KEYS = range(4, 7)
NOBODY = (-1, "", -1)
LIBRDKAFKA = 2


async def found(node: KafkaHandlers, version: int, *keys: str, key_type: int = TRANSACTION) -> Any:
    """(code, (node, host, port), text) of each key."""
    if version in ONE_KEY:
        [key] = keys
        request = FindCoordinatorRequest(key=key, key_type=key_type if version else 0)
        answer = await node.ask(ApiKey.FIND_COORDINATOR, version, request)
        return [_told(answer)]
    request = FindCoordinatorRequest(coordinator_keys=keys, key_type=key_type)
    answer = await node.ask(ApiKey.FIND_COORDINATOR, version, request)
    assert [one.key for one in answer.coordinators] == list(keys)
    return [_told(one) for one in answer.coordinators]


def _told(answer: Any) -> tuple[KafkaError, tuple[int, str, int], str | None]:
    place = (answer.node_id, answer.host, answer.port)
    return KafkaError(answer.error_code), place, answer.error_message


@pytest.mark.parametrize("version", [*ONE_KEY[1:], *SEVERAL_KEYS])
def test_the_leader_of_the_ids_partition_coordinates_it(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_internal_topic("__transaction_state", 16, {})
            [(code, place, _)] = await found(node, version, "tx")
            assert (code, place) == (KafkaError.NONE, (NODE_ID, *ADVERTISED))
            assert node.coordinator.topic_is_made

    asyncio.run(main())


def test_several_keys_have_an_answer_each() -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.DESCRIBE, "hidden"))) as node:
            await node.logs.create_internal_topic("__transaction_state", 16, {})
            told = await found(node, 6, "a", "hidden", "a", "")
            assert [code for code, _, _ in told] == [
                KafkaError.NONE,
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                KafkaError.NONE,
                KafkaError.INVALID_REQUEST,
            ]
            assert told[1][1] == NOBODY
            assert await found(node, 6) == []

    asyncio.run(main())


@pytest.mark.parametrize("version", [*ONE_KEY, *SEVERAL_KEYS])
def test_a_group_is_refused_at_once_with_a_text(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            [(code, place, text)] = await found(node, version, "g", key_type=GROUP)
            refused = KafkaError.INVALID_REQUEST
            if version == LIBRDKAFKA:
                refused = KafkaError.COORDINATOR_NOT_AVAILABLE
            assert (code, place) == (refused, NOBODY)
            assert version == 0 or "consumer groups" in str(text)
            assert not node.coordinator.topic_is_made

    asyncio.run(main())


@pytest.mark.parametrize("key_type", [SHARE, 3, -1, 127])
def test_other_kinds_of_coordinators_do_not_exist(key_type: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            [(code, _, text)] = await found(node, 6, "g:t:0", key_type=key_type)
            assert code is KafkaError.INVALID_REQUEST
            assert f"type {key_type}" in str(text)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CoordinatorNotAvailable("no room"), KafkaError.COORDINATOR_NOT_AVAILABLE),
        (StoreUnavailable("away"), KafkaError.COORDINATOR_NOT_AVAILABLE),
        (Internal("a bug"), KafkaError.UNKNOWN_SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("version", [1, 4])
def test_what_passes_is_asked_again(error: StreamlogError, code: KafkaError, version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            node.coordinator.fails("ensure_topic", error)
            [(told, place, _)] = await found(node, version, "tx")
            assert (told, place) == (code, NOBODY)

    asyncio.run(main())


def test_a_partition_without_a_leader_is_asked_for_again() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_internal_topic("__transaction_state", 16, {})
            partition = node.coordinator.partition_of("tx")
            await node.leadership.assign(partition, None)
            [(code, place, _)] = await found(node, 6, "tx")
            assert (code, place) == (KafkaError.COORDINATOR_NOT_AVAILABLE, NOBODY)
            await node.leadership.assign(partition, 99)
            [(code, place, _)] = await found(node, 6, "tx")
            assert (code, place) == (KafkaError.COORDINATOR_NOT_AVAILABLE, NOBODY)

    asyncio.run(main())


def test_too_many_keys_and_the_longest_id() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_internal_topic("__transaction_state", 16, {})
            many = await found(node, 6, *(["a"] * 10_001))
            assert {code for code, _, _ in many} == {KafkaError.INVALID_REQUEST}
            [(code, _, _)] = await found(node, 6, "x" * 32_767)
            assert code is KafkaError.NONE

    asyncio.run(main())
