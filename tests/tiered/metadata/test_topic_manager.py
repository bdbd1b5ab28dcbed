"""The manager over the logs of nodes: its topic, other managers, restarts, moves, and outages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from streamlog.codec.batch import scan
from streamlog.codec.records import decode as decode_batch
from streamlog.errors import (
    Closed,
    InvalidConfig,
    MetadataUnavailable,
    NotLeader,
    PolicyViolation,
    Unavailable,
)
from streamlog.log.api.abstract_log import LogFetch
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.tiers.metadata_conformance import (
    FIRST,
    PARTITIONS,
    SECOND,
    change,
    finished,
    put_deletion,
    segment,
)
from streamlog.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.placement import metadata_partition_of
from streamlog.tiered.metadata.records import decode, encode
from streamlog.tiered.metadata.topic_manager import (
    TOPIC_CONFIGS,
    TopicBasedRemoteLogMetadataManager,
)
from tests.log.cluster import Cluster, cluster

TOPIC = "__remote_log_metadata"
COPIED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
LEAVING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
COUNT = "remote.log.metadata.topic.num.partitions"
WAIT = "remote.log.metadata.consume.wait.ms"
ONE = segment(1, (0, 9))


def run(body: Callable[[Cluster, LogManager], Awaitable[None]]) -> None:
    """On a virtual loop: a call that nobody answers ends the test."""

    async def main() -> None:
        async with cluster() as made:
            await body(made, await made.node())

    run_virtually(main)


def manager_on(
    made: Cluster, logs: LogManager, **configs: str
) -> TopicBasedRemoteLogMetadataManager:
    manager = TopicBasedRemoteLogMetadataManager(logs, made.clock)
    manager.configure(configs)
    return manager


async def listed(
    manager: TopicBasedRemoteLogMetadataManager, partition: TopicIdPartition = FIRST
) -> list[RemoteLogSegmentMetadata]:
    return list(await manager.list_remote_log_segments(partition))


def of_metadata_partition(number: int, count: int = 5) -> TopicIdPartition:
    candidates = (FIRST._replace(partition=one) for one in range(1000))
    return next(one for one in candidates if metadata_partition_of(one, count) == number)


def test_the_first_record_makes_the_topic_and_it_is_the_nodes_own() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        await manager.on_partition_leadership_changes(PARTITIONS, ())
        await manager.on_stop_partitions([SECOND])
        assert await listed(manager) == []
        assert list(await manager.deleted_partitions()) == []
        assert logs.topic(TOPIC) is None
        adds = [segment(n, (0, 9), None, PARTITIONS[n % 3]) for n in range(9)]
        await asyncio.gather(*map(manager.add_remote_log_segment_metadata, adds))
        topic = logs.topic(TOPIC)
        assert topic is not None
        assert topic.partitions == 5
        assert topic.configs["cleanup.policy"] == "delete"
        assert topic.configs["retention.ms"] == topic.configs["retention.bytes"] == "-1"
        for call in (
            logs.delete_topic(TOPIC),
            logs.create_topic(TOPIC, 1),
            logs.create_partitions(TOPIC, 9),
            logs.alter_topic_configs(TOPIC, set={"retention.ms": "1"}),
            logs.alter_topic_configs(TOPIC, delete=["retention.bytes"]),
            logs.alter_topic_configs(TOPIC, set={"segment.ms": "1000"}, is_replacing=True),
        ):
            with pytest.raises(PolicyViolation):
                await call

    run(body)


def test_a_topic_that_is_taken_over_keeps_its_id_and_its_partitions() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        topic_id = UUID(int=5 << 70)
        taken = await logs.create_internal_topic(TOPIC, 3, TOPIC_CONFIGS, topic_id)
        assert UUID(taken.topic_id) == topic_id
        manager = manager_on(made, logs, **{COUNT: "7"})
        partition = of_metadata_partition(2, count=3)
        assert metadata_partition_of(partition, 7) != 2
        await manager.add_remote_log_segment_metadata(segment(1, (0, 9), None, partition))
        assert manager.metadata_partitions == {2}

    run(body)


def test_records_are_kafkas_one_a_batch_without_a_key_where_kafka_has_them() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs, **{COUNT: "7"})
        for number, partition in enumerate(PARTITIONS):
            one = segment(number, (0, 9), None, partition)
            update = change(one, COPIED, b"\1\2")
            await manager.add_remote_log_segment_metadata(one)
            await manager.update_remote_log_segment_metadata(update)
            place = TopicPartition(TOPIC, metadata_partition_of(partition, 7))
            fetched = await (await logs.log(place)).fetch(0, 1 << 20)
            batches = scan(b"".join(fetched.parts))[-2:]
            records = [record for batch in batches for record in decode_batch(batch.view)]
            assert [(key, headers) for _, _, key, _, headers in records] == [(None, [])] * 2
            assert [bytes(value or b"") for _, _, _, value, _ in records] == [
                encode(one),
                encode(update),
            ]
            assert decode(records[1][3]) == update

    run(body)


def test_records_stay_whatever_the_nodes_retention_is() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        known = await finished(manager, ONE)
        short = {"log.retention.ms": "1000", "log.retention.bytes": "1"}
        await logs.alter_broker_configs(None, lambda known: {**known, **short})
        made.clock.advance(10**6)
        await logs.retention_tick()
        assert await listed(manager_on(made, logs)) == known

    run(body)


def test_a_restart_loads_the_same_state() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        segments = [segment(n, (10 * n, 10 * n + 9), None, PARTITIONS[n % 3]) for n in range(30)]
        await finished(manager, *segments)
        await manager.update_remote_log_segment_metadata(change(segments[3], LEAVING))
        deletion = await put_deletion(manager, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
        before = {partition: await listed(manager, partition) for partition in PARTITIONS}
        await made.crash()
        again = manager_on(made, await made.node())
        assert list(await again.deleted_partitions()) == [deletion]
        await again.on_partition_leadership_changes(PARTITIONS, ())
        assert {partition: await listed(again, partition) for partition in PARTITIONS} == before

    run(body)


def test_two_managers_over_one_topic_see_each_others_writes() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        one, other = manager_on(made, logs), manager_on(made, logs)
        for number in range(5):
            writer, reader = (one, other) if number % 2 else (other, one)
            added = segment(number, (10 * number, 10 * number + 9))
            await writer.add_remote_log_segment_metadata(added)
            await reader.update_remote_log_segment_metadata(change(added, COPIED))
            assert await listed(one) == await listed(other)
            assert len(await listed(one)) == number + 1

    run(body)


def test_the_next_leader_of_a_metadata_partition_reads_what_the_one_before_wrote() -> None:
    async def body(made: Cluster, first: LogManager) -> None:
        one = manager_on(made, first, **{COUNT: "1"})
        await one.add_remote_log_segment_metadata(ONE)
        second = await made.node(node_id=2)
        two = manager_on(made, second)
        for leader, former, manager, refused, state in (
            (second, first, two, one, COPIED),
            (first, second, one, two, LEAVING),
        ):
            for logs in (former, leader):
                await logs.leadership.assign(TopicPartition(TOPIC, 0), leader.leadership.node_id)
            for call in (
                refused.list_remote_log_segments(FIRST),
                refused.on_partition_leadership_changes([FIRST], ()),
                refused.update_remote_log_segment_metadata(change(ONE, state)),
            ):
                with pytest.raises(NotLeader):
                    await call
            assert list(await refused.deleted_partitions()) == []
            await manager.update_remote_log_segment_metadata(change(ONE, state))
            assert [known.state for known in await listed(manager)] == [state]

    run(body)


def test_nodes_that_make_the_topic_at_once_agree() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        other = await made.node(node_id=2)
        managers = manager_on(made, logs, **{COUNT: "4"}), manager_on(made, other, **{COUNT: "2"})
        adds = [segment(n, (0, 9), None, FIRST._replace(partition=n)) for n in range(2)]
        answers = await asyncio.gather(
            *(
                manager.add_remote_log_segment_metadata(one)
                for manager, one in zip(managers, adds, strict=True)
            ),
            return_exceptions=True,
        )
        assert None in answers
        assert all(one is None or isinstance(one, Unavailable) for one in answers)
        topics = [one.topic(TOPIC) for one in (logs, other)]
        assert topics[0] == topics[1] is not None
        # What the creator holds is the leader's from now on.
        for number in range(4):
            for node in (logs, other):
                await node.leadership.assign(TopicPartition(TOPIC, number), 2)
        for one in adds:
            await managers[1].add_remote_log_segment_metadata(one)
            assert await listed(managers[1], one.topic_id_partition) == [one]

    run(body)


def test_a_log_that_fails_is_loaded_again_by_the_next_call() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        await finished(manager, ONE)
        place = TopicPartition(TOPIC, metadata_partition_of(FIRST, 5))
        former = await logs.log(place)
        # Another process takes the streams over, and gives them back.
        made.medium.live_holders.clear()
        taking = await made.node(node_id=9)
        await (await taking.log(place)).close()
        failures = 0
        for _ in range(20):
            try:
                await manager.update_remote_log_segment_metadata(change(ONE, LEAVING))
                break
            except Unavailable:
                failures += 1
                await asyncio.sleep(1)
        assert failures
        assert await logs.log(place) is not former
        assert [one.state for one in await listed(manager)] == [LEAVING]

    run(body)


def test_a_load_has_what_was_sequenced_before_it() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        await manager.add_remote_log_segment_metadata(ONE)
        client = made.running[-1][1]
        client.hold()
        writing = asyncio.ensure_future(
            manager.update_remote_log_segment_metadata(change(ONE, COPIED))
        )
        await asyncio.sleep(0.1)
        looks = [asyncio.ensure_future(listed(one)) for one in (manager, manager_on(made, logs))]
        assert await manager.highest_offset_for_epoch(FIRST, 0) is None
        await asyncio.sleep(0.1)
        assert not any(look.done() for look in looks)
        client.release()
        await writing
        for look in looks:
            assert [one.state for one in await look] == [COPIED]

    run(body)


def test_nothing_waits_longer_than_it_may() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs, **{WAIT: "2000"})
        await manager.add_remote_log_segment_metadata(ONE)
        client = made.running[-1][1]
        client.hold()
        loop = asyncio.get_running_loop()
        began = loop.time()
        late = manager_on(made, logs, **{WAIT: "5000"})
        calls: list[Awaitable[object]] = [
            manager.update_remote_log_segment_metadata(change(ONE, COPIED)),
            manager.add_remote_log_segment_metadata(segment(2, (0, 9))),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, Unavailable)
            assert "did not answer within 2 s" in str(answer)
            assert not answer.has_no_side_effects
        assert loop.time() - began < 2.1
        with pytest.raises(Unavailable, match="within 5 s"):
            await late.on_partition_leadership_changes([FIRST], ())
        client.release()
        await manager.update_remote_log_segment_metadata(change(ONE, COPIED))
        await late.on_partition_leadership_changes([FIRST], ())
        assert await listed(manager) == await listed(late)

    run(body)


def test_what_is_still_appended_to_stays_in_memory() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs, **{WAIT: "2000", COUNT: "1"})
        await manager.add_remote_log_segment_metadata(ONE)
        client = made.running[-1][1]
        client.hold()
        with pytest.raises(Unavailable):
            await manager.update_remote_log_segment_metadata(change(ONE, COPIED))
        await manager.on_stop_partitions([FIRST])
        assert manager.metadata_partitions == {0}
        client.release()
        assert [one.state for one in await listed(manager)] == [COPIED]
        await manager.on_stop_partitions([FIRST])
        assert manager.metadata_partitions == set()

    run(body)


def test_a_first_load_takes_as_long_as_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        for number in range(30):
            await manager.add_remote_log_segment_metadata(segment(number, (0, 9)))
        await put_deletion(manager, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
        place = TopicPartition(TOPIC, metadata_partition_of(FIRST, 5))
        opened = await logs.log(place)
        fetch = opened.fetch

        async def slow(offset: int, _: int) -> LogFetch:
            await asyncio.sleep(1)
            return await fetch(offset, 500)

        monkeypatch.setattr(opened, "fetch", slow)
        loop = asyncio.get_running_loop()
        began = loop.time()
        late = manager_on(made, logs, **{WAIT: "2500"})
        (deletion,) = await late.deleted_partitions()
        assert deletion.topic_id_partition == FIRST
        assert loop.time() - began > 5

        async def hangs(*_: int) -> LogFetch:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        monkeypatch.setattr(opened, "fetch", hangs)
        began = loop.time()
        with pytest.raises(Unavailable, match=r"within 2.5 s"):
            await manager_on(made, logs, **{WAIT: "2500"}).deleted_partitions()
        assert loop.time() - began < 3

    run(body)


def test_a_topic_that_cannot_be_made_is_unavailable_and_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        put = made.medium.kv.put_kv_if_absent

        async def away(*_: object) -> None:
            raise MetadataUnavailable("away")

        monkeypatch.setattr(made.medium.kv, "put_kv_if_absent", away)
        with pytest.raises(Unavailable):
            await manager.add_remote_log_segment_metadata(ONE)
        monkeypatch.setattr(made.medium.kv, "put_kv_if_absent", put)
        await manager.add_remote_log_segment_metadata(ONE)
        assert await listed(manager) == [ONE]

    run(body)


def test_what_no_partition_needs_is_freed() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        mine = [of_metadata_partition(number) for number in (0, 3)]
        for number, partition in enumerate(mine):
            await finished(manager, segment(number, (0, 9), None, partition))
        await manager.on_partition_leadership_changes(mine[:1], mine[1:])
        assert manager.metadata_partitions == {0, 3}
        await manager.on_stop_partitions(mine[1:])
        assert manager.metadata_partitions == {0}
        assert len(await listed(manager, mine[1])) == 1

    run(body)


def test_a_closed_manager_refuses_every_call() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        await manager.add_remote_log_segment_metadata(ONE)
        await manager.close()
        await manager.close()
        for call in (
            manager.add_remote_log_segment_metadata(ONE),
            manager.update_remote_log_segment_metadata(change(ONE, COPIED)),
            manager.list_remote_log_segments(FIRST),
            manager.highest_offset_for_epoch(FIRST, 0),
            manager.deleted_partitions(),
            manager.on_partition_leadership_changes([FIRST], ()),
        ):
            with pytest.raises(Closed):
                await call

    run(body)


def test_calls_on_logs_that_are_closed_are_unavailable() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = manager_on(made, logs)
        await manager.add_remote_log_segment_metadata(ONE)
        await made.stop()
        for call in (
            manager.update_remote_log_segment_metadata(change(ONE, COPIED)),
            manager.list_remote_log_segments(FIRST),
        ):
            with pytest.raises(Unavailable):
                await call

    run(body)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (COUNT, "0", "from 1 to"),
        (COUNT, "5.0", "from 1 to"),
        (COUNT, "²", "from 1 to"),
        (WAIT, "-1", "from 1 to"),
        ("remote.log.metadata.topic.num.partition", "5", f"did you mean {COUNT}"),
    ],
)
def test_settings_that_are_wrong_are_refused(name: str, value: str, message: str) -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = TopicBasedRemoteLogMetadataManager(logs, made.clock)
        with pytest.raises(InvalidConfig, match=message) as caught:
            manager.configure({name: value})
        assert caught.value.fields["name"] == name

    run(body)


def test_settings_of_kafka_that_mean_nothing_here_are_passed_over() -> None:
    async def body(made: Cluster, logs: LogManager) -> None:
        manager = TopicBasedRemoteLogMetadataManager(logs, made.clock)
        manager.configure(
            {
                "broker.id": "1",
                "cluster.id": "c",
                "remote.log.metadata.topic.replication.factor": "3",
                "remote.log.metadata.consumer.fetch.max.bytes": "10",
                COUNT: "2",
            }
        )
        await manager.add_remote_log_segment_metadata(ONE)
        topic = logs.topic(TOPIC)
        assert topic is not None
        assert topic.partitions == 2

    run(body)


def test_a_topic_id_says_where_a_partition_is() -> None:
    numbers = {
        metadata_partition_of(FIRST._replace(topic_id=UUID(int=one)), 5) for one in range(50)
    }
    assert numbers == set(range(5))
