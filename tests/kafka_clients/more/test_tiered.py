"""A real Kafka judges both tiers: it reads what a node tiered, and a node what Kafka tiered.

Kafka has its own LocalTieredStorage and its own metadata manager. The node's metadata of segments
lies in Kafka's topic, its remote segments in Kafka's folder, so that nothing is converted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.kafka.wire import KafkaConnection
from streamlog.errors import InvalidConfig
from streamlog.format.kafka_files.names import PARTITION_METADATA
from streamlog.format.kafka_files.properties import encode_id
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
from streamlog.log.api.topic_config import parse
from streamlog.tiered.api import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from streamlog.tiered.metadata.placement import metadata_partition_of
from tests.kafka_clients.client_programs import dumped_segments
from tests.kafka_clients.tiered_folder import (
    METADATA_PARTITIONS,
    TIER_FOLDER,
    TOPIC,
    NodeInFolder,
    node_in,
    tiering_kafka,
)
from tests.kafka_clients.tiered_history import (
    PARTITION,
    SPECIAL,
    TieredHistory,
    all_in,
    append_to,
    await_equal,
    await_settled,
    by_java,
    by_librdkafka,
    delete_records,
    list_offsets,
    produce_in_kafka,
    special_offsets_of,
)
from tests.support.kafka_server import KafkaServer

RECORD = re.compile(r"payload: RemoteLogSegmentMetadata.*? id=([\w-]+).* state=(\w+)")
"""A segment's id and state in what Kafka's tool prints of a record."""
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class TwoTiers:
    """Kafka's folder, the remote one, and who has them now."""

    def __init__(self, place: Path) -> None:
        self.remote = place / "remote"
        self.kafka: KafkaServer = tiering_kafka(place / "kafka", self.remote)
        self.history = TieredHistory(5)

    def prepare(self) -> None:
        """Kafka makes the topic, and its own of metadata."""
        folders = [self.kafka.data / str(PARTITION)] + [
            self.kafka.data / f"{REMOTE_LOG_METADATA}-{n}" for n in range(METADATA_PARTITIONS)
        ]
        with self.kafka, KafkaConnection(self.kafka.server) as connection:
            connection.make_topic(PARTITION.topic, 1, TOPIC)
            # Kafka writes the files in the background, a moment after a partition has a leader.
            files = [folder / PARTITION_METADATA for folder in folders]
            await_settled(f"not all of {files}", lambda: all(path.is_file() for path in files))
            self.kafka.stop()

    def node(self) -> AbstractAsyncContextManager[NodeInFolder]:
        return node_in(self.kafka.data, self.remote, PARTITION, TOPIC)

    @property
    def copies(self) -> list[Path]:
        """The segments in the remote tier."""
        return list((self.remote / TIER_FOLDER).rglob("*.log"))


@pytest.fixture
def two_tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    made = TwoTiers(tmp_path)
    made.prepare()
    yield made
    made.kafka.kill()


async def _fill(
    world: TwoTiers, batches: int = 500, deleted: int = 0
) -> dict[int, tuple[int, int]]:
    """The node's turn: it reads what is there, appends, and copies. Its special offsets.

    `deleted`: records that are deleted at the log's start.
    """
    async with world.node() as node:
        await _judge(node, world.history)
        if deleted:
            offset = world.history.records[deleted].offset
            before = len(await node.segments())
            await node.log.delete_records(offset)
            await node.copy()
            assert len(await node.segments()) < before
            world.history.delete_below(offset)
        await append_to(node.log, world.history, batches)
        await node.copy()
        copied = await node.segments()
        assert {one.state for one in copied} == {FINISHED}
        assert len(copied) >= 3
        assert len(node.log.segments) == 1
        assert node.log.log_start_offset < node.log.local_log_start_offset
        assert copied[-1].end_offset == node.log.local_log_start_offset - 1
        await _judge(node, world.history)
        return await special_offsets_of(node.log)


async def _judge(node: NodeInFolder, history: TieredHistory) -> None:
    """The node reads the whole log out of both tiers."""
    log = node.log
    assert await all_in(log) == history.records
    assert await all_in(log, Isolation.READ_COMMITTED) == history.committed
    if history.records:
        for at_ms in history.look_ups(30):
            found = await log.offset_for_timestamp(at_ms, Isolation.READ_UNCOMMITTED)
            assert found.offset == history.first_at(at_ms)


def _judge_in_kafka(
    server: str, history: TieredHistory, special: dict[int, tuple[int, int]]
) -> None:
    """Kafka reads the whole log out of both tiers, for two clients."""
    await_equal(special, lambda: list_offsets(server, SPECIAL))
    (end, _), first = special[-1], special[-2][0]
    look_ups = history.look_ups(50)
    found = list_offsets(server, look_ups)
    assert {at_ms: found[at_ms][0] for at_ms in look_ups} == {
        at_ms: history.first_at(at_ms) for at_ms in look_ups
    }
    for isolation, wanted in (
        ("read_uncommitted", history.records),
        ("read_committed", history.committed),
    ):
        assert by_librdkafka(server, first, end, isolation) == wanted
        assert by_java(server, first, len(wanted), isolation) == wanted


def _fill_in_kafka(world: TwoTiers, count: int = 4000) -> dict[int, tuple[int, int]]:
    """A Kafka that is started appends, and copies what is closed. Its special offsets."""
    kafka = world.kafka
    await_settled("no leader", lambda: bool(list_offsets(kafka.server, SPECIAL)))
    before = list_offsets(kafka.server, SPECIAL)
    produce_in_kafka(kafka.server, world.history, count)

    def is_copied() -> bool:
        """Nothing but the active segment is local."""
        found = list_offsets(kafka.server, SPECIAL)
        is_alone = len(kafka.segments(PARTITION.topic)) == 1
        return is_alone and found[-4][0] == found[-5][0] + 1 > before[-4][0]

    await_settled("Kafka copies nothing", is_copied)
    return list_offsets(kafka.server, SPECIAL)


