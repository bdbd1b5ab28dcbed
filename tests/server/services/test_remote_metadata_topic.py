"""Metadata of remote segments in `__remote_log_metadata`, as a node's settings choose it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from streamlog.client.aio import Admin, Consumer, Producer
from streamlog.errors import InvalidConfig
from streamlog.model.partition import TopicPartition
from streamlog.tiered.config import TOPIC_BASED
from streamlog.tiered.remote_log_manager import RemoteLogManager
from streamlog.wiring.engine import OpenEngine
from tests.support.running_node import RunningNode, running_node

TOPIC = "__remote_log_metadata"
CLASS = "broker.remote.log.metadata.manager.class.name"
COUNT = 30
TIERED = {
    "log.type": "unified",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}


@asynccontextmanager
async def node_on(
    data: Path, value: str = TOPIC_BASED[0], **more: str
) -> AsyncIterator[RunningNode]:
    partitions = {"rlmm.config.remote.log.metadata.topic.num.partitions": "3"}
    chosen = {CLASS: value, **partitions} if value else {}
    async with running_node(data=str(data), **chosen, **more) as node:
        yield node


def engine_of(node: RunningNode) -> OpenEngine:
    assert node.node.engine is not None
    return node.node.engine


def tiers_of(node: RunningNode) -> RemoteLogManager:
    tiers = engine_of(node).tiers
    assert tiers is not None
    return tiers


def value_of(number: int) -> bytes:
    return b"%06d" % number * 20_000


async def filled(node: RunningNode, topic: str, first: int = 0) -> None:
    async with Producer(node.banner.grpc, linger_ms=0) as producer:
        for number in range(first, first + COUNT):
            await (await producer.send(topic, value_of(number), partition=0))


async def moved(node: RunningNode, topic: str) -> int:
    """The last offset that is remote, when nothing but the active segment is local."""
    await tiers_of(node).run_tasks()
    await engine_of(node).logs.retention_tick()
    log = await engine_of(node).logs.log(TopicPartition(topic, 0))
    assert len(log.segments) == 1
    return tiers_of(node).highest_offset(log.topic_partition)


async def read(node: RunningNode, topic: str, count: int) -> list[bytes | None]:
    async with Consumer(node.banner.grpc) as consumer:
        await consumer.assign([(topic, 0)])
        await consumer.seek(topic, 0, 0)
        found: list[bytes | None] = []
        while len(found) < count:
            async with asyncio.timeout(30):
                found += [one.value for one in await consumer.poll(1.0)]
        return found


def test_what_was_copied_before_the_tier_was_turned_off_is_copied_again(tmp_path: Path) -> None:
    async def body() -> None:
        wanted = [value_of(number) for number in range(COUNT)]
        async with node_on(tmp_path) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED | {"local.retention.bytes": "-2"})
            await filled(node, "tiered")
            await tiers_of(node).run_tasks()
            copied = tiers_of(node).highest_offset(TopicPartition("tiered", 0))
            assert copied > 0
            off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
            await admin.alter_configs(topic="tiered", configs=off)
            await tiers_of(node).run_tasks()
            on = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
            await admin.alter_configs(topic="tiered", configs=on)
        async with node_on(tmp_path) as node:
            assert await read(node, "tiered", COUNT) == wanted
            assert await moved(node, "tiered") == copied
            assert await read(node, "tiered", COUNT) == wanted

    asyncio.run(body())


@pytest.mark.parametrize("value", TOPIC_BASED)
def test_a_node_finds_its_segments_again_after_its_end_and_after_a_kill(
    tmp_path: Path, value: str
) -> None:
    async def body() -> None:
        wanted = [value_of(number) for number in range(2 * COUNT)]
        async with node_on(tmp_path, value) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            assert engine_of(node).logs.topic(TOPIC) is None
            await filled(node, "tiered")
            highest = await moved(node, "tiered")
            assert highest > COUNT // 2
            made = engine_of(node).logs.topic(TOPIC)
            assert made is not None
            assert made.partitions == 3
            assert not list((tmp_path / "logs").glob("__*")), "it is in the object store"
            assert await read(node, "tiered", COUNT) == wanted[:COUNT]
        async with node_on(tmp_path, value) as node:
            assert await read(node, "tiered", COUNT) == wanted[:COUNT]
            await filled(node, "tiered", COUNT)
            again = await moved(node, "tiered")
            assert again > highest
            await engine_of(node).kill()
        async with node_on(tmp_path, value) as node:
            assert await read(node, "tiered", 2 * COUNT) == wanted
            assert tiers_of(node).highest_offset(TopicPartition("tiered", 0)) == again

    asyncio.run(body())


def test_a_deleted_topics_data_goes_also_when_the_node_is_killed_meanwhile(tmp_path: Path) -> None:
    async def body() -> None:
        async with node_on(tmp_path) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node, "tiered")
            await moved(node, "tiered")
            store = engine_of(node).store
            assert (await store.list("remote/")).objects
            await admin.delete_topic("tiered")
            await engine_of(node).kill()
        async with node_on(tmp_path) as node:
            async with asyncio.timeout(30):
                while (await engine_of(node).store.list("remote/")).objects:
                    await tiers_of(node).deletions_done()

    asyncio.run(body())


def test_logs_that_open_together_do_not_wait_for_the_topics_own(tmp_path: Path) -> None:
    """One log opens at a time, and it needs the topic's while it does."""

    async def body() -> None:
        one = {"log.opens_at_once_max": "1"}
        async with node_on(tmp_path, **one) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node, "tiered")
            await moved(node, "tiered")
        async with node_on(tmp_path, **one) as node:
            async with asyncio.timeout(20):
                assert len(await read(node, "tiered", COUNT)) == COUNT

    asyncio.run(body())


