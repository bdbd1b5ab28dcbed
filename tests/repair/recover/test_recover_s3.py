"""Metadata is lost over a real S3 server, and the commands bring it back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import KV, Admin, Consumer, Producer
from tests.support.command import run
from tests.support.node import NodeProcess
from tests.support.s3 import S3Tests

QUICK = (
    "engine.metadata.checkpoint_interval_ms=300",
    "engine.compaction.compaction_interval_ms=300",
    "engine.compaction.small_objects_min=4",
    "engine.collector.collect_interval_ms=300",
    "engine.collector.deletion_delay_ms=500",
)


def told(*arguments: Any, code: int = 0) -> dict[str, Any]:
    """The JSON output of a command that ends with that exit code."""
    done = run(*arguments, "--json")
    assert done.returncode == code, done.stdout.decode() + done.stderr.decode()
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def wait_for(server: str, wanted: set[bytes]) -> None:
    """Reads until it has seen them all."""
    with Consumer(server) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        while wanted:
            records = consumer.poll(30)
            assert records, f"{len(wanted)} records are not there, {min(wanted)!r} the first"
            wanted = wanted - {record.value for record in records if record.value is not None}


class _Load:
    """Batches of their own to two partitions; what was acknowledged counts."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self._next = 0

    def produce(self, server: str, rounds: int) -> None:
        with Producer(server) as producer:
            for _ in range(rounds):
                numbers = range(self._next, self._next + 20)
                self._next += 20
                sent = {n: producer.send("t", b"%06d" % n, partition=n % 2) for n in numbers}
                for number, one in sent.items():
                    one.result(30)
                    self.acknowledged.append(b"%06d" % number)


@contextmanager
def killed(node: NodeProcess) -> Iterator[NodeProcess]:
    with node:
        yield node
        node.kill()


@pytest.mark.slow
def test_a_bucket_alone_is_enough(s3: S3Tests, tmp_path: Path) -> None:
    url, meta, file = s3.new_url(), tmp_path / "meta", tmp_path / "meta.backup"
    places = ("--store", url, "--meta", f"rocksdb://{meta}")
    sets = tuple(part for one in QUICK for part in ("--set", one))
    node = NodeProcess(tmp_path / "data", "object", sets, places)
    load = _Load()
    with killed(node), Admin(node.server) as admin:
        admin.create_topic("t", 2)
        load.produce(node.server, 15)
        # All of partition 0 up to offset 50 goes.
        admin.delete_records("t", 0, 50)
        while not node.metric("streamlog_compaction_output_objects_total"):
            load.produce(node.server, 2)
            assert len(load.acknowledged) < 20_000
        admin.create_topic("empty", 3)
        load.produce(node.server, 2)
    trimmed = {b"%06d" % n for n in range(0, 100, 2)}
    shutil.rmtree(meta)
    facts = told("recover", *places, "--grace", 0)
    assert (facts["counts"]["topics"], facts["counts"]["partitions"]) == (2, 5)
    assert told("fsck", *places, "--deep")["clean"] is True

    with killed(node), KV(node.server) as kv, ThreadPoolExecutor(1) as background:
        wait_for(node.server, set(load.acknowledged) - trimmed)
        kv.put(b"name", b"value")
        under_way = background.submit(load.produce, node.server, 10)
        done = run("backup", "--out", file, "--json", server=node.server)
        assert done.returncode == 0, done.stderr
        under_way.result()
    shutil.rmtree(meta)
    assert told("restore", file, *places, "--grace", 0)["counts"]["values_from_backup"] == 1
    assert told("fsck", *places, "--deep")["clean"] is True
    with killed(node), KV(node.server) as kv:
        load.produce(node.server, 1)
        wait_for(node.server, set(load.acknowledged) - trimmed)
        assert kv.get(b"name") is not None
