"""A transaction whose record is as large as it may be still ends, whoever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from streamlog.coordinator import hosting
from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionState
from streamlog.coordinator.partition import ENDING_BYTES
from streamlog.coordinator.transactions.records import encode_value
from streamlog.coordinator.transactions.state import EPOCH_LAST, Transaction
from streamlog.errors import ConcurrentTransactions, MessageTooLarge
from streamlog.model.partition import TopicPartition
from tests.coordinator.world import TIMEOUT_MS, A, B, Node, World, init, run, until

COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

Ending = Callable[[Node, ProducerIdAndEpoch], Awaitable[object]]


async def filled(node: Node) -> ProducerIdAndEpoch:
    """An open transaction whose record has no room for one more byte of its topic's name."""
    for size in range(249, 0, -1):
        pair = await init(node)
        try:
            await node.coordinator.add_partitions("tx", pair, [TopicPartition("x" * size, 0)])
        except MessageTooLarge:
            continue
        assert size < 249, "the bound was not met"
        return pair
    raise AssertionError("no name was short enough")


async def commit(node: Node, pair: ProducerIdAndEpoch) -> None:
    await node.coordinator.end("tx", pair, is_commit=True)
    await until(node, COMMITTED)


async def commit_with_the_next_epoch(node: Node, pair: ProducerIdAndEpoch) -> None:
    await node.coordinator.end("tx", pair, is_commit=True, bumps_epoch=True)
    await until(node, COMMITTED)


async def time_out(node: Node, pair: ProducerIdAndEpoch) -> None:
    await asyncio.sleep(TIMEOUT_MS / 1000 + 30)
    await until(node, ABORTED)


async def begin_again(node: Node, pair: ProducerIdAndEpoch) -> None:
    with pytest.raises(ConcurrentTransactions):
        await node.coordinator.init_producer_id("tx", TIMEOUT_MS)
    await until(node, ABORTED)


async def begin_again_as_the_same(node: Node, pair: ProducerIdAndEpoch) -> None:
    with pytest.raises(ConcurrentTransactions):
        await node.coordinator.init_producer_id("tx", TIMEOUT_MS, pair)
    await until(node, ABORTED)


async def abort_as_operator(node: Node, pair: ProducerIdAndEpoch) -> None:
    await node.coordinator.abort("tx")
    await until(node, ABORTED)


ENDINGS = [
    commit,
    commit_with_the_next_epoch,
    time_out,
    begin_again,
    begin_again_as_the_same,
    abort_as_operator,
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_transaction_at_the_bound_ends(ending: Ending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "BATCH_BYTES_MAX", 400)

    async def test(world: World, node: Node) -> None:
        await ending(node, await filled(node))
        assert node.coordinator.failure is None

    run(test)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_transaction_ends_after_a_start_with_a_lower_bound(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `limits.message_bytes_max` may be lowered while a transaction is open."""

    async def test(world: World, node: Node) -> None:
        pair = await init(node)
        await node.coordinator.add_partitions("tx", pair, [TopicPartition("x" * 249, 0)])
        await world.crash()
        monkeypatch.setattr(hosting, "BATCH_BYTES_MAX", 300)
        again = await world.node()
        await until(again, TransactionState.ONGOING)
        await ending(again, pair)
        assert again.coordinator.failure is None

    run(test)


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, ABORTED])
def test_the_record_of_an_end_has_room(state: TransactionState) -> None:
    partitions = frozenset({A, B})
    begun = Transaction("tx", 1, 2, TIMEOUT_MS, 3, TransactionState.ONGOING, partitions, 4)
    ended = replace(
        begun,
        state=state,
        last_producer_epoch=EPOCH_LAST,
        previous_producer_id=(1 << 63) - 1,
        next_producer_id=(1 << 63) - 1,
        client_version=2,
        application_epoch=(1 << 63) - 1,
    )
    growth = len(encode_value(ended)) - len(encode_value(begun))
    assert 0 < growth <= ENDING_BYTES
