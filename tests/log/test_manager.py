"""LogManager: topics, limits, races, crashes in mid-creation, retention in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from streamlog.errors import (
    Closed,
    Invalid,
    InvalidConfig,
    InvalidName,
    InvalidPartitions,
    MetadataUnavailable,
    NotLeader,
    OutcomeUnknown,
    PolicyViolation,
    StoreUnavailable,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from streamlog.log.api.config import LogConfig
from streamlog.log.topics import topics as topics_module
from streamlog.log.topics.topic_record import (
    TopicRecord,
    TopicState,
    decode_topic,
    encode_topic,
    topic_key,
)
from streamlog.log.topics.topics import Topics
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.log_conformance import append, encoded, read, refused
from tests.log.cluster import cluster, run
from tests.support.log_insides import admin_of, cached_topic, streams_of, topics_of
from tests.support.replacing import replace_method

HOUR_MS = 3_600_000


def test_a_topic_that_was_created_is_listed_and_its_partitions_open():
    async def test(made, logs):
        info = await logs.create_topic("a.topic", 3, {"retention.ms": "1000"})
        assert (info.name, info.partitions) == ("a.topic", 3)
        assert info.configs == {"retention.ms": "1000"}
        assert logs.topic("a.topic") == info
        assert logs.list_topics() == [info]
        opened = await logs.log(TopicPartition("a.topic", 2))
        assert opened is await logs.log(TopicPartition("a.topic", 2))
        assert logs.open_log(TopicPartition("a.topic", 2)) is opened
        assert logs.open_log(TopicPartition("a.topic", 1)) is None

    run(test)


def test_a_partition_is_described_with_its_four_streams():
    async def test(made, logs):
        await logs.create_topic("a.topic", 3)
        opened = await logs.log(TopicPartition("a.topic", 2))
        await append(opened, encoded([b"x"]))
        described = logs.describe_partition(TopicPartition("a.topic", 2))
        assert (described.high_watermark, described.segments) == (1, 1)
        assert described.size_bytes == opened.size_bytes
        ids = described.storage_ids
        assert len(set(ids.values())) == 4
        for role, stream_id in ids.items():
            assert (await made.running[0][1].describe_stream(stream_id)).tags["role"] == role
        assert list(ids) == ["meta", "data", "time", "txn"]

    run(test)


def test_nothing_is_left_of_a_deleted_topic_and_its_name_is_free():
    async def test(made, logs):
        info = await logs.create_topic("a.topic", 3)
        opened = await logs.log(TopicPartition("a.topic", 2))
        await append(opened, encoded([b"x"]))
        await logs.delete_topic("a.topic")
        assert logs.topic("a.topic") is None
        assert logs.list_topics() == []
        assert made.medium.rows == {}
        for namespace in ("_topic", "_partition"):
            assert await made.medium.kv.list_kv(namespace) == []
        with pytest.raises(Closed):
            await opened.append(encoded([b"y"]))
        for call in (logs.delete_topic("a.topic"), logs.log(TopicPartition("a.topic", 0))):
            await refused(UnknownTopicOrPartition, call)
        again = await logs.create_topic("a.topic")
        assert again.partitions == 1
        assert again.topic_id != info.topic_id

    run(test)


def test_a_topic_is_found_by_its_id_until_it_is_deleted():
    async def test(made, first):
        second = await made.node()
        old = await first.create_topic("t")
        await first.create_partitions("t", 2)
        assert first.topic_by_id(old.topic_id) == first.topic("t")
        await first.delete_topic("t")
        assert first.topic_by_id(old.topic_id) is None
        new = await first.create_topic("t")
        assert first.topic_by_id(new.topic_id) == new
        for _ in range(20):
            await asyncio.sleep(0)
        assert second.topic_by_id(new.topic_id) == new
        assert second.topic_by_id(old.topic_id) is None
        assert second.topic_by_id("") is None

    run(test)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a\0", "x" * 250, "x" * 10_000, "a:b"]
)
def test_invalid_topic_names_are_refused(name):
    async def test(made, logs):
        error = await refused(InvalidName, logs.create_topic(name))
        assert len(str(error)) < 400
        assert made.medium.rows == {}

    run(test)


@pytest.mark.parametrize(
    "call",
    [
        lambda logs: logs.create_topic(5),
        lambda logs: logs.create_topic([]),
        lambda logs: logs.create_topic("u", "3"),
        lambda logs: logs.create_topic("u", 2.0),
        lambda logs: logs.create_topic("u", 1, {"retention.ms": 1000}),
        lambda logs: logs.create_topic("u", 1, {5: "1000"}),
        lambda logs: logs.create_topic("u", 1, {"retention.ms": " " * 70_000 + "5"}),
        lambda logs: logs.create_partitions("t", "3"),
        lambda logs: logs.create_partitions(None, 3),
        lambda logs: logs.alter_topic_configs("t", set={"retention.ms": "0" * 70_000}),
        lambda logs: logs.alter_topic_configs("t", set={"retention.ms": 7}),
        lambda logs: logs.delete_topic([]),
        lambda logs: logs.log(("t", 0)),
        lambda logs: logs.log("t"),
        lambda logs: logs.log(TopicPartition("t", "0")),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_a_wrong_type_or_length_are_refused_and_the_manager_goes_on(call):
    async def test(made, logs):
        await logs.create_topic("t", 1)
        error = await refused(Invalid, call(logs))
        assert len(str(error)) < 400
        assert logs.failure is None
        assert len(made.medium.rows) == 4
        await append(await logs.log(TopicPartition("t", 0)), encoded([b"x"]))

    run(test)


def test_limits_and_bad_settings():
    async def test(made, logs):
        for count in (0, -1, 6):
            await refused(InvalidPartitions, logs.create_topic("t", count))
        error = await refused(InvalidConfig, logs.create_topic("t", 1, {"retentionms": "1"}))
        assert "retention.ms" in str(error)
        bad = [
            ({"cleanup.policy": "compact,shred"}, "must be of delete, compact"),
            ({"compression.type": "zstd"}, "compresses nothing anew"),
            ({"remote.storage.enable": "true"}, "tiered storage"),
            ({"retention.ms": "a week"}, "whole number"),
            ({"retention.ms": "-2"}, "must be -1"),
            ({"min.insync.replicas": "0"}, "must be 1"),
            ({"message.timestamp.type": "Broker"}, "CreateTime"),
        ]
        for configs, hint in bad:
            assert hint in str(await refused(InvalidConfig, logs.create_topic("t", 1, configs)))
        dry = await logs.create_topic("t", 2, {"segment.ms": "5"}, validate_only=True)
        assert (dry.topic_id, dry.partitions) == ("", 2)
        assert made.medium.rows == {}
        await logs.create_topic("t", 4)
        await refused(TopicAlreadyExists, logs.create_topic("t", 1))
        await refused(TopicAlreadyExists, logs.create_topic("t", 1, validate_only=True))
        await refused(InvalidPartitions, logs.create_topic("u", 3))
        await logs.create_topic("u", 2)
        await refused(PolicyViolation, logs.create_topic("v", 1))
        assert [topic.name for topic in logs.list_topics("t", 5)] == ["u"]
        assert [topic.name for topic in logs.list_topics("", 1)] == ["t"]

    run(test, topics_max=2, partitions_max=6, partitions_per_topic_max=5)


def test_partitions_are_added_and_found():
    async def test(made, logs):
        await logs.create_topic("t", 1)
        await refused(UnknownTopicOrPartition, logs.log(TopicPartition("t", 1)))
        await refused(UnknownTopicOrPartition, logs.log(TopicPartition("t", -1)))
        for count in (1, 0):
            await refused(InvalidPartitions, logs.create_partitions("t", count))
        assert (await logs.create_partitions("t", 3)).partitions == 3
        await append(await logs.log(TopicPartition("t", 2)), encoded([b"x"]))
        await made.crash()
        logs = await made.node()
        assert logs.topic("t").partitions == 3
        assert len(await read(await logs.log(TopicPartition("t", 2)))) == 1

    run(test)


def test_settings_change_open_logs_and_survive():
    async def test(made, logs):
        await logs.create_topic("t", 1, {"max.message.bytes": "500"})
        opened = await logs.log(TopicPartition("t", 0))
        big = encoded([b"x" * 1000])
        with pytest.raises(StreamlogError):
            await opened.append(big)
        dry = await logs.alter_topic_configs(
            "t", set={"max.message.bytes": "9000"}, validate_only=True
        )
        assert dry.configs == {"max.message.bytes": "9000"}
        with pytest.raises(StreamlogError):
            await opened.append(big)
        info = await logs.alter_topic_configs(
            "t", set={"max.message.bytes": "2000", "retention.ms": "7"}
        )
        assert info.configs == logs.topic("t").configs
        await asyncio.sleep(0)
        await append(opened, big)
        await logs.alter_topic_configs("t", delete=["retention.ms"])
        assert logs.topic("t").configs == {"max.message.bytes": "2000"}
        for wrong in (
            {"set": {"max.message.bytes": "1", "nope": "1"}},
            {"delete": ["nope"]},
            {"append": {"retention.ms": "1"}},
            {"append": {"cleanup.policy": "shred"}},
            {"subtract": {"cleanup.policy": "delete"}},
        ):
            await refused(InvalidConfig, logs.alter_topic_configs("t", **wrong))
        await logs.alter_topic_configs("t", append={"cleanup.policy": "delete"})
        assert logs.topic("t").configs["max.message.bytes"] == "2000"
        await refused(UnknownTopicOrPartition, logs.alter_topic_configs("u", set={}))
        await made.stop()
        logs = await made.node()
        assert logs.topic("t").configs["max.message.bytes"] == "2000"
        await append(await logs.log(TopicPartition("t", 0)), big)

    run(test)


def test_two_nodes_race_for_a_name_and_one_wins():
    async def test(made, first):
        second = await made.node()
        results = await asyncio.gather(
            first.create_topic("t", 2), second.create_topic("t", 2), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == [
            "TopicAlreadyExists",
            "TopicDescription",
        ]
        assert len(made.medium.rows) == 8, "the loser's streams are gone"
        for _ in range(20):
            await asyncio.sleep(0)
        assert first.topic("t") == second.topic("t")
        winner = first if not isinstance(results[0], Exception) else second
        other = second if winner is first else first
        await append(await winner.log(TopicPartition("t", 0)), encoded([b"x"]))
        await refused(NotLeader, other.log(TopicPartition("t", 0)))
        await winner.delete_topic("t")
        for _ in range(20):
            await asyncio.sleep(0)
        assert other.topic("t") is None

    run(test)


def test_one_open_is_shared_and_cancelling_a_caller_spares_the_others():
    async def test(made, logs):
        await logs.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        calls = [asyncio.ensure_future(logs.log(partition)) for _ in range(20)]
        await asyncio.sleep(0)
        calls[0].cancel()
        opened = await asyncio.gather(*calls[1:])
        assert len({id(log) for log in opened}) == 1

    run(test)


def test_a_log_that_loses_its_stream_is_dropped_and_opened_again():
    async def test(made, logs):
        await logs.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        opened = await logs.log(partition)
        await append(opened, encoded([b"a"], producer=(1, 0, 0)))
        client = made.running[0][1]
        data = logs.describe_partition(partition).storage_ids["data"]
        client.hold()
        wait = await opened.append(encoded([b"b"], producer=(1, 0, 1)))
        await client.open_stream(data, OpenStreamOptions())
        client.release()
        with pytest.raises(StreamlogError):
            await wait
        assert logs.open_log(partition) is None
        again = await logs.log(partition)
        assert again is not opened
        assert (await append(again, encoded([b"b"], producer=(1, 0, 1)))).base_offset == 1

    run(test)


@pytest.mark.parametrize("use", ["append", "fetch"])
def test_an_idle_log_that_loses_its_stream_is_opened_again(use):
    async def test(made, logs):
        await logs.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        opened = await logs.log(partition)
        await append(opened, encoded([b"a"]))
        data = logs.describe_partition(partition).storage_ids["data"]
        await made.running[0][1].open_stream(data, OpenStreamOptions())
        if use == "append":
            await refused(StreamFenced, opened.append(encoded([b"b"])))
        else:
            # This medium serves reads of an old epoch, the engine refuses them.
            replace_method(streams_of(opened).data, "fetch", fenced)
            await refused(StreamFenced, opened.fetch(0, 100))
        assert logs.open_log(partition) is None
        assert (await append(await logs.log(partition), encoded([b"b"]))).base_offset == 1

    async def fenced(*_):
        raise StreamFenced("opened with a higher epoch", stream_id=1, epoch=9)

    run(test)


def test_a_log_that_fails_while_it_is_opened_is_opened_again():
    """It failed before the manager had it, and would have been kept, refusing every call."""

    async def away(*_, **__):
        raise StoreUnavailable("away", operation="put")

    async def test(made, logs):
        await logs.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        log = await logs.log(partition)
        for _ in range(2):
            await append(log, encoded([b"x"]))
        # So the next open trims, and writes the new settings at the same time.
        replace_method(streams_of(log).data, "trim", away)
        await refused(StoreUnavailable, log.delete_records(1))
        meta = logs.describe_partition(partition).storage_ids["meta"]
        await made.crash()
        logs = await made.node()
        await logs.alter_topic_configs("t", set={"retention.ms": "7000"})
        client = made.running[0][1]
        open_stream = client.open_stream

        async def without_meta_appends(stream_id, options):
            stream = await open_stream(stream_id, options)
            if stream_id == meta:
                stream.append = away
            return stream

        client.open_stream = without_meta_appends
        await refused(StoreUnavailable, logs.log(partition))
        client.open_stream = open_stream
        log = await logs.log(partition)
        assert (log.log_start_offset, (await append(log, encoded([b"y"]))).base_offset) == (1, 2)

    run(test)


def test_a_look_up_that_was_asked_before_the_creation_does_not_hide_the_topic():
    async def test(made, logs):
        kv, is_read, may_answer = made.medium.kv, asyncio.Event(), asyncio.Event()
        get = kv.get_kv

        async def late_once(key):
            value = await get(key)
            if key == topic_key("t") and not is_read.is_set():
                is_read.set()
                await may_answer.wait()
            return value

        kv.get_kv = late_once
        looking = asyncio.ensure_future(logs.log(TopicPartition("t", 0)))
        await is_read.wait()
        created = await logs.create_topic("t")
        may_answer.set()
        await append(await looking, encoded([b"x"]))
        assert logs.topic("t") == created

    run(test)


def test_settings_that_cannot_be_read_end_nothing_but_the_use_of_their_topic():
    """A later version of the program may have stored them."""

    async def test(made, logs):
        kv = made.medium.kv
        for name in ("later", "t"):
            await logs.create_topic(name, 1, {"retention.bytes": "0"})
            await append(await logs.log(TopicPartition(name, 0)), encoded([b"x"]))
        stored = await kv.get_kv(topic_key("later"))
        record = decode_topic("later", stored.data)
        later = replace(record, configs={"remote.storage.enable": "true"})
        await kv.compare_and_set_kv(topic_key("later"), encode_topic(later), stored.revision)
        await heard()
        assert logs.topic("later").configs == later.configs
        await logs.retention_tick()
        assert (await logs.log(TopicPartition("t", 0))).log_start_offset == 1
        await append(await logs.log(TopicPartition("later", 0)), encoded([b"y"]))
        assert logs.failure is None

    run(test)


class Fickle:
    """A KVClient that fails one chosen call, before or after it took effect."""

    def __init__(self, kv) -> None:
        self._kv = kv
        self.plan: tuple[str, int, str] | None = None

    def __getattr__(self, name):
        method = getattr(self._kv, name)
        if not self.plan or self.plan[0] != name:
            return method

        async def call(*args, **kwargs):
            assert self.plan is not None
            wanted, count, how = self.plan
            self.plan = (wanted, count - 1, how) if count else None
            if count:
                return await method(*args, **kwargs)
            if how == "after":
                await method(*args, **kwargs)
                raise OutcomeUnknown("the answer was lost")
            raise MetadataUnavailable("no connection")

        return call


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize(
    ("call", "count"),
    [("put_kv_if_absent", 0), *(("compare_and_set_kv", count) for count in range(3))],
)
def test_a_creation_that_is_cut_short_is_finished_or_cleaned_up(call, count, how):
    async def body():
        async with cluster() as made:
            real = made.medium.kv
            made.medium.kv = fickle = Fickle(real)
            logs = await made.node()
            fickle.plan = (call, count, how)
            try:
                await logs.create_topic("t", 2)
                created = True
            except StreamlogError:
                created = False
            await made.crash()
            fickle.plan = None
            logs = await made.node()
            await logs.repair()
            await logs.delete_orphans()
            info = logs.topic("t")
            assert info is not None or not created
            assert len(made.medium.rows) == (0 if info is None else 8)
            if info is None:
                assert call == "put_kv_if_absent"
                info = await logs.create_topic("t", 2)
            for index in range(2):
                await append(await logs.log(TopicPartition("t", index)), encoded([b"x"]))

    asyncio.run(body())


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize(
    ("call", "count"), [("compare_and_set_kv", 0), ("del_kv", 0), ("del_kv", 1), ("del_kv", 2)]
)
def test_a_deletion_that_is_cut_short_is_finished(call, count, how):
    async def body():
        async with cluster() as made:
            real = made.medium.kv
            made.medium.kv = fickle = Fickle(real)
            logs = await made.node()
            await logs.create_topic("t", 2)
            await logs.log(TopicPartition("t", 0))
            fickle.plan = (call, count, how)
            await refused(StreamlogError, logs.delete_topic("t"))
            await made.crash()
            fickle.plan = None
            logs = await made.node()
            await logs.repair()
            is_deleted = (call, how) != ("compare_and_set_kv", "before")
            assert (logs.topic("t") is None) is is_deleted
            assert len(made.medium.rows) == (0 if is_deleted else 8)

    asyncio.run(body())


class Sender:
    """A KVClient that keeps what was put if absent, so that it can arrive once more."""

    def __init__(self, kv) -> None:
        self._kv = kv
        self.sent: list[Any] = []

    def __getattr__(self, name):
        return getattr(self._kv, name)

    async def put_kv_if_absent(self, key, data):
        self.sent.append((key, data))
        return await self._kv.put_kv_if_absent(key, data)


async def heard():
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.mark.parametrize("finder", ["repair", "create", "restart"])
def test_a_creation_that_arrives_again_after_the_deletion_leaves_no_topic(finder):
    async def body():
        async with cluster() as made:
            made.medium.kv = sender = Sender(made.medium.kv)
            logs = await made.node()
            await logs.create_topic("t", 2)
            await logs.delete_topic("t")
            await sender._kv.put_kv_if_absent(*sender.sent[0])
            await heard()
            assert topics_of(logs).get("t") is not None
            if finder == "repair":
                await logs.repair()
            elif finder == "restart":
                await made.crash()
                logs = await made.node()
                await heard()
            if finder != "create":
                for namespace in ("_topic", "_partition"):
                    assert await made.medium.kv.list_kv(namespace) == []
                assert topics_of(logs).get("t") is None
            assert (await logs.create_topic("t", 1)).partitions == 1
            assert len(made.medium.rows) == 4
            await append(await logs.log(TopicPartition("t", 0)), encoded([b"x"]))

    asyncio.run(body())


@pytest.mark.parametrize("turns", range(24))
def test_a_creation_amid_a_deletion_spoils_neither(turns):
    async def test(made, logs):
        info = await logs.create_topic("t", 2)
        await append(await logs.log(TopicPartition("t", 0)), encoded([b"x"]))
        deletion = asyncio.create_task(logs.delete_topic("t"))
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            again = await logs.create_topic("t", 1)
        except TopicAlreadyExists:
            again = None  # It came first.
        await deletion
        again = again or await logs.create_topic("t", 1)
        assert again.topic_id != info.topic_id
        assert len(made.medium.rows) == 4
        await append(await logs.log(TopicPartition("t", 0)), encoded([b"y"]))

    run(test)


def test_a_creation_that_this_node_has_not_heard_of_is_finished():
    async def test(made, first):
        admin_of(first)._kv = fickle = Fickle(made.medium.kv)
        second = await made.node()
        fickle.plan = ("compare_and_set_kv", 0, "before")
        await refused(MetadataUnavailable, first.create_topic("t", 2))
        await heard()

        async def not_heard(stream_id):
            raise StreamNotFound(f"no stream {stream_id}", stream_id=stream_id)

        made.running[1][1].describe_stream = not_heard
        epochs = {row.stream_id: row.epoch for row in made.medium.rows.values()}
        await second.repair()
        assert second.topic("t").partitions == 2
        assert {row.stream_id: row.epoch for row in made.medium.rows.values()} == epochs
        await heard()
        await append(await first.log(TopicPartition("t", 1)), encoded([b"x"]))

    run(test)


def test_a_creation_that_another_node_finished_succeeds_when_sent_again():
    async def test(made, first):
        second = await made.node()
        real = made.medium.kv

        class Lost(Sender):
            async def put_kv_if_absent(self, key, data):
                value = await super().put_kv_if_absent(key, data)
                if len(self.sent) == 1:
                    await heard()
                    await second.repair()
                    raise OutcomeUnknown("the answer was lost")
                return value

        topics_of(first)._kv = Lost(real)
        assert (await first.create_topic("t", 2)).partitions == 2
        assert len(made.medium.rows) == 8
        await append(await first.log(TopicPartition("t", 0)), encoded([b"x"]))

    run(test)


@pytest.mark.parametrize("gone", [1, 2])
def test_a_topic_without_any_partition_left_is_removed(gone):
    async def test(made, logs):
        await logs.create_topic("t", 2)
        client = made.running[0][1]
        metas = [row.stream_id for row in made.medium.rows.values() if row.tags["role"] == "meta"]
        for stream_id in metas[:gone]:
            await client.delete_stream(stream_id)
        if gone == 1:
            await refused(StreamNotFound, logs.log(TopicPartition("t", 0)))
            await append(await logs.log(TopicPartition("t", 1)), encoded([b"x"]))
            return
        await refused(UnknownTopicOrPartition, logs.log(TopicPartition("t", 0)))
        assert logs.list_topics() == []
        await logs.create_topic("t", 1)
        await append(await logs.log(TopicPartition("t", 0)), encoded([b"x"]))

    run(test)


def test_pending_partitions_whose_data_is_gone_are_given_up():
    async def test(made, logs):
        await logs.create_topic("t", 1)
        old = cached_topic(logs, "t")
        await topics_of(logs).replace("t", old, replace(old.record, pending=(999,)))
        await logs.repair()
        assert cached_topic(logs, "t").record.pending == ()
        assert logs.topic("t").partitions == 1
        await append(await logs.log(TopicPartition("t", 0)), encoded([b"x"]))

    run(test)


def test_a_node_that_deletes_late_spares_the_next_topic_of_the_name():
    async def test(made, first):
        second = await made.node()
        await first.create_topic("t", 1)
        old = cached_topic(first, "t")
        deleting = replace(old.record, state=TopicState.DELETING)
        assert await topics_of(first).replace("t", old, deleting)
        late = cached_topic(first, "t")
        await first.repair()
        await first.create_topic("t", 1)
        await heard()
        partition = TopicPartition("t", 0)
        await admin_of(second)._delete_partition(partition, late)
        await topics_of(second).remove("t", late)
        await admin_of(second)._write_key(partition, 999, late)
        await heard()
        assert len(made.medium.rows) == 4
        assert second.topic("t") == first.topic("t")
        assert first.topic("t") is not None
        await append(await first.log(partition), encoded([b"x"]))

    run(test)


def test_orphan_deletion_spares_registered_attempted_and_held_partitions():
    async def test(made, logs):
        await logs.create_topic("t", 1)
        other = await made.node()
        real = made.medium.kv
        topics_of(other)._kv = fickle = Fickle(real)
        fickle.plan = ("put_kv_if_absent", 0, "before")
        await refused(MetadataUnavailable, other.create_topic("u", 1))
        assert len(made.medium.rows) == 8
        assert await logs.delete_orphans() == 0, "another living process may still be at it"
        other_client = made.running[1][1]
        await other_client.kill()
        assert await logs.delete_orphans() == 1
        assert len(made.medium.rows) == 4
        assert await logs.delete_orphans() == 0

    run(test)


def test_producer_ids_are_unique_over_nodes_and_crashes():
    async def test(made, logs):
        other = await made.node(LogConfig(producer_id_block=3))
        ids = [(await node.init_producer_id())[0] for node in [logs, other] * 8]
        await made.crash()
        logs = await made.node()
        ids += [(await logs.init_producer_id())[0] for _ in range(4)]
        assert len(set(ids)) == len(ids)
        assert await logs.init_producer_id(ids[0], 4) == (ids[0], 5)
        with pytest.raises(Invalid, match="never given out"):
            await logs.init_producer_id(ids[-1] + 1, 0)
        assert await logs.init_producer_id() == (ids[-1] + 1, 0)
        new, epoch = await logs.init_producer_id(ids[0], 32766)
        assert epoch == 0
        assert new not in ids
        with pytest.raises(StreamlogError):
            await logs.init_producer_id(10**9, 0)

    run(test, producer_id_block=3)


def test_retention_in_virtual_time_reaches_partitions_that_are_not_open():
    async def test(made, logs):
        configs = {"retention.ms": str(24 * HOUR_MS), "segment.ms": str(HOUR_MS)}
        await logs.create_topic("t", 1, configs)
        partition = TopicPartition("t", 0)
        for _ in range(30):
            log = await logs.log(partition)
            await append(log, encoded([b"x"], at_ms=made.clock.now_ms()))
            made.clock.advance(2 * HOUR_MS)
            await logs.retention_tick()
        assert 11 <= log.log_end_offset - log.log_start_offset <= 13
        assert len(log.segments) == log.log_end_offset - log.log_start_offset
        await made.stop()
        logs = await made.node()
        made.clock.advance(48 * HOUR_MS)
        await logs.retention_tick()
        log = logs.open_log(partition)
        assert log.log_start_offset == log.log_end_offset == 30
        assert log.size_bytes == 0
        rows = made.medium.rows
        assert sum(len(row.batches) for row in rows.values() if row.tags["role"] != "meta") == 0

    run(test)


def test_retention_by_size():
    async def test(made, logs):
        batch = encoded([b"x" * 900])
        size = len(batch)
        configs = {"retention.bytes": str(3 * size), "internal.segment.bytes": str(size)}
        await logs.create_topic("t", 1, configs)
        log = await logs.log(TopicPartition("t", 0))
        for _ in range(10):
            await append(log, batch)
        await logs.retention_tick()
        assert log.log_start_offset == 7
        assert log.size_bytes == 3 * size

    run(test)


def test_after_close_everything_is_refused_and_another_node_goes_on():
    async def test(made, logs):
        await logs.create_topic("t", 1)
        log = await logs.log(TopicPartition("t", 0))
        wait = await log.append(encoded([b"x"]))
        other = await made.node()
        await logs.close()
        assert (await wait).base_offset == 0
        await refused(Closed, logs.log(TopicPartition("t", 0)))
        await refused(Closed, logs.create_topic("u"))
        await refused(Closed, logs.init_producer_id())
        await logs.close()
        assert len(await read(await other.log(TopicPartition("t", 0)))) == 1

    run(test)


def test_the_topic_cache_survives_a_compacted_watch():
    async def test(made, logs):
        made.hold_few_changes(4)
        other = await made.node()
        for i in range(12):
            await other.create_topic(f"t{i:02}")
            await other.alter_topic_configs(f"t{i:02}", set={"retention.ms": str(i)})
        await other.delete_topic("t03")
        for _ in range(100):
            await asyncio.sleep(0)
        assert logs.list_topics() == other.list_topics()
        assert len(logs.list_topics()) == 11

    run(test)


def test_a_topic_made_anew_elsewhere_leaves_no_log_of_the_old_one():
    """A watch that fell behind tells of the new topic alone. The old log took its place before."""

    async def test(made, logs):
        partition = TopicPartition("t", 0)
        await logs.create_topic("t")
        old = await logs.log(partition)
        kv, key = made.medium.kv, topic_key("t")
        stored = await kv.get_kv(key)
        anew = replace(decode_topic("t", stored.data), topic_id=made.random.uuid())
        await kv.compare_and_set_kv(key, encode_topic(anew), stored.revision)
        for _ in range(100):
            await asyncio.sleep(0)
        assert logs.topic("t").topic_id == str(anew.topic_id)
        assert logs.open_log(partition) is None
        with pytest.raises(Closed):
            await old.append(encoded([b"late"]))

    run(test)


def test_the_topic_cache_reloads_when_the_kv_store_is_back():
    async def test(made, logs):
        kv = made.medium.kv
        topics = Topics(kv, lambda name, record: None)
        await topics.load()
        kv._changes_held_max = 4
        for i in range(12):
            await logs.create_topic(f"t{i:02}")
        listing, looks = kv.list_kv, []

        async def away(*args, **kwargs):
            looks.append(args)
            if len(looks) == 1:
                raise MetadataUnavailable("away")
            return await listing(*args, **kwargs)

        kv.list_kv = away
        topics_module.RETRY_S, before = 0.0, topics_module.RETRY_S
        follow = asyncio.ensure_future(topics.follow())
        for _ in range(100):
            await asyncio.sleep(0)
        topics_module.RETRY_S = before
        assert not follow.done()
        assert len(looks) > 1
        assert topics.names() == [f"t{i:02}" for i in range(12)]
        follow.cancel()

    run(test)


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_callers_that_give_up_leave_no_streams_behind(turns):
    async def test(made, logs):
        async def given_up(call):
            task = asyncio.ensure_future(call)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        await given_up(logs.create_topic("t", 3))
        await given_up(logs.create_partitions("t", 5))
        for _ in range(300):
            await asyncio.sleep(0)
        topic = logs.topic("t")
        assert len(made.medium.rows) == 4 * (topic.partitions if topic else 0)
        await given_up(logs.delete_topic("t"))
        for _ in range(300):
            await asyncio.sleep(0)
        assert logs.topic("t") is None or turns == 0
        assert logs.topic("t") is not None or made.medium.rows == {}

    run(test)


def test_metrics_of_a_deleted_topic_are_dropped():
    async def test(made, logs):
        def lines():
            metrics = made.registry.collect()
            samples = [sample for metric in metrics for sample in metric.samples]
            return [sample for sample in samples if "topic" in sample.labels]

        other = await made.node()
        for number in range(20):
            name = f"t{number}"
            await other.create_topic(name, 1, {"retention.bytes": "0"})
            opened = await other.log(TopicPartition(name, 0))
            await append(opened, encoded([b"x"]))
            await other.retention_tick()
            assert any(line.labels == {"topic": name, "reason": "bytes"} for line in lines())
            await other.delete_topic(name)
        assert lines() == []

    run(test)


def test_failed_background_work_is_reported():
    async def test(made, logs):
        made.medium.kv.list_kv = None
        logs._background.spawn(topics_of(logs).load(), name="broken")
        assert isinstance(await logs.wait_failed(), TypeError)

    run(test)


def test_late_events_of_a_deleted_topic_do_not_bring_it_back():
    """The watch may tell of a record after this node has removed it."""

    async def test(made, logs):
        events = []
        topics = Topics(made.medium.kv, lambda name, record: events.append((name, record)))
        await topics.load()
        record = TopicRecord(made.random.uuid(), 1, {})
        assert await topics.create("u", record)
        known = topics.get("u")
        assert known is not None
        await topics.remove("u", known)
        follow = asyncio.ensure_future(topics.follow())
        for _ in range(20):
            await asyncio.sleep(0)
        assert topics.get("u") is None
        assert [record is None for _, record in events] == [False, True]
        assert await topics.create("u", record)
        for _ in range(20):
            await asyncio.sleep(0)
        assert topics.usable("u") is not None
        follow.cancel()

    run(test)


def test_a_reload_keeps_topics_created_and_deleted_meanwhile():
    async def test(made, logs):
        kv, events = made.medium.kv, []
        record = TopicRecord(made.random.uuid(), 1, {})
        topics = Topics(kv, lambda name, record: events.append((name, record is None)))
        await topics.load()
        assert await topics.create("old", record)
        assert await topics.create("gone", record)
        listing = kv.list_kv

        async def while_changing(*args, **kwargs):
            page = await listing(*args, **kwargs)
            await topics.create("new", record)
            known = topics.get("old")
            assert known is not None
            await topics.remove("old", known)
            return page

        await kv.del_kv(topic_key("gone"))
        kv.list_kv = while_changing
        await topics.load()
        assert topics.names() == ["new"]
        assert events[2:] == [("new", False), ("old", True), ("gone", True)]

    run(test)
