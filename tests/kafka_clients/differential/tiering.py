"""`python -m tests.kafka_clients.differential.tiering [--sequences N] [--first SEED]`.

Topics in two tiers on a real Kafka and, with log.type=unified, on a node get the same calls: they
produce, delete records, and change what is kept here and altogether. Both sides then have so long
to copy and delete what they will. After each step the segments of both tiers, the special offsets,
look-ups by time, and every visible batch have to be the same. Prints each difference, and ends with
exit code 1 if there was any.

Both have LocalTieredStorage over a folder of their own, laid out alike, so that the boundaries of
remote segments are seen in their files.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from streamlog.codec.batch import BatchProducer
from tests.kafka_clients.differential.batches import batch
from tests.kafka_clients.differential.calls import (
    AlterConfig,
    Call,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    Fetch,
    Produce,
)
from tests.kafka_clients.differential.side import Seen, Side
from tests.kafka_clients.raw_client import part, request
from tests.kafka_clients.tiered_folder import TIER_FOLDER, tiering_kafka
from tests.support.node import NodeProcess

AT_ONCE = 20
"""Topics of one round."""
STEPS = 8
SEGMENT_BYTES = 20_000
CONFIGS = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "index.interval.bytes": "500",
    "file.delete.delay.ms": "0",
    "retention.ms": "-1",
}
HOUR_MS = 3_600_000
NO_LIMIT = "-1"
SPECIAL = (-1, -2, -3, -4, -5)
SETTLED_S_MAX = 40.0
LOOK_UPS = 8


@dataclass(frozen=True, slots=True)
class TieringSide:
    """A broker, and the folders of its two tiers."""

    side: Side
    local: Path
    remote: Path

    def tiers(self, topic: str) -> Seen:
        """Where segments begin, and what the special offsets are, at this moment."""
        remote = (self.remote / TIER_FOLDER).glob(f"{topic}-0-*/*.log")
        return {
            "local": sorted(int(one.stem) for one in (self.local / f"{topic}-0").glob("*.log")),
            "remote": sorted(int(one.name.partition("-")[0]) for one in remote),
            "special": [self.offset_of(topic, name) for name in SPECIAL],
        }

    def offset_of(self, topic: str, timestamp: int) -> tuple[int, int, int]:
        """Error, offset and timestamp."""
        api = "list_offsets"
        place = part(api, "ListOffsetsPartition", timestamp=timestamp)
        named = part(api, "ListOffsetsTopic", name=topic, partitions=[place])
        asked = request(api, replica_id=-1, topics=[named], timeout_ms=20_000)
        (answer,) = self.side.call(api, 10, asked).topics[0].partitions
        return answer.error_code, answer.offset, answer.timestamp

    def batches(self, topic: str) -> Iterator[Seen]:
        """Every visible batch from the log's start, and the error that ended it."""
        offset, end = self.offset_of(topic, -2)[1], self.offset_of(topic, -1)[1]
        give_up_at = time.monotonic() + SETTLED_S_MAX
        while offset < end and time.monotonic() < give_up_at:
            found = Fetch(12, topic, 0, offset, 1 << 20, 0).on(self.side)
            if found.get("error") != 0:
                yield found
                return
            # None: the remote tier is slow; what it brings is there for the next fetch.
            yield from found["batches"]
            if found["batches"]:
                offset = found["batches"][-1]["offsets"][1] + 1


