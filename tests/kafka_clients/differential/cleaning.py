"""`python -m tests.kafka_clients.differential.cleaning [--sequences N] [--first SEED]`.

Compacted topics on a real Kafka and, of both kinds, on a node get the same batches; all are
cleaned; what is left has to be the same, and what the rule says: of all before the last segment
the newest record of each key, at its offset. Prints each difference, and ends with exit code 1 if
there was any.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks import kafka_server
from benchmarks.kafka.wire import KafkaConnection
from streamlog.codec.batch import BatchProducer, Compression, scan
from streamlog.codec.records import BatchBuilder, iterate
from streamlog.kafka.protocol.errors import KafkaError
from tests.kafka_clients.raw_client import RawClient, part, request
from tests.support.kafka_server import FEATURES, QUICK, SETTINGS
from tests.support.node import NodeProcess

AT_ONCE = 20
"""Topics of one round."""
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "10000",
    "min.cleanable.dirty.ratio": "0",
    "index.interval.bytes": "300",
}
HOUR_MS = 3_600_000
CLEANED_S_MAX = 60.0
BACKOFF_MS = 50
NOT_YET = (KafkaError.UNKNOWN_TOPIC_OR_PARTITION, KafkaError.NOT_LEADER_OR_FOLLOWER)
"""Of a Kafka whose broker has not heard of a new topic: nothing was stored."""


class Stored(NamedTuple):
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None


class Sequence:
    """One topic's batches; the last one has a segment of its own."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        self.topic = f"cleaned-{seed}"
        self.batches: list[bytes] = []
        self.sent: list[Stored] = []
        keys = choose.randrange(2, 16)
        at_ms = int(time.time() * 1000) - HOUR_MS
        sequence, producer = 0, 1_000_000 + seed
        for number in range(count := choose.randrange(20, 80)):
            is_last = number == count - 1
            at_ms += 20_000 if is_last or choose.random() < 0.1 else choose.randrange(100)
            codec = choose.choice(list(Compression))
            builder = BatchBuilder(1 << 20, compression=codec)
            size = choose.randrange(1, 6)
            for _ in range(size):
                key = b"k%d" % choose.randrange(keys)
                value = None if choose.random() < 0.15 else choose.randbytes(choose.randrange(60))
                assert builder.append(at_ms, key, value)
                self.sent.append(Stored(len(self.sent), at_ms, key, value))
            is_idempotent = choose.random() < 0.5
            named = BatchProducer(producer, 0, sequence) if is_idempotent else None
            sequence += size if is_idempotent else 0
            made = builder.build(named) if named is not None else builder.build()
            self.batches.append(bytes(made))
        self._kept_from = len(self.sent) - size

    @property
    def left(self) -> list[Stored]:
        """What the rule leaves."""
        newest = {one.key: one for one in self.sent[: self._kept_from]}
        return sorted([*newest.values(), *self.sent[self._kept_from :]])


class Batches(Protocol):
    topic: str
    batches: list[bytes]


def produce(client: RawClient, sequence: Batches) -> None:
    for batch in sequence.batches:
        data = part("produce", "PartitionProduceData", index=0, records=batch)
        asked = part("produce", "TopicProduceData", name=sequence.topic, partition_data=[data])
        message = request("produce", acks=-1, timeout_ms=30_000, topic_data=[asked])
        give_up_at = time.monotonic() + CLEANED_S_MAX
        while True:
            answer = client.call("produce", 9, message)
            (found,) = answer.responses[0].partition_responses
            if found.error_code not in NOT_YET or time.monotonic() > give_up_at:
                break
            time.sleep(0.05)
        assert found.error_code == 0, found


def read(client: RawClient, topic: str) -> Iterator[Stored]:
    offset = end = 0
    while offset <= end:
        place = part("fetch", "FetchPartition", fetch_offset=offset, partition_max_bytes=8 << 20)
        asked = part("fetch", "FetchTopic", topic=topic, partitions=[place])
        answer = client.call("fetch", 12, request("fetch", topics=[asked], max_wait_ms=0))
        (found,) = answer.responses[0].partitions
        assert found.error_code == 0, found
        data = found.records
        whole = b"".join(map(bytes, data)) if isinstance(data, list) else bytes(data or b"")
        end = found.high_watermark - 1
        for batch in scan(whole):
            offset = batch.header.next_offset
            for record in iterate(batch.view):
                yield Stored(*record[:4])
        if not whole:
            return


def await_cleaned(client: RawClient, sequence: Sequence, give_up_at: float) -> list[Stored]:
    """What is left, when it is what the rule says or the time is over."""
    while True:
        found = list(read(client, sequence.topic))
        if found == sequence.left or time.monotonic() > give_up_at:
            return found
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    differ = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kafka = kafka_server.KafkaServer(
            folder / "kafka",
            jvm=("-Xmx700m", *QUICK),
            settings={**SETTINGS, "log.cleaner.backoff.ms": BACKOFF_MS},
            features=FEATURES,
        )
        listening = ("--kafka-listen", "127.0.0.1:0")
        often = ("--set", f"log.cleaner_backoff_ms={BACKOFF_MS}")
        with kafka, NodeProcess(folder / "node", arguments=(*listening, *often)) as node:
            (address,) = (
                one["address"] for one in node.banner["listeners"] if one["protocol"] == "kafka"
            )
            for first in range(given.first, given.first + given.sequences, AT_ONCE):
                last = min(first + AT_ONCE, given.first + given.sequences)
                round_of = [Sequence(seed) for seed in range(first, last)]
                nodes = dict.fromkeys(("shared", "unified"), address)
                differ += _round(round_of, {"kafka": kafka.server, **nodes})
                seconds = time.monotonic() - began
                print(
                    f"{last - given.first} sequences, {differ} differ, {seconds:.0f} s", flush=True
                )
    return 1 if differ else 0


def _round(sequences: list[Sequence], servers: dict[str, str]) -> int:
    """How many differ."""
    found: dict[str, list[list[Stored]]] = {}
    for name, server in servers.items():
        settings = CONFIGS if name == "kafka" else {**CONFIGS, "log.type": name}
        with KafkaConnection(server) as connection, RawClient(server) as client:
            for sequence in sequences:
                connection.make_topic(sequence.topic, 1, settings)
                produce(client, sequence)
            give_up_at = time.monotonic() + CLEANED_S_MAX
            found[name] = [await_cleaned(client, one, give_up_at) for one in sequences]
            for sequence in sequences:
                connection.delete_topic(sequence.topic)
    differ = 0
    for number, sequence in enumerate(sequences):
        left = {name: found[name][number] for name in servers}
        wrong = [name for name, stored in left.items() if stored != sequence.left]
        if wrong:
            differ += 1
            print(f"{sequence.topic}: not what the rule says: {', '.join(wrong)}")
            for name in wrong:
                odd = sorted(set(left[name]) ^ set(sequence.left))
                print(f"  {name}: {odd[:5]}")
    return differ


if __name__ == "__main__":
    sys.exit(main())
