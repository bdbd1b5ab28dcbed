"""Fetches that find some of their partitions in the remote tier alone, as clients ask for them."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog.errors import Invalid
from streamlog.kafka.messages.fetch_request import FetchTopic, ReplicaState
from streamlog.kafka.messages.fetch_response import PartitionData
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.tiering import TierableLog
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.tiers.storage_conformance import RemoteStorageManagerConformance
from streamlog.tiered.api import IndexType, RemoteStorageManager
from streamlog.tiered.config import RemoteLogConfig
from streamlog.wiring.engine import OpenEngine
from tests.log.memory_log import turns
from tests.server.kafka.fetch_world import (
    NEWEST,
    FetchWorld,
    batch,
    fetch_request,
    offsets,
    wanted,
    world_over,
)
from tests.support import memory_tier
from tests.support.memory_tier import MemoryTier

TIERED = {
    "log.type": "unified",
    "remote.storage.enable": "true",
    "internal.segment.bytes": "1000",
    "local.retention.bytes": "0",
    "file.delete.delay.ms": "0",
    "retention.ms": "-1",
}
RECORDS = 20
"""Two of them fill a segment: the last is in the active one, or in none."""


class TestMemoryTier(RemoteStorageManagerConformance):
    """What a third party would do with its plug-in."""

    @asynccontextmanager
    async def make(self) -> AsyncIterator[RemoteStorageManager]:
        yield MemoryTier()


def test_the_plug_in_imports_the_public_interface_alone() -> None:
    tree = ast.parse(inspect.getsource(memory_tier))
    own = {one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module}
    assert {one for one in own if one.startswith(("streamlog", "tests"))} == {
        "streamlog.errors",
        "streamlog.tiered.api",
    }


class TieredWorld:
    """Topics `a`, `b` and `c`, whose records but the newest are in the tier alone."""

    def __init__(self, engine: OpenEngine, world: FetchWorld, tier: MemoryTier) -> None:
        self.engine = engine
        self.world = world
        self.tier = tier

    async def log(self, topic: str) -> TierableLog:
        log = await self.engine.logs.log(TopicPartition(topic, 0))
        assert isinstance(log, TierableLog)
        return log

    async def fill(self, topic: str) -> None:
        await self.engine.logs.create_topic(topic, 1, TIERED)
        log = await self.log(topic)
        for number in range(RECORDS):
            await (await log.append(batch(b"%04d" % number * 100)))

    async def fill_many(self, count: int) -> None:
        """So many partitions of the topic `many`, whose first records are in the tier alone."""
        await self.engine.logs.create_topic("many", count, TIERED)
        for number in range(count):
            log = await self.engine.logs.log(TopicPartition("many", number))
            for _ in range(3):
                await (await log.append(batch(b"%04d" % number * 150)))
        await self.move()

    async def move(self) -> None:
        assert self.engine.tiers is not None
        await self.engine.tiers.run_tasks()
        await self.engine.logs.retention_tick()

    async def fetch(
        self,
        *topics: str,
        offset: int = 0,
        wait_ms: int = 60_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> dict[str, PartitionData]:
        offsets = dict.fromkeys(topics, offset)
        return await self.ask(offsets, wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes)

    async def fetch_remote_and_newest(
        self, remote: str, local: str, *, wait_ms: int = 0
    ) -> dict[str, PartitionData]:
        """Asks for one topic's first record and for a new one of the other, in one request."""
        log = await self.log(local)
        newest = log.local_log_start_offset
        await (await log.append(batch(b"new")))
        return await self.ask({remote: 0, local: newest}, wait_ms=wait_ms)

    async def ask(self, offsets: Mapping[str, int], **fields: Any) -> dict[str, PartitionData]:
        more = [FetchTopic(topic=one, partitions=[wanted(0, at)]) for one, at in offsets.items()]
        response = await self.world.ask(ApiKey.FETCH, 12, fetch_request(more=more, **fields))
        assert response.error_code == 0
        return {one.topic: one.partitions[0] for one in response.responses}


async def consumed(world: TieredWorld, at: dict[str, int], **fields: int) -> list[set[str]]:
    """Which topics had records in each of the fetches that read the last one to its end."""
    last, found = list(at)[-1], []
    log = await world.log(last)
    while at[last] < log.log_end_offset:
        answers = await world.ask(at, **fields)
        served = {topic for topic, answer in answers.items() if offsets(answer)}
        for topic in served:
            at[topic] = offsets(answers[topic])[-1] + 1
        found.append(served)
        await turns(100)
    return found