class TieringSequence:
    """One topic's calls, in steps, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.topic = f"tiered-{seed}"
        self.seed = seed
        self.sequence = self.step = self.end = 0
        self.now_ms = int(time.time() * 1000)

    def calls(self) -> list[Call]:
        """Of the next step."""
        self.step += 1
        if self.step == 1 or self.rng.random() < 0.5:
            return [self._produce() for _ in range(self.rng.randrange(1, 30))]
        kind = self.rng.choice(("delete", "retention.ms", "retention.bytes", "local", "local"))
        if kind == "delete":
            offset = self.rng.choice((-1, self.rng.randrange(self.end + 2)))
            return [DeleteRecords(2, self.topic, 0, offset)]
        if kind == "local":
            kind = self.rng.choice(("local.retention.ms", "local.retention.bytes"))
        value = self._age() if kind.endswith("ms") else self._size()
        return [AlterConfig(1, self.topic, kind, value, 0)]

    def _age(self) -> str:
        """Between the times of two steps, far from both."""
        return self.rng.choice(
            (NO_LIMIT, "-2", *(str(self._at(n) + HOUR_MS // 2) for n in range(STEPS)))
        )

    def _at(self, step: int) -> int:
        """How long ago the records of a step are made."""
        return (STEPS - step) * HOUR_MS

    def _size(self) -> str:
        return self.rng.choice((NO_LIMIT, "-2", "1", str(self.rng.randrange(SEGMENT_BYTES * 6))))

    def _produce(self) -> Call:
        at_ms = self.now_ms - self._at(self.step)
        count = self.rng.randrange(1, 20)
        producer = None
        if self.rng.random() < 0.5:
            producer = BatchProducer(2_000_000 + self.seed, 0, self.sequence)
            self.sequence += count
        large = self.rng.choice((None, None, 3000, 12_000))
        data = batch(self.rng, producer, count, large, at_ms)
        self.end += count
        return Produce(9, self.topic, 0, "plain", data)

    def look_ups(self) -> list[int]:
        return [
            self.now_ms - self.rng.randrange(STEPS * HOUR_MS) + self.rng.randrange(5000)
            for _ in range(LOOK_UPS)
        ]


def settled(seen: Seen) -> bool:
    """Whether every closed segment is in the remote tier."""
    return set(seen["local"][:-1]) <= set(seen["remote"])


def await_same(sides: Sequence[TieringSide], topic: str) -> str | None:
    """Why the tiers are not the same on both sides, when the time is over."""
    give_up_at = time.monotonic() + SETTLED_S_MAX
    while True:
        kafka, node = (side.tiers(topic) for side in sides)
        if kafka == node and settled(kafka):
            return None
        if time.monotonic() > give_up_at:
            return f"tiers: kafka {kafka}, node {node}"
        time.sleep(0.1)


def take_step(sides: Sequence[TieringSide], sequence: TieringSequence) -> str | None:
    """Why both sides answer the calls of the next step differently."""
    for call in sequence.calls():
        kafka, node = (call.on(side.side) for side in sides)
        for side, seen in zip(sides, (kafka, node), strict=True):
            call.wait_until_seen(side.side, seen)
        if kafka != node:
            return f"step {sequence.step}, {call}: kafka {kafka}, node {node}"
    return None


def compare(sides: Sequence[TieringSide], sequence: TieringSequence) -> str | None:
    """Why the two sides are not the same; it waits until both have moved what they will."""
    topic, where = sequence.topic, f"step {sequence.step}"
    different = await_same(sides, topic)
    if different is not None:
        return f"{where}, {different}"
    for at_ms in sequence.look_ups():
        kafka, node = (side.offset_of(topic, at_ms) for side in sides)
        if kafka != node:
            return f"{where}, look-up of {at_ms}: kafka {kafka}, node {node}"
    start = sides[0].offset_of(topic, -2)[1]
    below = Fetch(12, topic, 0, start - 1, 1000, 0)
    kafka_below, node_below = (below.on(side.side).get("error") for side in sides)
    if kafka_below != node_below:
        return f"{where}, below the start: kafka {kafka_below}, node {node_below}"
    kafka_batches, node_batches = (list(side.batches(topic)) for side in sides)
    if kafka_batches != node_batches:
        odd = [
            pair for pair in zip(kafka_batches, node_batches, strict=False) if pair[0] != pair[1]
        ]
        sizes = f"{len(kafka_batches)} and {len(node_batches)} batches"
        return f"{where}, {sizes}; the first that differ: {odd[:1]}"
    return None


def run_round(sides: Sequence[TieringSide], sequences: Sequence[TieringSequence]) -> list[str]:
    """The differences. A sequence ends with its first."""
    found: list[str] = []
    for sequence in sequences:
        for side, more in zip(sides, ({}, {"log.type": "unified"}), strict=True):
            configs = tuple({**CONFIGS, **more}.items())
            made = CreateTopic(7, sequence.topic, 1, configs)
            seen = made.on(side.side)
            assert seen.get("error") == 0, seen
            made.wait_until_seen(side.side, seen)
    going = list(sequences)
    for _ in range(STEPS):
        for work in (take_step, compare):
            for sequence in tuple(going):
                different = work(sides, sequence)
                if different is not None:
                    going.remove(sequence)
                    found.append(f"{sequence.topic}: {different}")
                    print(found[-1], flush=True)
    for sequence in sequences:
        for side in sides:
            DeleteTopic(6, sequence.topic).on(side.side)
    return found


def _sides(folder: Path, built: ExitStack) -> list[TieringSide]:
    kafka = built.enter_context(tiering_kafka(folder / "kafka", folder / "kafka-remote"))
    data, remote = folder / "node", folder / "node-remote"
    plugin = "streamlog.tiered.storage.local_tiered_storage:LocalTieredStorage"
    settings = {
        "broker.remote.log.storage.system.enable": "true",
        "broker.remote.log.storage.manager.class.name": plugin,
        "rsm.config.dir": str(remote),
        "broker.remote.log.manager.task.interval.ms": "300",
        "broker.log.retention.check.interval.ms": "300",
    }
    arguments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    node = NodeProcess(data, arguments=("--kafka-listen", "127.0.0.1:0", *arguments))
    built.enter_context(node)
    (address,) = (one["address"] for one in node.banner["listeners"] if one["protocol"] == "kafka")
    (local,) = (path.parent for path in data.rglob("meta.properties"))
    found = [
        TieringSide(Side("kafka", kafka.server), kafka.data, folder / "kafka-remote"),
        TieringSide(Side("node", address), local, remote),
    ]
    for one in found:
        built.callback(one.side.close)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    differ, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as place, ExitStack() as built:
        sides = _sides(Path(place), built)
        for first in range(given.first, given.first + given.sequences, AT_ONCE):
            last = min(first + AT_ONCE, given.first + given.sequences)
            differ += len(run_round(sides, [TieringSequence(seed) for seed in range(first, last)]))
            seconds = time.monotonic() - began
            print(f"{last - given.first} sequences, {differ} differ, {seconds:.0f} s", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
