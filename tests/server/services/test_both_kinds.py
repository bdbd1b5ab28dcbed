"""One node keeps topics of both kinds, and each goes on as if the other were not there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from streamlog.client.aio import Admin, Consumer, Producer
from streamlog.errors import InvalidConfig, InvalidRecord, PolicyViolation
from tests.support.running_node import running_node

KINDS = ("shared", "unified")
COUNT = 300


async def _filled(server: str, first: int) -> None:
    async with Producer(server, linger_ms=1) as producer:
        for number in range(first, first + COUNT):
            for kind in KINDS:
                await producer.send(kind, b"%d" % number, partition=number % 2)


async def _read(server: str, topic: str, count: int) -> list[tuple[int, int, bytes | None]]:
    async with Consumer(server) as consumer:
        await consumer.assign([(topic, 0), (topic, 1)])
        found: list[tuple[int, int, bytes | None]] = []
        while len(found) < count:
            async with asyncio.timeout(30):
                records = await consumer.poll(1.0)
            found += [(one.partition, one.offset, one.value) for one in records]
        return sorted(found)


def test_topics_of_both_kinds_hold_the_same_records_over_restarts(tmp_path: Path) -> None:
    async def body() -> None:
        for turn in range(2):
            async with running_node(data=str(tmp_path / "data")) as node:
                server = node.banner.grpc
                async with Admin(server) as admin:
                    if not turn:
                        for kind in KINDS:
                            await admin.create_topic(kind, 2, {"log.type": kind})
                    await _filled(server, turn * COUNT)
                    found = [await _read(server, kind, (turn + 1) * COUNT) for kind in KINDS]
                    assert found[0] == found[1]
                    assert len(found[0]) == (turn + 1) * COUNT
                    described = await admin.describe_topic("unified")
                    assert dict(described.configs) == {"log.type": "unified"}
        folder = tmp_path / "data" / "logs" / "unified-0"
        assert (folder / "00000000000000000000.log").stat().st_size > 0

    asyncio.run(body())


def test_a_topic_keeps_its_kind_for_life(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data")) as node,
            Admin(node.banner.grpc) as admin,
        ):
            for kind, other in (KINDS, KINDS[::-1]):
                await admin.create_topic(kind, 1, {"log.type": kind})
                with pytest.raises(InvalidConfig, match="for life"):
                    await admin.alter_configs(topic=kind, configs={"log.type": other})
                await admin.alter_configs(topic=kind, configs={"retention.ms": "1000"})
            with pytest.raises(InvalidConfig):
                await admin.create_topic("other", 1, {"log.type": "remote"})

    asyncio.run(body())


def test_a_default_kind_counts_for_topics_that_are_created_later(tmp_path: Path) -> None:
    async def body() -> None:
        data = str(tmp_path / "data")
        async with running_node(data=data) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("older", 1)
        unified = {"topic-defaults.log.type": "unified"}
        async with running_node(data=data, **unified) as node, Admin(node.banner.grpc) as admin:
            await admin.create_topic("newer", 1, {"retention.ms": "5000"})
        async with running_node(data=data) as node, Admin(node.banner.grpc) as admin:
            for topic, kind in (("older", None), ("newer", "unified")):
                described = await admin.describe_topic(topic)
                assert described.configs.get("log.type") == kind
                # Settings that replace all others leave the kind as it is.
                await admin.alter_configs(topic=topic, configs={"retention.ms": "6000"})
                assert (await admin.describe_topic(topic)).configs.get("log.type") == kind

    asyncio.run(body())


def test_a_deleted_topic_leaves_no_files_and_its_name_is_free(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data")) as node,
            Admin(node.banner.grpc) as admin,
        ):
            for _ in range(2):
                await admin.create_topic("unified", 2, {"log.type": "unified"})
                async with Producer(node.banner.grpc) as producer:
                    delivery = await producer.send("unified", b"v", partition=0)
                    assert (await delivery).offset == 0
                await admin.delete_topic("unified")
                logs = tmp_path / "data" / "logs"
                assert [one.name for one in logs.iterdir() if one.is_dir()] == []

    asyncio.run(body())


def test_a_node_without_a_folder_refuses_the_kind() -> None:
    async def body() -> None:
        async with running_node() as node, Admin(node.banner.grpc) as admin:
            with pytest.raises(PolicyViolation, match="--log-dir"):
                await admin.create_topic("unified", 1, {"log.type": "unified"})

    asyncio.run(body())


COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0",
}


def test_a_partition_that_does_not_open_keeps_no_other_from_being_cleaned(tmp_path: Path) -> None:
    async def body() -> None:
        data = str(tmp_path / "data")
        async with running_node(data=data, log__cleaner_enable=False) as node:
            async with Admin(node.banner.grpc) as admin:
                await admin.create_topic("kept", 2, {**COMPACTED, "log.type": "unified"})
            async with Producer(node.banner.grpc, linger_ms=0) as producer:
                for number in range(40):
                    at_ms = 1_700_000_000_000 + 10 * number
                    await (
                        await producer.send(
                            "kept", b"v", key=b"k", partition=number % 2, timestamp_ms=at_ms
                        )
                    )
        last = max((tmp_path / "data" / "logs" / "kept-0").glob("*.log"))
        os.truncate(last, last.stat().st_size - 1)
        async with running_node(data=data, log__cleaner_backoff_ms="20") as node:
            found = await _all(node.banner.grpc, "kept", 1)
            async with asyncio.timeout(30):
                while len(found) > 2:
                    found = await _all(node.banner.grpc, "kept", 1)

    asyncio.run(body())


@pytest.mark.parametrize("kind", KINDS)
def test_a_compacted_topic_keeps_the_newest_value_of_each_key(tmp_path: Path, kind: str) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data"), log__cleaner_backoff_ms="20") as node,
            Admin(node.banner.grpc) as admin,
        ):
            await admin.create_topic("kept", 1, {**COMPACTED, "log.type": kind})
            newest: dict[bytes, bytes] = {}
            async with Producer(node.banner.grpc, linger_ms=0) as producer:
                with pytest.raises(InvalidRecord, match="no key"):
                    await (await producer.send("kept", b"without a key"))
                for number in range(100):
                    key, value = b"k%d" % (number % 7), b"%d" % number
                    # Each record is too young for the segment of the one before.
                    at_ms = 1_700_000_000_000 + 10 * number
                    await (await producer.send("kept", value, key=key, timestamp_ms=at_ms))
                    newest[key] = value
            # The last record lies in the active segment, which is not cleaned.
            found = await _all(node.banner.grpc, "kept")
            async with asyncio.timeout(30):
                while len(found) > len(newest) + 1:
                    found = await _all(node.banner.grpc, "kept")
            assert dict(found) == newest
            assert node.metric("streamlog_log_cleanings_total") > 0
            assert node.metric("streamlog_log_cleaning_errors_total") == 0

    asyncio.run(body())


def test_a_shared_topic_becomes_compacted_and_ceases_to_be_while_it_runs(tmp_path: Path) -> None:
    async def body() -> None:
        data = str(tmp_path / "data")
        async with (
            running_node(data=data, log__cleaner_backoff_ms="20") as node,
            Admin(node.banner.grpc) as admin,
        ):
            await admin.create_topic("kept", 1, {**COMPACTED, "cleanup.policy": "delete"})
            async with Producer(node.banner.grpc, linger_ms=0) as producer:
                for number in range(60):
                    # A topic that is not compacted takes them, and a cleaning removes them.
                    key = None if number % 10 == 0 else b"k%d" % (number % 5)
                    at_ms = 1_700_000_000_000 + 10 * number
                    await (await producer.send("kept", b"%d" % number, key=key, timestamp_ms=at_ms))
                assert len(await _all(node.banner.grpc, "kept")) == 60
                await admin.alter_configs(topic="kept", configs={"cleanup.policy": "compact"})
                with pytest.raises(InvalidRecord, match="no key"):
                    await (await producer.send("kept", b"without a key"))
                found = await _all(node.banner.grpc, "kept")
                async with asyncio.timeout(30):
                    while len(found) > 6:
                        found = await _all(node.banner.grpc, "kept")
                # The last record lies in the active segment, whose keys are not looked at.
                assert dict(found) == {b"k%d" % (n % 5): b"%d" % n for n in range(55, 60)}
                await admin.alter_configs(topic="kept", configs={"cleanup.policy": "delete"})
                await (await producer.send("kept", b"without a key"))
                after = await _all(node.banner.grpc, "kept")
                assert after == [*found, (None, b"without a key")]
        async with running_node(data=data) as node:
            assert await _all(node.banner.grpc, "kept") == after
            async with Admin(node.banner.grpc) as admin:
                await admin.delete_topic("kept")
                assert node.node.engine is not None
                assert await node.node.engine.streams.list_streams() == []

    asyncio.run(body())


def test_a_topic_that_ceases_to_be_compacted_ends_its_cleaning(tmp_path: Path) -> None:
    async def body() -> None:
        pace = "log.cleaner.io.max.bytes.per.second"
        logs = tmp_path / "data" / "logs"
        async with (
            running_node(data=str(tmp_path / "data"), log__cleaner_backoff_ms="20") as node,
            Admin(node.banner.grpc) as admin,
        ):
            await admin.create_topic("kept", 1, {**COMPACTED, "log.type": "unified"})
            # Keys are learned in a second, and the segments written again in the next one.
            await admin.alter_configs(broker=node.banner.node_id, configs={pace: "2000"})
            async with Producer(node.banner.grpc, linger_ms=0) as producer:
                for number in range(30):
                    at_ms = 1_700_000_000_000 + 10 * number
                    await (await producer.send("kept", b"v", key=b"k", timestamp_ms=at_ms))
                async with asyncio.timeout(30):
                    while not list(logs.rglob("*.cleaned")):  # noqa: ASYNC110 - it has no event
                        await asyncio.sleep(0.01)
                found = await _all(node.banner.grpc, "kept")
                await admin.alter_configs(topic="kept", configs={"cleanup.policy": "delete"})
                await admin.alter_configs(broker=node.banner.node_id, configs={pace: None})
                async with asyncio.timeout(30):
                    while list(logs.rglob("*.cleaned")):  # noqa: ASYNC110 - it has no event
                        await asyncio.sleep(0.01)
            # Segments that were swapped in before the change have fewer records.
            assert 1 < len(await _all(node.banner.grpc, "kept")) <= len(found)
            assert node.metric("streamlog_log_cleaning_errors_total") == 0

    asyncio.run(body())


async def _all(
    server: str, topic: str, partition: int = 0
) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of every record up to the end."""
    async with Consumer(server) as consumer:
        await consumer.assign([(topic, partition)])
        end = (await consumer.end_offsets([(topic, partition)]))[topic, partition]
        found: list[tuple[bytes | None, bytes | None]] = []
        last = -1
        while last < end - 1:
            async with asyncio.timeout(30):
                for record in await consumer.poll(1.0):
                    found.append((record.key, record.value))
                    last = record.offset
        return found
