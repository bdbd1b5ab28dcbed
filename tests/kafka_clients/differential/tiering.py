"""`python -m tests.kafka_clients.differential.tiering [--sequences N] [--first SEED]`.

Topics in two tiers on a real Kafka and, with log.type=unified, on a node get the same calls: they
produce, delete records, and change what is kept here and altogether. Both sides then have so long
to copy and delete what they will. After each step the segments of both tiers, the special offsets,
look-ups by time, and every visible batch have to be the same. Prints each difference, and ends with
exit code 1 if there was any but those of KNOWN, which it counts.

Both have LocalTieredStorage over a folder of their own, laid out alike, so that the boundaries of
remote segments are seen in their files.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from streamlog.codec.batch import BatchProducer, scan
from streamlog.codec.records import decode
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
AS_WHOLE = "-2"
"""Of the local part: what holds for the whole log."""
SPECIAL = (-1, -2, -3, -4, -5)
SETTLED_S_MAX = 40.0
CALM_S = 3.0
"""Both sides look at every partition, to copy and to delete, several times within it."""
LOOK_UPS = 8
REQUEST_TIMED_OUT = 7
TIMED_OUT_MAX = 3
EMPTIED = "a log whose records were all deleted: Kafka keeps its active segment"
BELOW_START = "a look-up by time that Kafka misses where the start of a segment was deleted"
LARGEST = "the offset of the largest timestamp, which may be of a deleted record in Kafka"
OVER_DELETED = "a segment that Kafka deletes although retention.bytes has room for it"
ROLLED = "an active segment that one side's retention closed between two batches"
TIMED_OUT = "a look-up by time that Kafka answers with a time-out, once"
KNOWN = (EMPTIED, BELOW_START, LARGEST, OVER_DELETED, ROLLED, TIMED_OUT)
"""Defects of Kafka 4.1.1, a choice of this program, or the moment at which a round comes.

