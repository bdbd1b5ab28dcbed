"""What a log manager counts and remembers for those who keep answers about topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import streamlog
from streamlog.errors import InvalidPartitions, UnknownTopicId
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from tests.support.log_insides import leadership_of

PARTITION = TopicPartition("a", 0)


def run(test: Callable[[LogManager], Awaitable[None]]) -> None:
    async def body() -> None:
        async with streamlog.open("memory://", meta="memory://") as engine:
            await test(engine.logs)

    asyncio.run(body())


def test_each_change_of_a_topic_is_counted_for_it_alone() -> None:
    async def test(logs: LogManager) -> None:
        await logs.create_topic("a", 1)
        await logs.create_topic("b", 1)
        revisions = logs.revisions
        other = revisions.of("b")

        async def changes(work: Awaitable[object], *, is_change: bool = True) -> None:
            latest, own = revisions.latest, revisions.of("a")
            await work
            assert (revisions.latest > latest) is is_change
            assert (revisions.of("a") != own) is is_change
            assert revisions.of("b") == other

        await changes(logs.create_partitions("a", 2))
        await changes(logs.create_partitions("a", 3, validate_only=True), is_change=False)
        await changes(logs.alter_topic_configs("a", set={"retention.ms": "1"}))
        await changes(logs.log(PARTITION))
        await changes(logs.log(PARTITION), is_change=False)
        await changes(leadership_of(logs).assign(PARTITION, 77))
        await changes(logs.delete_topic("a"))
        assert revisions.of("a") == 0
        await changes(logs.create_topic("a", 1))

    run(test)


def test_the_leader_epoch_of_a_closed_log_is_remembered_until_its_topic_goes() -> None:
    async def test(logs: LogManager) -> None:
        await logs.create_topic("a", 1)
        assert logs.revisions.leader_epochs("a") == {}
        epoch = (await logs.log(PARTITION)).leader_epoch
        await leadership_of(logs).assign(PARTITION, 77)
        assert logs.open_log(PARTITION) is None
        assert logs.revisions.leader_epochs("a") == {0: epoch}
        await logs.delete_topic("a")
        assert logs.revisions.leader_epochs("a") == {}

    run(test)


def test_a_deletion_by_id_spares_the_next_topic_of_the_name() -> None:
    async def test(logs: LogManager) -> None:
        old = (await logs.create_topic("a", 1)).topic_id
        await logs.delete_topic("a", old)
        new = (await logs.create_topic("a", 1)).topic_id
        with pytest.raises(UnknownTopicId, match="another"):
            await logs.delete_topic("a", old)
        topic = logs.topic("a")
        assert topic is not None
        assert topic.topic_id == new

    run(test)


def test_new_partitions_are_checked_without_being_made() -> None:
    async def test(logs: LogManager) -> None:
        await logs.create_topic("a", 2)
        assert (await logs.create_partitions("a", 5, validate_only=True)).partitions == 2
        for count in (2, 1, 0, 1_000_000):
            with pytest.raises(InvalidPartitions):
                await logs.create_partitions("a", count, validate_only=True)
        topic = logs.topic("a")
        assert topic is not None
        assert topic.partitions == 2

    run(test)


def test_epochs_of_a_topic_made_anew_are_unknown_until_they_pass_the_deleted_ones() -> None:
    async def test(logs: LogManager) -> None:
        async def reopened() -> int:
            await leadership_of(logs).assign(PARTITION, 77)
            await leadership_of(logs).assign(PARTITION, leadership_of(logs).node_id)
            return (await logs.log(PARTITION)).leader_epoch

        await logs.create_topic("a", 1)
        await logs.log(PARTITION)
        former = await reopened()
        await logs.delete_topic("a")
        await logs.create_topic("a", 1)
        assert (await logs.log(PARTITION)).leader_epoch < former
        assert logs.revisions.leader_epochs("a") == {}
        while (epoch := await reopened()) < former:
            assert logs.revisions.leader_epochs("a") == {}
        assert logs.revisions.leader_epochs("a") == {0: epoch}

    run(test)
