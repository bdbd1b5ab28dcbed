"""What is in a topic of two tiers, and how each side is asked for all of it."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as LibrdPartition

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from tests.kafka_clients.client_programs import java
from tests.kafka_clients.raw_client import RawClient, part, request

PARTITION = TopicPartition("judged", 0)
SPECIAL = (-1, -2, -3, -4, -5)
"""Of ListOffsets: end, start, largest timestamp, local start, last in the remote tier."""
FIRST_MS, LAST_MS = 1_690_000_000_000, 1_690_300_000_000
NODES_PRODUCERS = 900_000
"""Kafka gives ids from 0 on."""
SETTLED_S_MAX = 60.0
REQUEST_TIMED_OUT = 7
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"


class JudgedRecord(NamedTuple):
    offset: int
    at_ms: int
    value: bytes


class TieredHistory:
    """All records of the partition, markers left out, whoever wrote them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.records: list[JudgedRecord] = []
        self.aborted: set[int] = set()
        """Offsets."""
        self.markers: list[int] = []
        self.transactions = 0

    def values(self, count: int) -> list[bytes]:
        """Text, which tools print as it is."""
        sizes = [self.random.randrange(5, 1500) for _ in range(count)]
        return [self.random.randbytes(size).hex().encode() for size in sizes]

    def stamp(self) -> int:
        return self.random.randrange(FIRST_MS, LAST_MS)

    @property
    def committed(self) -> list[JudgedRecord]:
        return [one for one in self.records if one.offset not in self.aborted]

    def first_at(self, at_ms: int) -> int:
        """The first record at or after it. Markers are of the present, later than all others."""
        found = (one.offset for one in self.records if one.at_ms >= at_ms)
        return min(next(found, -1), *self.markers[:1])

    def delete_below(self, offset: int) -> None:
        self.records = [one for one in self.records if one.offset >= offset]
        self.markers = [one for one in self.markers if one >= offset]

    def look_ups(self, count: int) -> list[int]:
        """Times, close to those of records."""
        chosen = [self.random.choice(self.records).at_ms for _ in range(count)]
        return [at_ms + self.random.randrange(-2, 3) for at_ms in chosen]


# The node's side


async def append_to(log: AbstractLog, history: TieredHistory, batches: int) -> None:
    """Plain batches, and transactions of which half are aborted."""
    for number in range(batches):
        values = history.values(history.random.randrange(1, 20))
        stamps = [history.stamp() for _ in values]
        info = await append(log, encoded(values, stamps=stamps))
        history.records += map(
            JudgedRecord, range(info.base_offset, info.last_offset + 1), stamps, values
        )
        if number % 20 == 0:
            await _transaction(log, history)


async def _transaction(log: AbstractLog, history: TieredHistory) -> None:
    history.transactions += 1
    producer, is_commit = NODES_PRODUCERS + history.transactions, history.transactions % 2 == 0
    values, at_ms = history.values(3), history.stamp()
    info = await begin(log, transactional(values, producer, at_ms=at_ms))
    offsets = range(info.base_offset, info.last_offset + 1)
    history.records += [
        JudgedRecord(offset, at_ms, value) for offset, value in zip(offsets, values, strict=True)
    ]
    if not is_commit:
        history.aborted.update(offsets)
    history.markers.append((await end(log, is_commit, producer)).base_offset)


