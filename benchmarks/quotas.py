"""A polite client beside a rogue: alone, beside one with a quota, and beside one without.

For producing, fetching what the node has at hand, and fetching what the remote tier alone has. The
rogue asks as fast as answers come, whatever they say of its throttle: producing with five requests
under way, fetching 1 MiB at a time. The polite client sends 64 KiB, or asks for as much, at fixed
times; its times count from when a request was due until its records are there, so that an empty
answer of a throttled partition counts as waiting. The node has a quota of reads of the remote tier,
which the rogue's own is below, and which the rogue without one uses up.

Both are processes of their own. The rogue runs at nice 19: in production its CPU is on another
machine. Its rate counts when its first burst is paid, over two windows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.kafka.wire import KafkaConnection, encode_frame, produce_frame
from benchmarks.node import RunningNode, running_node
from benchmarks.produce import example_values
from benchmarks.report import Report, Row, percentile
from streamlog.client import Admin
from streamlog.codec.records import encode_values
from streamlog.demo.child import kill
from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from streamlog.kafka.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from streamlog.kafka.protocol.apis import ApiKey

MIB = 1 << 20
PRODUCE, LOCAL, REMOTE = "produce", "local fetch", "remote fetch"
QUOTA_BYTES = 8 * MIB
"""Of the rogue, a second."""
NODE_QUOTA_BYTES = 32 * MIB
"""Of the node's reads of the remote tier, a second."""
WINDOW_S = 4
"""Shorter than the default of 11, so that a turn is some seconds. With fewer samples a rate is
measured more coarsely: within 3 % here, within 1 % there."""
SECONDS = 2.5
"""Of a turn; two windows where the rogue's rate counts."""
WARM_S = 1.0
BATCH_BYTES = 16 << 10
POLITE_BYTES = 64 << 10
POLITE_EVERY_S = 0.02
ROGUE_BYTES = {PRODUCE: 256 << 10, LOCAL: MIB, REMOTE: MIB}
FILL_WINDOW = 64
PIPELINED = 5
FILLED_BYTES = {LOCAL: 32 * MIB, REMOTE: 96 * MIB}
SEGMENT_BYTES = 4 * MIB
MOVE_S_MAX = 60.0
EARLIEST_LOCAL = -4
TIERED = {
    "log.type": "unified",
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_BYTES),
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
SETTINGS = {
    "broker.quota.window.num": str(WINDOW_S),
    "broker.log.retention.check.interval.ms": "500",
    "broker.remote.log.manager.task.interval.ms": "500",
    "broker.remote.log.manager.fetch.max.bytes.per.second": str(NODE_QUOTA_BYTES),
    "broker.remote.log.manager.fetch.quota.window.num": str(WINDOW_S),
}
QUOTAS = ("producer_byte_rate", "consumer_byte_rate")
ROGUE, POLITE = "rogue", "polite"

