"""Topics with a remote tier on a real node, through its clients: over gRPC and Kafka's protocol."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from prometheus_client.parser import text_string_to_metric_families

from streamlog.client.aio import Admin, Consumer, Producer
from streamlog.errors import InvalidConfig
from streamlog.model.partition import TopicPartition
from streamlog.v1 import log_pb2
from streamlog.wiring.engine import OpenEngine
from tests.support.command import run
from tests.support.running_node import RunningNode, running_node

COUNT = 40
TIERED = {
    "log.type": "unified",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}


def value_of(number: int) -> bytes:
    """120 kB: eight of them fill a segment of 1 MiB."""
    return b"%06d" % number * 20_000


async def filled(server: str, topic: str, count: int = COUNT) -> None:
    async with Producer(server, linger_ms=0) as producer:
        for number in range(count):
            await (await producer.send(topic, value_of(number), partition=0))


async def read(server: str, topic: str, first: int, count: int) -> list[tuple[int, bytes | None]]:
    async with Consumer(server) as consumer:
        await consumer.assign([(topic, 0)])
        await consumer.seek(topic, 0, first)
        found: list[tuple[int, bytes | None]] = []
        while len(found) < count:
            async with asyncio.timeout(30):
                found += [(one.offset, one.value) for one in await consumer.poll(1.0)]
        return found


def engine_of(node: RunningNode) -> OpenEngine:
    assert node.node.engine is not None
    return node.node.engine


async def moved(node: RunningNode, topic: str) -> int:
    """The local log start, when all closed segments are in the remote tier alone."""
    engine = engine_of(node)
    assert engine.tiers is not None
    await engine.tiers.run_tasks()
    await engine.logs.retention_tick()
    log = await engine.logs.log(TopicPartition(topic, 0))
    assert len(log.segments) == 1
    return log.segments[0].base_offset


def page_of(http: str) -> dict[str, float]:
    """Metrics without labels, as a monitoring system reads them."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=30) as page:
        families = text_string_to_metric_families(page.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return {sample.name: sample.value for sample in samples if not sample.labels}


async def special(node: RunningNode, timestamp_ms: int) -> int:
    """The offset that stands for the special timestamp."""
    topic = log_pb2.ListOffsetsTopic(topic="tiered")
    topic.partitions.add(partition=0, timestamp_ms=timestamp_ms)
    response = await node.log.ListOffsets(log_pb2.ListOffsetsRequest(topics=[topic]))
    offset: int = response.topics[0].partitions[0].offset
    return offset


def read_by_kafka(address: str, topic: str, first: int, count: int) -> list[tuple[int, bytes]]:
    settings = {"group.id": "none: it is assigned its partitions", "enable.auto.commit": False}
    consumer = KafkaConsumer({"bootstrap.servers": address, **settings})
    try:
        consumer.assign([KafkaPartition(topic, 0, first)])
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            found.append((message.offset(), message.value()))
        return found
    finally:
        consumer.close()


def test_a_topic_is_read_from_both_tiers_over_both_protocols(tmp_path: Path) -> None:
    async def body() -> None:
        data = str(tmp_path / "data")
        wanted = [(number, value_of(number)) for number in range(COUNT)]
        async with running_node(data=data) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node.banner.grpc, "tiered")
            local = await moved(node, "tiered")
            assert local > COUNT // 2
            assert [await special(node, at) for at in (-1, -2, -4, -5)] == [
                COUNT,
                0,
                local,
                local - 1,
            ]
            logs = tmp_path / "data" / "logs" / "tiered-0"
            assert len(list(logs.glob("*.log"))) == 1
            for first in (0, 3, local - 1):
                server = node.banner.grpc
                found = await read(server, "tiered", first, COUNT - first)
                assert found == wanted[first:]
            address = next(one.address for one in node.banner.listeners if one.name == "kafka")
            for first in (0, 11):
                found_too = await asyncio.to_thread(
                    read_by_kafka, address, "tiered", first, COUNT - first
                )
                assert found_too == wanted[first:]
        async with running_node(data=data) as node:
            assert await read(node.banner.grpc, "tiered", 0, COUNT) == wanted

    asyncio.run(body())


def test_the_last_records_leave_the_node_when_they_are_old_enough(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data")) as node,
            Admin(node.banner.grpc) as admin,
        ):
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node.banner.grpc, "tiered", 20)
            assert await moved(node, "tiered") < 20, "the active segment stays"
            await admin.alter_configs(topic="tiered", configs={"local.retention.ms": "1"})
            await engine_of(node).logs.retention_tick()
            assert await moved(node, "tiered") == 20
            assert await special(node, -5) == 19
            wanted = [(number, value_of(number)) for number in range(20)]
            assert await read(node.banner.grpc, "tiered", 0, 20) == wanted

    asyncio.run(body())


