"""Kafka's own command-line tools, unchanged, against a real Kafka and a node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka_clients.brokers import BROKERS, Broker
from tests.kafka_clients.checks import check_same
from tests.kafka_clients.client_programs import java
from tests.kafka_clients.tap import Exchange

pytestmark = pytest.mark.parametrize("broker", BROKERS, indirect=True)

Tool = Callable[..., str]
TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONFIGS = "kafka.admin.ConfigCommand"
TIMEOUT_S = 90


@pytest.fixture(scope="module")
def heard() -> dict[str, dict[str, Set[Exchange]]]:
    """By test and broker, what the tools exchanged."""
    return {}


@pytest.fixture(autouse=True)
def the_same_is_exchanged(
    broker: Broker, heard: dict[str, dict[str, Set[Exchange]]], request: pytest.FixtureRequest
) -> Iterator[None]:
    """The tools of a test ask both brokers the same, and hear the same: seen behind the second."""
    with broker.tap.recording() as seen:
        yield
    assert broker.tap.failures == []
    both = heard.setdefault(request.node.name.replace(broker.name, ""), {})
    both[broker.name] = frozenset(seen)
    if len(both) == len(BROKERS):
        check_same("tools", *(both[name] for name in BROKERS))


@pytest.fixture
def tool(broker: Broker) -> Tool:
    """Runs a tool by its class to a good end; what it printed."""

    def run(name: str, *arguments: str, stdin: str = "") -> str:
        ended = _run(broker, name, *arguments, stdin=stdin)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


def _run(
    broker: Broker, name: str, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        java(name, "--bootstrap-server", broker.bootstrap, *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def _filled(tool: Tool, topic: str, *lines: str) -> None:
    tool(TOPICS, "--create", "--topic", topic, "--partitions", "1")
    tool(PRODUCER, "--topic", topic, stdin="".join(f"{line}\n" for line in lines))


def test_topics_are_created_described_grown_and_deleted(broker: Broker, tool: Tool) -> None:
    made = ("--create", "--topic", "tool-topics", "--partitions", "2")
    tool(TOPICS, *made, "--config", "retention.ms=1000000")
    described = tool(TOPICS, "--describe", "--topic", "tool-topics")
    assert "PartitionCount: 2" in described
    assert "retention.ms=1000000" in described
    assert described.count("Leader: ") == 2
    tool(TOPICS, "--alter", "--topic", "tool-topics", "--partitions", "3")
    assert "PartitionCount: 3" in tool(TOPICS, "--describe", "--topic", "tool-topics")
    assert "tool-topics" in tool(TOPICS, "--list").split()
    again = _run(broker, TOPICS, *made)
    assert again.returncode != 0
    assert "TopicExistsException" in again.stdout + again.stderr
    tool(TOPICS, "--delete", "--topic", "tool-topics")
    assert "tool-topics" not in tool(TOPICS, "--list").split()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_the_console_produces_it_consumes(tool: Tool, codec: str) -> None:
    topic = f"tool-console-{codec}"
    tool(TOPICS, "--create", "--topic", topic)
    keyed = ("--property", "parse.key=true", "--property", "parse.headers=true")
    lines = "h:1\tk\tone\nh:2\tk\ttwo\n"
    tool(PRODUCER, "--topic", topic, "--compression-codec", codec, *keyed, stdin=lines)
    shown = tool(
        CONSUMER,
        *("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "2"),
        *("--property", "print.key=true", "--property", "print.headers=true"),
    )
    assert shown == lines


def test_offsets_are_told_by_time(tool: Tool) -> None:
    _filled(tool, "tool-offsets", "a", "b", "c")
    for time, offset in (
        ("earliest", 0),
        ("latest", 3),
        ("-1", 3),
        ("-2", 0),
        ("max-timestamp", 2),
    ):
        told = tool(OFFSETS, "--topic", "tool-offsets", "--time", time).strip()
        if time == "max-timestamp":
            assert told.startswith("tool-offsets:0:")
        else:
            assert told == f"tool-offsets:0:{offset}"


def test_settings_are_shown_and_changed(broker: Broker, tool: Tool) -> None:
    tool(TOPICS, "--create", "--topic", "tool-configs")
    of_topic = ("--entity-type", "topics", "--entity-name", "tool-configs")
    tool(CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=1234567")
    assert "retention.ms=1234567" in tool(CONFIGS, "--describe", *of_topic)
    every = tool(CONFIGS, "--describe", "--all", *of_topic)
    assert "max.message.bytes=1048588" in every
    tool(CONFIGS, "--alter", *of_topic, "--delete-config", "retention.ms")
    assert "1234567" not in tool(CONFIGS, "--describe", *of_topic)
    wrong = _run(broker, CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=soon")
    assert wrong.returncode != 0
    assert "retention.ms" in wrong.stdout + wrong.stderr


def test_settings_of_brokers_are_set_shown_and_removed(tool: Tool) -> None:
    of_all = ("--entity-type", "brokers", "--entity-default")
    of_one = ("--entity-type", "brokers", "--entity-name", "1")
    changed = (
        (of_all, "log.retention.ms", "3600001", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        (of_one, "log.segment.bytes", "2097153", "DYNAMIC_BROKER_CONFIG"),
    )
    for entity, name, value, source in changed:
        tool(CONFIGS, "--alter", *entity, "--add-config", f"{name}={value}")
        described = tool(CONFIGS, "--describe", *entity)
        assert f"{name}={value} sensitive=false" in described
        assert f"{source}:{name}={value}" in described
    every = tool(CONFIGS, "--describe", "--all", *of_one)
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=3600001" in every
    for entity, name, value, _ in changed:
        tool(CONFIGS, "--alter", *entity, "--delete-config", name)
        assert value not in tool(CONFIGS, "--describe", *entity)


def test_quotas_of_clients_are_set_shown_and_removed(broker: Broker, tool: Tool) -> None:
    of_client = ("--entity-type", "clients", "--entity-name", "tool-client")
    of_default = ("--entity-type", "clients", "--entity-default")
    rates = "producer_byte_rate=1024000,consumer_byte_rate=2048000,request_percentage=12.5"
    tool(CONFIGS, "--alter", *of_client, "--add-config", rates)
    tool(CONFIGS, "--alter", *of_default, "--add-config", "consumer_byte_rate=1e9")
    described = tool(CONFIGS, "--describe", *of_client)
    for quota in ("producer_byte_rate=1024000.0", "request_percentage=12.5"):
        assert quota in described
    assert "default client-id are consumer_byte_rate=1.0E9" in tool(
        CONFIGS, "--describe", *of_default
    )
    every = tool(CONFIGS, "--describe", "--entity-type", "clients")
    assert "default client-id" in every
    assert "'tool-client'" in every
    tool(CONFIGS, "--alter", *of_client, "--delete-config", "producer_byte_rate")
    assert "producer_byte_rate" not in tool(CONFIGS, "--describe", *of_client)
    for wrong in ("producer_byte_rate=-1", "consumer_byte_rate=0", "producer_byte_rate=0.5"):
        refused = _run(broker, CONFIGS, "--alter", *of_client, "--add-config", wrong)
        assert refused.returncode != 0
        assert "InvalidRequestException" in refused.stdout + refused.stderr
    tool(CONFIGS, "--alter", *of_default, "--delete-config", "consumer_byte_rate")
    left = "consumer_byte_rate,request_percentage"
    tool(CONFIGS, "--alter", *of_client, "--delete-config", left)
    assert tool(CONFIGS, "--describe", "--entity-type", "clients").strip() == ""


def test_records_are_deleted(tool: Tool, tmp_path: Path) -> None:
    _filled(tool, "tool-deleted", "a", "b", "c")
    asked = tmp_path / "offsets.json"
    partition = {"topic": "tool-deleted", "partition": 0, "offset": 2}
    asked.write_text(json.dumps({"partitions": [partition], "version": 1}))
    told = tool("org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(asked))
    assert "low_watermark: 2" in told
    earliest = tool(OFFSETS, "--topic", "tool-deleted", "--time", "earliest")
    assert earliest.strip() == "tool-deleted:0:2"


def test_log_dirs_have_a_size(tool: Tool) -> None:
    _filled(tool, "tool-dirs", "a" * 1000)
    told = tool("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", "tool-dirs")
    (found,) = (json.loads(line) for line in told.splitlines() if line.startswith("{"))
    (folder,) = found["brokers"][0]["logDirs"]
    assert folder["error"] is None
    (partition,) = folder["partitions"]
    assert partition["partition"] == "tool-dirs-0"
    assert partition["size"] > 1000


def test_transactions_are_listed_described_and_aborted(broker: Broker, tool: Tool) -> None:
    topic, name = "tool-transactions", "org.apache.kafka.tools.TransactionsCommand"
    tool(TOPICS, "--create", "--topic", topic, "--partitions", "2")
    with open_transaction(broker, topic, "tool-tx"):
        assert "tool-tx" in tool(name, "list")
        assert "tool-tx" in tool(name, "list", "--duration-filter", "0")
        assert "tool-tx" not in tool(name, "list", "--transactional-id-pattern", "other.*")
        described = tool(name, "describe", "--transactional-id", "tool-tx")
        assert "Ongoing" in described
        assert f"{topic}-0" in described
        producers = tool(name, "describe-producers", "--topic", topic, "--partition", "0")
        producer = producers.splitlines()[1].split()
        assert producer[-1] == "0", producers  # The transaction's first offset.
        place = ("--topic", topic, "--partition", "0")
        found = tool(name, "find-hanging", "--max-transaction-timeout", "1", *place)
        assert topic not in found, "its coordinator has the transaction"
        tool(name, "abort", *place, "--start-offset", "0")
        after = tool(name, "describe-producers", *place)
        assert after.splitlines()[1].split()[-1] == "None", after
    missing = _run(broker, name, "describe", "--transactional-id", "tool-none")
    assert missing.returncode != 0
    assert "could not be found" in missing.stdout + missing.stderr


@contextmanager
def open_transaction(broker: Broker, topic: str, tx: str) -> Iterator[None]:
    """A record in partition 0, in a transaction that stays open."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": tx})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    yield


def test_the_performance_producer_ends_with_its_records(broker: Broker, tool: Tool) -> None:
    tool(TOPICS, "--create", "--topic", "tool-load")
    ended = subprocess.run(
        java(
            *("org.apache.kafka.tools.ProducerPerformance", "--topic", "tool-load"),
            *("--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all"),
        ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "20000 records sent" in ended.stdout
    assert tool(OFFSETS, "--topic", "tool-load").strip() == "tool-load:0:20000"


def test_the_verifiable_producer_hears_of_each_record(tool: Tool) -> None:
    tool(TOPICS, "--create", "--topic", "tool-verified")
    told = tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--topic", "tool-verified", "--max-messages", "1000"),
    )
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    sent = [line for line in lines if line["name"] == "producer_send_success"]
    assert sorted(line["offset"] for line in sent) == list(range(1000))
    assert [line["acked"] for line in lines if line["name"] == "tool_data"] == [1000]
