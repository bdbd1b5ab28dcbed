"""Records what Kafka's clients send: `python -m tests.fuzz.frames.record`.

It runs each client's program of `tests/kafka_clients` against a node, with a tap between them, and
keeps a few distinct requests of every (client, API, version) in `recorded.jsonl.gz`. The first
lines of that file are the topics: requests name them by ids, too, which are others in each run.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.frames.corpus import RECORDED
from tests.kafka_clients.brokers import Broker, running_node
from tests.kafka_clients.raw_client import RawClient, request
from tests.kafka_clients.runs import CLIENTS, Runs
from tests.kafka_clients.wire import request_header

FRAME_BYTES_MAX = 3000
EACH_MAX = 12
"""Requests of one client, API and version."""


def distinct(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Of every API and version the first requests of each size, the most different sizes first."""
    kinds: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)
    for frame in frames:
        if len(frame) <= FRAME_BYTES_MAX:
            header = request_header(frame)
            kinds[header.api, header.version].setdefault(len(frame), frame)
    for _, by_size in sorted(kinds.items()):
        sizes = sorted(by_size)
        step = max(1.0, len(sizes) / EACH_MAX)
        chosen = {sizes[int(number * step)] for number in range(min(EACH_MAX, len(sizes)))}
        yield from (by_size[size] for size in sorted(chosen))


def topics(broker: Broker) -> list[dict[str, Any]]:
    with RawClient(broker.server) as client:
        answer = client.call("metadata", 12, request("metadata", topics=None))
    return [
        {"topic": one.name, "id": one.topic_id.hex(), "partitions": len(one.partitions)}
        for one in answer.topics
        if not one.is_internal  # Nobody can make one; a node has its own.
    ]


def main() -> None:
    clients = sys.argv[1:] or list(CLIENTS)
    lines: list[dict[str, Any]] = []
    recorded: dict[str, list[bytes]] = {client: [] for client in clients}
    asking: list[bytes] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_node(Path(folder) / "node", lambda frame: asking.append(frame)) as broker,
    ):
        runs = Runs()
        for client in clients:
            asking.clear()
            run = runs.of(client, broker)
            wrong = {name: case.error for name, case in run.cases.items() if case.error}
            assert run.cases, run.output
            assert not wrong, wrong
            recorded[client] = list(asking)
        lines += sorted(topics(broker), key=lambda topic: str(topic["topic"]))
    for client, frames in recorded.items():
        chosen = [frame[:4] + bytes(4) + frame[8:] for frame in frames]
        lines += [{"client": client, "frame": frame.hex()} for frame in distinct(chosen)]
        print(f"{client}: {sum(line.get('client') == client for line in lines)} of {len(frames)}")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    RECORDED.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{RECORDED}: {RECORDED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
