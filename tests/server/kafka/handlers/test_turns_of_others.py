"""Large requests, of many small batches or of many partitions, give other work its turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog.kafka.messages.fetch_response import PartitionData
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.log.api.abstract_log import LogFetch
from streamlog.log.shared.shared_log import SharedLog
from streamlog.server.services.records.fetch import AT_ONCE_MAX
from tests.server.kafka.fetch_world import (
    FetchWorld,
    answered,
    batch,
    call,
    fetch_request,
    fetch_world,
    offsets,
    wanted,
    world_over,
)
from tests.server.kafka.handlers.produce_world import produce_world, response_of
from tests.support.turns import Turns

BATCHES = 5000
TURN_BATCHES_MAX = 600
PARTITIONS = 200
TURN_PARTITIONS_MAX = 40
TURN_BYTES_MAX = 1_200_000
ALL_BYTES = 1 << 22


async def _fill(world: FetchWorld, partition: int, count: int) -> None:
    log = await world.log(partition)
    written = [await log.append(batch(b"v")) for _ in range(count)]
    for one in written:
        await one


async def _read(world: FetchWorld, *partitions: int) -> dict[int, PartitionData]:
    """All of them, as the handler returns them, not through their bytes."""
    parts = [wanted(partition, max_bytes=ALL_BYTES) for partition in partitions]
    request = fetch_request(parts=parts, max_bytes=ALL_BYTES)
    return answered(await world.handlers[ApiKey.FETCH](call(ApiKey.FETCH, 12), request))


def test_others_have_their_turns_while_many_small_batches_are_read() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await _fill(world, 0, BATCHES)
            async with Turns() as others:
                found = await _read(world, 0)
            assert others.count >= BATCHES // TURN_BATCHES_MAX
            assert offsets(found[0]) == list(range(BATCHES))

    asyncio.run(main())


def test_others_have_their_turns_between_partitions() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            for partition in range(3):
                await _fill(world, partition, 400)
            async with Turns() as others:
                found = await _read(world, 0, 1, 2)
            assert others.count
            assert [offsets(part) for part in found.values()] == [list(range(400))] * 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("partitions", "size"), [(PARTITIONS, 1), (30, 100_000)], ids=["many", "large"]
)
def test_others_have_their_turns_between_partitions_of_a_batch_each(
    partitions: int, size: int
) -> None:
    async def main() -> None:
        async with fetch_world(partitions=partitions) as world:
            for partition in range(partitions):
                await world.append(b"v" * size, partition=partition)
            await _read(world, *range(partitions))
            async with Turns() as others:
                found = await _read(world, *range(partitions))
            read_bytes = partitions * size
            assert others.count >= partitions // TURN_PARTITIONS_MAX + read_bytes // TURN_BYTES_MAX
            assert [offsets(part) for part in found.values()] == [[0]] * partitions

    asyncio.run(main())


def test_a_partition_behind_one_without_room_is_served_where_it_fits() -> None:
    """A few that are far behind, with large batches, would keep those at the tail waiting."""

    async def main() -> None:
        async with fetch_world() as world:
            for partition, size in enumerate((50_000, 50_000, 100)):
                await world.append(b"v" * size, partition=partition)
            every = [wanted(partition) for partition in range(3)]
            for session in ((0, -1), (0, 0)):
                found = answered(await world.fetch(parts=every, max_bytes=70_000, session=session))
                assert [offsets(part) for part in found.values()] == [[0], [], [0]]

    asyncio.run(main())


def test_behind_a_partition_without_room_nothing_is_read_out_of_objects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A batch that has no room would be read for nothing, and the records that are ready wait."""
    fetch, read = SharedLog.fetch, list[int]()

    async def noted(log: SharedLog, offset: int, max_bytes: int, **more: Any) -> LogFetch:
        read.append(log.topic_partition.partition)
        return await fetch(log, offset, max_bytes, **more)

    async def main() -> None:
        at = f"local://{tmp_path}"
        async with streamlog.open(at) as engine:
            await engine.logs.create_topic("t", 5)
            for partition in range(4):
                await world_over(engine.logs).append(b"v" * 50_000, partition=partition)
        async with streamlog.open(at) as engine:
            world = world_over(engine.logs)
            await world.append(b"v", partition=4)
            monkeypatch.setattr(SharedLog, "fetch", noted)
            every = [wanted(partition) for partition in range(5)]
            opened = await world.fetch(parts=every, max_bytes=70_000, session=(0, 0))
            assert [offsets(part) for part in answered(opened).values()] == [[0], [], [], [], [0]]
            assert read == [0, 1, 4]
            # Each has its turn all the same.
            for turn in (1, 2, 3):
                again = await world.fetch(
                    parts=[], max_bytes=70_000, session=(opened.session_id, turn)
                )
                assert offsets(answered(again)[turn]) == [0]

    asyncio.run(main())


