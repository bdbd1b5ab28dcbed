"""Broker settings at run time: followed by every node at once, kept, and never a node's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from streamlog.errors import (
    InvalidConfig,
    InvalidRecord,
    MessageTooLarge,
    MetadataUnavailable,
    OutcomeUnknown,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import parse
from streamlog.log.broker.broker_record import config_key, decode_configs, encode_configs
from streamlog.log.broker.stored import stored_configs
from streamlog.log.manager import LogManager
from streamlog.model.kv import KVChange
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.byte_pace import UNLIMITED
from streamlog.testing.logs.cleaning_conformance import keyed
from streamlog.testing.logs.log_conformance import append, encoded, refused
from tests.log.cluster import Cluster, cluster, run

BIG = encoded([b"x" * 1000])


async def heard() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def put(logs: LogManager, node_id: int | None = None, **configs: str) -> None:
    """Sets settings; `_` stands for a dot, and "" takes one away."""
    given = {name.replace("_", "."): text for name, text in configs.items()}

    def change(old: Mapping[str, str]) -> dict[str, str]:
        changed = {**old, **given}
        return {name: text for name, text in changed.items() if text}

    await logs.alter_broker_configs(node_id, change)


def test_open_logs_follow_a_default_at_once_unless_their_topic_sets_its_own() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        await logs.create_topic("follows")
        await logs.create_topic("own", configs={"max.message.bytes": "5000"})
        follows = await logs.log(TopicPartition("follows", 0))
        own = await logs.log(TopicPartition("own", 0))
        await put(logs, message_max_bytes="500")
        await asyncio.sleep(0)
        await refused(MessageTooLarge, follows.append(BIG))
        await heard()
        await append(own, BIG)
        await put(logs, message_max_bytes="")
        await heard()
        await append(follows, BIG)

    run(test)


def test_a_change_reaches_another_node_and_survives_a_restart() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        other = await made.node(node_id=2)
        await other.create_topic("t")
        opened = await other.log(TopicPartition("t", 0))
        await put(logs, message_max_bytes="500", num_partitions="3", log_retention_ms="7")
        await heard()
        await refused(MessageTooLarge, opened.append(BIG))
        assert other.defaults.num_partitions == 3
        assert (await other.create_topic("u")).partitions == 3
        await made.crash()
        logs = await made.node()
        assert logs.defaults.topic == parse({"max.message.bytes": "500", "retention.ms": "7"})
        await refused(MessageTooLarge, (await logs.log(TopicPartition("u", 2))).append(BIG))

    run(test)


def test_what_is_set_for_one_node_counts_there_before_what_is_set_for_all() -> None:
    async def test(made: Cluster, first: LogManager) -> None:
        second = await made.node(LogConfig(topic_defaults=parse({"segment.ms": "9"})), node_id=2)
        await put(first, None, log_retention_ms="10", log_roll_ms="20")
        await put(first, 2, log_retention_ms="30")
        await heard()
        assert (first.defaults.topic.retention_ms, second.defaults.topic.retention_ms) == (10, 30)
        assert second.defaults.topic.segment_ms == 20
        assert first.broker_configs.nodes() == second.broker_configs.nodes() == [2]
        await put(second, 2, log_retention_ms="")
        await put(second, None, log_roll_ms="")
        await heard()
        assert second.defaults.topic.retention_ms == 10
        assert (first.defaults.topic.segment_ms, second.defaults.topic.segment_ms) == (
            parse({}).segment_ms,
            9,
        )

    run(test)


def test_changes_at_the_same_time_on_two_nodes_both_take_effect() -> None:
    async def test(made: Cluster, first: LogManager) -> None:
        second = await made.node(node_id=2)
        await asyncio.gather(
            *(
                put(node, None, **{f"{name}{number}": "1"})
                for node, name in ((first, "a"), (second, "b"))
                for number in range(10)
            )
        )
        await heard()
        names = {f"{name}{number}" for name in "ab" for number in range(10)}
        assert set(first.broker_configs.of(None)) == names
        assert first.broker_configs.of(None) == second.broker_configs.of(None)

    run(test)


def test_a_shorter_interval_of_retention_checks_counts_at_once() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        await logs.create_topic("t", 1, {"retention.ms": "5"})
        opened = await logs.log(TopicPartition("t", 0))
        await append(opened, encoded([b"old"]))
        made.clock.advance(TEN_YEARS_MS)
        await put(logs, log_retention_check_interval_ms="1")
        async with asyncio.timeout(60):
            while opened.log_start_offset < opened.log_end_offset:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)

    run(test, retention_check_interval_ms=10**12)


def test_a_change_that_is_refused_changes_nothing() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        def wrong(_: Mapping[str, str]) -> dict[str, str]:
            raise InvalidConfig("no")

        await put(logs, log_retention_ms="5")
        await refused(InvalidConfig, logs.alter_broker_configs(None, wrong))
        assert logs.broker_configs.of(None) == {"log.retention.ms": "5"}

    run(test)


def test_the_cleaners_bound_follows_its_setting() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        assert logs.defaults.cleaner_io_bytes_per_second_max == UNLIMITED
        await put(logs, log_cleaner_io_max_bytes_per_second="1000.5")
        assert logs.defaults.cleaner_io_bytes_per_second_max == 1000.5
        await put(logs, log_cleaner_io_max_bytes_per_second="0")
        assert logs.defaults.cleaner_io_bytes_per_second_max == UNLIMITED

    run(test)


def test_stored_values_that_cannot_be_read_are_passed_over() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        await put(
            logs,
            log_retention_ms="soon",
            log_cleanup_policy="shred",
            num_partitions="0",
            log_retention_check_interval_ms="often",
            log_cleaner_io_max_bytes_per_second="nan",
            log_segment_bytes="5000",
            not_known="1",
        )
        assert logs.defaults.cleaner_io_bytes_per_second_max == UNLIMITED
        assert logs.defaults.topic == parse({"segment.bytes": "5000"}, is_stored=True)
        assert (logs.defaults.num_partitions, logs.failure) == (1, None)
        await logs.create_topic("t")
        await append(await logs.log(TopicPartition("t", 0)), keyed(b"k", b"x"))

    run(test)


@pytest.mark.parametrize("data", [b"\x02later", b"\x01\x00\x05", b""])
def test_a_record_of_another_version_ends_no_node_and_is_not_written_over(data: bytes) -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        await put(logs, log_retention_ms="5")
        await made.medium.kv.put_kv(config_key(None), data)
        await heard()
        assert logs.defaults.topic.retention_ms == 5
        [reason] = logs.broker_configs.alarms()
        assert "settings brokers" in reason
        await refused(StreamlogError, put(logs, log_retention_ms="6"))
        other = await made.node(node_id=2)
        assert other.defaults.topic == parse({})
        await put(other, 2, log_retention_ms="7")
        await heard()
        assert (logs.failure, other.defaults.topic.retention_ms) == (None, 7)
        stored = await made.medium.kv.get_kv(config_key(None))
        assert stored is not None
        assert stored.data == data
        await made.medium.kv.put_kv(config_key(None), encode_configs({"log.retention.ms": "8"}))
        await heard()
        assert logs.defaults.topic.retention_ms == 8
        assert logs.broker_configs.alarms() == []

    run(test)


async def kept_at_a_retention_check(made: Cluster, logs: LogManager) -> set[str]:
    """The topics of OWN_SETTINGS that keep a record of ten years ago."""
    for name in OWN_SETTINGS:
        await append(await logs.log(TopicPartition(name, 0)), keyed(b"k", b"old"))
    made.clock.advance(TEN_YEARS_MS)
    await logs.retention_tick()
    await heard()
    kept = set()
    for name in OWN_SETTINGS:
        opened = await logs.log(TopicPartition(name, 0))
        if opened.log_start_offset < opened.log_end_offset:
            kept.add(name)
    return kept


TEN_YEARS_MS = 10 * 365 * 86_400_000
OWN_SETTINGS = {
    "none": {},
    "age": {"retention.ms": "5"},
    "policy": {"cleanup.policy": "delete"},
    "both": {"cleanup.policy": "delete", "retention.ms": "5"},
}


@pytest.mark.parametrize(
    ("of_all", "of_one", "kept"),
    [
        (b"\x02later", None, {"none", "age", "policy"}),
        (None, b"\x02later", {"none", "age", "policy"}),
        (b"\x02later", {"log.retention.ms": "6"}, {"none", "age"}),
        (b"\x02later", {"log.retention.ms": "6", "log.cleanup.policy": "delete"}, set()),
        ({"log.retention.ms": "soon"}, None, {"none", "policy"}),
        ({"log.cleanup.policy": "shred"}, None, {"none", "age"}),
        ({"log.retention.ms": "-1"}, None, {"none", "policy"}),
        ({"num.partitions": "many"}, None, set()),
    ],
)
def test_what_a_setting_that_cannot_be_read_may_keep_is_kept(
    of_all: Any, of_one: Any, kept: set[str]
) -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        for name, own in OWN_SETTINGS.items():
            await logs.create_topic(name, 1, own)
        await made.stop()
        for node_id, stored in ((None, of_all), (1, of_one)):
            if stored is not None:
                data = stored if isinstance(stored, bytes) else encode_configs(stored)
                await made.medium.kv.put_kv(config_key(node_id), data)
        logs = await made.node()
        alarms = [alarm for alarm in logs.config_alarms() if "keeps what they may delete" in alarm]
        is_unreadable = of_all not in ({"log.retention.ms": "-1"}, {"num.partitions": "many"})
        assert bool(alarms) is is_unreadable
        assert await kept_at_a_retention_check(made, logs) == kept
        for node_id in (None, 1):
            key = config_key(node_id)
            if await made.medium.kv.get_kv(key) is not None:
                await made.medium.kv.put_kv(key, encode_configs({}))
        await heard()
        assert logs.config_alarms() == []
        assert await kept_at_a_retention_check(made, logs) == set()

    run(test)


def test_a_record_that_comes_unreadable_where_none_was_keeps_what_it_may_keep() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        for name, own in OWN_SETTINGS.items():
            await logs.create_topic(name, 1, own)
        await made.medium.kv.put_kv(config_key(None), b"\x02later")
        await heard()
        assert await kept_at_a_retention_check(made, logs) == {"none", "age", "policy"}

    run(test)


@pytest.mark.parametrize("is_static", [False, True])
def test_a_record_that_a_cleaning_may_delete_is_refused_while_the_policy_is_unknown(
    is_static: bool,
) -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        config = LogConfig(topic_defaults=parse({"cleanup.policy": "compact"} if is_static else {}))
        stored = {"num.partitions": "3"} if is_static else {"log.cleanup.policy": "compact"}
        own = {"follows": {}, "deletes": {"cleanup.policy": "delete"}, "age": {"retention.ms": "5"}}
        for name, configs in own.items():
            await logs.create_topic(name, 1, configs)
        await made.stop()
        await made.medium.kv.put_kv(config_key(None), b"\x02later")
        logs = await made.node(config)
        opened = {name: await logs.log(TopicPartition(name, 0)) for name in own}
        assert "refuses records without a key" in " ".join(logs.config_alarms())
        for name in ("follows", "age"):
            error = await refused(Unavailable, append(opened[name], encoded([b"a"])))
            assert error.is_retryable
            assert "log.cleanup.policy" in str(error)
            await append(opened[name], keyed(b"k", b"v"))
        await append(opened["deletes"], encoded([b"a"]))
        await made.medium.kv.put_kv(config_key(None), encode_configs(stored))
        await heard()
        assert logs.config_alarms() == []
        await refused(InvalidRecord, append(opened["follows"], encoded([b"a"])))
        await made.medium.kv.put_kv(
            config_key(None), encode_configs({"log.cleanup.policy": "delete"})
        )
        await heard()
        await append(opened["follows"], encoded([b"a"]))

    run(test)


def test_a_topic_of_a_name_and_a_change_of_it_at_once_end_in_one_order() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        other = await made.node(node_id=2)
        for _ in range(10):
            await logs.create_topic("t")
            await heard()
            changed, deleted = await asyncio.gather(
                other.alter_topic_configs("t", set={"retention.ms": "5"}),
                logs.delete_topic("t"),
                return_exceptions=True,
            )
            assert deleted is None
            if isinstance(changed, BaseException):
                assert isinstance(changed, UnknownTopicOrPartition)
            await heard()
            assert logs.topic("t") is other.topic("t") is None
            assert await made.medium.kv.list_kv("_topic") == []

    run(test)


def test_replacing_a_topics_settings_takes_away_what_is_not_named() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        await logs.create_topic("t", configs={"retention.ms": "5", "flush.ms": "1"})
        await logs.alter_topic_configs("t", set={"segment.ms": "6"}, is_replacing=True)
        topic = logs.topic("t")
        assert topic is not None
        assert topic.configs == {"segment.ms": "6"}

    run(test)


class TroubledKV:
    """A KVClient whose reads and watches fail while `is_away`."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv
        self.is_away = asyncio.Event()
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def list_kv(self, *args: Any, **options: Any) -> Any:
        if self.is_away.is_set():
            self.failures += 1
            raise MetadataUnavailable("no route to the metadata")
        return await self._kv.list_kv(*args, **options)

    async def watch_kv(self, namespace: str, **options: Any) -> AsyncIterator[KVChange]:
        watch = aiter(self._kv.watch_kv(namespace, **options))
        away = asyncio.ensure_future(self.is_away.wait())
        try:
            while True:
                change = asyncio.ensure_future(anext(watch))
                await asyncio.wait({change, away}, return_when=asyncio.FIRST_COMPLETED)
                if self.is_away.is_set():
                    change.cancel()
                    await asyncio.gather(change, return_exceptions=True)
                    raise MetadataUnavailable("no route to the metadata")
                yield await change
        finally:
            away.cancel()