def all_of_many(count: int) -> FetchTopic:
    return FetchTopic(topic="many", partitions=[wanted(one, 0) for one in range(count)])


def tiered(test: Callable[[TieredWorld], Awaitable[None]], folder: Path, **config: Any) -> None:
    async def main() -> None:
        tiers = RemoteLogConfig(storage_class=memory_tier.PATH, task_interval_ms=3_600_000)
        tiers = replace(tiers, **config)
        async with streamlog.open(
            "memory://", meta="memory://", log_dir=folder, tiers=tiers
        ) as engine:
            world = TieredWorld(engine, world_over(engine.logs), MemoryTier.made[-1])
            for topic in ("a", "b", "c"):
                await world.fill(topic)
            await world.move()
            async with asyncio.timeout(100):
                await test(world)

    asyncio.run(main())


def test_a_slow_remote_partition_holds_up_no_other_of_the_answer(tmp_path: Path) -> None:
    async def test(world: TieredWorld) -> None:
        world.tier.slow["b"] = asyncio.Event()
        answer = await world.fetch("b", "a", "c")
        assert [offsets(answer[one])[:2] for one in "abc"] == [[0, 1], [], [0, 1]]
        assert answer["b"].error_code == 0
        assert answer["b"].high_watermark == RECORDS
        world.tier.slow["b"].set()
        assert offsets((await world.fetch("b"))["b"])[:2] == [0, 1]

    tiered(test, tmp_path)


def test_an_answer_that_local_records_fill_waits_for_no_remote_one(tmp_path: Path) -> None:
    async def test(world: TieredWorld) -> None:
        world.tier.slow["a"] = asyncio.Event()
        answer = await world.fetch_remote_and_newest("a", "b", wait_ms=3_600_000)
        assert offsets(answer["a"]) == []
        assert offsets(answer["b"])[-1] == RECORDS
        # What was asked for meanwhile is there for the next fetch.
        world.tier.slow["a"].set()
        assert offsets((await world.fetch("a"))["a"])[:2] == [0, 1]
        assert len(world.tier.ranges) == len(set(world.tier.ranges))

    # No read may wait for its own time: the test would end by its time-out.
    tiered(test, tmp_path, fetch_wait_ms=3_600_000)


def test_a_remote_partition_is_served_beside_one_that_always_has_records(tmp_path: Path) -> None:
    """In the middle of a segment, for which an index is read first: each of these fetches is
    answered at once, and what comes behind it is kept for the next ones."""

    async def test(world: TieredWorld) -> None:
        log, found = await world.log("b"), list[int]()
        while not found:  # Until the world's time is up.
            newest = log.log_end_offset
            await (await log.append(batch(b"new")))
            answer = await world.ask({"a": 3, "b": newest}, wait_ms=500, min_bytes=1)
            assert offsets(answer["b"]) == [newest]
            found = offsets(answer["a"])
            await turns(100)
        assert found[0] == 3

    tiered(test, tmp_path)


@pytest.mark.parametrize("max_bytes", [1000, 700], ids=["both", "a batch is more than its part"])
def test_a_remote_partition_has_its_part_of_an_answer_that_others_can_fill(
    max_bytes: int, tmp_path: Path
) -> None:
    async def test(world: TieredWorld) -> None:
        log = await world.log("b")
        for number in range(40):
            await (await log.append(batch(b"%04d" % number * 100)))
        at = {"a": 0, "b": log.local_log_start_offset}
        served = await consumed(world, at, wait_ms=60_000, min_bytes=1, max_bytes=max_bytes)
        # In others it is read for the next one, which has it in memory.
        assert sum("a" in one for one in served[:RECORDS]) >= RECORDS // 2
        assert max(map(len, served)) <= 2
        assert sum("b" in one for one in served) >= len(served) - RECORDS

    tiered(test, tmp_path)


def test_a_local_batch_without_room_beside_a_remote_one_is_read_by_the_next_fetch(
    tmp_path: Path,
) -> None:
    """Of a session, which looks at no partition that has nothing new."""

    async def test(world: TieredWorld) -> None:
        log = await world.log("b")
        large = log.log_end_offset
        await (await log.append(batch(b"large" * 130)))
        at = {"a": 0, "b": large}
        more = [FetchTopic(topic=one, partitions=[wanted(0, offset)]) for one, offset in at.items()]
        request = fetch_request(session=(0, 0), more=more, wait_ms=60_000, max_bytes=1000)
        response = await world.world.ask(ApiKey.FETCH, 12, request)
        found = {one.topic: one.partitions[0] for one in response.responses}
        assert (offsets(found["a"])[:1], offsets(found["b"])) == ([0], [])
        request = fetch_request(
            session=(response.session_id, 1), topic="a", forget=[0], max_bytes=1000
        )
        response = await world.world.ask(ApiKey.FETCH, 12, request)
        assert [offsets(one.partitions[0]) for one in response.responses] == [[large]]

    tiered(test, tmp_path)


