"""A producer that loads a topic at a steady rate in every other slot of time, in a process of its
own, until it is told to end.

python -m benchmarks.kafka.neighbour SERVER TOPIC BATCH_BYTES MB_S WHICH

It prints a line when it is ready, reads the time at which the slots begin, and prints what it did
as JSON after its input has ended.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.kafka.encoded import endless_frames
from benchmarks.kafka.librdkafka import CHILD_TIMEOUT_S, Figures
from benchmarks.kafka.wire import KafkaConnection
from benchmarks.report import percentile
from benchmarks.streaming import window

SLOT_S = 0.3
READY = "ready"


def whose(slot: int) -> int:
    """Of two neighbours: a slot of one, two of the other, two of the first again, and so on, so
    that neither is always the later one."""
    return (slot + 1) // 2 % 2


def slots_of(which: int) -> Iterator[int]:
    slot = 0
    while True:
        if whose(slot) == which:
            yield slot
        slot += 1


class Neighbour:
    """One that is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.figures: Figures = {}
        """Filled in at the end: mb_s of its slots, p50_ms, p99_ms."""

    def begin(self, at: float) -> None:
        """`at`: when the first slot begins, by time.perf_counter, which all processes share."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{at}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError("the neighbour's producer ended first")
        told, _ = self._process.communicate(timeout=CHILD_TIMEOUT_S)
        self.figures.update(json.loads(told))


@contextmanager
def neighbour(server: str, topic: str, size: int, mb_s: float, which: int) -> Iterator[Neighbour]:
    """Its load ends with the block. Errors: RuntimeError, where it ends before it is told to."""
    arguments = (server, topic, str(size), str(mb_s), str(which))
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
        one = Neighbour(process)
        yield one
        one.end()
    finally:
        process.kill()
        process.communicate()


def main(arguments: Sequence[str]) -> None:
    server, topic, size, mb_s = arguments[0], arguments[1], int(arguments[2]), float(arguments[3])
    each = max(1, int(SLOT_S * mb_s * 1e6 / size))
    dues: list[float] = []

    with KafkaConnection(server) as connection:
        source = endless_frames(connection, topic, size)
        print(READY, flush=True)
        began = float(sys.stdin.readline())

        def frames() -> Iterator[bytes]:
            for slot in slots_of(int(arguments[4])):
                for number in range(each):
                    frame = next(source)
                    if select.select([sys.stdin], [], [], 0)[0]:
                        return
                    dues.append(began + (slot + number / each) * SLOT_S)
                    yield frame

        latencies = connection.blast_when_due(frames(), window(size), dues.__getitem__)
    figures = {
        "mb_s": each * size / SLOT_S / 1e6,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