def test_a_watch_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_configs, "RETRY_S", 0)

    async def body() -> None:
        async with cluster() as made:
            real = made.medium.kv
            troubled: Any = TroubledKV(real)
            made.medium.kv = troubled
            logs = await made.node()
            made.medium.kv = real
            other = await made.node(node_id=2)
            await heard()
            assert logs.broker_configs.alarms() == []
            troubled.is_away.set()
            await put(other, None, log_retention_ms="5")
            await heard()
            assert troubled.failures > 1
            [reason] = logs.broker_configs.alarms()
            assert "no route" in reason
            assert logs.defaults.topic.retention_ms != 5
            troubled.is_away.clear()
            await heard()
            assert logs.broker_configs.alarms() == []
            assert logs.defaults.topic.retention_ms == 5
            await put(other, None, log_retention_ms="6")
            await heard()
            assert (logs.defaults.topic.retention_ms, logs.failure) == (6, None)

    asyncio.run(body())


class LostAnswers:
    """A KVClient whose compare-and-set raises, before or after it took effect."""

    def __init__(self, kv: Any, error: StreamlogError, *, is_done: bool) -> None:
        self._kv = kv
        self._error = error
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def compare_and_set_kv(self, *args: Any) -> Any:
        if self._is_done:
            await self._kv.compare_and_set_kv(*args)
        raise self._error


