"""Topics are encoded once for all clients, again where they change, and in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from streamlog.model.partition import TopicPartition
from streamlog.server.composition import Services
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.kafka.describing.encoded_topics import VERSIONS_MAX, EncodedTopics
from streamlog.server.kafka.describing.partitions import PartitionStates
from tests.support.server_fakes import FakeLogs
from tests.support.server_harness import running

NEWEST = 13
Test = Callable[[FakeLogs, EncodedTopics], Awaitable[None]]


def run(test: Test) -> None:
    async def body() -> None:
        async with running() as server:
            server.logs.topics.clear()
            await test(server.logs, encoded_topics(server.service.services))

    asyncio.run(body())


def encoded_topics(services: Services) -> EncodedTopics:
    views = services.topic_views
    return EncodedTopics(views, PartitionStates(views, ClusterView(services)))


async def make(logs: FakeLogs, topics: int, partitions: int) -> None:
    for number in range(topics):
        topic = await logs.create_topic(f"t{number:04}", partitions)
        topic.topic_id = f"12345678-1234-5678-1234-{number:012}"


def test_what_has_not_changed_is_not_encoded_again() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 100, 100)
        first = await encoded.all_topics(NEWEST)
        assert await encoded.all_topics(NEWEST) is first
        assert list(first.names) == sorted(logs.topics)
        assert first.joined == b"".join(first.topics)
        await logs.create_partitions("t0042", 101)
        second = await encoded.all_topics(NEWEST)
        changed = [
            name
            for name, old, new in zip(first.names, first.topics, second.topics, strict=True)
            if old is not new
        ]
        assert changed == ["t0042"]
        assert encoded.kept(NEWEST, logs.topics["t0042"]) is second.topics[42]
        await logs.delete_topic("t0042")
        assert list((await encoded.all_topics(NEWEST)).names) == sorted(logs.topics)
        assert not logs.open

    run(test)


def test_an_opened_log_changes_its_topic_alone() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 3, 2)
        first = await encoded.all_topics(NEWEST)
        logs.revisions.opened(*TopicPartition("t0001", 1), 5)
        second = await encoded.all_topics(NEWEST)
        same = [old is new for old, new in zip(first.topics, second.topics, strict=True)]
        assert same == [True, False, True]
        # The same log, opened at the same epoch, tells nothing new.
        logs.revisions.opened(*TopicPartition("t0001", 1), 5)
        assert await encoded.all_topics(NEWEST) is second

    run(test)


def test_the_loop_has_its_turns_while_many_partitions_are_encoded() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for topics, partitions in ((1, 10_000), (1000, 10)):
            logs.topics.clear()
            await make(logs, topics, partitions)
            turns = 0
            await encoded.all_topics(NEWEST)
            # A step encodes 400 partitions, which takes about 1 ms.
            assert turns >= 20
        counting.cancel()

    run(test)


def test_many_clients_that_ask_at_once_share_the_work() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 4, 1000)
        answers = await asyncio.gather(*(encoded.all_topics(NEWEST) for _ in range(50)))
        assert all(answer is answers[0] for answer in answers)
        await logs.create_partitions("t0001", 1001)
        topics = await asyncio.gather(
            *(encoded.topic(NEWEST, logs.topics["t0001"]) for _ in range(50))
        )
        assert all(topic is topics[0] for topic in topics)

    run(test)


def test_a_change_while_topics_are_encoded_is_in_the_next_answer() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 2, 2000)
        under_way = asyncio.create_task(encoded.all_topics(NEWEST))
        await asyncio.sleep(0)
        await logs.create_partitions("t0000", 2001)
        late = asyncio.create_task(encoded.all_topics(NEWEST))
        old, new = await under_way, await late
        assert new is not old
        assert len(new.topics[0]) > len(old.topics[0])
        assert new.topics[1] is old.topics[1]

    run(test)


def test_a_client_that_leaves_does_not_hold_up_the_others() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 2, 2000)
        leaving = asyncio.create_task(encoded.all_topics(NEWEST))
        waiting = asyncio.create_task(encoded.all_topics(NEWEST))
        await asyncio.sleep(0)
        leaving.cancel()
        assert len((await waiting).names) == 2
        with suppress(asyncio.CancelledError):
            await leaving

    run(test)


def test_deleted_topics_are_forgotten() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 3, 1)
        await encoded.all_topics(NEWEST)
        await logs.delete_topic("t0001")
        await encoded.all_topics(NEWEST)
        assert len(encoded) == 2
        # Also where no client asks for all topics.
        for number in range(3000):
            topic = await logs.create_topic(f"brief{number}", 1)
            topic.topic_id = f"12345678-1234-5678-1234-{number:012}"
            await encoded.topic(NEWEST, topic)
            await logs.delete_topic(topic.name)
        assert len(encoded) < 1500

    run(test)


def test_clients_that_wait_share_the_bytes_though_partitions_are_opened_meanwhile() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 1, 2000)
        topic = logs.topics["t0000"]
        first = asyncio.create_task(encoded.topic(NEWEST, topic))
        waiting = [asyncio.create_task(encoded.topic(NEWEST, topic)) for _ in range(20)]
        await asyncio.sleep(0)
        logs.revisions.opened("t0000", 0, 5)
        late = asyncio.create_task(encoded.topic(NEWEST, topic))
        same = await first
        assert all(one is same for one in await asyncio.gather(*waiting))
        assert await late is not same

    run(test)


def test_only_the_last_versions_in_use_are_kept() -> None:
    async def test(logs: FakeLogs, encoded: EncodedTopics) -> None:
        await make(logs, 1, 1)
        first = await encoded.all_topics(0)
        for version in range(1, VERSIONS_MAX):
            await encoded.all_topics(version)
        assert await encoded.all_topics(0) is first
        await encoded.all_topics(NEWEST)
        assert await encoded.all_topics(0) is first
        assert encoded.kept(1, logs.topics["t0000"]) is None

    run(test)