Figures = dict[str, float]


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1: turns of 2.5 s, of two windows beside the rogue with a quota."""
    with running_node(folder / "node", wal="disk", settings=SETTINGS) as node:
        ends = _filled(node)
        for kind in (PRODUCE, LOCAL, REMOTE):
            _case(report, node, kind, ends.get(kind, 0), scale)


def _case(report: Report, node: RunningNode, kind: str, end: int, scale: float) -> None:
    seconds = SECONDS * scale
    _limit(node, None)
    node.wait_until_idle()
    with _child(POLITE, node, kind, end, seconds, 0) as polite:
        _read(polite)
        alone = _figures(polite)
    _limit(node, QUOTA_BYTES)
    # An empty window lets in all but one of its samples at once, which is paid first.
    held, rogue = _beside(node, kind, end, max(seconds, 2 * WINDOW_S), 2.25 * WINDOW_S)
    _limit(node, None)
    node.wait_until_idle()
    beside, free = _beside(node, kind, end, seconds, WARM_S)
    row = Row("quotas", f"{kind}, the rogue's rate", rogue["mb_s"], "MB/s")
    row.floor, row.floor_name, row.aim, row.less_is_better = QUOTA_BYTES / 1e6, "quota", 0.95, True
    row.facts = {"of_quota": rogue["mb_s"] / row.floor, "without_quota_mb_s": free["mb_s"]}
    report.add(row)
    row = Row("quotas", f"{kind}, polite beside the rogue", held["mb_s"], "MB/s", alone["mb_s"])
    row.floor_name, row.aim = "alone", 0.95
    row.facts = {"without_quota_mb_s": beside["mb_s"]}
    report.add(row)
    row = Row("quotas", f"{kind}, polite p99 beside the rogue", held["p99_ms"], "ms")
    row.floor, row.floor_name, row.less_is_better = alone["p99_ms"], "alone", True
    row.facts = {
        "without_quota_p99_ms": beside["p99_ms"],
        "p50_ms": held["p50_ms"],
        "alone_p50_ms": alone["p50_ms"],
        "without_quota_p50_ms": beside["p50_ms"],
    }
    report.add(row)


def _beside(
    node: RunningNode, kind: str, end: int, seconds: float, warm_s: float
) -> tuple[Figures, Figures]:
    """The polite client's figures, and the rogue's of the same time."""
    with (
        _child(POLITE, node, kind, end, seconds, 0) as polite,
        _child(ROGUE, node, kind, end, seconds, warm_s) as rogue,
    ):
        _read(polite)
        _read(rogue)
        return _figures(polite), json.loads(_read(rogue))


def _limit(node: RunningNode, rate: int | None) -> None:
    with Admin(node.server) as admin:
        value = None if rate is None else str(rate)
        admin.alter_configs(client=ROGUE, configs=dict.fromkeys(QUOTAS, value))


def _filled(node: RunningNode) -> dict[str, int]:
    """Makes the topics; for those that are read, the offset (exclusive) up to which they are."""
    with KafkaConnection(node.kafka) as connection:
        ends: dict[str, int] = {}
        for client_id in (ROGUE, POLITE):
            connection.make_topic(_topic(PRODUCE, client_id), 1)
        for kind, size in FILLED_BYTES.items():
            topic = _topic(kind, "")
            connection.make_topic(topic, 1, TIERED if kind == REMOTE else None)
            batch = _batch(BATCH_BYTES)
            ends[kind] = size // BATCH_BYTES * _records(BATCH_BYTES)
            frame = produce_frame(topic, 0, batch, 1)
            connection.blast([frame] * (size // BATCH_BYTES), FILL_WINDOW)
        give_up = time.monotonic() + MOVE_S_MAX
        wanted = ends[REMOTE] - 2 * SEGMENT_BYTES // BATCH_BYTES * _records(BATCH_BYTES)
        while (found := _local_start(connection, _topic(REMOTE, ""))) < wanted:
            if time.monotonic() > give_up:
                raise RuntimeError(f"of {wanted} records {found} went to the tier")
            time.sleep(0.2)
        ends[REMOTE] = found
        return ends


def _local_start(connection: KafkaConnection, topic: str) -> int:
    part = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST_LOCAL)
    topics = [ListOffsetsTopic(name=topic, partitions=[part])]
    request = ListOffsetsRequest(replica_id=-1, topics=topics)
    (found,) = connection.ask(ApiKey.LIST_OFFSETS, request).topics[0].partitions
    if found.error_code:
        raise RuntimeError(f"no local start of {topic}: error {found.error_code}")
    return int(found.offset)


def _topic(kind: str, client_id: str) -> str:
    """Both read the same topic, and each writes to its own."""
    return f"produce-{client_id}" if kind == PRODUCE else kind.replace(" ", "-")


def _batch(size: int) -> bytes:
    return bytes(encode_values(example_values(size), timestamp_ms=int(time.time() * 1000)).data)


def _records(size: int) -> int:
    return size >> 10


def _read(child: subprocess.Popen[str]) -> str:
    """Errors: RuntimeError, where it has ended."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError("a client of the benchmark has failed")
    return line


