"""AddPartitionsToTxn: one transaction of a client, several of a node, and what each is told."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import TransactionalIdFenced
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.server.context import Operation
from tests.server.kafka.transactions.asking import (
    LASTING,
    PASSING,
    added,
    added_by_node,
    begun,
    transaction,
)
from tests.support.kafka_handlers import all_but, kafka_handlers

CLIENTS = range(4)
NODES = range(4, 6)
OK = KafkaError.NONE
NOT_ATTEMPTED = KafkaError.OPERATION_NOT_ATTEMPTED


@pytest.mark.parametrize("version", CLIENTS)
def test_a_client_adds_partitions(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 2)
            await node.logs.create_topic("b", 1)
            producer = await begun(node)
            told = await added(node, producer, {"a": [1, 0], "b": [0]}, version=version)
            assert told == {("a", 1): OK, ("a", 0): OK, ("b", 0): OK}
            assert node.coordinator.states["tx"].partitions == (
                TopicPartition("a", 1),
                TopicPartition("a", 0),
                TopicPartition("b", 0),
            )

    asyncio.run(main())


@pytest.mark.parametrize("version", CLIENTS)
def test_one_partition_that_does_not_exist_keeps_all_out(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            producer = await begun(node)
            unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            told = await added(node, producer, {"a": [0, 1, -1], "no": [0]}, version=version)
            assert told == {
                ("a", 0): NOT_ATTEMPTED,
                ("a", 1): unknown,
                ("a", -1): unknown,
                ("no", 0): unknown,
            }
            assert node.coordinator.states["tx"].partitions == ()

    asyncio.run(main())


def test_topics_that_the_client_may_not_write_keep_all_out() -> None:
    async def main() -> None:
        authorize = all_but((Operation.WRITE, "closed"))
        async with kafka_handlers(authorize=authorize) as node:
            await node.logs.create_internal_topic("__transaction_state", 1, {})
            for topic in ("open", "closed"):
                await node.logs.create_topic(topic, 1)
            producer = await begun(node)
            forbidden = KafkaError.TOPIC_AUTHORIZATION_FAILED
            topics = {"open": [0], "closed": [0, 7], "__transaction_state": [0]}
            assert await added(node, producer, topics) == {
                ("open", 0): NOT_ATTEMPTED,
                ("closed", 0): forbidden,
                ("closed", 7): forbidden,
                ("__transaction_state", 0): forbidden,
            }
            assert node.coordinator.states["tx"].partitions == ()

    asyncio.run(main())


def test_who_may_not_write_with_the_id() -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.WRITE, "tx"))) as node:
            await node.logs.create_topic("a", 1)
            told = await added(node, ProducerIdAndEpoch(1, 0), {"a": [0], "no": [0]})
            assert set(told.values()) == {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
            assert len(told) == 2
            assert node.coordinator.calls == []

    asyncio.run(main())


def test_every_partition_has_the_coordinators_error() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 2)
            producer = await begun(node)
            for version, (error, code) in product((0, 3), PASSING + LASTING):
                node.coordinator.fails("add_partitions", error)
                told = await added(node, producer, {"a": [0, 1]}, version=version)
                assert told == {("a", 0): code, ("a", 1): code}

    asyncio.run(main())


@pytest.mark.parametrize("version", [*CLIENTS, *NODES])
def test_a_fenced_producer_is_told_so_by_the_code_that_its_version_knows(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            old = await begun(node)
            await begun(node)
            if version in CLIENTS:
                told = await added(node, old, {"a": [0]}, version=version)
            else:
                _, of_each = await added_by_node(
                    node, transaction("tx", old, {"a": [0]}), version=version
                )
                told = of_each["tx"]
            fenced = (
                KafkaError.INVALID_PRODUCER_EPOCH if version < 2 else KafkaError.PRODUCER_FENCED
            )
            assert told == {("a", 0): fenced}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (ProducerIdAndEpoch(4, 0), KafkaError.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdAndEpoch(-1, -1), KafkaError.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdAndEpoch(1001, -1), KafkaError.PRODUCER_FENCED),
        (ProducerIdAndEpoch(1001, -32768), KafkaError.PRODUCER_FENCED),
        (ProducerIdAndEpoch(1001, 32767), KafkaError.PRODUCER_FENCED),
    ],
)
def test_ids_and_epochs_that_nobody_has(producer: ProducerIdAndEpoch, code: KafkaError) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            assert (await begun(node)).producer_id == 1001
            assert await added(node, producer, {"a": [0]}) == {("a", 0): code}

    asyncio.run(main())


def test_repeated_partitions_count_once() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            producer = await begun(node)
            assert await added(node, producer, {"a": [0] * 10_000}) == {("a", 0): OK}
            assert node.coordinator.calls[-1] == (
                "add_partitions",
                "tx",
                producer,
                [TopicPartition("a", 0)],
            )

    asyncio.run(main())


def test_no_partitions_and_too_many() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 10_000)
            producer = await begun(node)
            assert await added(node, producer, {}) == {}
            assert await added(node, producer, {"a": []}) == {}
            most = await added(node, producer, {"a": range(10_000)})
            assert set(most.values()) == {OK}
            assert len(most) == 10_000
            more = await added(node, producer, {"a": range(10_001)})
            assert set(more.values()) == {KafkaError.INVALID_REQUEST}
            assert len(more) == 10_001

    asyncio.run(main())


@pytest.mark.parametrize("version", [2, 3])
def test_the_empty_id_and_the_longest(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            nobody = ProducerIdAndEpoch(1, 0)
            told = await added(node, nobody, {"a": [0]}, version=version, transactional_id="")
            assert told == {("a", 0): KafkaError.INVALID_REQUEST}
            assert node.coordinator.calls == []
            longest = "x" * 32_767
            producer = await begun(node, longest)
            told = await added(
                node, producer, {"a": [0]}, version=version, transactional_id=longest
            )
            assert told == {("a", 0): OK}

    asyncio.run(main())


@pytest.mark.parametrize("version", NODES)
def test_a_node_asks_for_several_transactions(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.WRITE, "a"))) as node:
            await node.logs.create_topic("a", 3)
            one, two = await begun(node, "one"), await begun(node, "two")
            error, told = await added_by_node(
                node,
                transaction("one", one, {"a": [0]}),
                transaction("two", two, {"a": [1], "no": [0]}),
                transaction("", two, {"a": [2]}),
                version=version,
            )
            assert error == 0
            # The node has authorized its client, so nothing is looked up here.
            assert told == {
                "one": {("a", 0): OK},
                "two": {
                    ("a", 1): NOT_ATTEMPTED,
                    ("no", 0): KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
                },
                "": {("a", 2): KafkaError.INVALID_REQUEST},
            }

    asyncio.run(main())


@pytest.mark.parametrize("version", NODES)
def test_verification_adds_nothing(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 2)
            producer = await begun(node)
            await added(node, producer, {"a": [0]})
            asked = transaction("tx", producer, {"a": [0, 1]}, verify_only=True)
            error, told = await added_by_node(node, asked, version=version)
            assert error == 0
            assert told == {"tx": {("a", 0): OK, ("a", 1): KafkaError.TRANSACTION_ABORTABLE}}
            assert node.coordinator.states["tx"].partitions == (TopicPartition("a", 0),)
            gone = transaction("tx", producer, {"a": [0], "no": [4]}, verify_only=True)
            _, told = await added_by_node(node, gone, version=version)
            assert told["tx"][("no", 4)] is KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            node.coordinator.fails("verify_partitions", TransactionalIdFenced("newer"))
            _, told = await added_by_node(node, asked, version=version)
            assert set(told["tx"].values()) == {KafkaError.PRODUCER_FENCED}

    asyncio.run(main())


@pytest.mark.parametrize("version", NODES)
def test_only_nodes_ask_so(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers(authorize=all_but((Operation.CLUSTER_ACTION, ""))) as node:
            await node.logs.create_topic("a", 1)
            producer = await begun(node)
            asked = transaction("tx", producer, {"a": [0]})
            error, told = await added_by_node(node, asked, version=version)
            assert (error, told) == (KafkaError.CLUSTER_AUTHORIZATION_FAILED, {})
            assert await added(node, producer, {"a": [0]}) == {("a", 0): OK}

    asyncio.run(main())


def test_a_node_asks_for_nothing_and_for_too_much() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            assert await added_by_node(node) == (0, {})
            producer = ProducerIdAndEpoch(1, 0)
            many = [transaction(f"t{number}", producer, {}) for number in range(10_001)]
            assert await added_by_node(node, *many) == (KafkaError.INVALID_REQUEST, {})

    asyncio.run(main())