def _dumped(*files: Path) -> str:
    """What Kafka's tool says of a metadata partition's segments."""
    return dumped_segments("--remote-log-metadata-decoder", "--files", ",".join(map(str, files)))


def test_kafka_reads_both_tiers_that_a_node_filled(two_tiers: TwoTiers) -> None:
    special = asyncio.run(_fill(two_tiers))
    with two_tiers.kafka as kafka:
        _judge_in_kafka(kafka.server, two_tiers.history, special)
        assert len(kafka.segments(PARTITION.topic)) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_node_reads_both_tiers_that_kafka_filled(two_tiers: TwoTiers, is_killed: bool) -> None:
    with two_tiers.kafka as kafka:
        special = _fill_in_kafka(two_tiers)
        if not is_killed:
            kafka.stop()

    async def judge() -> None:
        async with two_tiers.node() as node:
            await _judge(node, two_tiers.history)
            assert await special_offsets_of(node.log) == special
            assert {one.state for one in await node.segments()} == {FINISHED}
            assert len(node.log.segments) == 1

    asyncio.run(judge())


def _bases_up_to(offset: int, copies: Sequence[Path]) -> list[int]:
    """Base offsets of segments with records at or below the offset."""
    bases = [int(path.name.partition("-")[0]) for path in copies]
    return [base for base in bases if base <= offset]


def test_they_take_turns_and_each_deletes_what_the_other_copied(two_tiers: TwoTiers) -> None:
    """Kafka stops in order: one that was killed goes on with the leader epoch that it had, and so
    drops the node's later ones from its file."""
    world, kafka = two_tiers, two_tiers.kafka
    special = asyncio.run(_fill(world))
    with kafka:
        _judge_in_kafka(kafka.server, world.history, special)
        _fill_in_kafka(world)
        kafka.stop()
    special = asyncio.run(_fill(world, deleted=len(world.history.records) // 3))
    with kafka:
        _judge_in_kafka(kafka.server, world.history, special)
        _fill_in_kafka(world)
        offset = world.history.records[len(world.history.records) // 2].offset
        assert len(_bases_up_to(offset, world.copies)) > 3
        delete_records(kafka.server, offset)
        world.history.delete_below(offset)
        await_settled("copies stay", lambda: len(_bases_up_to(offset, world.copies)) == 1)
        special = list_offsets(kafka.server, SPECIAL)
        kafka.stop()
    assert special[-2] == (offset, -1)

    async def judge() -> None:
        async with world.node() as node:
            await _judge(node, world.history)
            assert await special_offsets_of(node.log) == special
            segments = await node.segments()
            assert {one.state for one in segments} == {FINISHED}
            assert segments[0].start_offset <= offset <= segments[0].end_offset

    asyncio.run(judge())


def test_kafkas_tool_reads_the_records_of_a_nodes_segments(two_tiers: TwoTiers) -> None:
    async def fill() -> tuple[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
        async with two_tiers.node() as node:
            await append_to(node.log, two_tiers.history, 300)
            await node.copy()
            return node.partition, await node.segments()

    partition, copied = asyncio.run(fill())
    wanted = []
    for one in copied:
        segment_id = encode_id(one.remote_log_segment_id.id)
        wanted += [(segment_id, "COPY_SEGMENT_STARTED"), (segment_id, "COPY_SEGMENT_FINISHED")]
    assert len(wanted) > 4
    told = []
    for number in range(METADATA_PARTITIONS):
        folder = two_tiers.kafka.data / f"{REMOTE_LOG_METADATA}-{number}"
        told.append(RECORD.findall(_dumped(*sorted(folder.glob("*.log")))))
    assert told.pop(metadata_partition_of(partition, METADATA_PARTITIONS)) == wanted
    assert told == [[], []]


def test_the_same_limits_of_both_parts_are_taken(tmp_path: Path) -> None:
    """Whole and local limits, on a topic that is tiered, on one that is not, and without copies."""
    tiered = {"remote.storage.enable": "true"}
    cases = [
        {**base, **{name: text for name, text in limits if text}}
        for base in ({}, tiered, {**tiered, "remote.log.copy.disable": "true"})
        for kind in ("bytes", "ms")
        for whole, local in product(("", "-2", "-1", "0", "9"), ("", "-3", "-2", "-1", "0", "9"))
        for limits in [((f"retention.{kind}", whole), (f"local.retention.{kind}", local))]
    ]
    # The node takes any negative number for -1 of retention.bytes alone, Kafka compares as given.
    alike = [one for one in cases if not (len(one) > 3 and one.get("retention.bytes") == "-2")]
    differences: list[object] = []
    with tiering_kafka(tmp_path / "kafka", tmp_path / "remote") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.server})
        for number, configs in enumerate(alike):
            topic = NewTopic(f"t{number}", 1, 1, config=configs)
            (answer,) = admin.create_topics([topic], validate_only=True).values()
            refusals = [None if (error := answer.exception()) is None else str(error)]
            try:
                parse({**configs, "log.type": "unified"})
                refusals.append(None)
            except InvalidConfig as refused:
                refusals.append(str(refused))
            if (refusals[0] is None) != (refusals[1] is None):
                differences.append((configs, refusals))
    assert differences == []