@pytest.mark.parametrize(
    ("error", "is_done"),
    [(MetadataUnavailable("no route"), False), (OutcomeUnknown("the answer was lost"), True)],
)
def test_a_change_without_an_answer_is_an_error_and_what_is_stored_is_in_force(
    error: StreamlogError, is_done: bool
) -> None:
    async def body() -> None:
        async with cluster() as made:
            real = made.medium.kv
            made.medium.kv = LostAnswers(real, error, is_done=is_done)
            logs = await made.node()
            await refused(type(error), put(logs, log_retention_ms="5"))
            await heard()
            in_force = logs.defaults.topic.retention_ms
            assert (in_force == 5) is is_done
            assert (await real.get_kv(config_key(None)) is not None) is is_done
            assert logs.failure is None

    asyncio.run(body())


def test_a_watch_that_fell_behind_reads_all_settings_again() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        made.hold_few_changes(2)
        other = await made.node(node_id=2)
        for number in range(12):
            await put(other, None, log_retention_ms=str(number))
            await other.create_topic(f"t{number}")
        await heard()
        assert logs.defaults.topic.retention_ms == 11

    run(test)


def test_the_record_is_refused_when_it_is_cut_short_or_of_another_version() -> None:
    data = encode_configs({"log.retention.ms": "5", "node.log_level": "debug"})
    assert decode_configs(b"brokers", data) == {"log.retention.ms": "5", "node.log_level": "debug"}
    for end in range(len(data)):
        with pytest.raises(StreamlogError):
            decode_configs(b"brokers", data[:end])
    with pytest.raises(UnsupportedVersion):
        decode_configs(b"brokers", b"\x02" + data[1:])