async def all_in(
    log: AbstractLog, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> list[JudgedRecord]:
    """Records from the log's start on, as a consumer has them. A fetch may be empty while the store
    is read: what arrives is in memory for the next one."""
    offset = log.log_start_offset
    found: list[JudgedRecord] = []
    give_up_at = time.monotonic() + SETTLED_S_MAX
    while offset < log.high_watermark:
        assert time.monotonic() < give_up_at, f"no records at {offset}"
        fetched = await log.fetch(offset, 256 << 10, isolation=isolation)
        todo = sorted(fetched.aborted, key=lambda one: one.first_offset, reverse=True)
        dropped: set[int] = set()
        for header, view in scan(b"".join(fetched.parts)):
            while todo and todo[-1].first_offset <= header.last_offset:
                dropped.add(todo.pop().producer_id)
            if header.is_control:
                dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                found += [
                    JudgedRecord(at, at_ms, bytes(value or b""))
                    for at, at_ms, _, value, _ in iterate(view)
                    if at >= offset
                ]
        offset = fetched.next_offset
        if not fetched.size_bytes:
            await asyncio.sleep(0)
    return found


async def special_offsets_of(log: AbstractLog) -> dict[int, tuple[int, int]]:
    """By name: offset and timestamp."""
    found = {}
    for name in SPECIAL:
        answer = await log.offset_for_timestamp(name, Isolation.READ_UNCOMMITTED)
        found[name] = (answer.offset, answer.timestamp_ms)
    return found


# Kafka's side


def list_offsets(server: str, timestamps: Sequence[int]) -> dict[int, tuple[int, int]]:
    """By timestamp: what Kafka answers, offset and timestamp; nothing while it leads nothing."""
    found = {}
    with RawClient(server) as client:
        for timestamp in timestamps:
            error, *answer = _listed(client, timestamp)
            if error == REQUEST_TIMED_OUT:
                # Kafka says so at once now and then, and clients ask again.
                error, *answer = _listed(client, timestamp)
            if error:
                return {}
            found[timestamp] = (answer[0], answer[1])
    return found


def _listed(client: RawClient, timestamp: int) -> tuple[int, int, int]:
    """Error, offset and timestamp."""
    place = part("list_offsets", "ListOffsetsPartition", timestamp=timestamp)
    topic = part("list_offsets", "ListOffsetsTopic", name=PARTITION.topic, partitions=[place])
    asked = request("list_offsets", replica_id=-1, topics=[topic], timeout_ms=30_000)
    (answer,) = client.call("list_offsets", 10, asked).topics[0].partitions
    return answer.error_code, answer.offset, answer.timestamp


def delete_records(server: str, offset: int) -> None:
    with RawClient(server) as client:
        place = part("delete_records", "DeleteRecordsPartition", partition_index=0, offset=offset)
        topic = part(
            "delete_records", "DeleteRecordsTopic", name=PARTITION.topic, partitions=[place]
        )
        asked = request("delete_records", topics=[topic], timeout_ms=30_000)
        (answer,) = client.call("delete_records", 2, asked).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (0, offset)


def await_settled(what: str, is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + SETTLED_S_MAX
    while not is_so():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.1)


def await_equal(wanted: object, found: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + SETTLED_S_MAX
    while (last := found()) != wanted:
        assert time.monotonic() < give_up_at, f"it is {last}, not {wanted}"
        time.sleep(0.1)


def by_librdkafka(
    server: str, offset: int, end_offset: int, isolation: str = "read_uncommitted"
) -> list[JudgedRecord]:
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    found: list[JudgedRecord] = []
    consumer.assign([LibrdPartition(*PARTITION, offset)])
    try:
        while True:
            message = consumer.poll(SETTLED_S_MAX)
            assert message is not None, f"nothing follows offset {found[-1:]}"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                if message.offset() >= end_offset:
                    return found
                continue
            found.append(
                JudgedRecord(message.offset(), message.timestamp()[1], message.value() or b"")
            )
    finally:
        consumer.close()


def by_java(server: str, offset: int, count: int, isolation: str) -> list[JudgedRecord]:
    """Kafka's console consumer, whose client is Java's."""
    shown = ("--property", "print.offset=true", "--property", "print.timestamp=true")
    where = ("--topic", PARTITION.topic, "--partition", "0", "--offset", str(offset))
    limits = ("--max-messages", str(count), "--timeout-ms", "60000", "--isolation-level", isolation)
    ended = subprocess.run(
        java(CONSOLE, "--bootstrap-server", server, *where, *limits, *shown),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = []
    for line in ended.stdout.splitlines():
        stamp, at, value = line.split("\t")
        at_ms = int(stamp.removeprefix("CreateTime:"))
        found.append(JudgedRecord(int(at.removeprefix("Offset:")), at_ms, value.encode()))
    return found


def produce_in_kafka(server: str, history: TieredHistory, count: int) -> None:
    """Records of one producer, and transactions of another in between."""
    name = f"judge-{len(history.markers)}"
    writer = Producer({"bootstrap.servers": server, "linger.ms": 5, "transactional.id": name})
    writer.init_transactions(60)
    plain = Producer({"bootstrap.servers": server, "linger.ms": 5, "enable.idempotence": True})
    for number in range(4):
        history.records += sorted(_sent(plain, history, count // 4))
        writer.begin_transaction()
        sent = sorted(_sent(writer, history, 20))
        history.records += sent
        if number % 2:
            writer.commit_transaction(60)
        else:
            history.aborted.update(one.offset for one in sent)
            writer.abort_transaction(60)
        # Kafka answers the end of a transaction before its marker is written.
        history.markers.append(sent[-1].offset + 1)
        _await_end(server, sent[-1].offset + 2)
    offsets = sorted([*(one.offset for one in history.records), *history.markers])
    assert all(after == before + 1 for before, after in pairwise(offsets))


def _await_end(server: str, end_offset: int) -> None:
    await_settled(
        f"the log does not end at {end_offset}",
        lambda: list_offsets(server, (-1,)).get(-1, (-1, -1))[0] == end_offset,
    )


def _sent(producer: Producer, history: TieredHistory, count: int) -> list[JudgedRecord]:
    sent: list[JudgedRecord] = []
    for value in history.values(count):
        producer.produce(
            PARTITION.topic,
            value,
            partition=PARTITION.partition,
            timestamp=history.stamp(),
            on_delivery=lambda error, message: sent.append(
                JudgedRecord(
                    -1 if error else message.offset(), message.timestamp()[1], message.value()
                )
            ),
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert all(one.offset >= 0 for one in sent)
    return sent
