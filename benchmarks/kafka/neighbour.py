"""A producer that loads a topic at a steady rate, in a process of its own, until it is told to end.

python -m benchmarks.kafka.neighbour SERVER TOPIC BATCH_BYTES MB_S

It prints a line when its load is there, and what it did as JSON after its input has ended.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.kafka.encoded import endless_frames
from benchmarks.kafka.librdkafka import CHILD_TIMEOUT_S, Figures
from benchmarks.kafka.wire import KafkaConnection
from benchmarks.report import percentile
from benchmarks.streaming import window

WARM_S = 0.5
READY = "ready"


@contextmanager
def neighbour(server: str, topic: str, size: int, mb_s: float) -> Iterator[Figures]:
    """The load is there inside; the figures are filled in at the end: mb_s, p50_ms, p99_ms.

    Errors: RuntimeError, where it ends before it is told to.
    """
    figures: Figures = {}
    arguments = (server, topic, str(size), str(mb_s))
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.kafka.neighbour", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            raise RuntimeError("the neighbour's producer did not start")
        yield figures
        if process.poll() is not None:
            raise RuntimeError("the neighbour's producer ended first")
        told, _ = process.communicate(timeout=CHILD_TIMEOUT_S)
        figures.update(json.loads(told))
    finally:
        process.kill()
        process.communicate()


def main(arguments: Sequence[str]) -> None:
    server, topic, size, mb_s = arguments[0], arguments[1], int(arguments[2]), float(arguments[3])
    distance_s = size / (mb_s * 1e6)
    sent = 0

    def frames(connection: KafkaConnection) -> Iterator[bytes]:
        nonlocal sent
        for number, frame in enumerate(endless_frames(connection, topic, size)):
            if number == int(WARM_S / distance_s):
                print(READY, flush=True)
            if select.select([sys.stdin], [], [], 0)[0]:
                return
            sent += len(frame)
            yield frame

    with KafkaConnection(server) as connection:
        began = time.perf_counter()
        latencies = connection.blast(frames(connection), window(size), distance_s)
        seconds = time.perf_counter() - began
    figures = {
        "mb_s": sent / seconds / 1e6,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
