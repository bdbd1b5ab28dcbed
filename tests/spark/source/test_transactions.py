"""Committed reads past a node and through it: no record of an open or aborted transaction."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Producer
from streamlog.spark.plan.types import StorePiece
from tests.spark.reading import UPLOAD_AT_ONCE, plan, read, uploaded
from tests.support.node import NodeProcess

pytestmark = pytest.mark.xdist_group("spark")

PARTITIONS = 2


class Expected:
    """Values that committed readers see, and those that uncommitted readers see besides."""

    def __init__(self) -> None:
        self.committed: list[bytes] = []
        self.hidden: list[bytes] = []


def _write(producer: Producer, topic: str, values: list[bytes]) -> None:
    for number, value in enumerate(values):
        producer.send(topic, value=value, partition=number % PARTITIONS)


def _transactions(server: str, topic: str, rounds: int) -> Expected:
    """Commits, aborts and plain records of three producers, interleaved."""
    expected = Expected()
    with ExitStack() as producers:
        first, second = (
            producers.enter_context(Producer(server, transactional_id=f"{topic}-{name}"))
            for name in ("first", "second")
        )
        plain = producers.enter_context(Producer(server))
        for number in range(rounds):
            kept, lost, also = (
                [b"%s %d %d " % (kind, number, row) * 20 for row in range(6)]
                for kind in (b"kept", b"lost", b"plain")
            )
            first.begin_transaction()
            second.begin_transaction()
            _write(first, topic, kept)
            _write(second, topic, lost)
            first.flush()
            second.flush()
            _write(plain, topic, also)
            plain.flush()
            if number % 2:
                second.abort_transaction()
                first.commit_transaction()
            else:
                first.commit_transaction()
                second.abort_transaction()
            expected.committed += kept + also
            expected.hidden += lost
    return expected


def _values(**options: str) -> list[bytes]:
    return sorted(read(**options).column("value").to_pylist())


def _wait_stable(server: str, topic: str) -> None:
    """Waits until every marker is written."""
    with Admin(server) as admin:
        for _ in range(10_000):
            parts = admin.describe_topic(topic).partitions
            if all(part.last_stable_offset == part.high_watermark for part in parts):
                return
    raise AssertionError(f"transactions in {topic} were not ended")


def test_every_way_to_read_leaves_aborted_transactions_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, arguments=UPLOAD_AT_ONCE) as node:
        with Admin(node.server) as admin:
            admin.create_topic("orders", PARTITIONS, configs={"segment.ms": "1"})
        expected = _transactions(node.server, "orders", 12)
        _wait_stable(node.server, "orders")
        uploaded(node.server, "orders")
        committed, everything = (
            sorted(expected.committed),
            sorted(expected.committed + expected.hidden),
        )
        for mode in ("store", "service", "auto"):
            options = {"server": node.server, "subscribe": "orders", "readMode": mode}
            assert _values(**options, maxBytesPerPartition="3000") == committed, mode
            assert _values(**options, isolation="read_uncommitted") == everything, mode
        some = plan(server=node.server, subscribe="orders", readMode="store").plan.tasks
        assert any(
            isinstance(piece, StorePiece) and piece.aborted
            for task in some
            for piece in task.pieces
        )
    offline = {"store": f"local://{data}/objects", "meta": f"rocksdb://{data}/meta"}
    assert _values(**offline, subscribe="orders", maxBytesPerPartition="3000") == committed
    assert _values(**offline, subscribe="orders", isolation="read_uncommitted") == everything


@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_an_open_transaction_is_not_read_offline(tmp_path: Path, ends: str) -> None:
    """A node that was killed has written no checkpoint: attributes of batches tell the rest."""
    data = tmp_path / "data"
    with NodeProcess(data, arguments=("--wal", "object")) as node:
        with Admin(node.server) as admin:
            admin.create_topic("orders", PARTITIONS)
        expected = _transactions(node.server, "orders", 3)
        _wait_stable(node.server, "orders")
        left_open = Producer(node.server, transactional_id="left open")
        left_open.begin_transaction()
        _write(left_open, "orders", [b"open"] * PARTITIONS)
        left_open.flush()
        with Producer(node.server) as plain:
            _write(plain, "orders", [b"behind"] * PARTITIONS)
        options: dict[str, Any] = {"server": node.server, "subscribe": "orders"}
        committed = sorted(expected.committed)
        for mode in ("store", "service"):
            assert _values(**options, readMode=mode) == committed, mode
        if ends == "killed":
            node.kill()
        else:
            node.stop()
        left_open.close(timeout=0)
    offline = {"store": f"local://{data}/objects", "meta": f"rocksdb://{data}/meta"}
    assert _values(**offline, subscribe="orders") == committed
    seen = _values(**offline, subscribe="orders", isolation="read_uncommitted")
    assert seen == sorted(expected.committed + expected.hidden + [b"open", b"behind"] * PARTITIONS)