`docs/tiered-storage.md` says more."""
STATES = "states that were the same"
TWO_TIERS = "of them with records in the remote tier alone"


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

    def sizes(self, topic: str) -> dict[int, int]:
        """Bytes of each segment by its base offset, of either tier."""
        remote = (self.remote / TIER_FOLDER).glob(f"{topic}-0-*/*.log")
        local = (self.local / f"{topic}-0").glob("*.log")
        found = {int(one.name.partition("-")[0]): one.stat().st_size for one in remote}
        return found | {int(one.stem): one.stat().st_size for one in local}

    def offset_of(self, topic: str, timestamp: int) -> tuple[int, int, int]:
        """Error, offset and timestamp."""
        api = "list_offsets"
        place = part(api, "ListOffsetsPartition", timestamp=timestamp)
        named = part(api, "ListOffsetsTopic", name=topic, partitions=[place])
        asked = request(api, replica_id=-1, topics=[named], timeout_ms=2000)
        (answer,) = self.side.call(api, 10, asked).topics[0].partitions
        return answer.error_code, answer.offset, answer.timestamp

    def look_up(self, topic: str, at_ms: int, counts: Counter[str]) -> tuple[int, int, int]:
        """As `offset_of`, again where the answer is a time-out."""
        for _ in range(TIMED_OUT_MAX):
            found = self.offset_of(topic, at_ms)
            if found[0] != REQUEST_TIMED_OUT:
                break
            counts[TIMED_OUT] += 1
        return found

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
        self.sequence = self.step = 0
        self.stamps: list[int] = []
        """By offset: the records' times."""
        self.now_ms = int(time.time() * 1000)
        self.changed_at = 0.0
        """When the last step was taken."""
        self.retention_bytes = -1
        self.local_limits: dict[str, str] = {}
        self.is_rolled_by_rounds = False
        """Whether batches were produced that a round of retention finds past the local limits."""
        self.changes: list[Call] = []
        """What was asked before, but for produced batches."""

    def calls(self) -> Iterator[Call]:
        """Of the next step; each is to be learned before the next one is asked for."""
        self.step += 1
        if self.step == 1 or self.rng.random() < 0.5:
            for _ in range(self.rng.randrange(1, 30)):
                yield self._produce()
        else:
            self.changes.append(self._change())
            yield self.changes[-1]

    def _change(self) -> Call:
        kind = self.rng.choice(("delete", "retention.ms", "retention.bytes", "local", "local"))
        if kind == "delete":
            offset = self.rng.choice(
                (-1, *(self.rng.randrange(len(self.stamps) + 2) for _ in range(4)))
            )
            return DeleteRecords(2, self.topic, 0, offset)
        if kind == "local":
            kind = self.rng.choice(("local.retention.ms", "local.retention.bytes"))
        value = self._age() if kind.endswith("ms") else self._size()
        if value == AS_WHOLE and not kind.startswith("local"):
            value = NO_LIMIT
        return AlterConfig(1, self.topic, kind, value, 0)

    def _age(self) -> str:
        """Between the times of two steps, far from both."""
        return self.rng.choice(
            (NO_LIMIT, AS_WHOLE, *(str(self._at(n) + HOUR_MS // 2) for n in range(STEPS)))
        )

    def _at(self, step: int) -> int:
        """How long ago the records of a step are made."""
        return (STEPS - step) * HOUR_MS

    def _size(self) -> str:
        return self.rng.choice(
            (NO_LIMIT, AS_WHOLE, "1", str(self.rng.randrange(SEGMENT_BYTES * 6)))
        )

    def _produce(self) -> Call:
        at_ms = self.now_ms - self._at(self.step)
        producer = None
        if self.rng.random() < 0.5:
            producer = BatchProducer(2_000_000 + self.seed, 0, self.sequence)
        large = self.rng.choice((None, None, 3000, 12_000))
        data = batch(self.rng, producer, self.rng.randrange(1, 20), large, at_ms)
        return Produce(9, self.topic, 0, "plain", data)

    def learn(self, call: Call, seen: Seen) -> None:
        """A batch that is larger than a segment is refused: what follows must not build on it."""
        if seen.get("error") != 0:
            return
        if isinstance(call, AlterConfig) and call.name == "retention.bytes":
            self.retention_bytes = int(call.value or NO_LIMIT)
        if isinstance(call, AlterConfig) and call.name.startswith("local"):
            self.local_limits[call.name] = call.value or AS_WHOLE
        if isinstance(call, Produce):
            self.is_rolled_by_rounds |= any(int(one) >= 0 for one in self.local_limits.values())
            for found in scan(call.data or b""):
                records = decode(found.view)
                self.stamps += [record[1] for record in records]
                if found.header.producer_id >= 0:
                    self.sequence += len(records)

    def first_at(self, at_ms: int, start: int) -> tuple[int, int, int]:
        """What a look-up by time has to answer."""
        for offset in range(start, len(self.stamps)):
            if self.stamps[offset] >= at_ms:
                return 0, offset, self.stamps[offset]
        return 0, -1, -1

    def look_ups(self) -> list[int]:
        """Times between those of steps, and such as are close to a record's."""
        hours = [self.now_ms - self.rng.randrange(STEPS * HOUR_MS) for _ in range(LOOK_UPS // 2)]
        close = self.rng.choices(self.stamps or [self.now_ms], k=LOOK_UPS - len(hours))
        return [*hours, *(at_ms + self.rng.randrange(-2, 3) for at_ms in close)]


def settled(seen: Seen) -> bool:
    """Whether every closed segment is in the remote tier."""
    return set(seen["local"][:-1]) <= set(seen["remote"])


def emptied(kafka: Seen, node: Seen) -> bool:
    """Whether the sides differ by an active segment alone of which nothing is left."""
    (_, end, _), (_, start, _) = kafka["special"][:2]
    is_alike = all(kafka["special"][n] == node["special"][n] for n in (0, 1, 3))
    is_kept = len(kafka["local"]) == 1 and node["local"] == [end]
    return start == end and is_alike and is_kept and kafka["remote"] == node["remote"]


def has_largest_below(kafka: Seen) -> bool:
    """Whether Kafka's answer to -3 is a record below the log's start."""
    start, largest = kafka["special"][1][1], kafka["special"][2][1]
    return bool(-1 < largest < start)


def has_over_deleted(sides: Sequence[TieringSide], sequence: TieringSequence) -> bool:
    """Whether Kafka lacks segments that are the node's oldest, and that retention.bytes lets be."""
    kafka, node = (side.sizes(sequence.topic) for side in sides)
    is_part = kafka.items() < node.items() and min(kafka) > min(node)
    excess = sum(node.values()) - sequence.retention_bytes
    return is_part and sequence.retention_bytes >= 0 and excess < node[min(node)]


def has_rolled_elsewhere(kafka: Seen, node: Seen, sequence: TieringSequence) -> bool:
    """Whether the sides differ in nothing but where some of the segments between end."""
    is_alike = all(kafka[name] == node[name] for name in ("local", "special"))
    ends = [min(side["remote"], default=-1) for side in (kafka, node)]
    return sequence.is_rolled_by_rounds and is_alike and ends[0] == ends[1]


def await_same(
    sides: Sequence[TieringSide], sequence: TieringSequence, counts: Counter[str]
) -> str | None:
    """Why the tiers are not the same on both sides, when the time is over. What both are before
    they have had their time to act is not compared."""
    calm_at = sequence.changed_at + CALM_S
    give_up_at = max(time.monotonic(), calm_at) + SETTLED_S_MAX
    while True:
        kafka, node = (side.tiers(sequence.topic) for side in sides)
        is_calm = time.monotonic() >= calm_at
        has_largest = kafka != node and has_largest_below(kafka)
        if has_largest:
            kafka["special"][2] = node["special"][2]
        if is_calm and kafka == node and settled(kafka):
            counts[LARGEST] += has_largest
            return None
        if is_calm and emptied(kafka, node):
            return EMPTIED
        if time.monotonic() > give_up_at:
            if has_over_deleted(sides, sequence):
                return OVER_DELETED
            if has_rolled_elsewhere(kafka, node, sequence):
                return ROLLED
            return f"tiers: kafka {kafka}, node {node}"
        time.sleep(0.1)


def take_step(
    sides: Sequence[TieringSide], sequence: TieringSequence, counts: Counter[str]
) -> str | None:
    """Why both sides answer the calls of the next step differently."""
    for call in sequence.calls():
        kafka, node = (call.on(side.side) for side in sides)
        for side, seen in zip(sides, (kafka, node), strict=True):
            call.wait_until_seen(side.side, seen)
        for seen in (kafka, node):
            # Of produced batches: it depends on when each side deletes what it has to.
            seen.pop("start", None)
        if kafka != node:
            return f"step {sequence.step}, {call}: kafka {kafka}, node {node}"
        sequence.learn(call, kafka)
    sequence.changed_at = time.monotonic()
    return None


def compare(
    sides: Sequence[TieringSide], sequence: TieringSequence, counts: Counter[str]
) -> str | None:
    """Why the two sides are not the same; it waits until both have moved what they will."""
    topic, where = sequence.topic, f"step {sequence.step}"
    different = await_same(sides, sequence, counts)
    if different in KNOWN:
        return different
    if different is not None:
        return f"{where}, {different}"
    different = (
        _compare_look_ups(sides, sequence, counts, where)
        or _compare_below(sides, topic, where)
        or _compare_batches(sides, topic, where)
    )
    if different is None:
        special = sides[0].tiers(topic)["special"]
        counts[STATES] += 1
        counts[TWO_TIERS] += special[1][1] < special[3][1]
    return different


def _compare_look_ups(
    sides: Sequence[TieringSide], sequence: TieringSequence, counts: Counter[str], where: str
) -> str | None:
    kafka_side, node_side = sides
    tiers = kafka_side.tiers(sequence.topic)
    start, first = tiers["special"][1][1], min(tiers["local"] + tiers["remote"])
    for at_ms in sequence.look_ups():
        wanted = sequence.first_at(at_ms, start)
        kafka = kafka_side.look_up(sequence.topic, at_ms, counts)
        node = node_side.offset_of(sequence.topic, at_ms)
        is_late = kafka[0] == 0 and (kafka[1] == -1 or kafka[1] > wanted[1])
        if node == wanted != kafka and is_late and first < start:
            counts[BELOW_START] += 1
        elif not kafka == node == wanted:
            return f"{where}, look-up of {at_ms}: kafka {kafka}, node {node}, right {wanted}"
    return None


def _compare_below(sides: Sequence[TieringSide], topic: str, where: str) -> str | None:
    below = Fetch(12, topic, 0, sides[0].offset_of(topic, -2)[1] - 1, 1000, 0)
    kafka, node = (below.on(side.side).get("error") for side in sides)
    return None if kafka == node else f"{where}, below the start: kafka {kafka}, node {node}"


def _compare_batches(sides: Sequence[TieringSide], topic: str, where: str) -> str | None:
    kafka, node = (list(side.batches(topic)) for side in sides)
    if kafka == node:
        return None
    odd = [pair for pair in zip(kafka, node, strict=False) if pair[0] != pair[1]]
    return f"{where}, {len(kafka)} and {len(node)} batches; the first that differ: {odd[:1]}"


def run_round(
    sides: Sequence[TieringSide], sequences: Sequence[TieringSequence], counts: Counter[str]
) -> list[str]:
    """The differences. A sequence ends with its first, or where segments are known to differ from
    then on."""
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
                different = work(sides, sequence, counts)
                if different is None:
                    continue
                going.remove(sequence)
                if different in KNOWN:
                    counts[different] += 1
                else:
                    found.append(f"{sequence.topic}: {different}; after {sequence.changes}")
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
    differ, began, counts = 0, time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as place, ExitStack() as built:
        sides = _sides(Path(place), built)
        for first in range(given.first, given.first + given.sequences, AT_ONCE):
            last = min(first + AT_ONCE, given.first + given.sequences)
            sequences = [TieringSequence(seed) for seed in range(first, last)]
            differ += len(run_round(sides, sequences, counts))
            seconds = time.monotonic() - began
            print(
                f"{last - given.first} sequences, {differ} differ, {seconds:.0f} s; {dict(counts)}",
                flush=True,
            )
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
