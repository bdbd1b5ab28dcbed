"""A real Kafka judges a unified log: it serves our files and goes on in them, and we in its.

A wrong index shows only in seeks, so both sides seek: by offset, and by time among timestamps that
are in no order.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as LibrdPartition

from benchmarks.kafka.wire import KafkaConnection
from streamlog.format.kafka_files.names import PARTITION_METADATA
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.log_conformance import append, encoded, read
from streamlog.testing.logs.transaction_conformance import (
    begin,
    committed_values,
    end,
    transactional,
)
from tests.kafka_clients.client_programs import java
from tests.kafka_clients.kafka_folder import log_in
from tests.support.kafka_server import KafkaServer

ROUNDS = 5
SEED = 11
CONFIGS = {"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"}
PARTITION = TopicPartition("judged", 0)
FIRST_MS, LAST_MS = 1_690_000_000_000, 1_690_300_000_000
OUR_PRODUCERS = 900_000
"""Kafka gives ids from 0 on."""


class Stored(NamedTuple):
    offset: int
    at_ms: int
    value: bytes
    is_aborted: bool


class History:
    """All records of the partition, markers left out, as both sides have to see them."""

    def __init__(self) -> None:
        self.random = random.Random(SEED)
        self.records: list[Stored] = []
        self.end = 0
        self.transactions = 0
        self.token = b""
        self.markers: list[int] = []

    def values(self, count: int) -> list[bytes]:
        return [self.random.randbytes(self.random.randrange(10, 2000)) for _ in range(count)]

    def stamp(self) -> int:
        return self.random.randrange(FIRST_MS, LAST_MS)

    def look_ups(self, count: int) -> Iterator[tuple[int, int]]:
        """A time, and the offset of the first record at or after it.

        Markers are records of the present, which is later than all others.
        """
        for _ in range(count):
            at_ms = self.random.choice(self.records).at_ms + self.random.randrange(-2, 3)
            found = next((one.offset for one in self.records if one.at_ms >= at_ms), self.end)
            yield at_ms, min([found, *self.markers[:1]])

    @property
    def committed(self) -> list[bytes]:
        return [one.value for one in self.records if not one.is_aborted]


async def _go_on(log: AbstractLog, history: History) -> None:
    """Our side of a round: it reads what is there, and appends."""
    assert (log.high_watermark, log.last_stable_offset) == (history.end, history.end)
    found = [(one[0], one[1], one[3]) for one in await read(log) if one[2] is None]
    assert found == [one[:3] for one in history.records]
    assert await committed_values(log) == history.committed
    for number in range(200):
        values = history.values(history.random.randrange(1, 20))
        stamps = [history.stamp() for _ in values]
        info = await append(log, encoded(values, stamps=stamps))
        for offset, at_ms, value in zip(
            range(info.base_offset, info.last_offset + 1), stamps, values, strict=True
        ):
            history.records.append(Stored(offset, at_ms, value, False))
        if number % 20 == 0:
            await _transaction(log, history)
    history.end = log.log_end_offset
    for at_ms, offset in history.look_ups(50):
        stamped = await log.offset_for_timestamp(at_ms, Isolation.READ_UNCOMMITTED)
        assert stamped.offset == offset


async def _transaction(log: AbstractLog, history: History) -> None:
    history.transactions += 1
    producer, is_commit = OUR_PRODUCERS + history.transactions, history.random.random() < 0.5
    values, at_ms = history.values(3), history.stamp()
    info = await begin(log, transactional(values, producer, at_ms=at_ms))
    for number, value in enumerate(values):
        history.records.append(Stored(info.base_offset + number, at_ms, value, not is_commit))
    history.markers.append((await end(log, is_commit, producer)).base_offset)


def _go_on_in_kafka(server: str, history: History) -> None:
    """Kafka's side of a round, through librdkafka, aiokafka and Java."""
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
        }
    )
    name, number = PARTITION
    low, high = consumer.get_watermark_offsets(LibrdPartition(name, number), timeout=60)
    assert (low, high) == (0, history.end)
    for at_ms, offset in history.look_ups(100):
        asked = [LibrdPartition(name, number, at_ms)]
        (found,) = consumer.offsets_for_times(asked, timeout=30)
        assert found.offset == offset
    for stored in history.random.sample(history.records, 100):
        consumer.assign([LibrdPartition(name, number, stored.offset)])
        message = consumer.poll(30)
        assert message is not None
        got = (message.offset(), message.timestamp()[1], message.value())
        assert got == stored[:3]
    consumer.close()
    assert asyncio.run(_committed(server, len(history.committed))) == history.committed
    places = [one[:2] for one in history.records if not one.is_aborted]
    assert _committed_in_java(server, len(places)) == places
    _produce(server, history)
    _await_markers(server, history.end)


