"""What the coordinator does by itself: markers, time-outs, expiry, loads, short logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from streamlog.coordinator import copy_forward as copying
from streamlog.coordinator.api import (
    TRANSACTION_STATE_TOPIC,
    ProducerIdAndEpoch,
    TransactionFilter,
    TransactionState,
)
from streamlog.coordinator.config import TransactionConfig
from streamlog.coordinator.coordinator import ENDING_S_MAX
from streamlog.coordinator.partition import CoordinatorPartition
from streamlog.coordinator.replay import replay
from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorFenced,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    Invalid,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    MessageTooLarge,
    NotCoordinator,
    PolicyViolation,
    ProducerFenced,
    StoreUnavailable,
    StreamlogError,
    TransactionalIdFenced,
    TransactionalIdNotFound,
)
from streamlog.log.api.config import LogConfig
from streamlog.log.api.leadership import Leadership
from streamlog.model.partition import TopicPartition
from streamlog.runtime.progress import Due
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
    state_of,
    until,
)

ONGOING, EMPTY = TransactionState.ONGOING, TransactionState.EMPTY
PREPARED = TransactionState.PREPARE_COMMIT
ABORTED, COMMITTED = TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT


async def begun(node: Node, *partitions: TopicPartition, name: str = "tx") -> ProducerIdAndEpoch:
    pair = await init(node, name)
    await node.coordinator.add_partitions(name, pair, partitions or (A,))
    return pair


def hosted(node: Node, name: str = "tx") -> CoordinatorPartition:
    return node.coordinator.hosted.get(node.coordinator.partition_of(name).partition)


# ---- markers


@pytest.mark.parametrize("error", [StoreUnavailable("away"), CoordinatorFenced("older")])
def test_a_marker_is_tried_until_it_is_written_and_holds_up_nobody_else(
    error: StreamlogError,
) -> None:
    async def test(world: World, node: Node) -> None:
        world.markers.failing[A] = error
        pair, other = await begun(node, A, B), await begun(node, B, name="other")
        await node.coordinator.end("tx", pair, is_commit=True)
        await node.coordinator.end("other", other, is_commit=True)
        await until(node, COMMITTED, "other")
        await asyncio.sleep(60)
        assert await state_of(node) is PREPARED
        due = node.coordinator.markers.progress()
        assert isinstance(due, Due)
        assert "'tx'" in due.waits_for
        assert "a-0" in due.waits_for
        assert due.after_s == 30
        with pytest.raises(ConcurrentTransactions):
            await node.coordinator.end("tx", pair, is_commit=True)
        del world.markers.failing[A]
        await until(node, COMMITTED)
        assert node.coordinator.markers.progress() is None
        assert node.registry.get_sample_value("streamlog_txn_markers_pending") == 0
        await check_replay(node)

    run(test)


def test_no_marker_goes_out_before_the_decision_is_durable() -> None:
    async def test(world: World, node: Node) -> None:
        await world.node(2)
        await world.assign(A, 2)  # A marker would be durable there at once.
        await world.assign(node.coordinator.partition_of("tx"), 1)
        pair = await begun(node, A)
        node.client.hold()
        ending = asyncio.ensure_future(node.coordinator.end("tx", pair, is_commit=True))
        await asyncio.sleep(10)
        assert not ending.done()
        assert world.markers.written == []
        node.client.release()
        await ending
        await until(node, COMMITTED)
        assert [partition for partition, _ in world.markers.written] == [A]

    run(test)


def test_the_next_transaction_waits_for_the_markers_of_the_last_one() -> None:
    async def test(world: World, node: Node) -> None:
        gate = world.markers.held[A] = asyncio.Event()
        pair = await begun(node, A)
        await node.coordinator.end("tx", pair, is_commit=True)
        began = world.clock.monotonic()
        with pytest.raises(ConcurrentTransactions):
            await node.coordinator.add_partitions("tx", pair, [A])
        assert world.clock.monotonic() - began == pytest.approx(ENDING_S_MAX, abs=0.01)
        waiting = asyncio.ensure_future(node.coordinator.add_partitions("tx", pair, [B]))
        given_up = asyncio.ensure_future(node.coordinator.add_partitions("tx", pair, [B]))
        await asyncio.sleep(0.05)
        given_up.cancel()
        assert not waiting.done()
        gate.set()
        await waiting
        assert await state_of(node) is ONGOING
        assert (await node.coordinator.describe("tx")).partitions == (B,)
        # Not of another instance's transaction.
        other = ProducerIdAndEpoch(pair.producer_id, pair.producer_epoch - 1)
        with pytest.raises(TransactionalIdFenced):
            await node.coordinator.add_partitions("tx", other, [A])
        await check_replay(node)

    run(test)


GIVEN_UP: dict[str, Callable[[World, Node], Awaitable[None]]] = {
    "another node leads the partition": lambda world, node: world.assign(
        node.coordinator.partition_of("tx"), 2
    ),
    "the coordinator is closed": lambda world, node: node.coordinator.close(),
}


@pytest.mark.parametrize("way", GIVEN_UP)
def test_who_waits_for_markers_is_told_when_the_partition_is_given_up(way: str) -> None:
    async def test(world: World, node: Node) -> None:
        world.markers.held[A] = asyncio.Event()
        pair = await begun(node, A)
        await node.coordinator.end("tx", pair, is_commit=True)
        waiting = asyncio.ensure_future(node.coordinator.add_partitions("tx", pair, [B]))
        await asyncio.sleep(0.01)
        began = world.clock.monotonic()
        await GIVEN_UP[way](world, node)
        with pytest.raises(NotCoordinator):
            await waiting
        assert world.clock.monotonic() == began

    run(test)


def test_a_call_whose_write_has_not_begun_is_told_when_the_coordinator_is_closed() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        waiting = asyncio.ensure_future(node.coordinator.add_partitions("tx", pair, [B]))
        await asyncio.sleep(0)  # The writer's task is made, and has its first step next.
        assert B in hosted(node).table.transactions["tx"].partitions
        began = world.clock.monotonic()
        await node.coordinator.close()
        with pytest.raises(NotCoordinator):
            await waiting
        assert world.clock.monotonic() == began

    run(test)


def test_a_partition_that_never_answers_is_asked_again() -> None:
    async def test(world: World, node: Node) -> None:
        world.markers.held[A] = asyncio.Event()
        pair = await begun(node, A)
        await node.coordinator.end("tx", pair, is_commit=False)
        await asyncio.sleep(100)
        assert await state_of(node) is TransactionState.PREPARE_ABORT
        del world.markers.held[A]
        await asyncio.sleep(31)
        assert await state_of(node) is ABORTED

    run(test)


def test_a_log_that_cannot_store_a_marker_gets_no_second_one() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node, A)
        opened = await node.logs.log(A)
        node.client.hold(opened.describe().storage_ids["data"])
        await node.coordinator.end("tx", pair, is_commit=False)
        await asyncio.sleep(3600)
        assert (opened.log_end_offset, opened.high_watermark) == (1, 0)
        due = node.coordinator.markers.progress()
        assert due is not None
        assert "'tx'" in due.waits_for
        node.client.release()
        await until(node, ABORTED)
        assert opened.high_watermark == 1

    run(test)


@pytest.mark.parametrize("error", [ProducerFenced("newer"), Invalid("it takes none")])
def test_a_partition_that_can_have_nothing_open_gets_no_marker(error: StreamlogError) -> None:
    async def test(world: World, node: Node) -> None:
        world.markers.failing[A] = error
        pair = await begun(node, A)
        await node.coordinator.end("tx", pair, is_commit=True)
        await until(node, COMMITTED)

    run(test)


def test_markers_of_a_deleted_topic_are_dropped() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node, A, B)
        await node.logs.delete_topic("a")
        await node.coordinator.end("tx", pair, is_commit=True)
        await until(node, COMMITTED)
        assert [place for place, _ in world.markers.written] == [B]

    run(test)


def test_a_restart_amid_markers_completes_them() -> None:
    async def test(world: World, node: Node) -> None:
        world.markers.failing[B] = StoreUnavailable("away")
        pair = await begun(node, A, B)
        await node.coordinator.end("tx", pair, is_commit=True)
        await asyncio.sleep(1)
        await world.crash()
        world.markers.failing.clear()
        node = await world.node()
        await until(node, COMMITTED)
        assert {place for place, _ in world.markers.written} == {A, B}
        assert len({marker.coordinator_epoch for _, marker in world.markers.written}) == 2

    run(test)


# ---- time


def test_a_transaction_past_its_time_out_is_aborted_under_the_next_epoch() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        await asyncio.sleep(TIMEOUT_MS / 1000 - 1)
        await node.coordinator.add_partitions("tx", pair, [B])
        assert await state_of(node) is ONGOING
        await asyncio.sleep(12)
        assert await state_of(node) is ABORTED
        assert {marker.producer_epoch for _, marker in world.markers.written} == {1}
        with pytest.raises(TransactionalIdFenced):
            await node.coordinator.end("tx", pair, is_commit=True)
        assert await init(node) == (pair.producer_id, 2)
        assert node.registry.get_sample_value("streamlog_txn_timed_out_total") == 1

    run(test)


def test_a_new_coordinator_gives_an_open_transaction_a_whole_time_out() -> None:
    async def test(world: World, node: Node) -> None:
        await begun(node)
        await asyncio.sleep(TIMEOUT_MS / 1000 - 1)
        await world.crash()
        node = await world.node()
        await asyncio.sleep(TIMEOUT_MS / 1000 - 1)
        assert await state_of(node) is ONGOING
        await asyncio.sleep(12)
        assert await state_of(node) is ABORTED

    run(test)


def test_an_unused_id_is_forgotten_for_good() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await init(node)
        await begun(node, name="open")
        await asyncio.sleep(4000)
        with pytest.raises(TransactionalIdNotFound):
            await node.coordinator.describe("tx")
        with pytest.raises(InvalidProducerIdMapping):
            await node.coordinator.add_partitions("tx", pair, [A])
        await check_replay(node)
        await world.crash()
        node = await world.node()
        with pytest.raises(TransactionalIdNotFound):
            await retried(lambda: node.coordinator.describe("tx"))
        assert (await init(node)).producer_id != pair.producer_id

    run(test, id_expiration_ms=3_000_000)


# ---- the log


def test_a_long_log_is_shortened_to_what_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SLACK_BYTES", 1000)

    async def test(world: World, node: Node) -> None:
        await begun(node, A, B, name="open")
        for _ in range(50):
            await init(node)
        await asyncio.sleep(12)
        for name in ("tx", "open"):
            partition = hosted(node, name)
            await check_replay(node)
            if partition.log.log_start_offset:
                break
        else:
            raise AssertionError("no log was shortened")
        replayed = await replay(partition.log)
        assert replayed.records == len(replayed.table.transactions)
        assert not copying.is_due(partition)
        await world.crash()
        node = await world.node()
        assert await retried(lambda: state_of(node, "open")) is ONGOING
        assert (await retried(lambda: node.coordinator.describe("tx"))).producer_epoch == 49

    run(test)


def test_calls_fail_while_the_log_cannot_be_written_and_go_on_afterwards() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        node.client.hold()
        adding = asyncio.create_task(node.coordinator.add_partitions("tx", pair, [B]))
        reading = asyncio.create_task(node.coordinator.describe("tx"))
        for call in (adding, reading):
            with pytest.raises(CoordinatorNotAvailable):
                await call
        node.client.release()
        assert (await node.coordinator.describe("tx")).partitions == (A, B)
        await check_replay(node)

    run(test)


def test_a_log_that_fails_ends_its_callers_and_is_loaded_again() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        partition = hosted(node)
        stream_id = partition.log.describe().storage_ids["data"]
        world.cluster.medium.rows[stream_id].epoch += 1  # As another owner would.
        with pytest.raises(NotCoordinator):
            await node.coordinator.add_partitions("tx", pair, [B])
        with pytest.raises(CoordinatorLoadInProgress):
            await node.coordinator.describe("tx")
        assert (await retried(lambda: node.coordinator.describe("tx"))).state is ONGOING
        assert hosted(node) is not partition

    run(test)


def test_a_caller_that_is_cancelled_leaves_its_call_under_way() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        call = asyncio.create_task(node.coordinator.end("tx", pair, is_commit=True))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        await until(node, COMMITTED)

    run(test)


def test_a_transaction_whose_record_is_too_large_is_refused_alone() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        many = [TopicPartition("t" * 240 + str(number), 0) for number in range(5000)]
        with pytest.raises(MessageTooLarge):
            await node.coordinator.add_partitions("tx", pair, many)
        assert (await node.coordinator.describe("tx")).partitions == (A,)

    run(test)


# ---- leaders


def test_another_leader_takes_ids_over_and_the_former_one_answers_no_more() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        place = node.coordinator.partition_of("tx")
        await world.assign(place, 1)
        other = await world.node(2)
        for partition in (A, B):
            await world.assign(partition, 1)
        await world.assign(place, 2)
        for call in (
            lambda: node.coordinator.describe("tx"),
            lambda: node.coordinator.end("tx", pair, is_commit=True),
        ):
            with pytest.raises(NotCoordinator):
                await call()
        await retried(lambda: other.coordinator.end("tx", pair, is_commit=True))
        await until(other, COMMITTED)
        await world.assign(place, 1)
        assert await state_of(node) is COMMITTED

    run(test)


def test_a_load_that_is_given_up_before_its_first_step_is_begun_again() -> None:
    async def test(world: World, node: Node) -> None:
        await init(node)
        partition = hosted(node)
        place = partition.topic_partition
        await partition.stop()
        with pytest.raises(CoordinatorLoadInProgress):
            hosted(node)
        with patch.object(Leadership, "is_led_here", return_value=False):
            await node.coordinator.hosted.on_leadership_change(place, 2)
        assert node.coordinator.hosted.progress() is None
        assert await state_of(node) is EMPTY

    run(test)


def test_a_node_that_led_no_partition_at_its_start_loads_what_it_is_given() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        place = node.coordinator.partition_of("tx")
        await world.assign(place, None)
        with pytest.raises(NotCoordinator):
            await node.coordinator.end("tx", pair, is_commit=True)
        await world.assign(place, 1)
        await asyncio.sleep(1)
        assert node.coordinator.hosted.get(place.partition).table.get("tx") is not None

    run(test)


# ---- lists, bad input, the topic


def test_a_list_has_what_the_filter_wants() -> None:
    async def test(world: World, node: Node) -> None:
        first = await begun(node, name="app-1")
        await asyncio.sleep(10)
        await begun(node, name="app-2")
        await init(node, "other")

        async def names(**wanted: object) -> list[str]:
            found = await node.coordinator.transactions(TransactionFilter(**wanted))  # type: ignore[arg-type]
            return [one.transactional_id for one in found]

        assert await names() == ["app-1", "app-2", "other"]
        assert await names(states=frozenset({EMPTY})) == ["other"]
        assert await names(producer_ids=frozenset({first.producer_id})) == ["app-1"]
        assert await names(open_longer_than_ms=5000) == ["app-1"]
        assert await names(id_pattern="app-.*") == ["app-1", "app-2"]
        assert await names(id_pattern="app") == []
        with pytest.raises(Invalid):
            await names(id_pattern="(")
        metric = "streamlog_txn_ids"
        assert node.registry.get_sample_value(metric, {"state": "ongoing"}) == 2

    run(test)


def test_an_operators_abort_ends_what_is_open() -> None:
    async def test(world: World, node: Node) -> None:
        pair = await begun(node)
        assert (await node.coordinator.abort("tx")).state is ONGOING
        await until(node, ABORTED)
        with pytest.raises(TransactionalIdFenced):
            await node.coordinator.add_partitions("tx", pair, [A])
        assert (await node.coordinator.abort("tx")).state is ABORTED
        assert (await node.coordinator.describe("tx")).producer_epoch == 2

    run(test)


def test_what_no_caller_may_give() -> None:
    async def test(world: World, node: Node) -> None:
        calls: list[tuple[Callable[[], Awaitable[object]], type[StreamlogError]]] = [
            (lambda: node.coordinator.init_producer_id("", 1000), Invalid),
            (lambda: node.coordinator.init_producer_id("x" * 40_000, 1000), Invalid),
            (lambda: node.coordinator.init_producer_id("tx", 0), InvalidTransactionTimeout),
            (lambda: node.coordinator.init_producer_id("tx", 900_001), InvalidTransactionTimeout),
            (lambda: node.coordinator.describe(""), Invalid),
        ]
        for call, error in calls:
            with pytest.raises(error):
                await call()
        coordinator, early = node.coordinator, "before the topic is there"
        for of_operators in (coordinator.describe, coordinator.abort):
            with pytest.raises(TransactionalIdNotFound):
                await of_operators(early)
        with pytest.raises(NotCoordinator):
            await coordinator.end(early, ProducerIdAndEpoch(1, 0), is_commit=True)
        longest = "ü" * 16_383
        assert await init(node, longest)
        assert (await node.coordinator.describe(longest)).transactional_id == longest

    run(test)


def test_a_node_with_a_small_bound_for_batches_creates_the_topic_with_it() -> None:
    async def test(world: World, _: Node) -> None:
        small = LogConfig(message_bytes_max=1200)
        logs = await world.cluster.node(small, node_id=2)
        node = Node(world, logs, TransactionConfig(state_partitions=2))
        world.nodes.append(node)
        await begun(node)
        topic = logs.topic(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        assert topic.configs["max.message.bytes"] == "1200"

    run(test)


def test_the_topic_is_the_nodes_own() -> None:
    async def test(world: World, node: Node) -> None:
        await asyncio.gather(*(node.coordinator.ensure_topic() for _ in range(3)))
        topic = node.logs.topic(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        assert (topic.partitions, topic.configs["cleanup.policy"]) == (2, "compact")
        for call in (
            lambda: node.logs.delete_topic(TRANSACTION_STATE_TOPIC),
            lambda: node.logs.create_topic(TRANSACTION_STATE_TOPIC, 1),
            lambda: node.logs.create_partitions(TRANSACTION_STATE_TOPIC, 9),
            lambda: node.logs.alter_topic_configs(
                TRANSACTION_STATE_TOPIC, set={"cleanup.policy": "delete"}
            ),
            lambda: node.logs.alter_topic_configs(
                TRANSACTION_STATE_TOPIC, append={"cleanup.policy": "delete"}
            ),
            lambda: node.logs.alter_topic_configs(
                TRANSACTION_STATE_TOPIC, set={"max.message.bytes": "10"}
            ),
            lambda: node.logs.alter_topic_configs(
                TRANSACTION_STATE_TOPIC, delete=["max.message.bytes"]
            ),
            lambda: node.logs.alter_topic_configs(
                TRANSACTION_STATE_TOPIC, set={"message.timestamp.before.max.ms": "0"}
            ),
            lambda: node.logs.alter_topic_configs(
                TRANSACTION_STATE_TOPIC, set={"segment.ms": "1000"}, is_replacing=True
            ),
        ):
            with pytest.raises(PolicyViolation):
                await call()
        changed = {"segment.bytes": str(2 << 20), "retention.ms": "1"}
        await node.logs.alter_topic_configs(TRANSACTION_STATE_TOPIC, set=changed)
        await begun(node)
        await asyncio.sleep(1000)
        await node.logs.retention_tick()
        await check_replay(node)
        assert hosted(node).log.log_start_offset == 0

    run(test)
