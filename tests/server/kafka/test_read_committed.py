"""Fetch and ListOffsets of read-committed consumers, with sessions and without."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.kafka.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.log.api.abstract_log import AbstractLog, LogFetch
from streamlog.testing.logs.log_conformance import append
from streamlog.testing.logs.transaction_conformance import ABORT, COMMIT, begin, end, transactional
from tests.server.kafka.fetch_world import (
    NEWEST,
    WITH_NAMES,
    FetchWorld,
    answered,
    fetch_world,
    offsets,
    only,
    wanted,
)
from tests.support.replacing import replace_method

COMMITTED = 1
SOON_S = 20.0


async def aborted_then_open(world: FetchWorld) -> AbstractLog:
    """Offsets: 0 aborted, 1 its marker, 2 plain, 3 open."""
    log = await world.log()
    await begin(log, transactional([b"a"]))
    await end(log, ABORT)
    await world.append(b"b")
    await begin(log, transactional([b"c"], sequence=1))
    return log


def test_an_answer_ends_at_the_last_stable_offset_and_tells_what_was_aborted() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await aborted_then_open(world)
            part = only(await world.fetch(parts=[wanted()], isolation_level=COMMITTED))
            assert offsets(part) == [0, 1, 2]
            assert (part.high_watermark, part.last_stable_offset) == (4, 3)
            assert part.aborted_transactions is not None
            told = [(one.producer_id, one.first_offset) for one in part.aborted_transactions]
            assert told == [(1, 0)]
            part = only(await world.fetch(parts=[wanted(0, 2)], isolation_level=COMMITTED))
            assert (offsets(part), part.aborted_transactions) == ([2], [])
            part = only(await world.fetch(parts=[wanted()]))
            assert (offsets(part), part.last_stable_offset) == ([0, 1, 2, 3], 3)
            assert part.aborted_transactions is None

    asyncio.run(main())


def test_the_end_of_committed_readers_is_the_last_stable_offset() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await aborted_then_open(world)
            for isolation, end_offset in ((0, 4), (1, 3)):
                asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
                topic = ListOffsetsTopic(name="t", partitions=[asked])
                request = ListOffsetsRequest(
                    replica_id=-1, isolation_level=isolation, topics=[topic]
                )
                answer = await world.ask(ApiKey.LIST_OFFSETS, 7, request)
                assert answer.topics[0].partitions[0].offset == end_offset

    asyncio.run(main())


@pytest.mark.parametrize("version", [WITH_NAMES, NEWEST])
def test_a_long_poll_waits_for_the_marker_while_the_high_watermark_moves(version: int) -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            log = await aborted_then_open(world)
            reads = 0
            original = log.fetch

            async def fetch(*args: object, **named: object) -> LogFetch:
                nonlocal reads
                reads += 1
                return await original(*args, **named)  # type: ignore[arg-type]

            replace_method(log, "fetch", fetch)
            named = {} if version == WITH_NAMES else {"topic": world.topic_id()}
            poll = asyncio.create_task(
                world.fetch(
                    version,
                    parts=[wanted(0, 3)],
                    isolation_level=COMMITTED,
                    wait_ms=60_000,
                    **named,
                )
            )
            await world.waits()
            for _ in range(5):
                await world.append(b"d")
                await world.waits()
            assert not poll.done()
            # One look at the beginning, and one for each change.
            assert reads <= 6
            await end(log, COMMIT)
            part = only(await poll)
            assert offsets(part) == [3, 4, 5, 6, 7, 8, 9]
            assert part.aborted_transactions == []

    asyncio.run(main())


def test_a_long_poll_ends_at_its_time_while_a_transaction_is_open() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            await aborted_then_open(world)
            fetch = world.fetch(parts=[wanted(0, 3)], isolation_level=COMMITTED, wait_ms=30)
            part = only(await fetch)
            assert (offsets(part), part.last_stable_offset) == ([], 3)

    asyncio.run(main())


def test_a_session_hears_of_the_last_stable_offset() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            log = await aborted_then_open(world)
            response = await world.fetch(
                parts=[wanted(0, 3), wanted(1, 0)], session=(0, 0), isolation_level=COMMITTED
            )
            session = response.session_id

            async def later(epoch: int, wait_ms: int = 0) -> dict[int, tuple[list[int], int]]:
                response = await world.fetch(
                    session=(session, epoch), isolation_level=COMMITTED, wait_ms=wait_ms
                )
                parts = answered(response)
                return {n: (offsets(one), one.last_stable_offset) for n, one in parts.items()}

            assert await later(1) == {}
            await append(log, transactional([b"d"], sequence=2))
            assert await later(2) == {0: ([], 3)}
            assert await later(3) == {}
            poll = asyncio.create_task(later(4, 60_000))
            await world.waits()
            await end(log, COMMIT)
            assert await poll == {0: ([3, 4, 5], 6)}

    asyncio.run(main())


def test_a_session_may_change_its_isolation() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            await aborted_then_open(world)
            response = await world.fetch(
                parts=[wanted(0, 3)], session=(0, 0), isolation_level=COMMITTED
            )
            assert offsets(only(response)) == []
            response = await world.fetch(session=(response.session_id, 1))
            assert offsets(only(response)) == [3]

    asyncio.run(main())
