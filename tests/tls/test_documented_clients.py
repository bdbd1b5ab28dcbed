"""Certificates as docs/operations.md makes them, and clients with the settings of docs/kafka.md."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.kafka_clients.client_programs import java
from tests.support.node import NodeProcess

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands were run, up to the node's start."""
    made = tmp_path_factory.mktemp("documented")
    page = (ROOT / "docs" / "operations.md").read_text()
    block = re.search(r"```sh\n(# An authority.*?)\nstreamlog serve", page, re.S)
    assert block is not None
    subprocess.run(["bash", "-euc", block[1]], cwd=made, check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """A node with these certificates; its address for Kafka's clients."""
    tls = {"--tls-cert": "node.pem", "--tls-key": "node.key", "--tls-client-ca": "ca.pem"}
    flags = [word for flag, name in tls.items() for word in (flag, str(folder / name))]
    listening = ("--kafka-listen", "127.0.0.1:0")
    with NodeProcess(folder / "node", arguments=(*listening, *flags)) as node:
        (address,) = (
            one["address"] for one in node.banner["listeners"] if one["protocol"] == "kafka+tls"
        )
        yield address


def test_librdkafka_with_the_pages_settings(server: str, folder: Path) -> None:
    settings = {
        "bootstrap.servers": server,
        "security.protocol": "ssl",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.certificate.location": str(folder / "etl.pem"),
        "ssl.key.location": str(folder / "etl.key"),
    }
    producer = Producer(settings)
    producer.produce("librdkafka", b"hello", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("librdkafka", 0, OFFSET_BEGINNING)])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert message.value() == b"hello"


def test_kafkas_own_tools_with_the_pages_settings(server: str, folder: Path) -> None:
    keys = (folder / "etl.key").read_text() + (folder / "etl.pem").read_text()
    (folder / "keystore.pem").write_text(keys)
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "keystore.pem",
    }
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def topics(*arguments: str) -> str:
        command = java(
            *("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", server),
            *("--command-config", str(file), *arguments),
        )
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    topics("--create", "--topic", "java", "--partitions", "2")
    assert "PartitionCount: 2" in topics("--describe", "--topic", "java")
