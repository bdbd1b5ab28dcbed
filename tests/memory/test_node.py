"""Resident memory of a whole node: a process with gRPC that takes records and serves readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.client import Consumer, Producer
from streamlog.demo.node import NodeProcess
from streamlog.settings.schema import knobs
from tests.memory.process import CONFIG, Measured

LISTS, RECORDS, RECORD_BYTES = 60, 1000, 1000
TOPIC = "memory"
SMALL = {
    "engine.append.append_bytes_max": CONFIG.append.append_bytes_max,
    "engine.append.batch_bytes_max": CONFIG.append.batch_bytes_max,
    "engine.read.tail_cache_bytes": CONFIG.read.tail_cache_bytes,
    "engine.read.block_cache_bytes": CONFIG.read.block_cache_bytes,
    "engine.read.index_cache_bytes": CONFIG.read.index_cache_bytes,
    "engine.metadata.block_cache_bytes": CONFIG.metadata.block_cache_bytes,
    "engine.compaction.compaction_memory_bytes": CONFIG.compaction.compaction_memory_bytes,
    "engine.compaction.object_stats_cache_bytes": CONFIG.compaction.object_stats_cache_bytes,
}


def peak_bytes(node: NodeProcess) -> int:
    status = Path(f"/proc/{node.pid}/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak) * 1024


def read_all(server: str) -> None:
    read = 0
    with Consumer(server) as consumer:
        consumer.subscribe([TOPIC])
        while read < LISTS * RECORDS:
            read += sum(batch.record_count for batch in consumer.poll_batches(10))


@pytest.mark.slow
@pytest.mark.parametrize("wal", ["disk", "object"])
def test_a_node_under_load_and_catching_up_keeps_to_its_bounds(wal: str, tmp_path: Path) -> None:
    """A client writes and reads 60 MB; another one reads them from the restarted node."""
    names = {name: knobs()[name].environment for name in SMALL}
    environment = {names[name]: str(value) for name, value in SMALL.items()}
    node = NodeProcess(tmp_path, wal=wal, environment=environment)
    node.start()
    try:
        with Producer(node.server) as producer:
            for _ in range(LISTS):
                producer.send_many(TOPIC, [bytes(RECORD_BYTES)] * RECORDS)
        read_all(node.server)
        Measured(peak_bytes(node), {"read": 1}).check(CONFIG)
        node.stop()
        node.start()
        read_all(node.server)
        Measured(peak_bytes(node), {"read again": 1}).check(CONFIG)
    finally:
        node.discard()
