"""A partition as a Kafka segment: Kafka's dump tool reads it, and a real Kafka serves it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.checks import fetched
from tests.kafka_clients.client_programs import java
from tests.kafka_clients.golden import GOLDEN
from tests.kafka_clients.raw_client import RawClient, part, request
from tests.kafka_clients.round_trip import produce_all
from tests.support.command import run
from tests.support.kafka_server import KafkaServer

NAME = "00000000000000000000.log"


def test_kafkas_dump_tool_reads_a_segment(node: Broker, tmp_path: Path) -> None:
    stored = _filled(node, "segment-dumped")
    ended = run(
        *("log", "dump", "segment-dumped", "--partition", 0, "--segment", tmp_path),
        server=node.grpc,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / NAME).read_bytes() == stored
    dumped = _dumped(tmp_path / NAME)
    assert "isvalid: false" not in dumped
    # Records that the tool decoded, batch by batch, and in the order of their offsets.
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", dumped, re.MULTILINE)]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) > 50


def test_a_real_kafka_serves_a_segment(node: Broker, tmp_path: Path) -> None:
    stored = _filled(node, "segment-served")
    kafka = KafkaServer(tmp_path / "kafka")
    with kafka:
        with RawClient(kafka.server) as client:
            topic = part(
                "create_topics",
                "CreatableTopic",
                name="segment-served",
                num_partitions=1,
                replication_factor=1,
            )
            asked = request("create_topics", topics=[topic], timeout_ms=30_000)
            (made,) = client.call("create_topics", 7, asked).topics
            assert made.error_code == 0
        kafka.stop()
        folder = kafka.data / "segment-served-0"
        for old in folder.glob("0*"):
            old.unlink()
        dump = ("log", "dump", "segment-served", "--partition", 0, "--segment", folder)
        ended = run(*dump, server=node.grpc)
        assert ended.returncode == 0, ended.stderr
        kafka.start()
        assert fetched(Broker("kafka", kafka.server, node.tap, ""), "segment-served") == stored


def _filled(node: Broker, topic: str) -> bytes:
    """A topic with all golden batches, and its bytes as they are stored."""
    with RawClient(node.server) as client:
        produce_all(client, topic, [path.read_bytes() for path in sorted(GOLDEN.glob("*.log"))])
    return fetched(node, topic)


def _dumped(path: Path) -> str:
    ended = subprocess.run(
        java(
            *("kafka.tools.DumpLogSegments", "--files", str(path)),
            *("--deep-iteration", "--print-data-log"),
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
