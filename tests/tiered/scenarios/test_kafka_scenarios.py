"""The scenarios of Kafka's integration tests of tiered storage, under the names of their classes.

ReassignReplicaExpandTest, …MoveTest and …ShrinkTest need a second replica: `test_leadership.py` has
them for two managers over one metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka.admin import OffsetSpec

from tests.tiered.scenarios.kafka_clients import value_of
from tests.tiered.scenarios.tiered_node import SEGMENT, TIERED, TieredNode, tiered_node

COUNT = 3 * SEGMENT + 2
"""Three segments to copy, and some records in the active one."""
ALL = [(number, value_of(number)) for number in range(COUNT)]


def scenario(tmp_path: Path, *lives: Callable[[TieredNode], Awaitable[None]]) -> None:
    """Each is given the node of the one before, started again."""

    async def main() -> None:
        for live in lives:
            async with tiered_node(tmp_path / "data") as node:
                await live(node)

    asyncio.run(main())


async def filled(node: TieredNode, topic: str, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    await node.kafka.create(topic, {**TIERED, **named})
    await node.kafka.produce(topic, range(COUNT))
    await node.settle()


def test_offload_and_consume_from_leader(tmp_path: Path) -> None:
    async def offload(node: TieredNode) -> None:
        for topic in ("a", "b"):
            await filled(node, topic)
            assert node.local_segments(topic) == [3 * SEGMENT]
        assert await node.remote_segments() == [0, 0, 8, 8, 16, 16]
        await consume(node)

    async def consume(node: TieredNode) -> None:
        for topic in ("a", "b"):
            for first in (0, 2 * SEGMENT + 3, 3 * SEGMENT):
                count = COUNT - first
                assert await node.kafka.consume(topic, count, first=first) == ALL[first:]

    scenario(tmp_path, offload, consume)


def test_offload_and_txn_consume_from_leader(tmp_path: Path) -> None:
    async def body(node: TieredNode) -> None:
        await node.kafka.create("a", TIERED)
        await node.kafka.transaction("a", range(10), name="first")
        await node.kafka.transaction("a", range(10, 20), name="second", is_aborted=True)
        await node.kafka.transaction("a", range(20, 30), name="first")
        await node.settle()
        assert len(await node.remote_segments()) == 3
        # A marker follows each transaction.
        committed = [(n, value_of(n)) for n in range(10)]
        committed += [(n + 2, value_of(n)) for n in range(20, 30)]
        aborted = [(n + 1, value_of(n)) for n in range(10, 20)]
        isolation = IsolationLevel.READ_COMMITTED
        assert await node.kafka.consume("a", 20, isolation=isolation) == committed
        assert await node.kafka.consume("a", 30) == sorted(committed + aborted)

    scenario(tmp_path, body)


@pytest.mark.parametrize("configs", [{"retention_bytes": "1"}, {"retention_ms": "1"}], ids=str)
def test_delete_segments_by_retention(tmp_path: Path, configs: dict[str, str]) -> None:
    """DeleteSegmentsByRetentionSizeTest and …TimeTest."""

    async def body(node: TieredNode) -> None:
        await filled(node, "a")
        assert await node.remote_segments() == [0, 8, 16]
        local = {f"local_{name}": "-2" for name in configs}
        await node.kafka.alter("a", **local, **configs)
        await node.settle()
        assert await node.remote_files() == 0
        start = await node.kafka.offset_of("a", OffsetSpec.earliest())
        assert start.offset >= 3 * SEGMENT
        left = COUNT - start.offset
        assert await node.kafka.consume("a", left, first=start.offset) == ALL[start.offset :]
        await node.kafka.produce("a", [COUNT])
        assert await node.kafka.consume("a", 1, first=COUNT) == [(COUNT, value_of(COUNT))]

    scenario(tmp_path, body)


def test_delete_segments_due_to_log_start_offset_breach(tmp_path: Path) -> None:
    async def delete(node: TieredNode) -> None:
        await filled(node, "a")
        before = SEGMENT + 3
        assert await node.kafka.delete_records("a", before) == before
        await node.settle()
        assert await node.remote_segments() == [8, 16]
        await consume(node)

    async def consume(node: TieredNode) -> None:
        before = SEGMENT + 3
        assert (await node.kafka.offset_of("a", OffsetSpec.earliest())).offset == before
        found = await node.kafka.consume("a", COUNT - before, first=before)
        assert found == ALL[before:]

    scenario(tmp_path, delete, consume)


def test_alter_log_dir(tmp_path: Path) -> None:
    """A broker moves a replica between its folders. A node has one; it moves while that is down."""
    data, other = tmp_path / "data", tmp_path / "other"

    async def main() -> None:
        async with tiered_node(data) as node:
            await filled(node, "a")
            assert await node.remote_segments() == [0, 8, 16]
        (data / "logs").rename(other)
        async with tiered_node(data, log_dir=other) as node:
            assert await node.kafka.consume("a", COUNT) == ALL
            await node.kafka.produce("a", range(COUNT, COUNT + SEGMENT))
            await node.settle()
            assert await node.remote_segments() == [0, 8, 16, 24]
            more = [(number, value_of(number)) for number in range(COUNT, COUNT + SEGMENT)]
            assert await node.kafka.consume("a", COUNT + SEGMENT) == ALL + more
        assert not (data / "logs").exists()

    asyncio.run(main())


def test_delete_topic(tmp_path: Path) -> None:
    async def body(node: TieredNode) -> None:
        await node.kafka.create("a", TIERED, partitions=2)
        for partition in range(2):
            await node.kafka.produce("a", range(COUNT), partition=partition)
        await filled(node, "kept")
        assert await node.remote_segments() == [0, 0, 0, 8, 8, 8, 16, 16, 16]
        await node.kafka.delete("a")
        await node.deletions_done()
        assert await node.remote_segments() == [0, 8, 16]
        assert await node.kafka.consume("kept", COUNT) == ALL

    scenario(tmp_path, body)


def test_disable_remote_log_on_topic(tmp_path: Path) -> None:
    async def disable(node: TieredNode) -> None:
        await filled(node, "a")
        with pytest.raises(KafkaException, match=r"remote\.log\.delete\.on\.disable"):
            await node.kafka.alter("a", remote_storage_enable="false")
        # A topic that copies nothing has no local limits of its own.
        await node.kafka.alter(
            "a",
            remote_log_copy_disable="true",
            local_retention_bytes="-2",
            local_retention_ms="-2",
        )
        await node.kafka.produce("a", range(COUNT, COUNT + 2 * SEGMENT))
        await node.settle()
        assert await node.remote_segments() == [0, 8, 16], "nothing more is copied"
        wanted = [(number, value_of(number)) for number in range(COUNT + 2 * SEGMENT)]
        assert await node.kafka.consume("a", len(wanted)) == wanted
        await node.kafka.alter(
            "a", remote_storage_enable="false", remote_log_delete_on_disable="true"
        )
        await node.settle()
        assert await node.remote_files() == 0
        await consume(node)

    async def consume(node: TieredNode) -> None:
        start = (await node.kafka.offset_of("a", OffsetSpec.earliest())).offset
        assert start == 3 * SEGMENT
        wanted = [(number, value_of(number)) for number in range(start, COUNT + 2 * SEGMENT)]
        assert await node.kafka.consume("a", len(wanted), first=start) == wanted

    scenario(tmp_path, disable, consume)


def test_enable_remote_log_on_topic(tmp_path: Path) -> None:
    async def body(node: TieredNode) -> None:
        plain = {"log.type": "unified", "segment.bytes": TIERED["segment.bytes"]}
        await node.kafka.create("a", {**plain, "file.delete.delay.ms": "0"})
        await node.kafka.produce("a", range(COUNT))
        await node.settle()
        assert await node.remote_files() == 0
        assert node.local_segments("a") == [0, 8, 16, 24]
        await node.kafka.alter("a", remote_storage_enable="true", local_retention_bytes="1")
        await node.settle()
        assert await node.remote_segments() == [0, 8, 16]
        assert node.local_segments("a") == [24]
        assert await node.kafka.consume("a", COUNT) == ALL

    scenario(tmp_path, body)


def test_fetch_from_leader_with_corrupted_checkpoint(tmp_path: Path) -> None:
    logs = tmp_path / "data" / "logs"

    async def offload(node: TieredNode) -> None:
        await filled(node, "a")

    async def damage(node: TieredNode) -> None:
        assert await node.kafka.consume("a", COUNT) == ALL
        assert await node.remote_segments() == [0, 8, 16]

    scenario(tmp_path, offload)
    damaged = [*logs.glob("*checkpoint"), logs / "a-0" / "leader-epoch-checkpoint"]
    assert len(damaged) > 2
    for path in damaged:
        path.write_text("this is no checkpoint")
    scenario(tmp_path, damage)


def test_list_offsets(tmp_path: Path) -> None:
    first_ms = 1_700_000_000_000
    times = {number: first_ms + 1000 * number for number in range(COUNT)}

    async def body(node: TieredNode) -> None:
        old = {"message.timestamp.before.max.ms": str(1 << 62)}
        await node.kafka.create("a", {**TIERED, **old, "retention.ms": "-1"})
        await node.kafka.produce("a", range(COUNT), at_ms=times)
        await node.settle()
        assert await node.remote_segments() == [0, 8, 16]
        await look(node)

    async def look(node: TieredNode) -> None:
        for number in (0, 1, SEGMENT, 2 * SEGMENT + 5, 3 * SEGMENT, COUNT - 1):
            found = await node.kafka.offset_of("a", times[number] - 400)
            assert found == (number, times[number])
        assert await node.kafka.offset_of("a", times[COUNT - 1] + 1) == (-1, -1)
        special = {
            OffsetSpec.earliest(): 0,
            OffsetSpec.latest(): COUNT,
            OffsetSpec.max_timestamp(): COUNT - 1,
        }
        for spec, offset in special.items():
            assert (await node.kafka.offset_of("a", spec)).offset == offset

    scenario(tmp_path, body, look)


def test_partitions_expand(tmp_path: Path) -> None:
    async def body(node: TieredNode) -> None:
        await filled(node, "a")
        await node.kafka.expand("a", 3)
        for partition in (1, 2):
            await node.kafka.produce("a", range(COUNT), partition=partition)
        await node.settle()
        assert await node.remote_segments() == [0, 0, 0, 8, 8, 8, 16, 16, 16]
        for partition in range(3):
            assert node.local_segments("a", partition) == [24]
            assert await node.kafka.consume("a", COUNT, partition=partition) == ALL

    scenario(tmp_path, body)


def test_roll_and_offload_active_segment(tmp_path: Path) -> None:
    async def body(node: TieredNode) -> None:
        await node.kafka.create("a", {**TIERED, "segment.ms": "1", "local.retention.ms": "1"})
        for number in range(3):
            await node.kafka.produce("a", [number])
        await node.settle()
        assert await node.remote_segments() == [0, 1, 2]
        assert node.local_segments("a") == [3]
        assert await node.kafka.consume("a", 3) == ALL[:3]

    scenario(tmp_path, body)


def test_transactions_with_tiered_store(tmp_path: Path) -> None:
    """Producers that come again under their ids, markers and aborted records in both tiers."""

    async def body(node: TieredNode) -> None:
        await node.kafka.create("a", TIERED)
        committed: list[bytes] = []
        for turn in range(8):
            numbers = range(4 * turn, 4 * turn + 4)
            is_aborted = turn % 3 == 1
            name = f"producer {turn % 2}"
            await node.kafka.transaction("a", numbers, name=name, is_aborted=is_aborted)
            committed += [] if is_aborted else [value_of(number) for number in numbers]
            await node.settle()
        assert len(await node.remote_segments()) >= 3
        await read(node, committed)

    async def read(node: TieredNode, committed: list[bytes]) -> None:
        isolation = IsolationLevel.READ_COMMITTED
        found = await node.kafka.consume("a", len(committed), isolation=isolation)
        assert [value for _, value in found] == committed
        assert len(await node.kafka.consume("a", 32)) == 32

    scenario(tmp_path, body)