def test_a_partition_that_is_paced_takes_no_room_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch = SharedLog.fetch

    async def paced(log: SharedLog, offset: int, max_bytes: int, **more: Any) -> LogFetch:
        found = await fetch(log, offset, max_bytes, **more)
        if log.topic_partition.partition != 1:
            return found
        return replace(found, parts=(), next_offset=offset, is_paced=True, batches=0, size_bytes=0)

    async def main() -> None:
        async with fetch_world(partitions=AT_ONCE_MAX + 1) as world:
            for partition in range(AT_ONCE_MAX + 1):
                await world.append(b"v", partition=partition)
            monkeypatch.setattr(SharedLog, "fetch", paced)
            every = [wanted(partition) for partition in range(AT_ONCE_MAX + 1)]
            found = answered(await world.fetch(parts=every, max_bytes=1 << 20, session=(0, 0)))
            assert len(found) == AT_ONCE_MAX + 1
            empty = [number for number, part in found.items() if not offsets(part)]
            assert empty == [1]

    asyncio.run(main())


def test_many_small_batches_are_one_piece_of_the_answer_and_large_ones_are_not_copied() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await _fill(world, 0, 100)
            for _ in range(40):
                await world.append(b"v" * 50_000, partition=1)
            small, large = (await _read(world, 0, 1)).values()
            assert small.records is not None
            assert large.records is not None
            assert (len(small.records), offsets(small)) == (1, list(range(100)))
            assert (len(large.records) >= 40, offsets(large)) == (True, list(range(40)))

    asyncio.run(main())


def test_others_have_their_turns_while_a_request_of_many_partitions_gets_its_places() -> None:
    async def main() -> None:
        async with produce_world() as world:
            await world.logs.create_topic("many", PARTITIONS)
            data = [
                PartitionProduceData(index=number, records=batch(b"v"))
                for number in range(PARTITIONS)
            ]
            topic = TopicProduceData(name="many", partition_data=data)
            request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])
            await world.send(request)  # Their logs are open from now on.
            async with Turns() as others:
                reply = await world.reply(request)
            assert others.count >= PARTITIONS // TURN_PARTITIONS_MAX
            answer = await response_of(reply)
            found = [part.base_offset for part in answer.responses[0].partition_responses]
            assert found == [1] * PARTITIONS

    asyncio.run(main())


def test_an_answer_of_small_batches_is_bounded_in_their_number() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            for partition, count in ((0, BATCHES), (1, 10)):
                await _fill(world, partition, count)
            opened = await world.fetch(parts=[wanted(0), wanted(1)], session=(0, 0))
            first = answered(opened)
            assert (offsets(first[0]), offsets(first[1])) == (list(range(BATCHES)), [])
            # What found no room comes first in the next answer.
            again = await world.fetch(
                parts=[wanted(0, BATCHES)], session=(opened.session_id, 1), wait_ms=60_000
            )
            assert offsets(answered(again)[1]) == list(range(10))

    asyncio.run(main())
