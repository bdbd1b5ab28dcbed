"""Golden batches: segments that a real Kafka wrote for producers of three kinds.

`python -m tests.kafka_clients.golden` makes them anew: it runs the clients' programs against a real
Kafka and copies the segments of the case `codecs`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.cases import CODECS
from tests.kafka_clients.runs import Runs
from tests.kafka_clients.tap import Tap
from tests.support.kafka_server import KafkaServer

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka"
CLIENTS = ("librdkafka", "aiokafka", "java")


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Tap() as tap:
        kafka = KafkaServer(Path(folder), advertised=tap.address)
        with kafka:
            tap.target = kafka.server
            runs, broker = Runs(), Broker("kafka", kafka.server, tap, "")
            for client in CLIENTS:
                error = runs.of(client, broker).cases["codecs"].error
                assert error is None, error
            kafka.stop()
            for client in CLIENTS:
                for codec in CODECS:
                    (segment,) = kafka.segments(f"case-{client}-{codec}")
                    shutil.copyfile(segment, GOLDEN / f"{client}-{codec}.log")


if __name__ == "__main__":
    main()
