"""Kafka's dump tool reads what transactions leave: the coordinator's log, and the txn stream."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import streamlog
from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import BatchBuilder
from streamlog.log.api.abstract_log import AbstractLog, Isolation, TransactionMarker
from streamlog.model.partition import TopicPartition
from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.client_programs import dumped_segments
from tests.kafka_clients.differential.transactions.sequence import Sequence
from tests.kafka_clients.differential.transactions.side import (
    TRANSACTION_STATE,
    TransactionalSide,
)
from tests.support.command import run

SEED = 31
CALLS = 80
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
"""In the order of the numbers that are stored."""
TIME_MS = 1_700_000_000_000
COORDINATOR_EPOCH = 3


def test_the_coordinators_log_says_what_describe_transactions_says(
    node: Broker, tmp_path: Path
) -> None:
    side = TransactionalSide("streamlog", node.server)
    sequence = Sequence(SEED, int(time.time() * 1000))
    for made in sequence.topics_made():
        made.wait_until_seen(side, made.on(side))
    side.await_coordinator(sequence.coordinated)
    for call in sequence.calls(CALLS):
        sequence.learn(call, call.on(side))
    stored = dict(_stored(node, side.coordinator_partitions, tmp_path))
    for name in sequence.ids:
        described, fields = side.transaction(name), stored[name]
        assert STATES[fields["transactionStatus"]] == described["state"]
        assert side.name_of(fields["producerId"]) == described["producer"]
        assert fields["producerEpoch"] == described["epoch"]
        assert fields["transactionTimeoutMs"] == described["timeout"]
        partitions = sorted(
            (topic["topic"], number)
            for topic in fields["transactionPartitions"] or ()
            for number in topic["partitionIds"]
        )
        assert partitions == described["partitions"]
    side.close()


def _stored(node: Broker, partitions: int, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The newest record of each id, as Kafka's tool prints it."""
    for partition in range(partitions):
        target = folder / str(partition)
        target.mkdir()
        ended = run(
            *("log", "dump", TRANSACTION_STATE, "--partition", partition, "--segment", target),
            server=node.grpc,
        )
        assert ended.returncode == 0, ended.stderr
    segments = [str(one) for one in sorted(folder.glob("*/*.log")) if one.stat().st_size]
    text = dumped_segments("--files", ",".join(segments), "--transaction-log-decoder")
    assert "isvalid: false" not in text
    for line in text.splitlines():
        if line.startswith("| offset"):
            found = re.fullmatch(r".* key: (\{.*\}) payload: (.*)", line)
            assert found is not None, line
            key = json.loads(found[1])["data"]["transactionalId"]
            yield key, json.loads(found[2])["data"]


def test_the_txn_stream_is_a_transaction_index(tmp_path: Path) -> None:
    entries, told = asyncio.run(_aborted(tmp_path / "data"))
    index = tmp_path / "00000000000000000000.txnindex"
    index.write_bytes(entries)
    found = re.findall(
        r"version: (\d+) producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) "
        r"lastStableOffset: (\d+)",
        dumped_segments("--files", str(index)),
    )
    # Producer 8 ends first, and so has the first entry; 7's transaction is open until offset 6.
    assert [tuple(map(int, one)) for one in found] == [(0, 8, 2, 5, 0), (0, 7, 0, 6, 7)]
    assert sorted(told) == [(7, 0), (8, 2)]


async def _aborted(folder: Path) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of a txn stream with two transactions, and what a fetch says of them."""
    partition = TopicPartition("aborted", 0)
    async with streamlog.open(f"local://{folder}") as engine:
        await engine.logs.create_topic(partition.topic, 1)
        opened = await engine.logs.log(partition)
        for producer, sequence in ((7, 0), (8, 0)):
            await _write(opened, BatchProducer(producer, 0, sequence))
        await _write(opened, BatchProducer(7, 0, 2), count=1)
        for producer in (8, 7):
            marker = TransactionMarker(producer, 0, COORDINATOR_EPOCH, is_commit=False)
            await (await opened.append_marker(marker))
        fetched = await opened.fetch(0, 1 << 20, isolation=Isolation.READ_COMMITTED)
        told = [(one.producer_id, one.first_offset) for one in fetched.aborted]
        stream_id = opened.describe().storage_ids["txn"]
        await opened.close()
        stream = await engine.streams.open_stream(stream_id)
        stored = await stream.fetch(stream.start_offset, stream.confirm_offset, 1 << 20)
        parts = [bytes(part) for batch in stored.batches for part in batch.parts]
    return b"".join(parts), told


async def _write(opened: AbstractLog, producer: BatchProducer, count: int = 2) -> None:
    opened.verified(producer.producer_id, producer.producer_epoch)
    builder = BatchBuilder(1 << 20)
    builder.extend([b"value"] * count, timestamp_ms=TIME_MS)
    await (await opened.append(builder.build(producer, is_transactional=True)))