@pytest.mark.parametrize("value", ["", TOPIC_BASED[0]])
def test_a_purge_spares_the_segments_of_logs_that_nobody_has_opened(
    tmp_path: Path, value: str
) -> None:
    stranger = tmp_path / f"objects/remote/{1:032x}/0/{0:020d}.{1:032x}.segment"

    async def body() -> None:
        async with node_on(tmp_path, value) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node, "tiered")
            await moved(node, "tiered")
        own = [path for path in (tmp_path / "objects/remote").rglob("*") if path.is_file()]
        assert len(own) > 5
        stranger.parent.mkdir(parents=True)
        stranger.write_bytes(b"x")
        for path in (*own, stranger):
            os.utime(path, (0, 0))
        async with node_on(tmp_path, value, **{"broker.remote.log.purge.max.share": "1"}) as node:
            logs = engine_of(node).logs
            assert logs.open_log(TopicPartition("tiered", 0)) is None

            def name_of(topic_id: UUID) -> str | None:
                topic = logs.topic_by_id(str(topic_id))
                return None if topic is None else topic.name

            await tiers_of(node).purge(name_of)
            assert all(path.exists() for path in own)
            assert not stranger.exists()
            assert len(await read(node, "tiered", COUNT)) == COUNT

    asyncio.run(body())


@pytest.mark.parametrize("values", [("", TOPIC_BASED[0]), (TOPIC_BASED[0], "")])
def test_a_node_whose_segments_are_named_in_the_other_place_does_not_start(
    tmp_path: Path, values: tuple[str, str]
) -> None:
    first, second = values

    async def body() -> None:
        async with node_on(tmp_path, first) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node, "tiered")
            await moved(node, "tiered")
        with pytest.raises(InvalidConfig, match="set it back to"):
            async with node_on(tmp_path, second):
                raise AssertionError("it started")
        async with node_on(tmp_path, first) as node:
            assert len(await read(node, "tiered", COUNT)) == COUNT

    asyncio.run(body())
