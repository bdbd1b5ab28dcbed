"""Seeded sequences of calls, made one by one from what Kafka answered to those before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlog.codec.batch import BatchProducer, parse_header
from tests.kafka_clients.differential.batches import BAD, BASE_MS, SPAN_MS, batch
from tests.kafka_clients.differential.calls import (
    AlterConfig,
    Call,
    CreatePartitions,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    DescribeConfigs,
    Fetch,
    ListOffsets,
    Metadata,
    Produce,
    ReplaceConfigs,
)
from tests.kafka_clients.differential.known import UNEVEN, explained
from tests.kafka_clients.differential.side import Seen, Side

CONFIGS = {
    "max.message.bytes": ("100", "1000", "1048588", "-1", "many"),
    "retention.ms": ("-1", "604800001", "-2", "soon"),
    "retention.bytes": ("-1", "1000000000", "1.5"),
    "segment.bytes": ("1048576", "2000000", "7"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "Whenever"),
    "no.such.setting": ("1",),
}
"""Settings and values, good and bad."""
IDEMPOTENT = ("next", "next", "next", "again", "gap", "old epoch", "new epoch")
"""Kinds of batches of an idempotent producer, as often as each is chosen."""
UNKNOWN_TOPIC_OR_PARTITION = 3


class Difference(NamedTuple):
    """The first call whose answers differ, and those before it."""

    seed: int
    number: int
    call: Call
    kafka: Seen
    node: Seen
    before: list[Call]

    def __str__(self) -> str:
        about = [call for call in self.before if call.topic == self.call.topic]
        history = "\n".join(f"    {call}" for call in about[-8:])
        return (
            f"seed {self.seed}, call {self.number}: {self.call}\n  kafka: {self.kafka}\n"
            f"  node:  {self.node}\n  after:\n{history}"
        )


@dataclass
class Partition:
    """What a partition holds, as Kafka said."""

    end: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    """The next sequence number of each producer."""
    last: dict[int, bytes] = field(default_factory=dict)
    """The last batch of each producer."""


class Sequence:
    """Makes calls from a seed, and learns from Kafka's answers what may come next."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._prefix = f"diff-{seed}"
        self._topics: dict[str, list[Partition]] = {}
        self._producers = [seed * 1000 + number for number in range(3)]
        """Chosen here, not given by a broker: batches have to be the same on both sides."""
        self._epochs = dict.fromkeys(self._producers, 0)
        self._awaited: set[tuple[str, int, int]] = set()
        """(topic, partition, producer) of batches that found no partition: no gap follows them."""
        self._choices: list[tuple[int, Callable[[], Call]]] = [
            (40, self._produce),
            (25, self._fetch),
            (12, self._list_offsets),
            (4, self._delete_records),
            (4, self._create_topic),
            (1, self._delete_topic),
            (2, self._create_partitions),
            (4, self._alter_config),
            (1, self._replace_configs),
            (3, self._describe_configs),
            (3, self._metadata),
        ]

    def calls(self, count: int) -> Iterator[Call]:
        """At first a topic, so that there is something to call about."""
        yield CreateTopic(7, f"{self._prefix}-0", 2, ())
        weights = [weight for weight, _ in self._choices]
        for _ in range(count - 1):
            (make,) = self._rng.choices([make for _, make in self._choices], weights)
            yield make()

    def last_calls(self) -> Iterator[Call]:
        """Removes what the sequence made."""
        for topic in list(self._topics):
            yield DeleteTopic(6, topic)

    def learn(self, call: Call, seen: Seen) -> None:
        """Takes over what Kafka's answer says about its state."""
        error = seen.get("error")
        if error == UNKNOWN_TOPIC_OR_PARTITION and isinstance(call, Produce):
            if call.kind in IDEMPOTENT and call.data:
                producer = parse_header(call.data).producer_id
                self._awaited.add((call.topic, call.partition, producer))
            return
        if error != 0:
            return
        if isinstance(call, CreateTopic) and not call.validate_only:
            count = 1 if call.partitions == -1 else call.partitions
            self._topics[call.topic] = [Partition() for _ in range(count)]
        elif isinstance(call, DeleteTopic):
            del self._topics[call.topic]
        elif isinstance(call, CreatePartitions):
            partitions = self._topics[call.topic]
            partitions += [Partition() for _ in range(call.count - len(partitions))]
        elif isinstance(call, Produce) and call.data:
            self._learn_batch(call, call.data, seen)

    def _learn_batch(self, call: Produce, data: bytes, seen: Seen) -> None:
        partition = self._topics[call.topic][call.partition]
        header = parse_header(data)
        if seen["offset"] < partition.end:
            return
        partition.end = seen["offset"] + header.last_offset_delta + 1
        if header.producer_id in self._epochs:
            partition.sequences[header.producer_id] = (
                header.base_sequence + header.last_offset_delta + 1
            )
            partition.last[header.producer_id] = data

    # ---- one call each

    def _topic(self) -> str:
        """Mostly one that exists."""
        if self._topics and self._rng.random() < 0.95:
            return self._rng.choice(list(self._topics))
        return f"{self._prefix}-{self._rng.choice((0, 1, 2, 'never'))}"

    def _place(self) -> tuple[str, int, Partition]:
        """Mostly a partition that exists."""
        topic = self._topic()
        partitions = self._topics.get(topic, [])
        number = self._rng.randrange(len(partitions) + (self._rng.random() < 0.05) or 1)
        found = partitions[number] if number < len(partitions) else Partition()
        return topic, number, found

    def _version(self, first: int, last: int) -> int:
        return self._rng.choice((first, last, self._rng.randint(first, last)))

    def _produce(self) -> Call:
        topic, number, partition = self._place()
        rng = self._rng
        version, kind = self._version(3, 13), rng.choice(("plain", "plain", "idempotent", "bad"))
        if kind == "plain":
            return Produce(version, topic, number, kind, batch(rng), rng.choice((1, -1, -1)))
        if kind == "bad":
            kind = rng.choice([*(kind for kind in BAD if kind not in UNEVEN), "acks 5"])
            if kind == "acks 5":
                return Produce(version, topic, number, kind, batch(rng), 5)
            return Produce(version, topic, number, kind, BAD[kind](rng, batch(rng)))
        kind, data = self._idempotent(topic, number, partition)
        return Produce(version, topic, number, kind, data)

    def _idempotent(self, topic: str, number: int, partition: Partition) -> tuple[str, bytes]:
        rng = self._rng
        producer = rng.choice(self._producers)
        epoch, following = self._epochs[producer], partition.sequences.get(producer, 0)
        kind = rng.choice(IDEMPOTENT)
        if kind == "gap" and (topic, number, producer) in self._awaited:
            kind = "next"
        if kind == "again" and producer in partition.last:
            return kind, partition.last[producer]
        if kind == "gap":
            return kind, batch(rng, BatchProducer(producer, epoch, following + 7))
        if kind == "old epoch" and epoch > 0:
            return kind, batch(rng, BatchProducer(producer, epoch - 1, following))
        if kind == "new epoch":
            self._epochs[producer] += 1
            for partitions in self._topics.values():
                for one in partitions:
                    one.sequences.pop(producer, None)
                    one.last.pop(producer, None)
            return kind, batch(rng, BatchProducer(producer, epoch + 1, 0))
        return "next", batch(rng, BatchProducer(producer, epoch, following))

    def _offset(self, partition: Partition) -> int:
        rng = self._rng
        return rng.choice((0, partition.end, rng.randrange(-1, partition.end + 2)))

    def _fetch(self) -> Call:
        topic, number, partition = self._place()
        size = self._rng.choice((1, 500, 5000, 1 << 20))
        isolation = self._rng.choice((0, 1))
        offset = self._offset(partition)
        return Fetch(self._version(4, 18), topic, number, offset, size, isolation)

    def _list_offsets(self) -> Call:
        topic, number, _ = self._place()
        version = self._version(1, 10)
        named = [-1, -2, *([-3] if version >= 7 else []), *([-4] if version >= 8 else [])]
        stamp = self._rng.choice([*named, BASE_MS + self._rng.randrange(-10, SPAN_MS + 10)])
        isolation = self._rng.choice((0, 1)) if version >= 2 else 0
        return ListOffsets(version, topic, number, stamp, isolation)

    def _delete_records(self) -> Call:
        topic, number, partition = self._place()
        offset = self._rng.choice((-1, self._offset(partition), self._offset(partition) // 2))
        return DeleteRecords(self._version(0, 2), topic, number, offset)

    def _create_topic(self) -> Call:
        rng, configs = self._rng, []
        name = f"{self._prefix}-{rng.choice((0, 1, 2))}"
        if rng.random() < 0.3:
            name = rng.choice(("", ".", "..", "a/b", "a" * 250, f"{self._prefix}_0", "ü"))
        if rng.random() < 0.5:
            setting = rng.choice(list(CONFIGS))
            configs = [(setting, rng.choice(CONFIGS[setting]))]
        partitions = rng.choice((1, 2, 3, 3, 0, -2, -1))
        version = self._version(2, 7)
        if partitions == -1 and version < 4:
            partitions = 1
        check = rng.random() < 0.1
        return CreateTopic(version, name, partitions, tuple(configs), 1, check)

    def _delete_topic(self) -> Call:
        return DeleteTopic(self._version(1, 6), self._topic())

    def _create_partitions(self) -> Call:
        topic = self._topic()
        count = len(self._topics.get(topic, [])) + self._rng.choice((-1, 0, 1, 2))
        return CreatePartitions(self._version(0, 3), topic, count)

    def _alter_config(self) -> Call:
        name = self._rng.choice(list(CONFIGS))
        operation = self._rng.choice((0, 0, 0, 1, 2))
        value = None if operation == 1 else self._rng.choice(CONFIGS[name])
        check = self._rng.random() < 0.1
        return AlterConfig(self._version(0, 1), self._topic(), name, value, operation, check)

    def _replace_configs(self) -> Call:
        name = self._rng.choice(list(CONFIGS))
        configs = ((name, self._rng.choice(CONFIGS[name])),)
        return ReplaceConfigs(self._version(0, 2), self._topic(), configs)

    def _describe_configs(self) -> Call:
        return DescribeConfigs(self._version(1, 4), self._topic(), tuple(CONFIGS))

    def _metadata(self) -> Call:
        version = self._version(4, 13)
        return Metadata(version, self._topic())


def run(
    seed: int, calls: int, kafka: Side, node: Side, let_pass: Counter[str]
) -> Difference | None:
    """Runs one sequence; `let_pass` counts what `known` explained."""
    sequence, before = Sequence(seed), list[Call]()
    for number, call in enumerate(sequence.calls(calls)):
        wanted, seen = call.on(kafka), call.on(node)
        call.wait_until_seen(kafka, wanted)
        if wanted != seen:
            reason = explained(call, wanted, seen)
            if reason is None:
                return Difference(seed, number, call, wanted, seen, before)
            let_pass[reason.what] += 1
        call.wait_until_seen(node, seen)
        sequence.learn(call, wanted)
        before.append(call)
    for call in sequence.last_calls():
        for side in (kafka, node):
            call.on(side)
    return None
