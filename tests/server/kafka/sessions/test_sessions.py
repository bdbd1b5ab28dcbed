"""Fetch sessions (KIP-227) through the handler; Kafka's FetchSessionTest lists the behaviours."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from streamlog.kafka.messages.fetch_response import FetchResponse
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.server.kafka.sessions.session import EPOCH_MAX
from streamlog.settings.limits import LimitsConfig
from tests.server.kafka.fetch_world import (
    NEWEST,
    WITH_NAMES,
    FetchWorld,
    answered,
    fetch_world,
    offsets,
    wanted,
    world_over,
)
from tests.support.log_insides import leadership_of
from tests.support.server_fakes import FakeLogs

SOON_S = 5.0


async def opened(world: FetchWorld, *positions: tuple[int, int], **fields: Any) -> int:
    """The id of a session with these partitions and offsets."""
    parts = [wanted(partition, offset) for partition, offset in positions]
    response = await world.fetch(parts=parts, session=(0, 0), **fields)
    assert response.error_code == 0
    assert response.session_id > 0
    return response.session_id


def partitions(response: FetchResponse) -> list[int]:
    return sorted(answered(response))


def test_a_session_answers_only_what_has_changed() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0), (1, 0), (2, 0))
            assert partitions(await world.fetch(session=(session, 1))) == []
            await world.append(b"a", partition=1)
            response = await world.fetch(session=(session, 2), wait_ms=60_000)
            assert (response.session_id, partitions(response)) == (session, [1])
            # The consumer has not moved on: it is handed the same records again.
            response = await world.fetch(session=(session, 3), wait_ms=60_000)
            assert offsets(answered(response)[1]) == [0]
            response = await world.fetch(session=(session, 4), parts=[wanted(1, 1)])
            assert partitions(response) == []
            await world.append(b"b", partition=2)
            await world.append(b"c", partition=1)
            response = await world.fetch(session=(session, 5), wait_ms=60_000)
            assert {n: offsets(p) for n, p in answered(response).items()} == {1: [1], 2: [0]}

    asyncio.run(main())


def test_an_empty_request_of_a_session_waits_for_records() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            loop = asyncio.get_running_loop()
            session = await opened(world, (0, 0), (1, 0))
            begin = loop.time()
            response = await world.fetch(session=(session, 1), wait_ms=60)
            assert loop.time() - begin >= 0.06
            assert (partitions(response), response.session_id) == ([], session)
            poll = asyncio.create_task(world.fetch(session=(session, 2), wait_ms=60_000))
            await world.waits()
            await world.append(b"a", partition=1)
            async with asyncio.timeout(SOON_S):
                assert partitions(await poll) == [1]

    asyncio.run(main())


def test_partitions_are_added_moved_and_forgotten() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            for partition in range(3):
                await world.append(b"a", b"b", partition=partition)
            session = await opened(world, (0, 2))
            response = await world.fetch(session=(session, 1), parts=[wanted(1, 0)])
            assert partitions(response) == [1]
            response = await world.fetch(
                session=(session, 2), parts=[wanted(2, 0), wanted(1, 2)], forget=[0]
            )
            assert partitions(response) == [2]
            await world.append(b"c", partition=0)
            assert partitions(await world.fetch(session=(session, 3), parts=[wanted(2, 2)])) == []
            assert world.metric("streamlog_fetch_session_partitions") == 2
            # A partition that is named and forgotten in one request is forgotten.
            response = await world.fetch(session=(session, 4), parts=[wanted(0, 0)], forget=[0])
            assert partitions(response) == []

    asyncio.run(main())


def test_a_session_without_partitions_ends() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0))
            response = await world.fetch(session=(session, 1), forget=[0], wait_ms=60_000)
            assert (response.error_code, response.session_id, response.responses) == (0, 0, [])
            assert len(world.sessions) == 0
            session = await opened(world)
            response = await world.fetch(session=(session, 1), parts=[wanted(0)])
            assert (response.session_id, partitions(response)) == (session, [0])

    asyncio.run(main())


def test_session_errors() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0))

            async def error(session_id: int, epoch: int, version: int = WITH_NAMES) -> int:
                response = await world.fetch(version, session=(session_id, epoch), wait_ms=60_000)
                assert (response.session_id, response.responses) == (0, [])
                return response.error_code

            not_found = KafkaError.FETCH_SESSION_ID_NOT_FOUND
            assert await error(session + 1, 1) == not_found
            assert await error(0, 1) == not_found
            assert await error(session, 2) == KafkaError.INVALID_FETCH_SESSION_EPOCH
            assert await error(session, -2) == KafkaError.INVALID_FETCH_SESSION_EPOCH
            assert await error(session, 1, NEWEST) == KafkaError.FETCH_SESSION_TOPIC_ID_ERROR
            # None of them moved the session on.
            assert (await world.fetch(session=(session, 1))).error_code == 0
            assert await error(session, 1) == KafkaError.INVALID_FETCH_SESSION_EPOCH

    asyncio.run(main())


def test_a_session_by_ids_does_not_go_on_by_names() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            response = await world.fetch(
                NEWEST, topic=world.topic_id(), parts=[wanted()], session=(0, 0)
            )
            response = await world.fetch(WITH_NAMES, session=(response.session_id, 1))
            assert response.error_code == KafkaError.FETCH_SESSION_TOPIC_ID_ERROR

    asyncio.run(main())


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_request_that_names_all_partitions_ends_the_session(epoch: int) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            session = await opened(world, (0, 0))
            response = await world.fetch(session=(session, epoch), parts=[wanted(0), wanted(1)])
            assert partitions(response) == [0, 1]
            assert (response.session_id > 0) == (epoch == 0)
            assert response.session_id != session
            ended = await world.fetch(session=(session, 1))
            assert ended.error_code == KafkaError.FETCH_SESSION_ID_NOT_FOUND
            # An unknown id is no error then: it is how a client comes back after a restart.
            again = await world.fetch(session=(12345, epoch), parts=[wanted(0)])
            assert again.error_code == 0

    asyncio.run(main())


def test_requests_before_version_7_know_no_sessions() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            response = await world.fetch(6, parts=[wanted()])
            assert (response.session_id, partitions(response), len(world.sessions)) == (0, [0], 0)

    asyncio.run(main())


def test_epochs_wrap_around_to_one() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            session = await opened(world, (0, 0))
            kept = world.sessions.get(session)
            assert kept is not None
            kept.epoch = EPOCH_MAX
            assert (await world.fetch(session=(session, EPOCH_MAX))).error_code == 0
            assert (await world.fetch(session=(session, 1))).error_code == 0

    asyncio.run(main())


def test_errors_are_in_every_answer_and_their_end_is_told() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 7), (1, 0))
            for epoch in (1, 2):
                response = await world.fetch(session=(session, epoch), wait_ms=60_000)
                assert partitions(response) == [0]
                assert answered(response)[0].error_code == KafkaError.OFFSET_OUT_OF_RANGE
            response = await world.fetch(session=(session, 3), parts=[wanted(0, 0)])
            assert (partitions(response), answered(response)[0].error_code) == ([0], 0)
            assert partitions(await world.fetch(session=(session, 4))) == []

    asyncio.run(main())


def test_an_unknown_topic_is_found_when_it_is_made() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            session = await opened(world, (5, 0), (0, 0))
            response = await world.fetch(session=(session, 1))
            assert answered(response)[5].error_code == KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            await world.logs.create_partitions("t", 6)
            response = await world.fetch(session=(session, 2))
            assert answered(response)[5].error_code == 0
            assert partitions(await world.fetch(session=(session, 3))) == []

    asyncio.run(main())


def test_leader_epochs_are_checked_within_a_session() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            await world.append(b"a")
            epoch = (await world.log()).leader_epoch
            session = await opened(world, (0, 0), (1, 0))
            for number, (current, code) in enumerate(
                (
                    (epoch + 1, KafkaError.UNKNOWN_LEADER_EPOCH),
                    (epoch - 1, KafkaError.FENCED_LEADER_EPOCH),
                    (epoch, KafkaError.NONE),
                )
            ):
                response = await world.fetch(
                    session=(session, number + 1),
                    parts=[wanted(0, 0, epoch=current)],
                    wait_ms=60_000,
                )
                assert partitions(response) == [0]
                assert answered(response)[0].error_code == code
            response = await world.fetch(
                session=(session, 4), parts=[wanted(0, 1, epoch=epoch, last_epoch=epoch - 1)]
            )
            assert answered(response)[0].diverging_epoch is not None

    asyncio.run(main())


def test_records_of_many_partitions_fill_one_answer() -> None:
    """More partitions than a fetch looks at in one go."""

    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 600)
        world = world_over(logs)
        session = await opened(world, *((number, 0) for number in range(600)))
        for number in range(600):
            await world.append(b"a", partition=number)
        response = await world.fetch(session=(session, 1), wait_ms=60_000)
        assert len(partitions(response)) == 600
        # With little room only some of them are looked at, and every one has its turn.
        served: dict[int, int] = {}
        for epoch in range(2, 602):
            response = await world.fetch(
                session=(session, epoch),
                parts=[wanted(number, 1) for number in served],
                max_bytes=1,
            )
            found = {n: offsets(part) for n, part in answered(response).items()}
            served = {number: 1 for number, got in found.items() if got}
            assert len(served) == 1
        parts = [wanted(number, 1) for number in served]
        assert partitions(await world.fetch(session=(session, 602), parts=parts)) == []

    asyncio.run(main())


def test_a_higher_log_start_is_told_without_records() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a")
            await world.append(b"b")
            session = await opened(world, (0, 2), (1, 0))
            await (await world.log()).delete_records(1)
            response = await world.fetch(session=(session, 1))
            part = answered(response)[0]
            assert (partitions(response), part.log_start_offset, offsets(part)) == ([0], 1, [])
            assert partitions(await world.fetch(session=(session, 2))) == []

    asyncio.run(main())


def test_a_log_that_was_opened_anew_is_read_on() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0), (1, 0))
            old = await world.log()
            leadership = leadership_of(world.logs)
            await leadership.assign(TopicPartition("t", 0), 9)
            response = await world.fetch(session=(session, 1), wait_ms=60_000)
            assert answered(response)[0].error_code == KafkaError.NOT_LEADER_OR_FOLLOWER
            await leadership.assign(TopicPartition("t", 0), leadership.node_id)
            await world.append(b"a")
            assert await world.log() is not old
            response = await world.fetch(session=(session, 2), wait_ms=60_000)
            assert (partitions(response), offsets(answered(response)[0])) == ([0], [0])

    asyncio.run(main())


def test_a_partition_that_moves_away_ends_the_wait_of_its_session() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0), (1, 0))
            poll = asyncio.create_task(world.fetch(session=(session, 1), wait_ms=60_000))
            await world.waits()
            await leadership_of(world.logs).assign(TopicPartition("t", 1), 9)
            response = await poll
            assert partitions(response) == [1]
            assert answered(response)[1].error_code == KafkaError.NOT_LEADER_OR_FOLLOWER

    asyncio.run(main())


def test_full_partitions_take_turns() -> None:
    """A partition that has filled one answer comes behind the others in the next."""

    async def main() -> None:
        async with fetch_world() as world:
            for partition in range(3):
                for _ in range(3):
                    await world.append(b"x" * 100, partition=partition)
            first = await world.fetch(
                parts=[wanted(number) for number in range(3)], session=(0, 0), max_bytes=1
            )
            served = [number for number, part in answered(first).items() if offsets(part)]
            next_offsets = dict.fromkeys(range(3), 0)
            next_offsets[served[0]] = 1
            for epoch in range(1, 6):
                last = served[-1]
                response = await world.fetch(
                    session=(first.session_id, epoch),
                    parts=[wanted(last, next_offsets[last])],
                    max_bytes=1,
                )
                found = {n: offsets(part) for n, part in answered(response).items()}
                [number] = [number for number, got in found.items() if got]
                next_offsets[number] += 1
                served.append(number)
            assert next_offsets == {0: 2, 1: 2, 2: 2}

    asyncio.run(main())


def test_another_isolation_looks_at_all_partitions_again() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            session = await opened(world, (0, 0), (1, 0))
            kept = world.sessions.get(session)
            assert kept is not None
            assert not kept.consumer.has_changed
            response = await world.fetch(session=(session, 1), isolation_level=1)
            assert (response.error_code, partitions(response)) == (0, [])
            assert partitions(await world.fetch(session=(session, 2), isolation_level=1)) == []

    asyncio.run(main())


def test_a_second_request_of_a_session_takes_over_from_the_first() -> None:
    """A client that lost its connection asks on over another one while the first still waits."""

    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0), (1, 0))
            first = asyncio.create_task(world.fetch(session=(session, 1), wait_ms=60_000))
            await world.waits()
            second = asyncio.create_task(world.fetch(session=(session, 2), wait_ms=60_000))
            response = await first
            assert response.error_code == KafkaError.INVALID_FETCH_SESSION_EPOCH
            assert (response.session_id, response.responses) == (session, [])
            await world.waits()
            await world.append(b"a", partition=1)
            assert partitions(await second) == [1]

    asyncio.run(main())


def test_a_request_that_is_cut_off_loses_no_change() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0), (1, 0))
            poll = asyncio.create_task(
                world.fetch(session=(session, 1), wait_ms=60_000, min_bytes=10_000)
            )
            await world.waits()
            await world.append(b"a", partition=1)
            await asyncio.sleep(0.01)
            poll.cancel()
            await asyncio.wait([poll])
            assert world.polls.waiting == 0
            response = await world.fetch(session=(session, 2), wait_ms=60_000)
            assert (partitions(response), offsets(answered(response)[1])) == ([1], [0])

    asyncio.run(main())


def test_a_session_that_ends_while_it_waits_is_answered() -> None:
    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        both = [await logs.log(TopicPartition("t", number)) for number in range(2)]
        world = world_over(logs)
        async with asyncio.timeout(SOON_S):
            session = await opened(world, (0, 0), (1, 0))
            assert [log.subscribers for log in both] == [1, 1]
            poll = asyncio.create_task(world.fetch(session=(session, 1), wait_ms=60_000))
            await world.waits()
            world.sessions.remove(session)
            assert (await poll).error_code == 0
            assert [log.subscribers for log in both] == [0, 0]

    asyncio.run(main())


def test_forgotten_partitions_and_ended_sessions_leave_no_subscribers() -> None:
    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        both = [await logs.log(TopicPartition("t", number)) for number in range(2)]
        world = world_over(logs)
        session = await opened(world, (0, 0), (1, 0))
        await world.fetch(session=(session, 1), forget=[0])
        assert [log.subscribers for log in both] == [0, 1]
        await world.fetch(session=(session, -1))
        assert [log.subscribers for log in both] == [0, 0]
        # A request without a session, and one whose session found no room, neither.
        full = world_over(logs, limits=replace(LimitsConfig(), fetch_sessions_max=0))
        response = await full.fetch(parts=[wanted(0), wanted(1)], session=(0, 0))
        assert (response.session_id, partitions(response)) == (0, [0, 1])
        await full.fetch(parts=[wanted(0), wanted(1)])
        assert [log.subscribers for log in both] == [0, 0]

    asyncio.run(main())


def test_partitions_of_all_sessions_are_bounded() -> None:
    async def main() -> None:
        async with fetch_world(fetch_session_partitions_max=3) as world:
            session = await opened(world, (0, 0), (1, 0))
            response = await world.fetch(parts=[wanted(0), wanted(1)], session=(0, 0))
            assert (response.session_id, partitions(response)) == (0, [0, 1])
            assert (await world.fetch(session=(session, 1), parts=[wanted(2)])).error_code == 0
            # Growing past the bound ends the session; its client opens another one.
            response = await world.fetch(session=(session, 2), parts=[wanted(3)])
            assert response.error_code == KafkaError.FETCH_SESSION_ID_NOT_FOUND
            assert world.metric("streamlog_fetch_session_partitions") == 0

    asyncio.run(main())