def test_many_slow_remote_partitions_are_waited_for_together(tmp_path: Path) -> None:
    """More than a look takes at a time. Had each part its own wait, the answer would take as many
    of them, and the test would end by its time-out."""
    count = 300

    async def test(world: TieredWorld) -> None:
        await world.fill_many(count)
        world.tier.slow["many"] = asyncio.Event()
        newest = (await world.log("a")).log_end_offset
        await (await (await world.log("a")).append(batch(b"new")))
        many = all_of_many(count)
        last = FetchTopic(topic="a", partitions=[wanted(0, newest)])
        request = fetch_request(more=[many, last], wait_ms=60_000, min_bytes=1)
        response = await world.world.ask(ApiKey.FETCH, 12, request)
        found = {one.topic: one.partitions for one in response.responses}
        assert offsets(found["a"][0]) == [newest]
        assert [one.error_code for one in found["many"]] == [0] * count
        world.tier.slow["many"].set()

    tiered(test, tmp_path, fetch_wait_ms=3_600_000, reads_pending_max=10 * count)


def test_a_request_of_many_remote_partitions_has_none_of_its_own_refused(tmp_path: Path) -> None:
    """More than the tier has room for at a time."""
    count = 2 * RemoteLogConfig().reads_pending_max

    async def test(world: TieredWorld) -> None:
        await world.fill_many(count)
        request = fetch_request(more=[all_of_many(count)], wait_ms=0, max_bytes=64 << 20)
        response = await world.world.ask(ApiKey.FETCH, 12, request)
        (found,) = [one.partitions for one in response.responses if one.topic == "many"]
        assert [one.error_code for one in found] == [0] * count
        assert all(offsets(one)[:1] == [0] for one in found)

    tiered(test, tmp_path, fetch_wait_ms=60_000)


def test_a_request_of_many_slow_remote_partitions_has_none_of_its_own_refused(
    tmp_path: Path,
) -> None:
    """Those that were late are still under way when others would begin."""
    count = 2 * RemoteLogConfig().reads_pending_max

    async def test(world: TieredWorld) -> None:
        await world.fill_many(count)
        world.tier.slow["many"] = asyncio.Event()
        request = fetch_request(more=[all_of_many(count)], wait_ms=100, max_bytes=64 << 20)
        served: set[int] = set()
        while len(served) < count:
            response = await world.world.ask(ApiKey.FETCH, 12, request)
            (found,) = [one.partitions for one in response.responses if one.topic == "many"]
            assert [one.error_code for one in found] == [0] * count
            assert {one.high_watermark for one in found} == {3}
            served |= {one.partition_index for one in found if offsets(one)}
            assert world.tier.slow["many"].is_set() or not served
            world.tier.slow["many"].set()

    tiered(test, tmp_path, fetch_wait_ms=100)


def test_small_remote_batches_are_read_behind_many_that_have_no_room(tmp_path: Path) -> None:
    """More than may be late before those behind them are left to a later fetch."""
    count = 110

    async def test(world: TieredWorld) -> None:
        await world.fill_many(count)
        await world.engine.logs.create_topic("small", 1, TIERED)
        log = await world.log("small")
        for number in range(20):
            await (await log.append(batch(b"%04d" % number)))
        await world.move()
        asked = [all_of_many(count), FetchTopic(topic="small", partitions=[wanted(0, 0)])]
        request = fetch_request(more=asked, wait_ms=0, max_bytes=200 * (count + 1))
        response = await world.world.ask(ApiKey.FETCH, 12, request)
        found = {one.topic: one.partitions for one in response.responses}
        assert [bool(offsets(one)) for one in found["many"]] == [True] + [False] * (count - 1)
        assert offsets(found["small"][0])[:1] == [0]

    tiered(test, tmp_path, fetch_wait_ms=60_000)


