"""Reads of a compacted topic past a node: a plan has the old slices or the cleaned ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from streamlog.client import Admin, Producer
from streamlog.spark.plan.session import Planned
from streamlog.spark.plan.types import StorePiece
from tests.spark.reading import UPLOAD_AT_ONCE, carry_out, plan, read, uploaded
from tests.support.node import NodeProcess

pytestmark = pytest.mark.xdist_group("spark")

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0",
    "file.delete.delay.ms": "0",
}
KEYS = 8
SOON = ("--set", "log.cleaner_backoff_ms=20")


def _values(table: pa.Table) -> list[bytes]:
    return sorted(table.column("value").to_pylist())


def _streams(planned: Planned) -> set[int]:
    pieces = [piece for task in planned.plan.tasks for piece in task.pieces]
    return {piece.stream_id for piece in pieces if isinstance(piece, StorePiece)}


def _filled(server: str, count: int) -> tuple[list[bytes], list[bytes]]:
    """All committed values, and the newest of each key; each record has a segment of its own."""
    everything: list[bytes] = []
    newest: dict[bytes, bytes] = {}
    with Producer(server, transactional_id="x", linger_ms=0) as producer:
        for number in range(count):
            producer.begin_transaction()
            key, value = b"k%d" % (number % KEYS), b"%d" % number * 50
            at_ms = 1_700_000_000_000 + 10 * number
            producer.send("kept", value, key=key, timestamp_ms=at_ms)
            producer.flush()
            if number % 4 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                everything.append(value)
                newest[key] = value
    return sorted(everything), sorted(newest.values())


def test_a_plan_has_the_old_slices_or_the_cleaned_ones(tmp_path: Path) -> None:
    data = tmp_path / "data"
    off = ("--set", "log.cleaner_enable=false")
    with NodeProcess(data, arguments=(*UPLOAD_AT_ONCE, *off)) as node:
        with Admin(node.server) as admin:
            admin.create_topic("kept", 1, configs=COMPACTED)
        everything, newest = _filled(node.server, 40)
        uploaded(node.server, "kept")
        old = _streams(plan(server=node.server, subscribe="kept", readMode="store"))
    with NodeProcess(data, arguments=(*UPLOAD_AT_ONCE, *SOON), port=node.port) as node:
        base = {"server": node.server, "subscribe": "kept"}
        seen: list[list[bytes]] = []
        while not seen or seen[-1] != newest:
            # Each of these reads is of one moment, before the cleaning or after it.
            planned = plan(**base, readMode="store")
            during = read(**base, readMode="service")
            seen.append(_values(carry_out(planned)))
            assert seen[-1] in (everything, newest)
            assert set(newest) <= set(_values(during)) <= set(everything)
        uploaded(node.server, "kept")
        planned = plan(**base, readMode="store", maxBytesPerPartition="500")
        assert _streams(planned) > old
        assert _values(carry_out(planned)) == newest
        for mode in ("service", "auto"):
            assert _values(read(**base, readMode=mode)) == newest, mode
    offline = {"store": f"local://{data}/objects", "meta": f"rocksdb://{data}/meta"}
    assert _values(read(**offline, subscribe="kept")) == newest
    starting = '{"kept": {"0": 3}}'
    assert _values(read(**offline, subscribe="kept", startingOffsets=starting)) == newest
