"""A node on an S3 server: a gate before the store, a disk under the metadata, a tap per client.

What "metadata away" means on one node: they lie in RocksDB on the node's disk, so the disk below
that folder fails or hangs. The WAL lies in another folder, as on another disk.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from streamlog.client import Admin, Producer
from streamlog.demo.ports import free_port
from streamlog.demo.s3_server import S3Server
from tests.kafka_clients.outages.programs.telling import PARTITIONS
from tests.kafka_clients.outages.store_gate import StoreGate
from tests.kafka_clients.outages.stuck_disk import StuckDisk
from tests.kafka_clients.tap import Tap
from tests.support.node import NodeProcess
from tests.support.s3 import BUCKET

COMMON_SETTINGS = {
    # So that a reader of old records has to ask the store.
    "engine.read.block_cache_bytes": 0,
    "engine.read.index_cache_bytes": 0,
    # So that a new producer needs the metadata for its id.
    "log.producer_id_block": 1,
}
DEFAULT_SETTINGS = {"engine.read.tail_cache_bytes": 1 << 20}
SHORT_SETTINGS = {
    "engine.read.tail_cache_bytes": 1 << 20,
    # So that the room for appends is full before the outage is over.
    "engine.append.append_bytes_max": 1 << 20,
    "engine.append.batch_bytes_max": 1 << 20,
    "engine.append.retry_backoff_ms_max": 100,
    "engine.metadata.operation_timeout_ms": 1000,
    "engine.metadata.retry_backoff_max_ms": 100,
    "engine.progress.probe_interval_ms": 300,
    "engine.progress.unanswered_after_ms": 500,
    "engine.store.connect_timeout_ms": 1000,
    "engine.store.read_timeout_ms": 2000,
    "engine.store.request_deadline_ms": 3000,
    "engine.store.retry_backoff_ms_max": 100,
    "limits.open_wait_ms": 4000,
}


class Health(NamedTuple):
    at: float
    is_ready: bool
    reason: str
    resident_bytes: int
    threads: int


class Watch:
    """Looks at a node in a thread of its own, until it is stopped."""

    def __init__(self, node: NodeProcess, interval_s: float) -> None:
        self.seen: list[Health] = []
        self._node = node
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self.seen.append(health(self._node))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _look(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self.seen.append(health(self._node))


def health(node: NodeProcess) -> Health:
    """A node that does not answer within ten seconds is not ready."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    words = dict(line.split(":", 1) for line in status.splitlines())
    resident_bytes = int(words["VmRSS"].split()[0]) * 1024
    is_ready, reason = False, ""
    try:
        with urllib.request.urlopen(f"http://{node.banner['http']}/readyz", timeout=10) as page:
            is_ready, reason = True, page.read().decode()
    except urllib.error.HTTPError as error:
        reason = error.read().decode()
    except OSError as error:
        reason = repr(error)
    return Health(time.monotonic(), is_ready, reason.strip(), resident_bytes, int(words["Threads"]))


@dataclass
class World:
    node: NodeProcess
    gate: StoreGate
    disk: StuckDisk
    taps: Mapping[str, Tap]
    """By client; a client's bootstrap address is its tap's."""
    watch: Watch
    faults: Mapping[str, tuple[Callable[[], None], Callable[[], None]]] = field(init=False)
    """By name: what begins a fault and what ends it."""

    def __post_init__(self) -> None:
        self.faults = {
            "store-refuses": (self.gate.refuse, self.gate.open),
            "store-resets": (self.gate.reset, self.gate.open),
            "store-hangs": (self.gate.hang, self.gate.open),
            "metadata-fails": (self.disk.fail, self.disk.work),
            "metadata-hangs": (self.disk.hang, self.disk.work),
            "metadata-blocks": (self.disk.block, self.disk.work),
        }


FAULTS = (
    "store-refuses",
    "store-resets",
    "store-hangs",
    "metadata-fails",
    "metadata-hangs",
    "metadata-blocks",
)


@contextmanager
def world(folder: Path, wal: str, clients: Iterable[str], *, is_short: bool) -> Iterator[World]:
    (folder / "s3").mkdir(parents=True)
    with ExitStack() as stack:
        server = stack.enter_context(S3Server(folder / "s3"))
        server.make_bucket(BUCKET)
        gate = stack.enter_context(StoreGate(server.port))
        disk = StuckDisk(folder, folder / "meta")
        taps = {client: stack.enter_context(Tap()) for client in clients}
        node = NodeProcess(
            folder / "node",
            wal,
            places=_places(folder, server, gate, wal),
            arguments=(*_listeners(taps), *_settings(is_short)),
            environment={**server.environment, **disk.environment},
        )
        stack.enter_context(node)
        # Before the node stops, so that it can store what it has.
        stack.callback(gate.open)
        stack.callback(disk.work)
        _make_topics(node.server, taps)
        watch = stack.enter_context(Watch(node, 0.25 if is_short else 5.0))
        yield World(node, gate, disk, taps, watch)


def _places(folder: Path, server: S3Server, gate: StoreGate, wal: str) -> tuple[str, ...]:
    store = server.url(BUCKET, "outages").replace(server.endpoint, gate.endpoint)
    places = ("--store", store, "--meta", f"rocksdb://{folder}/meta")
    return (*places, "--wal-dir", f"{folder}/wal") if wal == "disk" else places


def _listeners(taps: Mapping[str, Tap]) -> Iterator[str]:
    """One for each client, so that a tap sees one client."""
    for client, tap in taps.items():
        name = client.replace("-", "").upper()
        tap.target = f"127.0.0.1:{free_port()}"
        yield from ("--kafka-listen", f"{name}={tap.target}")
        yield from ("--kafka-advertise", f"{name}={tap.address}")


def _settings(is_short: bool) -> Iterator[str]:
    chosen = SHORT_SETTINGS if is_short else DEFAULT_SETTINGS
    for name, value in {**COMMON_SETTINGS, **chosen}.items():
        yield from ("--set", f"{name}={value}")


def _make_topics(server: str, clients: Iterable[str]) -> None:
    with Admin(server) as admin, Producer(server) as producer:
        for client in clients:
            admin.create_topic(client, PARTITIONS)
            # Nobody opens its partitions before the outage.
            admin.create_topic(f"{client}-late", PARTITIONS)
            admin.create_topic(f"{client}-admin", 1)
            for _ in range(3):
                producer.send(f"{client}-admin", b"to be deleted", partition=0).result(30)
