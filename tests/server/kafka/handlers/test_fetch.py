"""Fetch without a session: what is read, when it is answered, and in which shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.codec.batch import Compression
from streamlog.errors import Invalid
from streamlog.kafka.messages.fetch_request import FetchTopic, ReplicaState
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.log.api.abstract_log import Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from tests.server.kafka.fetch_world import (
    NEWEST,
    answered,
    batch,
    call,
    fetch_request,
    fetch_world,
    offsets,
    only,
    wanted,
    world_over,
)
from tests.support.server_fakes import FakeLogs, ListLog

FETCH = APIS[ApiKey.FETCH]
SOON_S = 5.0


@pytest.mark.parametrize("version", range(FETCH.first, FETCH.last + 1))
def test_every_version_reads_the_batches_as_they_are_in_the_log(version: int) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a", b"b")
            await world.append(b"c")
            topic = world.topic_id() if version >= 13 else "t"
            response = await world.fetch(version, topic=topic, parts=[wanted(0, 0)])
            part = only(response)
            assert offsets(part) == [0, 1, 2]
            assert (part.high_watermark, part.last_stable_offset) == (3, 3)
            assert part.log_start_offset == (0 if version >= 5 else -1)
            assert part.aborted_transactions is None
            assert part.preferred_read_replica == -1
            assert response.session_id == 0
            [found] = response.responses
            assert (found.topic, found.topic_id) == (
                ("", topic) if version >= 13 else ("t", bytes(16))
            )
            stored = await (await world.log()).fetch(0, 1 << 20)
            assert part.records == memoryview(b"".join(stored.parts))

    asyncio.run(main())


def test_a_read_committed_answer_has_a_list_of_aborted_transactions() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a")
            part = only(await world.fetch(isolation_level=1, parts=[wanted()]))
            assert part.aborted_transactions == []
            assert offsets(part) == [0]

    asyncio.run(main())


def test_an_offset_within_a_batch_returns_the_whole_batch() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a", b"b", b"c")
            await world.append(b"d")
            assert offsets(only(await world.fetch(parts=[wanted(0, 1)]))) == [0, 1, 2, 3]

    asyncio.run(main())


def test_the_first_partition_with_data_ignores_the_limits_and_the_rest_keeps_them() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            size = await world.append(b"x" * 1000, partition=1)
            await world.append(b"x" * 1000, partition=1)
            await world.append(b"y" * 1000, partition=2)

            async def read(**fields: Any) -> dict[int, list[int]]:
                response = await world.fetch(**fields)
                return {number: offsets(part) for number, part in answered(response).items()}

            every = [wanted(0), wanted(1), wanted(2)]
            nothing: list[int] = []
            for most in (1, 0, -1, size - 1, size):
                read_now = await read(parts=every, max_bytes=most)
                assert read_now == {0: nothing, 1: [0], 2: nothing}
            assert await read(parts=every, max_bytes=2 * size) == {
                0: nothing,
                1: [0, 1],
                2: nothing,
            }
            assert await read(parts=every, max_bytes=3 * size) == {0: nothing, 1: [0, 1], 2: [0]}
            narrow = [wanted(1, max_bytes=1), wanted(2, max_bytes=1)]
            assert await read(parts=narrow) == {1: [0], 2: nothing}
            assert await read(parts=[wanted(2, max_bytes=0), wanted(1)]) == {2: [0], 1: [0, 1]}

    asyncio.run(main())


def test_partitions_without_room_have_their_offsets_in_the_answer() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            for partition in (0, 1):
                await world.append(b"x", partition=partition)
            found = answered(await world.fetch(parts=[wanted(0), wanted(1)], max_bytes=1))
            assert (found[1].high_watermark, found[1].log_start_offset) == (1, 0)
            assert offsets(found[1]) == []

    asyncio.run(main())


def test_an_empty_answer_comes_at_max_wait_and_not_before() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            loop = asyncio.get_running_loop()
            for wait_ms in (0, -5, 60):
                begin = loop.time()
                part = only(await world.fetch(parts=[wanted()], wait_ms=wait_ms))
                assert (offsets(part), part.error_code, part.high_watermark) == ([], 0, 0)
                assert loop.time() - begin >= wait_ms / 1000

    asyncio.run(main())


@pytest.mark.parametrize("min_bytes", [0, -1])
def test_a_request_for_no_bytes_does_not_wait(min_bytes: int) -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            response = await world.fetch(parts=[wanted()], wait_ms=60_000, min_bytes=min_bytes)
            assert offsets(only(response)) == []

    asyncio.run(main())


def test_a_request_without_partitions_is_answered_at_once() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            for version in (FETCH.first, NEWEST):
                response = await world.fetch(version, wait_ms=60_000)
                assert (response.error_code, response.responses) == (0, [])

    asyncio.run(main())


def test_a_wait_ends_when_min_bytes_are_there() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            size = len(batch(b"a"))
            poll = asyncio.create_task(
                world.fetch(parts=[wanted(0), wanted(1)], wait_ms=60_000, min_bytes=2 * size)
            )
            await world.waits()
            await world.append(b"a", partition=1)
            await asyncio.sleep(0.01)
            assert not poll.done()
            await world.append(b"a", partition=0)
            async with asyncio.timeout(SOON_S):
                response = await poll
            found = answered(response)
            assert (offsets(found[0]), offsets(found[1])) == ([0], [0])

    asyncio.run(main())


def test_records_that_come_while_another_partition_is_read_end_the_wait() -> None:
    """A log that changes after it was read and before the wait begins was seen by nobody."""

    class Slow(ListLog):
        """Its reads let another log grow."""

        first: ListLog

        async def fetch(
            self,
            offset: int,
            max_bytes: int,
            *,
            min_one_batch: bool = True,
            isolation: Isolation = Isolation.READ_UNCOMMITTED,
            deadline: float | None = None,
        ) -> LogFetch:
            await (await self.first.append(batch(b"late")))
            return await super().fetch(offset, max_bytes, min_one_batch=min_one_batch)

    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        first = await logs.log(TopicPartition("t", 0))
        slow = logs.open[TopicPartition("t", 1)] = Slow(TopicPartition("t", 1))
        slow.first = first
        world = world_over(logs)
        async with asyncio.timeout(SOON_S):
            response = await world.fetch(parts=[wanted(0), wanted(1)], wait_ms=60_000)
        assert offsets(answered(response)[0]) == [0]
        assert (first.subscribers, slow.subscribers) == (0, 0)

    asyncio.run(main())


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        opened = [await logs.log(TopicPartition("t", number)) for number in range(2)]
        world = world_over(logs)
        for session in ((0, -1), (0, 0)):
            poll = asyncio.create_task(
                world.fetch(parts=[wanted(0), wanted(1)], wait_ms=60_000, session=session)
            )
            await world.waits()
            assert [log.subscribers for log in opened] == [1, 1]
            poll.cancel()
            await asyncio.wait([poll])
            assert [log.subscribers for log in opened] == [0, 0]
            assert (world.polls.waiting, len(world.sessions)) == (0, 0)

    asyncio.run(main())


def test_a_draining_node_answers_at_once() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            poll = asyncio.create_task(world.fetch(parts=[wanted()], wait_ms=60_000))
            await world.waits()
            world.polls.drain()
            assert offsets(only(await poll)) == []
            assert offsets(only(await world.fetch(parts=[wanted()], wait_ms=60_000))) == []

    asyncio.run(main())


def test_record_batches_are_not_joined_on_their_way() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a")
            await world.append(b"b")
            stored = await (await world.log()).fetch(0, 1 << 20)
            handle = world.handlers[ApiKey.FETCH]
            answer = await handle(call(ApiKey.FETCH, 12), fetch_request(wanted()))
            pieces = answer.responses[0].partitions[0].records
            assert len(pieces) == len(stored.parts) > 1
            assert b"".join(pieces) == b"".join(stored.parts)

    asyncio.run(main())


def test_several_topics_have_a_group_each() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.logs.create_topic("u", 1)
            await world.append(b"a")
            await world.append(b"b", topic="u")
            more = [FetchTopic(topic="u", partitions=[wanted()])]
            response = await world.fetch(parts=[wanted(0), wanted(1)], more=more)
            assert [(one.topic, len(one.partitions)) for one in response.responses] == [
                ("t", 2),
                ("u", 1),
            ]

    asyncio.run(main())


def test_a_partition_that_is_named_twice_is_read_as_it_is_named_last() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a")
            await world.append(b"b")
            part = only(await world.fetch(parts=[wanted(0, 0), wanted(0, 1)]))
            assert offsets(part) == [1]

    asyncio.run(main())


@pytest.mark.parametrize("version", [FETCH.first, 9, 10])
def test_batches_in_zstd_are_handed_to_old_clients_too(version: int) -> None:
    """As in Kafka 4.1: there are clients of Fetch 4 that read zstd."""

    async def main() -> None:
        async with fetch_world() as world:
            log = await world.log()
            await (await log.append(batch(b"small" * 50, compression=Compression.ZSTD)))
            assert offsets(only(await world.fetch(version, parts=[wanted()]))) == [0]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (11, {"replica_id": 1}),
        (18, {"replica_state": ReplicaState(replica_id=1, replica_epoch=1)}),
        (12, {"isolation_level": 2}),
    ],
)
def test_followers_and_unknown_isolation_are_refused(version: int, fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            with pytest.raises(Invalid):
                await world.fetch(version, **fields)

    asyncio.run(main())


def test_a_rack_is_accepted_and_no_replica_is_preferred() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            part = only(await world.fetch(11, parts=[wanted()], rack_id="a"))
            assert part.preferred_read_replica == -1

    asyncio.run(main())


def test_a_request_with_too_many_partitions_is_refused() -> None:
    async def main() -> None:
        async with fetch_world(partitions_per_request_max=2) as world:
            with pytest.raises(Invalid, match="partitions_per_request_max"):
                await world.fetch(parts=[wanted(number) for number in range(3)])

    asyncio.run(main())