def test_what_a_deleted_topic_had_in_the_store_goes(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data")) as node,
            Admin(node.banner.grpc) as admin,
        ):
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node.banner.grpc, "tiered", 20)
            await moved(node, "tiered")
            assert (await engine_of(node).store.list("remote/")).objects
            await admin.delete_topic("tiered")
            tiers = engine_of(node).tiers
            assert tiers is not None
            async with asyncio.timeout(30):
                await tiers.deletions_done()
            assert not (await engine_of(node).store.list("remote/")).objects

    asyncio.run(body())


def test_a_tier_that_was_turned_off_is_emptied_whatever_the_settings_become(tmp_path: Path) -> None:
    """Changed before the deletion has begun."""

    async def body() -> None:
        data = str(tmp_path / "data")
        deletes, off = "remote.log.delete.on.disable", {"remote.storage.enable": "false"}
        async with running_node(data=data) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node.banner.grpc, "tiered", 20)
            await moved(node, "tiered")
            await admin.alter_configs(topic="tiered", configs={**off, deletes: "true"})
            await admin.alter_configs(topic="tiered", configs={deletes: "false"})
            assert (await engine_of(node).store.list("remote/")).objects
        async with running_node(data=data) as node, Admin(node.banner.grpc) as admin:
            tiers = engine_of(node).tiers
            assert tiers is not None
            await engine_of(node).logs.log(TopicPartition("tiered", 0))
            for _ in range(2):
                # The first one loads what the metadata has.
                await tiers.run_tasks()
            assert not (await engine_of(node).store.list("remote/")).objects
            await admin.alter_configs(topic="tiered", configs={"remote.storage.enable": "true"})
            with pytest.raises(InvalidConfig, match=r"remote\.log\.delete\.on\.disable"):
                await admin.alter_configs(topic="tiered", configs=off)

    asyncio.run(body())


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_setting_of_the_tier_is_taken_back_from_a_topic_without_one(
    tmp_path: Path, policy: str
) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data")) as node,
            Admin(node.banner.grpc) as admin,
        ):
            configs = {"log.type": "unified", "cleanup.policy": policy}
            deletes = {"remote.log.delete.on.disable": "true"}
            await admin.create_topic("untiered", 1, configs | deletes)
            changed = await engine_of(node).logs.alter_topic_configs(
                "untiered", set={**configs, "retention.ms": "5000"}, is_replacing=True
            )
            assert deletes.keys().isdisjoint(changed.configs)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({"remote.storage.enable": "true"}, "log.type=unified"),
        ({**TIERED, "cleanup.policy": "compact"}, "cleanup.policy=compact"),
        ({**TIERED, "local.retention.ms": "10", "retention.ms": "5"}, "more than retention.ms"),
        ({**TIERED, "local.retention.bytes": "-1", "retention.bytes": "5"}, "more than retention"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    tmp_path: Path, configs: dict[str, Any], says: str
) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data")) as node,
            Admin(node.banner.grpc) as admin,
        ):
            with pytest.raises(InvalidConfig, match=says):
                await admin.create_topic("refused", 1, configs)
            await admin.create_topic("changed", 1, TIERED)
            with pytest.raises(InvalidConfig, match=r"remote\.log\.delete\.on\.disable"):
                await admin.alter_configs(
                    topic="changed", configs={"remote.storage.enable": "false"}
                )

    asyncio.run(body())


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("is_made_so", [True, False])
def test_a_topic_that_was_compacted_once_is_never_tiered(
    tmp_path: Path, policy: str, is_made_so: bool
) -> None:
    """Kafka refuses it, too: a cleaning may still be under way."""
    compacted, tiered = {"cleanup.policy": policy}, {"remote.storage.enable": "true"}

    async def body() -> None:
        data = str(tmp_path / "data")
        async with running_node(data=data) as node, Admin(node.banner.grpc) as admin:
            kind = {"log.type": "unified"}
            await admin.create_topic("once", 1, kind | (compacted if is_made_so else {}))
            await admin.create_topic("never", 1, kind)
            if not is_made_so:
                await admin.alter_configs(topic="once", configs=compacted)
            both = {**tiered, "cleanup.policy": "delete"}
            with pytest.raises(InvalidConfig, match="once had cleanup"):
                await admin.alter_configs(topic="once", configs=both)
            await admin.alter_configs(topic="once", configs={"cleanup.policy": "delete"})
            with pytest.raises(InvalidConfig, match="once had cleanup"):
                await admin.alter_configs(topic="once", configs=tiered)
        async with running_node(data=data) as node, Admin(node.banner.grpc) as admin:
            with pytest.raises(InvalidConfig, match="once had cleanup"):
                await admin.alter_configs(topic="once", configs=tiered)
            await admin.alter_configs(topic="once", configs={"retention.ms": "5000"})
            with pytest.raises(InvalidConfig, match="once had cleanup"):
                await admin.alter_configs(topic="once", configs=tiered)
            await admin.alter_configs(topic="never", configs=tiered)

    asyncio.run(body())


