"""The coordinator's calls, over logs in memory."""

from __future__ import annotations

import asyncio

import pytest

import streamlog
from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionState
from streamlog.errors import ConcurrentTransactions, InvalidTxnState, TransactionalIdFenced
from streamlog.log.api.config import LogConfig
from tests.coordinator.world import (
    TIMEOUT_MS,
    A,
    B,
    Node,
    World,
    check_replay,
    init,
    retried,
    run,
    until,
)

ABORTED, COMMITTED = TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT


def test_a_transaction_from_its_producer_id_to_its_markers() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await init(node)
        assert pair == (pair.producer_id, 0)
        await node.coordinator.add_partitions("tx", pair, [A])
        await node.coordinator.add_partitions("tx", pair, [A, B])
        described = await node.coordinator.describe("tx")
        assert (described.state, described.partitions) == (TransactionState.ONGOING, (A, B))
        assert await node.coordinator.end("tx", pair, is_commit=True) == pair
        await until(node, COMMITTED)
        assert sorted(place for place, _ in world.markers.written) == [A, B]
        assert {marker[:2] for _, marker in world.markers.written} == {tuple(pair)}
        assert all(marker.is_commit for _, marker in world.markers.written)
        assert await node.coordinator.end("tx", pair, is_commit=True) == pair
        with pytest.raises(InvalidTxnState):
            await node.coordinator.end("tx", pair, is_commit=False)
        await check_replay(node)

    run(test)


def test_a_newer_instance_fences_the_older_one_and_aborts_what_it_left_open() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await init(node)
        await node.coordinator.add_partitions("tx", pair, [A])
        with pytest.raises(ConcurrentTransactions):
            await init(node)
        await until(node, ABORTED)
        ((place, marker),) = world.markers.written
        assert (place, marker.producer_epoch, marker.is_commit) == (A, 1, False)
        assert await init(node) == ProducerIdAndEpoch(pair.producer_id, 2)
        for call in (
            lambda: node.coordinator.add_partitions("tx", pair, [A]),
            lambda: node.coordinator.end("tx", pair, is_commit=True),
            lambda: init(node, expected=pair),
        ):
            with pytest.raises(TransactionalIdFenced):
                await call()
        await check_replay(node)

    run(test)


def test_a_crash_loses_nothing_that_was_answered() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await init(node)
        await node.coordinator.add_partitions("tx", pair, [A, B])
        await world.crash()
        node = await world.node()
        await until(node, TransactionState.ONGOING)
        assert (await node.coordinator.describe("tx")).partitions == (A, B)
        await node.coordinator.end("tx", pair, is_commit=False)
        await until(node, ABORTED)
        assert [marker.is_commit for _, marker in world.markers.written] == [False, False]

    run(test)


def test_a_node_with_lower_limits_coordinates_too() -> None:
    """Its largest batch is smaller than what the coordinator's topic takes elsewhere."""

    async def body() -> None:
        limits = LogConfig(message_bytes_max=100_000)
        async with streamlog.open("memory://", logs=limits) as engine:
            made = await retried(lambda: engine.transactions.init_producer_id("tx", TIMEOUT_MS))
            assert made.producer_epoch == 0

    asyncio.run(body())
