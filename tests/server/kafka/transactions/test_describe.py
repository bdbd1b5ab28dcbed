"""DescribeTransactions and ListTransactions: what is told, and to whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.coordinator.api import TransactionDescription, TransactionFilter, TransactionState
from streamlog.errors import CoordinatorLoadInProgress, NotCoordinator, StoreUnavailable
from streamlog.kafka.messages.describe_transactions_request import DescribeTransactionsRequest
from streamlog.kafka.messages.list_transactions_request import ListTransactionsRequest
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.server.context import Operation
from tests.server.kafka.transactions.asking import added, begun
from tests.support.kafka_handlers import KafkaHandlers, all_but, kafka_handlers


async def described(node: KafkaHandlers, *ids: str) -> list[Any]:
    request = DescribeTransactionsRequest(transactional_ids=ids)
    answer = await node.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    assert [state.transactional_id for state in answer.transaction_states] == list(ids)
    return list(answer.transaction_states)


async def listed(node: KafkaHandlers, version: int = 2, **fields: Any) -> Any:
    request = ListTransactionsRequest(**fields)
    return await node.ask(ApiKey.LIST_TRANSACTIONS, version, request)


def names(answer: Any) -> list[str]:
    assert answer.error_code == 0
    return [state.transactional_id for state in answer.transaction_states]


def in_state(name: str, state: TransactionState, producer_id: int = 7) -> TransactionDescription:
    return TransactionDescription(name, state, producer_id, 0, 60_000, -1, ())


def test_a_transaction_is_described() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 2)
            producer = await begun(node)
            [empty] = await described(node, "tx")
            assert (empty.transaction_state, empty.transaction_start_time_ms) == ("Empty", -1)
            await added(node, producer, {"a": [1, 0]})
            [open_] = await described(node, "tx")
            assert open_.error_code == 0
            assert open_.transaction_state == "Ongoing"
            assert open_.transaction_timeout_ms == 60_000
            assert open_.transaction_start_time_ms == 1234
            assert (open_.producer_id, open_.producer_epoch) == producer
            assert [(topic.topic, topic.partitions) for topic in open_.topics] == [("a", [1, 0])]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (TransactionState.EMPTY, "Empty"),
        (TransactionState.ONGOING, "Ongoing"),
        (TransactionState.PREPARE_COMMIT, "PrepareCommit"),
        (TransactionState.PREPARE_ABORT, "PrepareAbort"),
        (TransactionState.COMPLETE_COMMIT, "CompleteCommit"),
        (TransactionState.COMPLETE_ABORT, "CompleteAbort"),
        (TransactionState.PREPARE_EPOCH_FENCE, "PrepareEpochFence"),
    ],
)
def test_states_have_kafkas_names(state: TransactionState, name: str) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            node.coordinator.states["tx"] = in_state("tx", state)
            [told] = await described(node, "tx")
            assert told.transaction_state == name
            answer = await listed(node, state_filters=[name])
            assert names(answer) == ["tx"]
            assert answer.transaction_states[0].transaction_state == name

    asyncio.run(main())


def test_each_id_has_an_answer_of_its_own() -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.DESCRIBE, "hidden"))) as node:
            await begun(node)
            told = await described(node, "tx", "none", "hidden", "")
            assert [KafkaError(state.error_code) for state in told] == [
                KafkaError.NONE,
                KafkaError.TRANSACTIONAL_ID_NOT_FOUND,
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                KafkaError.INVALID_REQUEST,
            ]
            node.coordinator.fails(
                "describe", NotCoordinator("moved"), CoordinatorLoadInProgress("replay")
            )
            told = await described(node, "tx", "other")
            assert sorted(state.error_code for state in told) == [14, 16]
            assert await described(node) == []
            many = await described(node, *(f"tx-{number}" for number in range(10_001)))
            assert {state.error_code for state in many} == {KafkaError.INVALID_REQUEST}

    asyncio.run(main())


def test_an_id_that_is_named_twice_is_answered_once() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await begun(node)
            request = DescribeTransactionsRequest(transactional_ids=["tx", "none", "tx", "none"])
            answer = await node.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
            assert [
                (one.transactional_id, one.error_code) for one in answer.transaction_states
            ] == [
                ("tx", KafkaError.NONE),
                ("none", KafkaError.TRANSACTIONAL_ID_NOT_FOUND),
            ]

    asyncio.run(main())


def test_partitions_of_topics_that_one_may_not_see_are_left_out() -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.DESCRIBE, "hidden"))) as node:
            partitions = (
                TopicPartition("seen", 1),
                TopicPartition("hidden", 0),
                TopicPartition("seen", 0),
            )
            node.coordinator.states["tx"] = TransactionDescription(
                "tx", TransactionState.ONGOING, 7, 0, 60_000, 5, partitions
            )
            [told] = await described(node, "tx")
            assert [(topic.topic, topic.partitions) for topic in told.topics] == [("seen", [1, 0])]

    asyncio.run(main())


def test_a_list_has_what_is_asked_for() -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.DESCRIBE, "hidden"))) as node:
            for name, state, producer_id in (
                ("a", TransactionState.ONGOING, 1),
                ("b", TransactionState.EMPTY, 2),
                ("dead", TransactionState.DEAD, 3),
                ("hidden", TransactionState.ONGOING, 4),
            ):
                node.coordinator.states[name] = in_state(name, state, producer_id)
            for version in range(3):
                assert names(await listed(node, version)) == ["a", "b"]
            assert names(await listed(node, state_filters=["Ongoing"])) == ["a"]
            assert names(await listed(node, producer_id_filters=[2, 3, 9])) == ["b"]
            assert names(await listed(node, transactional_id_pattern="a|x")) == ["a"]
            mixed = await listed(node, state_filters=["Empty", "ongoing", "", "ongoing"])
            assert names(mixed) == ["b"]
            assert mixed.unknown_state_filters == ["ongoing", ""]
            none = await listed(node, state_filters=["NoSuch"])
            assert names(none) == []
            assert none.unknown_state_filters == ["NoSuch"]

    asyncio.run(main())


@pytest.mark.parametrize(("asked", "duration_ms"), [(-1, -1), (-5, -1), (0, 0), (9, 9)])
def test_the_duration_and_the_pattern_reach_the_coordinator(asked: int, duration_ms: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await listed(node, duration_filter=asked, transactional_id_pattern=None)
            assert node.coordinator.calls[-1] == (
                "transactions",
                TransactionFilter(open_longer_than_ms=duration_ms),
            )

    asyncio.run(main())


def test_lists_that_are_refused() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            for states in ([], ["NoSuch"]):
                answer = await listed(node, state_filters=states, transactional_id_pattern="(")
                assert answer.error_code == KafkaError.INVALID_REGULAR_EXPRESSION
            for error in (CoordinatorLoadInProgress("replay"), StoreUnavailable("away")):
                node.coordinator.fails("transactions", error)
                answer = await listed(node)
                assert answer.error_code == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
                assert answer.transaction_states == []

    asyncio.run(main())