def test_a_node_without_tiered_storage_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        off = {"broker.remote.log.storage.system.enable": "false"}
        async with (
            running_node(data=str(tmp_path / "data"), **off) as node,
            Admin(node.banner.grpc) as admin,
        ):
            with pytest.raises(InvalidConfig, match=r"remote\.log\.storage\.system\.enable"):
                await admin.create_topic("tiered", 1, TIERED)

    asyncio.run(body())


def test_quotas_change_at_run_time_and_windows_do_not(tmp_path: Path) -> None:
    async def body() -> None:
        copy = "remote.log.manager.copy.max.bytes.per.second"
        async with running_node(data=str(tmp_path / "data")) as node:
            kafka = next(one.address for one in node.banner.listeners if one.name == "kafka")

            def alter(name: str, value: str) -> None:
                client = AdminClient({"bootstrap.servers": kafka})
                entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                resource = ConfigResource(
                    ConfigResource.Type.BROKER,
                    str(node.banner.node_id),
                    incremental_configs=[entry],
                )
                (done,) = client.incremental_alter_configs([resource]).values()
                done.result(30)

            await asyncio.to_thread(alter, copy, "1234")
            assert node.metric("streamlog_remote_copy_quota_bytes_per_second") == 1234
            for name in (
                "remote.log.manager.copy.quota.window.num",
                "remote.log.manager.read.max.bytes.per.second",
            ):
                with pytest.raises(KafkaException):
                    await asyncio.to_thread(alter, name, "5")

    asyncio.run(body())


def test_throttled_reads_are_on_the_page_of_the_nodes_metrics(tmp_path: Path) -> None:
    async def body() -> None:
        bounds: dict[str, Any] = {"broker.remote.log.manager.fetch.max.bytes.per.second": 1000}
        async with running_node(data=str(tmp_path / "data"), **bounds) as node:
            async with Admin(node.banner.grpc) as admin:
                await admin.create_topic("tiered", configs=TIERED)
            await filled(node.banner.grpc, "tiered")
            await moved(node, "tiered")
            assert [one[0] for one in await read(node.banner.grpc, "tiered", 0, 1)][:1] == [0]
            topic = log_pb2.FetchTopic(topic="tiered")
            topic.partitions.add(partition=0, fetch_offset=1)
            throttled = log_pb2.FetchRequest(topics=[topic], max_wait_ms=100)
            (part,) = (await node.log.Fetch(throttled)).topics[0].partitions
            assert not part.record_batches
            assert part.high_watermark == COUNT
            page = await asyncio.to_thread(page_of, node.banner.http)
            waited_ms = page["streamlog_remote_fetch_throttle_time_max_ms"]
            assert waited_ms > throttled.max_wait_ms
            assert 0 < page["streamlog_remote_fetch_throttle_time_avg_ms"] <= waited_ms
            assert page["streamlog_remote_fetch_throttles_total"] >= 1
            assert page["streamlog_remote_fetch_quota_bytes_per_second"] == 1000
            assert page["streamlog_remote_copy_throttle_time_max_ms"] == 0

    asyncio.run(body())


def test_fsck_counts_the_files_of_the_remote_tier(tmp_path: Path) -> None:
    """They are the cluster's own, although the metadata of objects does not name them."""

    async def body() -> None:
        async with running_node(data=str(tmp_path)) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("tiered", 1, TIERED)
            await filled(node.banner.grpc, "tiered", 10)
            await moved(node, "tiered")

    asyncio.run(body())
    files = [path for path in (tmp_path / "objects" / "remote").rglob("*") if path.is_file()]
    assert files
    checked = run("fsck", "--data", tmp_path, "--json")
    report = json.loads(checked.stdout)
    assert (checked.returncode, report["clean"]) == (0, True)
    assert report["counts"]["remote_files"] == len(files)
    assert report["counts"]["remote_bytes"] == sum(path.stat().st_size for path in files)
