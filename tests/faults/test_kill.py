"""`kill -9` at random moments under four idempotent producers: nothing acknowledged is lost.

After every round each acknowledged record is there once, in order, at its acknowledged offset, and
what a reader saw before has not gone.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from streamlog.client import Admin, Consumer, Producer
from tests.support.node import NodeProcess

ROUNDS = 30
PRODUCERS = 4
PARTITIONS = 2
TOPIC = "killed"


class Writer(threading.Thread):
    """Sends numbered records over all partitions until told to stop; then takes every ack."""

    def __init__(self, server: str, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self.number = number
        self.server = server
        self.stopping = threading.Event()
        self.sent = 0
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(self.server, linger_ms=2, batch_size_bytes=4096) as producer:
                views = []
                while not self.stopping.is_set():
                    value = b"%d/%d" % (self.number, self.sent)
                    partition = self.sent % PARTITIONS
                    views.append((value, producer.send(TOPIC, value, partition=partition)))
                    self.sent += 1
                    if self.sent % 20 == 0:
                        self.stopping.wait(0.01)
                producer.flush(60)
                for value, view in views:
                    metadata = view.result(60)
                    self.acknowledged[value] = (metadata.partition, metadata.offset)
        except BaseException as error:
            self.failure = error
            raise


def read_everything(server: str) -> dict[tuple[int, int], bytes]:
    """(partition, offset) → value, from the start to the end of every partition."""
    found: dict[tuple[int, int], bytes] = {}
    with Consumer(server, auto_offset_reset="earliest") as consumer:
        partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(*key) < end for key, end in ends.items()):
            for record in consumer.poll(5.0, max_records=100_000):
                found[record.partition, record.offset] = record.value
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("wal", ["disk", "object"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, wal: str) -> None:
    choose = random.Random(20261121)
    with NodeProcess(tmp_path / "data", wal=wal) as node:
        with Admin(node.server) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        writers = [Writer(node.server, number) for number in range(PRODUCERS)]
        for writer in writers:
            writer.start()
        seen: dict[tuple[int, int], bytes] = {}
        alive = threading.Event()
        for _ in range(ROUNDS):
            alive.wait(0.05 + 0.3 * choose.random())
            node.kill()
            node.start()
            if choose.random() < 0.2:
                now = read_everything(node.server)
                assert seen.items() <= now.items()
                seen = now
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(120)
            assert not writer.is_alive()
            assert writer.failure is None
        found = read_everything(node.server)
    assert seen.items() <= found.items()
    by_value: dict[bytes, list[tuple[int, int]]] = {}
    for place, value in found.items():
        by_value.setdefault(value, []).append(place)
    duplicates = {value: places for value, places in by_value.items() if len(places) > 1}
    assert not duplicates
    for writer in writers:
        assert len(writer.acknowledged) == writer.sent > 0
        for value, place in writer.acknowledged.items():
            assert found[place] == value
        for partition in range(PARTITIONS):
            numbers = [
                int(value.split(b"/")[1])
                for place, value in sorted(found.items())
                if place[0] == partition and value.startswith(b"%d/" % writer.number)
            ]
            assert numbers == sorted(numbers)
    for partition in range(PARTITIONS):
        offsets = sorted(offset for part, offset in found if part == partition)
        assert offsets == list(range(len(offsets)))