def test_index_reads_have_a_bound(tmp_path: Path) -> None:
    """Each of the partitions is read in the middle of a segment."""
    count, readers = 60, 3

    async def test(world: TieredWorld) -> None:
        await world.engine.logs.create_topic("many", count, TIERED)
        for number in range(count):
            log = await world.engine.logs.log(TopicPartition("many", number))
            for _ in range(4):
                await (await log.append(batch(b"%04d" % number * 90)))
        await world.move()
        may_go, fetch_index, under_way = asyncio.Event(), world.tier.fetch_index, [0]

        async def slow(metadata: Any, index_type: IndexType) -> Any:
            under_way.append(under_way[-1] + 1)
            await may_go.wait()
            under_way.append(under_way[-1] - 1)
            return await fetch_index(metadata, index_type)

        world.tier.fetch_index = slow  # type: ignore[method-assign]
        many = FetchTopic(topic="many", partitions=[wanted(one, 1) for one in range(count)])
        request = fetch_request(more=[many], wait_ms=100, max_bytes=64 << 20)
        for is_over in (False, True):
            if is_over:
                may_go.set()
            response = await world.world.ask(ApiKey.FETCH, 12, request)
            (found,) = [one.partitions for one in response.responses if one.topic == "many"]
            assert [one.error_code for one in found] == [0] * count
            assert max(under_way) == readers
        while under_way[-1]:
            await turns(1)

    tiered(test, tmp_path, fetch_wait_ms=100, reader_tasks=readers)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["slow", "damaged"])
def test_the_first_batch_is_the_next_partitions_where_the_first_has_none(
    is_damaged: bool, tmp_path: Path
) -> None:
    async def test(world: TieredWorld) -> None:
        if is_damaged:
            for segment_id, files in world.tier.files.items():
                if segment_id.topic_id_partition.topic == "a":
                    files["LOG"] = b"\xff" * len(files["LOG"])
        else:
            world.tier.slow["a"] = asyncio.Event()
        answer = await world.fetch("a", "b", "c", wait_ms=1000, max_bytes=1000)
        assert [offsets(answer[one]) for one in "abc"] == [[], [0], []]
        if not is_damaged:
            world.tier.slow["a"].set()

    tiered(test, tmp_path, fetch_wait_ms=1000)


def test_a_slow_list_of_aborted_transactions_holds_up_no_other_of_the_answer(
    tmp_path: Path,
) -> None:
    """Its partition has no records without it, and all of them later."""

    async def test(world: TieredWorld) -> None:
        await world.engine.logs.create_topic("x", 1, TIERED)
        log = await world.log("x")
        await begin(log, transactional([b"aborted" * 20], 8, 0, 0))
        await end(log, False, 8)
        for number in range(RECORDS):
            await (await log.append(batch(b"%04d" % number * 100)))
        await world.move()
        may_go, fetch_index = asyncio.Event(), world.tier.fetch_index

        async def slow(metadata: Any, index_type: IndexType) -> Any:
            if index_type is IndexType.TRANSACTION:
                await may_go.wait()
            return await fetch_index(metadata, index_type)

        world.tier.fetch_index = slow  # type: ignore[method-assign]
        asked = {"a": 0, "x": 0}
        answer = await world.ask(asked, wait_ms=1000, min_bytes=1, isolation_level=1)
        assert offsets(answer["a"])[:2] == [0, 1]
        assert (answer["x"].error_code, offsets(answer["x"])) == (0, [])
        may_go.set()
        answer = await world.ask({"x": 0}, wait_ms=60_000, min_bytes=1, isolation_level=1)
        assert [one.producer_id for one in answer["x"].aborted_transactions or []] == [8]
        # Beside the read of the other partition's newest records a segment comes at a time.
        found = offsets(answer["x"])
        while len(found) < 2:
            answer = await world.ask({"x": found[-1] + 1}, wait_ms=60_000, min_bytes=1)
            found += offsets(answer["x"])
        assert found[:2] == [0, 1]

    tiered(test, tmp_path, fetch_wait_ms=1000)


def test_one_remote_partition_alone_may_be_above_the_limit_of_the_answer(tmp_path: Path) -> None:
    async def test(world: TieredWorld) -> None:
        answer = await world.fetch("a", "b", "c", max_bytes=1)
        assert [len(offsets(answer[one])) for one in "abc"] == [1, 0, 0]
        assert [answer[one].error_code for one in "abc"] == [0, 0, 0]

    tiered(test, tmp_path)


def test_a_reader_beyond_the_queue_is_refused_and_its_neighbours_are_served(tmp_path: Path) -> None:
    async def test(world: TieredWorld) -> None:
        world.tier.slow["a"] = asyncio.Event()
        assert offsets((await world.fetch("a"))["a"]) == []
        answer = await world.fetch_remote_and_newest("b", "c")
        assert answer["b"].error_code == KafkaError.KAFKA_STORAGE_ERROR
        assert offsets(answer["c"])[-1] == RECORDS
        world.tier.slow["a"].set()
        assert offsets((await world.fetch("a"))["a"])[:2] == [0, 1]
        assert offsets((await world.fetch("b"))["b"])[:2] == [0, 1]

    tiered(test, tmp_path, reads_pending_max=1)


