"""Batches that a real Kafka stored for real producers come back from a node byte for byte."""

from __future__ import annotations

import pytest

from streamlog.codec.batch import HEADER_BYTES, LENGTH_END, NO_PRODUCER, scan, with_producer
from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.cases import CODECS
from tests.kafka_clients.checks import fetched
from tests.kafka_clients.golden import CLIENTS, GOLDEN
from tests.kafka_clients.raw_client import RawClient
from tests.kafka_clients.round_trip import produce_all

pytestmark = pytest.mark.xdist_group("kafka_clients")

EPOCH_END = 16


def test_golden_batches_come_back_but_for_offset_and_epoch(node: Broker) -> None:
    for client in CLIENTS:
        for codec in CODECS:
            _check(node, f"{client}-{codec}")


def _check(node: Broker, name: str) -> None:
    golden = (GOLDEN / f"{name}.log").read_bytes()
    with RawClient(node.server) as raw:
        # Twice, so that the second copy is at other offsets than in Kafka's file.
        produce_all(raw, f"golden-{name}", [_of_nobody(golden), golden])
    stored = fetched(node, f"golden-{name}")
    batches = scan(stored)
    wanted = scan(golden)
    assert [batch.header.base_offset for batch in batches] == [
        *(batch.header.base_offset for batch in wanted),
        *(batch.header.base_offset + wanted[-1].header.next_offset for batch in wanted),
    ]
    for batch, other in zip(batches[len(wanted) :], wanted, strict=True):
        assert bytes(batch.view[8:LENGTH_END]) == bytes(other.view[8:LENGTH_END])
        assert bytes(batch.view[EPOCH_END:]) == bytes(other.view[EPOCH_END:])


def _of_nobody(segment: bytes) -> bytes:
    """The batches without a producer: a second append of the same is no retry of the first."""
    return b"".join(bytes(with_producer(batch.view, NO_PRODUCER)) for batch in scan(segment))


def test_the_golden_batches_are_of_every_kind() -> None:
    """Every codec of every client, and an idempotent producer's among them."""
    headers = {
        path.stem: [batch.header for batch in scan(path.read_bytes())]
        for path in GOLDEN.glob("*.log")
    }
    assert set(headers) == {f"{client}-{codec}" for client in CLIENTS for codec in CODECS}
    for name, found in headers.items():
        assert {CODECS[header.codec] for header in found} == {name.rpartition("-")[2]}
        assert sum(header.record_count for header in found) == 5
        assert all(header.size_bytes > HEADER_BYTES for header in found)
    assert any(header.producer_id >= 0 for header in headers["java-none"])
