"""`python -m tests.unified.golden`: makes the golden log folder anew, by a real Kafka.

A topic with records in no order of time, an idempotent producer, transactions that are committed
and aborted, a deletion from the start; closed in order.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.kafka.wire import KafkaConnection
from streamlog.format.kafka_files.names import PARTITION_METADATA
from tests.support.kafka_server import KafkaServer

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka_files"
TOPIC = "golden"
FOLDER = f"{TOPIC}-0"
CONFIGS = {"segment.bytes": str(1 << 20), "index.interval.bytes": "512", "segment.ms": "1000000"}
FIRST_MS = 1_700_000_000_000
TRIMMED = 5
TOP_FILES = (
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    ".kafka_cleanshutdown",
)


def _fill(server: str) -> None:
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    choose = random.Random(1)
    common = {"bootstrap.servers": server, "linger.ms": 0, "batch.size": 700}
    plain = Producer({**common, "enable.idempotence": True})
    writer = Producer({**common, "transactional.id": "golden"})
    writer.init_transactions(60)
    at_ms = FIRST_MS
    for turn in range(6):
        is_transaction = turn % 2 == 1
        producer = writer if is_transaction else plain
        if is_transaction:
            writer.begin_transaction()
        for number in range(40):
            at_ms += choose.randrange(-40_000, 60_000)
            value = b"%d-%d" % (turn, number) * choose.randrange(1, 9)
            key = b"k%d" % choose.randrange(20)
            producer.produce(TOPIC, value, key, partition=0, timestamp=max(at_ms, FIRST_MS))
        producer.flush(60)
        if is_transaction and turn == 3:
            writer.commit_transaction(60)
        elif is_transaction:
            writer.abort_transaction(60)
    admin = AdminClient({"bootstrap.servers": server})
    trimmed = admin.delete_records([TopicPartition(TOPIC, 0, TRIMMED)])
    for done in trimmed.values():
        done.result(60)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        kafka = KafkaServer(Path(place) / "kafka")
        with kafka, KafkaConnection(kafka.server) as connection:
            connection.make_topic(TOPIC, 1, CONFIGS)
            while not (kafka.data / FOLDER / PARTITION_METADATA).is_file():
                time.sleep(0.05)
            _fill(kafka.server)
            time.sleep(2)  # Markers are written in the background.
            kafka.stop()
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(kafka.data / FOLDER, GOLDEN / FOLDER)
        for name in TOP_FILES:
            shutil.copy(kafka.data / name, GOLDEN / name)
    for path in sorted(GOLDEN.rglob("*")):
        print(path.relative_to(GOLDEN), path.stat().st_size)


if __name__ == "__main__":
    main()