def test_small_fetches_of_a_segment_make_no_storm_of_small_ranges(tmp_path: Path) -> None:
    async def test(world: TieredWorld) -> None:
        log = await world.log("a")
        position, fetches = 0, 0
        while position < log.local_log_start_offset:
            found = offsets((await world.fetch("a", offset=position, max_bytes=1))["a"])
            position, fetches = found[-1] + 1, fetches + 1
        segments = {one for one in world.tier.files if one.topic_id_partition.topic == "a"}
        assert fetches == log.local_log_start_offset > 2 * len(segments) - 1
        assert len(world.tier.ranges) == len(segments), "each segment is smaller than a chunk"

    tiered(test, tmp_path)


def test_a_fetch_of_a_deleted_segment_is_out_of_range(tmp_path: Path) -> None:
    async def test(world: TieredWorld) -> None:
        assert world.engine.tiers is not None
        await (await world.log("a")).delete_records(7)
        await world.engine.tiers.run_tasks()
        answer = (await world.fetch("a", offset=3))["a"]
        assert answer.error_code == KafkaError.OFFSET_OUT_OF_RANGE
        assert offsets((await world.fetch("a", offset=7))["a"])[0] == 7

    tiered(test, tmp_path)


def test_a_follower_hears_that_its_offset_is_in_the_tier_alone(tmp_path: Path) -> None:
    """No partition has followers here, so all else that one asks for is refused."""

    async def test(world: TieredWorld) -> None:
        local = (await world.log("a")).local_log_start_offset
        follower = ReplicaState(replica_id=3, replica_epoch=1)

        async def ask(offset: int, version: int = NEWEST) -> dict[int, int]:
            request = fetch_request(
                wanted(0, offset),
                topic=world.world.topic_id("a"),
                more=[
                    FetchTopic(topic_id=world.world.topic_id("b"), partitions=[wanted(0, RECORDS)])
                ],
                replica_state=follower,
                replica_id=3,
            )
            response = await world.world.ask(ApiKey.FETCH, version, request)
            parts = [(one.topic_id, part) for one in response.responses for part in one.partitions]
            assert not any(part.records for _, part in parts)
            return {
                ("a", "b").index(name): part.error_code
                for topic_id, part in parts
                for name in ("a", "b")
                if world.world.topic_id(name) == topic_id
            }

        for offset in (0, local - 1):
            assert await ask(offset) == {
                0: KafkaError.OFFSET_MOVED_TO_TIERED_STORAGE,
                1: KafkaError.INVALID_REQUEST,
            }
        assert world.tier.ranges == [], "nothing is read"
        for offset in (local, RECORDS + 1):
            with pytest.raises(Invalid, match="no followers"):
                await ask(offset)
        with pytest.raises(Invalid, match="no followers"):
            await ask(0, 13)

    tiered(test, tmp_path)


def test_a_segment_without_aborted_transactions_is_asked_for_no_index_of_them(
    tmp_path: Path,
) -> None:
    async def test(world: TieredWorld) -> None:
        log = await world.log("a")
        position = 0
        while position < log.local_log_start_offset:
            fetched = await log.fetch(position, 500, isolation=Isolation.READ_COMMITTED)
            position = fetched.next_offset
        assert IndexType.TRANSACTION not in world.tier.indexes

    tiered(test, tmp_path)


@pytest.mark.parametrize("size", [128, 129])
def test_custom_metadata_has_128_bytes_at_most(tmp_path: Path, size: int) -> None:
    async def test(world: TieredWorld) -> None:
        world.tier.custom = b"c" * size
        before = set(world.tier.files)
        await world.fill("d")
        await world.move()
        assert world.engine.tiers is not None
        log = await world.log("d")
        if size == 128:
            assert log.copied_end_offset > 0
            assert world.engine.tiers.alarms() == []
            return
        assert (log.copied_end_offset, set(world.tier.files)) == (0, before)
        (alarm,) = world.engine.tiers.alarms()
        assert "returned 129 bytes of custom metadata" in alarm
        assert offsets((await world.fetch("d"))["d"])[0] == 0
        world.tier.custom = None
        await world.move()
        assert log.copied_end_offset > 0

    tiered(test, tmp_path)
