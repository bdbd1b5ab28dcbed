"""A compacted topic of the default kind over Kafka's wire: librdkafka makes, fills and reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from streamlog.log.broker.broker_record import config_key, encode_configs
from tests.support.running_node import running_node

WAIT_S = 30
AT_MS = 1_700_000_000_000
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0",
    "file.delete.delay.ms": "0",
}


def sent(producer: Producer, key: bytes | None, value: bytes | None, at_ms: int) -> tuple[int, int]:
    """The error's code, 0 if there is none, and the record's offset."""
    told: list[tuple[int, int]] = []

    def report(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        told.append((0 if error is None else error.code(), -1 if offset is None else offset))

    producer.produce("kept", value=value, key=key, timestamp=at_ms, on_delivery=report)
    producer.flush(WAIT_S)
    return told[0]


def read(consumer: Consumer, first: int, last: int) -> list[Message]:
    """Committed records from the offset `first` on, up to the one at `last`."""
    consumer.seek(TopicPartition("kept", 0, first))
    found: list[Message] = []
    while not found or found[-1].offset() < last:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        found.append(message)
    return found


def _with_librdkafka(address: str, has_cleaned: Callable[[], bool]) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    [made] = admin.create_topics([NewTopic("kept", 1, config=CONFIG)]).values()
    made.result(WAIT_S)
    settings: dict[str, Any] = {"bootstrap.servers": address, "compression.type": "zstd"}
    plain = Producer({**settings, "enable.idempotence": True})
    assert sent(plain, None, b"without a key", AT_MS)[0] == KafkaError.INVALID_RECORD
    producer = Producer({**settings, "transactional.id": "x"})
    producer.init_transactions(WAIT_S)
    newest: dict[bytes, bytes | None] = {}
    at_ms = AT_MS
    for number in range(30):
        at_ms += 10
        key, value = b"k%d" % (number % 7), None if number == 25 else b"%d" % number
        producer.begin_transaction()
        assert sent(producer, key, value, at_ms)[0] == 0
        if number % 3:
            producer.commit_transaction(WAIT_S)
            newest[key] = value
        else:
            producer.abort_transaction(WAIT_S)
    # The last record lies in the active segment; it ends what readers wait for.
    _, last = sent(plain, b"last", b"", at_ms + 10)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition("kept", 0, OFFSET_BEGINNING)])
    assert consumer.poll(WAIT_S) is not None
    found = read(consumer, 0, last)
    while not has_cleaned() or len(found) > len(newest) + 1:
        found = read(consumer, 0, last)
    values = {message.key(): message.value() for message in found}
    assert values == {**newest, b"last": b""}
    offsets = [message.offset() for message in found]
    # From any offset on, readers find what follows it.
    for first in range(0, last + 1, 7):
        assert [one.offset() for one in read(consumer, first, last)] == [
            offset for offset in offsets if offset is not None and offset >= first
        ]
    producer.begin_transaction()
    assert sent(producer, b"k0", b"on", at_ms + 20)[0] == 0
    producer.commit_transaction(WAIT_S)


def test_librdkafka_sees_the_newest_committed_value_of_each_key() -> None:
    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0", log__cleaner_backoff_ms="20") as node:
            [endpoint] = [one for one in node.banner.listeners if one.name == "kafka"]

            def has_cleaned() -> bool:
                return node.metric("streamlog_log_cleanings_total") > 0

            async with asyncio.timeout(120):
                await asyncio.to_thread(_with_librdkafka, endpoint.address, has_cleaned)
            assert node.metric("streamlog_log_cleaning_errors_total") == 0

    asyncio.run(main())


def _sends_again(address: str, become_readable: Callable[[], None]) -> None:
    """A record without a key and one behind it, sent while the policy is unknown."""
    requests = 0
    told: list[KafkaError | None] = []

    def count(statistics: str) -> None:
        nonlocal requests
        brokers = json.loads(statistics)["brokers"].values()
        requests = sum(one["req"].get("Produce", 0) for one in brokers)

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "statistics.interval.ms": 50,
            "stats_cb": count,
        }
    )
    for key in (None, b"k"):
        producer.produce("kept", key=key, value=b"v", on_delivery=lambda one, _: told.append(one))
    # Two records are in two requests at most.
    while requests < 3 and not told:
        producer.poll(WAIT_S)
    assert told == []
    become_readable()
    assert producer.flush(WAIT_S) == 0
    assert told == [None, None]


def test_librdkafka_keeps_a_record_without_a_key_until_the_policy_is_known() -> None:
    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0") as node:
            [endpoint] = [one for one in node.banner.listeners if one.name == "kafka"]
            assert node.node.engine is not None
            logs, kv = node.node.engine.logs, node.node.engine.kv
            loop = asyncio.get_running_loop()

            def become_readable() -> None:
                written = kv.put_kv(config_key(None), encode_configs({}))
                asyncio.run_coroutine_threadsafe(written, loop).result(WAIT_S)

            await logs.create_topic("kept", 1)
            has_changed = asyncio.Event()
            logs.on_broker_configs(has_changed.set)
            await kv.put_kv(config_key(None), b"\x02later")
            async with asyncio.timeout(60):
                await has_changed.wait()
                await asyncio.to_thread(_sends_again, endpoint.address, become_readable)

    asyncio.run(main())
