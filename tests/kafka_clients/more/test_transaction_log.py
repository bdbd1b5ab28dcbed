"""Kafka's own code reads and writes the records of the transaction log."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from confluent_kafka import Producer

from streamlog.codec.batch import scan
from streamlog.codec.records import encode_values, iterate
from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.transactions.records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from streamlog.coordinator.transactions.state import Transaction
from tests.coordinator.kafkas_records import KEY, PARTITIONS, WRITTEN_BY_KAFKA
from tests.kafka_clients.client_programs import PROGRAMS, java
from tests.support.kafka_server import KafkaServer

PROGRAM = str(PROGRAMS / "TransactionRecords.java")
KNOWN = [
    *WRITTEN_BY_KAFKA.values(),
    Transaction(
        *("tx-ü", 7, 32767, 60_000, 3000, TransactionState.PREPARE_ABORT, PARTITIONS, 1500),
        last_producer_epoch=32766,
        previous_producer_id=3,
        next_producer_id=9,
        client_version=2,
    ),
]


def told(*arguments: str, input: str = "") -> str:
    ended = subprocess.run(
        java(*arguments), input=input, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_kafka_writes_what_is_written_here() -> None:
    lines = told(PROGRAM, "written").split("\n")
    written = [f"{KEY} {value}" for value in WRITTEN_BY_KAFKA]
    assert lines == [*written, *written, ""], "as version 1 and as version 2"


def test_kafka_reads_what_is_written_here_and_keeps_the_tag_that_it_does_not_know() -> None:
    values = [encode_value(one) for one in KNOWN]
    asked = "\n".join(f"{encode_key('tx-ü').hex()} {value.hex()}" for value in values)
    for line, one, value in zip(
        told(PROGRAM, input=asked).splitlines(), KNOWN, values, strict=True
    ):
        name, again, fields = line.split(" ", 2)
        assert (name, again) == ("tx-ü", value.hex())
        read = json.loads(fields)
        assert read["producerEpoch"] == one.producer_epoch
        assert read["transactionStatus"] == one.state
        assert read.get("nextProducerId", -1) == one.next_producer_id


def test_kafkas_dump_tool_shows_a_transaction_log(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    keys = [encode_key(one.transactional_id) for one in KNOWN]
    values = [encode_value(one) for one in KNOWN]
    segment.write_bytes(encode_values(values, keys=keys, timestamp_ms=1).data)
    dumped = told(
        "kafka.tools.DumpLogSegments", "--files", str(segment), "--transaction-log-decoder"
    )
    assert "isvalid: true" in dumped
    shown = [line for line in dumped.splitlines() if line.startswith("| offset")]
    for line, one in zip(shown, KNOWN, strict=True):
        assert f'"transactionalId":"{one.transactional_id}"' in line
        fields = json.loads(line.partition("payload: ")[2])["data"]
        assert fields["producerId"] == one.producer_id
        assert fields["transactionStatus"] == one.state


def test_a_real_kafkas_transaction_log_is_replayed_to_what_it_describes(tmp_path: Path) -> None:
    names = ["done", "open", "aborted", "idle"]
    kafka = KafkaServer(tmp_path / "kafka")
    with kafka:
        producers = {name: _begun(kafka.server, name) for name in names}
        producers["done"].commit_transaction(30)
        producers["aborted"].abort_transaction(30)
        described = {name: _described(kafka.server, name) for name in names}
        kafka.stop()
        states = _replayed(kafka.data)
    for name in names:
        known, told_of = states[name], described[name]
        assert told_of[:5] == [
            name,
            str(known.producer_id),
            str(known.producer_epoch),
            _kafkas_name(known.state),
            str(known.timeout_ms),
        ]
    assert described["open"][-1] == "t-0"
    assert states["open"].partitions == {("t", 0)}


def _begun(server: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": server, "transactional.id": name})
    producer.init_transactions(60)
    if name != "idle":
        producer.begin_transaction()
        producer.produce("t", b"x")
        producer.flush(30)
    return producer


def _described(server: str, name: str) -> list[str]:
    command = "org.apache.kafka.tools.TransactionsCommand"
    table = told(command, "--bootstrap-server", server, "describe", "--transactional-id", name)
    return table.strip().splitlines()[-1].split()[1:]


def _replayed(data: Path) -> dict[str, Transaction]:
    states = {}
    for segment in sorted(data.glob("__transaction_state-*/*.log")):
        for _, view in scan(segment.read_bytes()):
            for _, _, key, value, _ in iterate(view):
                name = decode_key(key)
                assert name is not None
                assert value is not None
                states[name] = decode_value(name, value)
    return states


def _kafkas_name(state: TransactionState) -> str:
    return "".join(part.capitalize() for part in state.name.split("_"))
