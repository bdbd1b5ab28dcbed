"""`kill -9` at random moments under four idempotent producers: nothing acknowledged is lost.

Each acknowledged record is there once, in order, at its acknowledged offset, and what a reader saw
between the kills has not gone.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Consumer, Producer
from streamlog.client.produce.delivery import Delivery
from tests.support.node import NodeProcess
from tests.support.stored_records import Place, stored_records

ROUNDS = 30
PRODUCERS = 4
QUICK: dict[str, Any] = {"retry_backoff_max_ms": 100}
PARTITIONS = 2
TOPIC = "killed"
UNIFIED = {
    "log.type": "unified",
    "internal.segment.bytes": "200000",
    "max.message.bytes": "150000",
}
"""Segments so small that kills meet the roll of one."""
TIERED = {**UNIFIED, "remote.storage.enable": "true", "local.retention.bytes": "4000000"}
UNANSWERED_MAX = 2000
"""Records of a writer: those of all stay within what is local."""
QUICK_TIERS = {
    "STREAMLOG_BROKER__REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": "50",
    "STREAMLOG_BROKER__LOG_RETENTION_CHECK_INTERVAL_MS": "50",
}
"""Kills meet copies and local deletions of topics that have a remote tier."""


class Writer(threading.Thread):
    """Sends numbered records over all partitions until told to stop; then takes every ack."""

    def __init__(self, server: str, number: int, padding: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.number = number
        self.padding = b"." * padding
        self.server = server
        self.stopping = threading.Event()
        self.sent = 0
        self.answered = 0
        self.acknowledged: dict[bytes, Place] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(self.server, **QUICK, linger_ms=2, batch_size_bytes=4096) as producer:
                views: list[tuple[bytes, Delivery]] = []
                while not self.stopping.is_set():
                    if self.padding and self.sent - self.answered > UNANSWERED_MAX:
                        self.stopping.wait(0.001)
                        self.answered += views[self.answered][1].done()
                        continue
                    value = b"%d/%d" % (self.number, self.sent) + self.padding
                    partition = self.sent % PARTITIONS
                    views.append((value, producer.send(TOPIC, value, partition=partition)))
                    self.sent += 1
                    while self.answered < self.sent and views[self.answered][1].done():
                        self.answered += 1
                    if self.sent % 20 == 0:
                        self.stopping.wait(0.01)
                producer.flush(60)
                for value, view in views:
                    metadata = view.result(60)
                    self.acknowledged[value] = (metadata.partition, metadata.offset)
        except BaseException as error:
            self.failure = error
            raise


class Reader(threading.Thread):
    """Follows all partitions over every restart, from the start to where it is told to stop."""

    def __init__(self, server: str) -> None:
        super().__init__(name="reader", daemon=True)
        self.server = server
        self.seen: dict[Place, bytes] = {}
        self.stop_at: int | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Consumer(self.server, **QUICK, fetch_max_wait_ms=100) as consumer:
                consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
                expected = [0] * PARTITIONS
                while self.stop_at is None or len(self.seen) < self.stop_at:
                    for record in consumer.poll(0.2, max_records=10_000):
                        assert record.offset == expected[record.partition]
                        expected[record.partition] += 1
                        self.seen[record.partition, record.offset] = record.value or b""
        except BaseException as error:
            self.failure = error
            raise


def wait_for_progress(writers: list[Writer], reader: Reader) -> None:
    """Returns when something was acknowledged and something was read."""
    answered, seen = sum(writer.answered for writer in writers), len(reader.seen)
    ends_at = time.monotonic() + 30
    while sum(writer.answered for writer in writers) == answered or len(reader.seen) == seen:
        assert time.monotonic() < ends_at, "nothing happened for 30 s"
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("wal", "configs"),
    [("disk", {}), ("object", {}), ("disk", UNIFIED), ("disk", TIERED)],
    ids=["disk", "object", "unified", "tiered"],
)
def test_nothing_acknowledged_is_lost(tmp_path: Path, wal: str, configs: dict[str, str]) -> None:
    choose = random.Random(20261121)
    unanswered_kills = 0
    # So much that segments leave the disk while what clients may send again stays.
    padding = 300 if configs == TIERED else 0
    with NodeProcess(tmp_path / "data", wal=wal, environment=QUICK_TIERS) as node:
        with Admin(node.server) as admin:
            admin.create_topic(TOPIC, PARTITIONS, configs)
        writers = [Writer(node.server, number, padding) for number in range(PRODUCERS)]
        reader = Reader(node.server)
        for thread in (*writers, reader):
            thread.start()
        pause = threading.Event()
        for number in range(ROUNDS):
            pause.wait(0.2 * choose.random())
            # Every other kill comes while clients find the node again; the rest meets a node that
            # answers and is read from.
            if number % 2:
                wait_for_progress(writers, reader)
                unanswered_kills += any(writer.answered < writer.sent for writer in writers)
            node.kill()
            node.start()
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(120)
            assert not writer.is_alive()
            assert writer.failure is None
        reader.stop_at = sum(writer.sent for writer in writers)
        reader.join(60)
        assert not reader.is_alive()
        assert reader.failure is None
        found = stored_records(node.server, TOPIC, PARTITIONS)
        if configs == TIERED:
            assert node.metric("streamlog_remote_segments") > 10, "kills must meet copies"
            local = len(list((tmp_path / "data" / "logs").glob(f"{TOPIC}-*/*.log")))
            assert local < node.metric("streamlog_remote_segments"), "and local deletions"
    assert unanswered_kills >= ROUNDS // 4, "kills must meet requests under way"
    assert reader.seen == found
    assert len(set(found.values())) == len(found), "a record is there twice"
    for writer in writers:
        assert len(writer.acknowledged) == writer.sent > 0
        for value, place in writer.acknowledged.items():
            assert found[place] == value
        for partition in range(PARTITIONS):
            numbers = [
                int(value.rstrip(b".").split(b"/")[1])
                for place, value in sorted(found.items())
                if place[0] == partition and value.startswith(b"%d/" % writer.number)
            ]
            assert numbers == sorted(numbers)
    assert len(found) == sum(writer.sent for writer in writers)
    for partition in range(PARTITIONS):
        offsets = sorted(offset for part, offset in found if part == partition)
        assert offsets == list(range(len(offsets)))