def _figures(polite: subprocess.Popen[str]) -> Figures:
    """Lets the polite client begin; its figures."""
    assert polite.stdin is not None
    polite.stdin.write("go\n")
    polite.stdin.flush()
    found: Figures = json.loads(_read(polite))
    return found


@contextmanager
def _child(
    role: str, node: RunningNode, kind: str, end: int, seconds: float, warm_s: float
) -> Iterator[subprocess.Popen[str]]:
    arguments = [role, node.kafka, kind, str(end), str(seconds), str(warm_s)]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.quotas", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        kill(child)


class Client:
    """Asks for `size` bytes at a time."""

    def __init__(self, server: str, role: str, kind: str, end: int, size: int) -> None:
        self.kind = kind
        self._connection = KafkaConnection(server)
        self._role = role
        self._end = end
        self._size = size
        self._offset = end // 2 if role == POLITE else 0
        self._topic = _topic(kind, role)
        self._batch = _batch(size)

    def send(self) -> None:
        if self.kind == PRODUCE:
            frame = produce_frame(self._topic, 0, self._batch, 1, self._role)
        else:
            part = FetchPartition(
                partition=0, fetch_offset=self._offset, partition_max_bytes=self._size
            )
            topic = FetchTopic(topic=self._topic, partitions=[part])
            request = FetchRequest(
                max_wait_ms=500, min_bytes=1, max_bytes=self._size, session_epoch=-1, topics=[topic]
            )
            frame = encode_frame(ApiKey.FETCH, request, 1, self._role)
        self._connection.send(frame)

    def answered(self) -> int:
        """Bytes of records that the next answer stands for."""
        if self.kind == PRODUCE:
            (part,) = self._connection.response(ApiKey.PRODUCE).responses[0].partition_responses
            _check(part.error_code)
            return len(self._batch)
        (part,) = self._connection.response(ApiKey.FETCH).responses[0].partitions
        _check(part.error_code)
        size = len(part.records)
        self._offset += size // len(_BATCH) * _records(BATCH_BYTES)
        if self._offset + _records(self._size) > self._end:
            self._offset = 0
        return size


_BATCH = _batch(BATCH_BYTES)


def _check(error_code: int) -> None:
    if error_code:
        raise RuntimeError(f"refused with error {error_code}")


def _be_polite(client: Client, seconds: float) -> None:
    """Prints how much it moved, and the times."""
    print("ready", flush=True)
    sys.stdin.readline()
    moved, times = 0, []
    began = time.perf_counter()
    for number in count():
        due = began + number * POLITE_EVERY_S
        if max(due, time.perf_counter()) >= began + seconds:
            break
        time.sleep(max(0.0, due - time.perf_counter()))
        size = 0
        while not size:
            client.send()
            size = client.answered()
        moved += size
        times.append((time.perf_counter() - due) * 1e3)
    mb_s = moved / (time.perf_counter() - began) / 1e6
    figures = {"mb_s": mb_s, "p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99)}
    print(json.dumps(figures), flush=True)


def _be_a_rogue(client: Client, seconds: float, warm_s: float) -> None:
    """Prints a line when it is warm, and how much it moved in the seconds from then on."""
    os.nice(19)
    under_way = PIPELINED if client.kind == PRODUCE else 1
    for _ in range(under_way):
        client.send()

    def until(end: float) -> int:
        moved = 0
        while True:
            size = client.answered()
            client.send()
            if time.perf_counter() >= end:
                return moved
            moved += size

    until(time.perf_counter() + warm_s)
    print("ready", flush=True)
    moved = until(time.perf_counter() + seconds)
    print(json.dumps({"mb_s": moved / seconds / 1e6}), flush=True)
    while True:
        until(time.perf_counter() + 1)


def main() -> None:
    role, server, kind, end, seconds, warm_s = sys.argv[1:]
    size = POLITE_BYTES if role == POLITE else ROGUE_BYTES[kind]
    client = Client(server, role, kind, int(end), size)
    if role == POLITE:
        _be_polite(client, float(seconds))
    else:
        _be_a_rogue(client, float(seconds), float(warm_s))


if __name__ == "__main__":
    main()
