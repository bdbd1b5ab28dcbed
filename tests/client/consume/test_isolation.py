"""What a consumer gets of transactions: of committed ones everything, of others by its level."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from streamlog.client import Consumer, aio
from streamlog.client.consume.answers import fetched_batches, without_aborted
from streamlog.client.settings import ConsumerSettings
from streamlog.codec.batch import (
    CONTROL,
    HEADER_BYTES,
    BatchProducer,
    Compression,
    pack_header,
    scan,
)
from streamlog.codec.records import BatchBuilder
from streamlog.errors import InvalidConfig
from streamlog.v1 import log_pb2
from tests.client.fake_node import FakeNode, Partition

WAIT_S = 20
ABORT, COMMIT = 0, 1


class History:
    """Writes transactions and plain records into one partition of a node."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.committed: list[bytes] = []
        """In offset order once every transaction has ended."""
        self.written: list[bytes] = []
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[tuple[int, bytes]]] = {}
        self.visible_now: list[tuple[int, bytes]] = []

    def write(self, producer_id: int | None, *values: bytes) -> None:
        """None: outside of any transaction."""
        batch = BatchBuilder(1 << 20, compression=Compression.NONE)
        for value in values:
            assert batch.append(1000, None, value, [])
        base = self.partition.next_offset
        placed = list(enumerate(values, base))
        if producer_id is None:
            data = batch.build()
            self.visible_now += placed
        else:
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(values)
            data = batch.build(BatchProducer(producer_id, 0, sequence), is_transactional=True)
            self.partition.open_transactions.setdefault(producer_id, base)
            self._open.setdefault(producer_id, []).extend(placed)
        self.partition.append(bytes(data), 1 << 30)
        self.written += values
        self._sort()

    def end(self, producer_id: int, kind: int) -> None:
        marker = BatchBuilder(1 << 20)
        assert marker.append(1000, bytes((0, 0, 0, kind)), bytes(6), [])
        data = marker.build(BatchProducer(producer_id, 0, -1), is_transactional=True)
        offset = self.partition.next_offset
        self.partition.producers.pop(producer_id, None)
        (batch,) = scan(data)
        header = batch.header._replace(
            base_offset=offset, attributes=batch.header.attributes | CONTROL
        )
        self.partition.next_offset += 1
        self.partition.batches.append((header, pack_header(header) + bytes(data[HEADER_BYTES:])))
        first = self.partition.open_transactions.pop(producer_id)
        records = self._open.pop(producer_id)
        if kind == COMMIT:
            self.visible_now += records
        else:
            self.partition.aborted.append((producer_id, first, offset))
        self._sort()

    def _sort(self) -> None:
        self.committed = [value for _, value in sorted(self.visible_now)]

    @property
    def open_ids(self) -> list[int]:
        return list(self._open)


def random_history(node: FakeNode, seed: int, *, steps: int = 120) -> History:
    """Producers whose transactions overlap; all have ended."""
    choose = random.Random(seed)
    node.create("t")
    history = History(node.topics["t"].partitions[0])
    for step in range(steps):
        producer_id = choose.choice([None, 1, 2, 3])
        values = [b"%d.%d" % (step, number) for number in range(choose.randint(1, 4))]
        history.write(producer_id, *values)
        if history.open_ids and choose.random() < 0.3:
            history.end(choose.choice(history.open_ids), choose.choice([ABORT, COMMIT]))
    for producer_id in history.open_ids:
        history.end(producer_id, choose.choice([ABORT, COMMIT]))
    return history


def polled(consumer: Consumer) -> list[bytes | None]:
    values: list[bytes | None] = []
    while consumer.position("t", 0) < consumer.end_offsets([("t", 0)])["t", 0]:
        values += [record.value for record in consumer.poll(0.05, max_records=3)]
    return values


def in_batches(consumer: Consumer) -> list[bytes | None]:
    values: list[bytes | None] = []
    while consumer.position("t", 0) < consumer.end_offsets([("t", 0)])["t", 0]:
        for batch in consumer.poll_batches(0.05):
            values += batch.values()
    return values


def iterated(consumer: Consumer, count: int) -> list[bytes | None]:
    records = iter(consumer)
    return [next(records).value for _ in range(count)]


async def awaited(server: str, **settings: Any) -> list[bytes | None]:
    values: list[bytes | None] = []
    async with aio.Consumer(server, **settings) as consumer:
        await consumer.assign([("t", 0)])
        end = (await consumer.end_offsets([("t", 0)]))["t", 0]
        while await consumer.position("t", 0) < end:
            values += [record.value for record in await consumer.poll(0.05)]
    return values


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fetch_max_bytes", [1, 400, 1 << 20])
def test_read_committed_gets_what_was_committed(
    node: FakeNode, seed: int, fetch_max_bytes: int
) -> None:
    history = random_history(node, seed)
    settings: dict[str, Any] = dict(
        isolation_level="read_committed", fetch_max_bytes=fetch_max_bytes, fetch_max_wait_ms=20
    )
    readers: list[Callable[[Consumer], list[bytes | None]]] = [
        polled,
        in_batches,
        lambda consumer: iterated(consumer, len(history.committed)),
    ]
    for read in readers:
        with Consumer(node.server, **settings) as consumer:
            consumer.assign([("t", 0)])
            assert read(consumer) == history.committed
    assert asyncio.run(asyncio.wait_for(awaited(node.server, **settings), 60)) == history.committed