def _await_markers(server: str, end: int) -> None:
    """Kafka answers the end of a transaction before its markers are written."""
    settings = {"bootstrap.servers": server, "group.id": "judge"}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    give_up_at = time.monotonic() + 60
    while consumer.get_watermark_offsets(LibrdPartition(*PARTITION), timeout=30)[1] < end:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    consumer.close()


async def _committed(server: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=server, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        partition = AioPartition(*PARTITION)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        values: list[bytes] = []
        while len(values) < count:
            async with asyncio.timeout(60):
                got = await consumer.getmany(partition, timeout_ms=1000)
            values += [message.value for message in got.get(partition, [])]
        return values
    finally:
        await consumer.stop()


def _committed_in_java(server: str, count: int) -> list[tuple[int, int]]:
    """Offset and timestamp of each committed record, as Java's consumer sees them."""
    shown = ("offset=true", "timestamp=true", "value=false")
    ended = subprocess.run(
        java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", server, "--topic", PARTITION.topic),
            *("--partition", str(PARTITION.partition), "--offset", "earliest"),
            *("--isolation-level", "read_committed", "--max-messages", str(count)),
            *(word for one in shown for word in ("--property", f"print.{one}")),
        ),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.split("\t") for line in ended.stdout.splitlines()]
    return [
        (int(offset.removeprefix("Offset:")), int(at_ms.removeprefix("CreateTime:")))
        for at_ms, offset, *_ in lines
    ]


def _produce(server: str, history: History) -> None:
    sent: list[Stored] = []

    def send(producer: Producer, count: int, is_aborted: bool) -> None:
        for value in history.values(count):
            producer.produce(
                PARTITION.topic,
                value,
                partition=PARTITION.partition,
                timestamp=history.stamp(),
                on_delivery=lambda error, message: sent.append(
                    Stored(
                        -1 if error else message.offset(),
                        message.timestamp()[1],
                        message.value(),
                        is_aborted,
                    )
                ),
            )
            producer.poll(0)
        assert producer.flush(60) == 0

    compression = history.random.choice(["none", "lz4", "zstd", "gzip", "snappy"])
    common = {"bootstrap.servers": server, "compression.type": compression, "linger.ms": 5}
    send(Producer({**common, "enable.idempotence": True}), 1500, False)
    writer = Producer({**common, "transactional.id": f"judge-{history.transactions}"})
    writer.init_transactions(60)
    for is_aborted in (True, False, True):
        writer.begin_transaction()
        send(writer, 50, is_aborted)
        if is_aborted:
            writer.abort_transaction(60)
        else:
            writer.commit_transaction(60)
    assert all(one.offset >= 0 for one in sent)
    history.records += sorted(sent)
    history.end = max(one.offset for one in sent) + 2  # The last marker lies behind them.


def _dumped(*arguments: str) -> str:
    ended = subprocess.run(
        java("kafka.tools.DumpLogSegments", *arguments),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Exception" not in ended.stdout + ended.stderr
    return ended.stdout


def _examine(folder: Path) -> None:
    """Kafka's own tool looks at every file that we left."""
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 1
    files = ",".join(map(str, logs))
    assert "isvalid: false" not in _dumped("--files", files, "--deep-iteration")
    indexes = [path for suffix in ("index", "timeindex") for path in folder.glob(f"*.{suffix}")]
    for check in ("--verify-index-only", "--index-sanity-check"):
        told = _dumped("--files", ",".join(map(str, indexes)), check)
        assert "ismatch" not in told
        assert "out of order" not in told
    snapshots = list(folder.glob("*.snapshot"))
    assert "producerId" in _dumped("--files", ",".join(map(str, snapshots)))
    aborted = list(folder.glob("*.txnindex"))
    assert "lastStableOffset" in _dumped("--files", ",".join(map(str, aborted)))


def _await_file(path: Path) -> None:
    """Kafka writes it in the background, a moment after the partition has a leader."""
    give_up_at = time.monotonic() + 60
    while not path.is_file() or not path.stat().st_size:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def test_kafka_and_a_unified_log_take_turns_in_one_folder(tmp_path: Path) -> None:
    history, kafka = History(), KafkaServer(tmp_path / "kafka")
    folder = kafka.data / f"{PARTITION.topic}-{PARTITION.partition}"
    with kafka, KafkaConnection(kafka.server) as connection:
        connection.make_topic(PARTITION.topic, 1, CONFIGS)
        _await_file(folder / PARTITION_METADATA)
    for number in range(ROUNDS):
        asyncio.run(_our_turn(kafka.data, history))
        _examine(folder)
        # Where it does not stop in order it is killed, and leaves what a crash does.
        with kafka:
            _go_on_in_kafka(kafka.server, history)
            if number % 2:
                kafka.stop()
    asyncio.run(_our_turn(kafka.data, history))


async def _our_turn(data: Path, history: History) -> None:
    async with log_in(data, PARTITION, CONFIGS) as log:
        assert log.describe().fencing_token == history.token, "a Kafka leaves our file alone"
        await _go_on(log, history)
        history.token += b"+"
        await log.set_fencing_token(history.token)
