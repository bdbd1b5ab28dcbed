"""`python -m tests.kafka_clients.differential.segments [--sequences N] [--first SEED]`.

A topic on a real Kafka and a unified one on a node get the same batches. After each batch both
folders have segments of the same base offsets; at the end, when both servers have stopped, the same
bytes in every log, index, time index and transaction index. The leader epochs differ, and no CRC
covers them. Prints each difference, and ends with exit code 1 if there was any.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks import kafka_server
from benchmarks.kafka.wire import KafkaConnection
from streamlog.codec.batch import BatchProducer, Compression, scan
from streamlog.codec.records import BatchBuilder
from tests.kafka_clients.differential.cleaning import HOUR_MS, produce
from tests.kafka_clients.raw_client import RawClient
from tests.support.kafka_server import FEATURES, QUICK, SETTINGS
from tests.support.node import NodeProcess

AT_ONCE = 10
"""Topics of one pair of servers."""
SEGMENT_BYTES = 1 << 20
INDEXES = (".index", ".timeindex", ".txnindex")
Folders = dict[str, Path]


class Sequence:
    """One topic's batches, of all codecs, with and without producers, at times in no order."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        self.topic = f"segments-{seed}"
        self.configs = {
            "segment.bytes": str(SEGMENT_BYTES),
            "segment.ms": choose.choice(["10000", "604800000"]),
            "index.interval.bytes": choose.choice(["0", "300", "4096", "100000"]),
        }
        self.all_batches: list[bytes] = []
        at_ms, sequence = int(time.time() * 1000) - HOUR_MS, 0
        for _ in range(choose.randrange(20, 60)):
            at_ms += choose.choice([0, 1, 50, -40, 11_000])
            builder = BatchBuilder(1 << 20, compression=choose.choice(list(Compression)))
            size = choose.choice([1, 3, 40])
            for number in range(size):
                value = choose.randbytes(choose.choice([0, 10, 200, 20_000]))
                stamp = at_ms + choose.randrange(-30, 30)
                if not builder.append(stamp, b"%d" % number, value):
                    size = number
                    break
            is_idempotent = choose.random() < 0.5
            named = BatchProducer(2_000_000 + seed, 0, sequence) if is_idempotent else None
            sequence += size if is_idempotent else 0
            made = builder.build(named) if named is not None else builder.build()
            self.all_batches.append(bytes(made))
        self.batches: list[bytes] = []
        """What `produce` sends next."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    differ, began = 0, time.monotonic()
    compared: Counter[str] = Counter()
    end = given.first + given.sequences
    for first in range(given.first, end, AT_ONCE):
        sequences = [Sequence(seed) for seed in range(first, min(first + AT_ONCE, end))]
        with tempfile.TemporaryDirectory() as place:
            differences = [*_differences(sequences, Path(place), compared)]
        differ += len({topic for topic, _ in differences})
        for topic, what in differences:
            print(f"{topic}: {what}")
        done, seconds = min(first + AT_ONCE, end) - given.first, time.monotonic() - began
        print(f"{done} sequences, {differ} differ, {seconds:.0f} s", flush=True)
    print("compared:", ", ".join(f"{count} {kind}" for kind, count in compared.items()))
    return 1 if differ else 0


def _differences(
    sequences: list[Sequence], place: Path, compared: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Topic and what differs, of topics on a pair of servers that live for them."""
    kafka = kafka_server.KafkaServer(
        place / "kafka", jvm=("-Xmx400m", *QUICK), settings=SETTINGS, features=FEATURES
    )
    folders: Folders = {"kafka": kafka.data, "node": place / "node" / "logs"}
    with (
        kafka,
        NodeProcess(place / "node", arguments=("--kafka-listen", "127.0.0.1:0")) as node,
    ):
        (address,) = (
            one["address"] for one in node.banner["listeners"] if one["protocol"] == "kafka"
        )
        for sequence in sequences:
            for server, more in ((kafka.server, {}), (address, {"log.type": "unified"})):
                with KafkaConnection(server) as connection:
                    connection.make_topic(sequence.topic, 1, {**sequence.configs, **more})
            with RawClient(kafka.server) as first, RawClient(address) as second:
                for number, batch in enumerate(sequence.all_batches):
                    sequence.batches = [batch]
                    produce(first, sequence)
                    produce(second, sequence)
                    ends = {name: _bases(folders[name], sequence) for name in folders}
                    if ends["kafka"] != ends["node"]:
                        yield sequence.topic, f"segments after batch {number}: {ends}"
                        break
        kafka.stop()
        node.stop()
    for sequence in sequences:
        yield from ((sequence.topic, what) for what in _files_differ(folders, sequence, compared))


def _bases(folder: Path, sequence: Sequence) -> list[str]:
    return sorted(path.name for path in (folder / f"{sequence.topic}-0").glob("*.log"))


def _files_differ(folders: Folders, sequence: Sequence, compared: Counter[str]) -> Iterator[str]:
    for name in _bases(folders["kafka"], sequence):
        logs = [_without_epochs(_content(one, sequence, name)) for one in folders.values()]
        compared["bytes of .log"] += len(logs[0])
        compared["segments"] += 1
        if logs[0] != logs[1]:
            yield f"{name} has other bytes"
        for suffix in INDEXES:
            index = name.removesuffix(".log") + suffix
            kafkas, ours = (_content(one, sequence, index) for one in folders.values())
            compared[f"bytes of {suffix}"] += len(kafkas)
            if kafkas != ours:
                yield f"{index}: {kafkas.hex()} there, {ours.hex()} here"


def _content(folder: Path, sequence: Sequence, name: str) -> bytes:
    """Empty where there is no file: Kafka makes no transaction index without a transaction."""
    path = folder / f"{sequence.topic}-0" / name
    return path.read_bytes() if path.is_file() else b""


def _without_epochs(data: bytes) -> bytes:
    out, position = bytearray(data), 0
    for batch in scan(data):
        out[position + 12 : position + 16] = bytes(4)
        position += len(batch.view)
    return bytes(out)


if __name__ == "__main__":
    sys.exit(main())