def test_read_uncommitted_is_the_default_and_gets_all_records_but_no_marker(node: FakeNode) -> None:
    history = random_history(node, 7)
    with Consumer(node.server, fetch_max_wait_ms=20) as consumer:
        consumer.assign([("t", 0)])
        assert polled(consumer) == history.written
    assert asyncio.run(asyncio.wait_for(awaited(node.server), 60)) == history.written
    assert history.written != history.committed


@pytest.mark.parametrize("seed", range(4))
def test_a_read_that_begins_anywhere(node: FakeNode, seed: int) -> None:
    """Also within an aborted transaction, whose first offset is behind the reader then."""
    history = random_history(node, seed, steps=40)
    visible = dict(history.visible_now)
    with Consumer(node.server, isolation_level="read_committed", fetch_max_wait_ms=20) as consumer:
        consumer.assign([("t", 0)])
        for start in range(history.partition.next_offset):
            consumer.seek("t", 0, start)
            expected = [value for offset, value in sorted(visible.items()) if offset >= start]
            assert polled(consumer) == expected


def test_an_open_transaction_holds_the_end_back(node: FakeNode) -> None:
    node.create("t")
    history = History(node.topics["t"].partitions[0])
    history.write(None, b"before")
    history.write(1, b"in it")
    history.write(None, b"behind")
    settings: dict[str, Any] = dict(isolation_level="read_committed", fetch_max_wait_ms=20)
    with Consumer(node.server, **settings) as committed, Consumer(node.server) as all_of_it:
        assert committed.end_offsets([("t", 0)]) == {("t", 0): 1}
        assert all_of_it.end_offsets([("t", 0)]) == {("t", 0): 3}
        committed.assign([("t", 0)])
        assert polled(committed) == [b"before"]
        assert committed.poll(0.1) == []
        history.end(1, COMMIT)
        assert polled(committed) == [b"in it", b"behind"]


def test_positions_pass_over_what_was_aborted(node: FakeNode) -> None:
    node.create("t")
    history = History(node.topics["t"].partitions[0])
    for _ in range(50):
        history.write(1, b"no", b"no")
        history.end(1, ABORT)
    history.write(None, b"yes")
    history.write(1, b"no")
    history.end(1, ABORT)
    settings: dict[str, Any] = dict(isolation_level="read_committed", fetch_max_bytes=300)
    with Consumer(node.server, **settings) as consumer:
        consumer.assign([("t", 0)])
        assert [record.offset for record in consumer.poll(WAIT_S)] == [150]
        while consumer.position("t", 0) < 153:
            assert consumer.poll(0.05) == []


def test_aborted_transactions_cost_per_batch_and_no_record_is_read(node: FakeNode) -> None:
    node.create("t")
    history = History(node.topics["t"].partitions[0])
    history.write(1, b"no")
    history.end(1, ABORT)
    history.write(None, b"yes")
    data = b"".join(batch for _, batch in history.partition.batches)
    damaged = bytearray(data)
    damaged[HEADER_BYTES : HEADER_BYTES + 4] = b"\xff" * 4
    result = log_pb2.FetchPartitionResult(
        record_batches=bytes(damaged),
        next_offset=3,
        aborted_transactions=[log_pb2.AbortedTransaction(producer_id=1, first_offset=0)],
    )
    settings = ConsumerSettings(isolation_level="read_committed")
    batches, next_offset = fetched_batches(("t", 0), 0, result, settings)
    assert next_offset == 3
    assert [batch.values() for batch in batches] == [[b"yes"]]


def test_two_aborted_transactions_of_one_producer_and_a_committed_one_between(
    node: FakeNode,
) -> None:
    node.create("t")
    history = History(node.topics["t"].partitions[0])
    for kind in (ABORT, COMMIT, ABORT):
        history.write(1, b"%d" % kind)
        history.write(2, b"other")
        history.end(1, kind)
    history.end(2, COMMIT)
    stored = b"".join(data for _, data in history.partition.batches)
    batches = scan(stored, verify_crc=False)
    aborted = [(first, producer_id) for producer_id, first, _ in history.partition.aborted]
    kept = [batch.header for batch in without_aborted(batches, aborted)]
    assert [(h.base_offset, h.producer_id) for h in kept if not h.is_control] == [
        (1, 2),
        (3, 1),
        (4, 2),
        (7, 2),
    ]


def test_a_level_that_does_not_exist() -> None:
    with pytest.raises(InvalidConfig, match="read_uncommitted, read_committed"):
        Consumer("127.0.0.1:1", isolation_level="serializable")
