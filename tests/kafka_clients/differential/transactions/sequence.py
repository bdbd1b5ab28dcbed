"""Seeded sequences of transactional calls, made one by one from what Kafka answered before."""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from streamlog.codec.batch import CRC_START, TRANSACTIONAL, parse_header, resealed
from tests.kafka_clients.differential.batches import BASE_MS, SPAN_MS, batch
from tests.kafka_clients.differential.calls import CreateTopic, DeleteTopic
from tests.kafka_clients.differential.side import Seen
from tests.kafka_clients.differential.transactions.calls import (
    ADD_MANY,
    NO_PAIR,
    PARTITIONS,
    Adding,
    AddPartitions,
    Call,
    DeleteRecords,
    DescribeProducers,
    DescribeTransaction,
    EndTxn,
    Fetch,
    InitProducerId,
    ListOffsets,
    ListTransactions,
    Pair,
    Place,
    Produce,
    ReadAll,
    WriteMarkers,
)
from tests.kafka_clients.differential.transactions.known import explained
from tests.kafka_clients.differential.transactions.side import STRANGER, TransactionalSide
from tests.kafka_clients.differential.transactions.state import Partition, Transactional

TRANSACTION_TIMEOUT_MS = 600_000
"""No transaction is open for so long: time-outs have tests of their own."""
TOO_LONG_MS = 900_001
AN_HOUR_MS = 3_600_000
IDS = 3
TOPICS = 2
END_BUMPS = 5
PRODUCE_ADDS = 12
"""The first versions of EndTxn and Produce that are those of version 2."""
NEVER_MADE = PARTITIONS
"""A partition that no topic has."""
RECENT_MS = 60_000
LARGE_BYTES = 300_000
"""A few values of this size fill a segment."""
SEGMENT_BYTES = "1048576"
PRODUCE_KINDS = (
    *("good",) * 12,
    *("again", "gap", "old epoch", "next epoch", "not added", "plain", "idempotent"),
    *("no transactional bit", "other id", "no id", "unknown id", "stranger"),
)
"""Kinds of batches, as often as each is chosen."""
NAMES = ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "CompleteAbort", "Dead", "Nothing")


class Difference(NamedTuple):
    """The first call whose answers differ, and those before it."""

    seed: int
    number: int
    call: Call
    kafka: Seen
    node: Seen
    before: list[Call]

    def __str__(self) -> str:
        history = "\n".join(f"    {call}" for call in self.before[-12:])
        names = sorted(self.kafka.keys() | self.node.keys())
        differing = [name for name in names if self.kafka.get(name) != self.node.get(name)]
        parts = "\n".join(
            f"  {name}\n    kafka: {self.kafka.get(name)}\n    node:  {self.node.get(name)}"
            for name in differing
        )
        return f"seed {self.seed}, call {self.number}: {self.call}\n{parts}\n  after:\n{history}"


def transactional(data: bytes) -> bytes:
    """The batch as part of a transaction."""
    copy = bytearray(data)
    (attributes,) = struct.unpack_from(">h", copy, CRC_START)
    struct.pack_into(">h", copy, CRC_START, attributes | TRANSACTIONAL)
    return bytes(resealed(copy))


class Sequence:
    """Makes calls from a seed, and learns from Kafka's answers what may come next.

    `version` is that of Kafka's transactions: with 2 it does more as a node does.
    """

    def __init__(self, seed: int, now_ms: int, version: int = 1) -> None:
        self._rng = random.Random(seed)
        self._is_version_2 = version > 1
        self._prefix = f"txn-{seed}-"
        self.topics = [f"txn-diff-{seed}-{number}" for number in range(TOPICS)]
        self._ids = [Transactional(f"{self._prefix}{number}") for number in range(IDS)]
        for one in self._ids if version > 1 else ():
            one.is_version_2 = self._rng.random() < 0.5
        self._idempotent: list[Pair] = []
        self._partitions = {
            Place(topic, number): Partition()
            for topic in self.topics
            for number in range(PARTITIONS)
        }
        # Where all write to one partition, transactions overlap as much as they can.
        self._is_narrow = self._rng.random() < 0.3
        self._is_large = self._rng.random() < 0.2
        # Markers have the brokers' time: beside old records they begin a segment, by `segment.ms`.
        self._base_ms = BASE_MS if self._rng.random() < 0.4 else now_ms - RECENT_MS
        self._choices: list[tuple[int, Callable[[], Call]]] = [
            (34, self._produce),
            (10, self._add),
            (13, self._end),
            (4, self._init),
            (3, self._markers),
            (3, self._describe),
            (2, self._list),
            (3, self._producers),
            (18, self._fetch),
            (8, self._list_offsets),
            (3, self._delete_records),
        ]

    def topics_made(self) -> list[CreateTopic]:
        configs = (("segment.bytes", SEGMENT_BYTES),) if self._is_large else ()
        return [CreateTopic(7, topic, PARTITIONS, configs) for topic in self.topics]

    def topics_removed(self) -> list[DeleteTopic]:
        return [DeleteTopic(6, topic) for topic in self.topics]

    @property
    def ids(self) -> list[str]:
        return [one.name for one in self._ids]

    @property
    def coordinated(self) -> str:
        return self._ids[0].name

    def calls(self, count: int) -> Iterator[Call]:
        yield self._fresh(self._ids[0])
        weights = [weight for weight, _ in self._choices]
        for _ in range(count - 1):
            (make,) = self._rng.choices([make for _, make in self._choices], weights)
            yield make()
        yield from self._whole_logs()

    def _whole_logs(self) -> Iterator[Call]:
        for place in self._partitions:
            yield DescribeProducers(*place)
            yield ReadAll(*place, 0)
            yield ReadAll(*place, 1)

    def learn(self, call: Call, seen: Seen) -> None:
        """Takes over what Kafka's answer says about its state."""
        if isinstance(call, AddPartitions):
            self._learn_added(call, seen)
        elif isinstance(call, WriteMarkers):
            self._learn_markers(call, seen)
        elif seen.get("error") != 0:
            if isinstance(call, Produce) and call.transactional_id is not None:
                place = Place(call.topic, call.partition)
                self._partitions[place].attempted(call.pair, call.sequence)
        elif isinstance(call, InitProducerId):
            self._learn_pair(call, Pair(seen["producer"], seen["epoch"]))
        elif isinstance(call, Produce):
            self._learn_batch(call, seen["offset"])
        elif isinstance(call, EndTxn):
            one = self._id(call.transactional_id)
            self._ended(one)
            if seen["epoch"] >= 0:
                one.give(Pair(seen["producer"], seen["epoch"]))

    def _id(self, name: str) -> Transactional:
        return next(one for one in self._ids if one.name == name)

    def _learn_pair(self, call: InitProducerId, pair: Pair) -> None:
        if call.transactional_id is None:
            self._idempotent.append(pair)
        else:
            one = self._id(call.transactional_id)
            self._ended(one)
            one.give(pair)

    def _learn_added(self, call: AddPartitions, seen: Seen) -> None:
        results = (
            seen.get("transactions", [])
            if call.version >= ADD_MANY
            else [(call.transactions[0].transactional_id, seen.get("errors", []))]
        )
        verified = {one.transactional_id for one in call.transactions if one.verify_only}
        for name, errors in results:
            for topic, number, error in errors:
                if error == 0 and name not in verified:
                    self._id(name).is_open = True
                    self._id(name).added.add(Place(topic, number))

    def _learn_markers(self, call: WriteMarkers, seen: Seen) -> None:
        for _, results in seen.get("markers", ()):
            for topic, number, error in results:
                if error == 0:
                    self._partitions[Place(topic, number)].marked(call.pair.producer)

    def _ended(self, one: Transactional) -> None:
        """Markers were written to the partitions of its transaction."""
        for place in one.added:
            self._partitions[place].marked(one.pair.producer)
        one.end()

    def _learn_batch(self, call: Produce, offset: int) -> None:
        place = Place(call.topic, call.partition)
        partition = self._partitions[place]
        if offset < partition.end:
            partition.attempted(call.pair, call.sequence)
            return
        if parse_header(call.data).attributes & TRANSACTIONAL:
            partition.begin(call.pair)
            if call.version >= PRODUCE_ADDS:
                one = next(one for one in self._ids if one.pair.producer == call.pair.producer)
                one.is_open = True
                one.added.add(place)
        last_delta = parse_header(call.data).last_offset_delta
        partition.end = offset + last_delta + 1
        partition.following[call.pair] = call.sequence + last_delta + 1
        partition.last[call.pair] = (call.sequence, call.data)

    # ---- one call each

    def _one(self) -> Transactional:
        return self._rng.choice(self._ids)

    def _place(self) -> Place:
        if self._is_narrow:
            return Place(self.topics[0], 0)
        return self._rng.choice(list(self._partitions))

    def _version(self, first: int, last: int) -> int:
        return self._rng.choice((first, last, self._rng.randint(first, last)))

    def _pair(self, one: Transactional) -> Pair:
        """Mostly the newest one."""
        kind = self._rng.choice((*("newest",) * 6, "older", "next", "other", "stranger"))
        newest = one.pair
        if kind == "older":
            return self._rng.choice(one.pairs or [newest])
        if kind == "next":
            return Pair(newest.producer, newest.epoch + 1)
        if kind == "other":
            return self._one().pair
        return Pair(STRANGER + 7, 0) if kind == "stranger" else newest

    def _fresh(self, one: Transactional) -> InitProducerId:
        version = self._version(0, 5)
        return InitProducerId(self.topics[0], version, one.name, TRANSACTION_TIMEOUT_MS)

    def _init(self) -> Call:
        rng, one = self._rng, self._one()
        kind = rng.choice(("new", "new", "expected", "expected", "stale", "idempotent", "bad"))
        topic, version = self.topics[0], self._version(3, 5)
        if kind == "idempotent":
            return InitProducerId(topic, self._version(0, 5), None, TRANSACTION_TIMEOUT_MS)
        if kind == "bad":
            timeout_ms = rng.choice((0, -1, TOO_LONG_MS))
            return InitProducerId(topic, version, rng.choice((one.name, "")), timeout_ms)
        if kind == "expected" and one.pairs and (self._is_version_2 or not one.is_open):
            return InitProducerId(topic, version, one.name, TRANSACTION_TIMEOUT_MS, one.pair)
        if kind == "stale" and one.pairs and not one.is_open:
            pair = self._pair(one)
            return InitProducerId(topic, version, one.name, TRANSACTION_TIMEOUT_MS, pair)
        return self._fresh(one)

    def _add(self) -> Call:
        one = self._one()
        if not one.pairs and self._rng.random() < 0.8:
            return self._fresh(one)
        version = self._version(0, 5)
        if version < ADD_MANY:
            return AddPartitions(self.topics[0], version, (self._adding(one),))
        several = self._rng.sample(self._ids, self._rng.choice((1, 1, 2)))
        asked = tuple(self._adding(each, is_maybe_verified=True) for each in several)
        return AddPartitions(self.topics[0], version, asked)

    def _adding(self, one: Transactional, *, is_maybe_verified: bool = False) -> Adding:
        places = {self._place() for _ in range(self._rng.choice((1, 1, 2, 3)))}
        if self._rng.random() < 0.05:
            places.add(Place(self.topics[0], NEVER_MADE))
        verify_only = is_maybe_verified and self._rng.random() < 0.5
        return Adding(one.name, self._pair(one), tuple(sorted(places)), verify_only)

    def _end(self) -> Call:
        opened = [one for one in self._ids if one.is_open]
        one = self._rng.choice(opened) if opened and self._rng.random() < 0.8 else self._one()
        if not one.pairs and self._rng.random() < 0.8:
            return self._fresh(one)
        is_commit = self._rng.random() < 0.5
        version = self._version(0, 4)
        if one.is_version_2 and self._rng.random() < 0.9:
            version = END_BUMPS
        return EndTxn(self.topics[0], version, one.name, self._pair(one), is_commit)

    def _produce(self) -> Call:
        rng, one = self._rng, self._one()
        if not one.pairs:
            return self._fresh(one)
        kind = rng.choice(PRODUCE_KINDS)
        if kind in ("plain", "idempotent"):
            return self._not_transactional(kind)
        place = self._place()
        if kind not in ("not added", "again") and not one.is_version_2 and rng.random() < 0.95:
            if not one.added:
                added = Adding(one.name, one.pair, (place,))
                return AddPartitions(self.topics[0], self._version(0, 3), (added,))
            place = rng.choice(sorted(one.added))
        made = self._batch(kind, one, place)
        is_known = self._partitions[place].is_known(made.pair, made.sequence)
        return made if is_known else self._fetch()

    def _not_transactional(self, kind: str) -> Call:
        place = self._place()
        pair = self._rng.choice(self._idempotent) if self._idempotent else NO_PAIR
        if kind == "plain":
            pair = NO_PAIR
        following = self._partitions[place].following.get(pair, 0)
        sequence = -1 if pair == NO_PAIR else following
        version = self._version(3, 11)
        data = self._data()
        return Produce(place.topic, version, place.partition, kind, None, pair, sequence, data)

    def _batch(self, kind: str, one: Transactional, place: Place) -> Produce:
        """`known` says which kinds brokers are known to take differently, and are left out."""
        pair, name, data = one.pair, one.name, transactional(self._data())
        partition = self._partitions[place]
        if pair.producer in partition.asked and kind in ("other id", "unknown id"):
            kind = "good"
        sequence = partition.following.get(pair, 0)
        if kind == "again" and pair in partition.last:
            sequence, data = partition.last[pair]
        elif kind == "gap":
            sequence += 7
        elif kind == "old epoch" and len(one.pairs) > 1:
            pair = one.pairs[-2]
            sequence = partition.following.get(pair, 0)
        elif kind == "next epoch":
            pair, sequence = Pair(pair.producer, pair.epoch + 1), 0
        elif kind == "no transactional bit":
            data = self._data()
        elif kind == "stranger":
            pair, sequence = Pair(STRANGER + 9, 0), 0
        given: str | None = name
        if kind == "other id":
            given = self._one().name
        elif kind == "no id":
            given = None
        elif kind == "unknown id":
            given = f"{self._prefix}never"
        version = self._version(3, 11)
        if one.is_version_2 and self._rng.random() < 0.9:
            version = self._rng.choice((PRODUCE_ADDS, PRODUCE_ADDS + 1))
            if pair not in partition.begun:
                sequence = 0
        return Produce(place.topic, version, place.partition, kind, given, pair, sequence, data)

    def _data(self) -> bytes:
        large = LARGE_BYTES if self._is_large and self._rng.random() < 0.4 else None
        return batch(self._rng, large_value=large, base_ms=self._base_ms)

    def _markers(self) -> Call:
        """By no coordinator that is newer than the real one: that one could then end nothing."""
        known = [pair for one in self._ids for pair in one.pairs]
        made_up = [*self._idempotent, Pair(STRANGER + 11, self._rng.choice((0, 1)))]
        pair = self._rng.choice(known if known and self._rng.random() < 0.6 else made_up)
        epoch = self._rng.choice((-1, 0)) if pair in known else self._rng.choice((0, 3, 5))
        place = self._place()
        partitions = self._rng.choice(((place.partition,), (0, 1), (0, NEVER_MADE)))
        return WriteMarkers(place.topic, pair, self._rng.random() < 0.5, epoch, partitions)

    def _describe(self) -> Call:
        name = self._rng.choice((*(one.name for one in self._ids), f"{self._prefix}never"))
        return DescribeTransaction(self.topics[0], name)

    def _list(self) -> Call:
        rng, version = self._rng, self._version(0, 2)
        states = tuple(rng.sample(NAMES, rng.choice((0, 0, 1, 2))))
        pairs = [pair.producer for one in self._ids for pair in one.pairs]
        producers = tuple(rng.sample(pairs, min(len(pairs), rng.choice((0, 0, 1)))))
        open_for_ms = rng.choice((-1, -1, AN_HOUR_MS)) if version >= 1 else -1
        patterns = (None, None, "", f"{self._prefix}[01]", "txn", ".*", "(")
        pattern = rng.choice(patterns) if version >= 2 else None
        return ListTransactions(
            self.topics[0], version, self._prefix, states, producers, open_for_ms, pattern
        )

    def _producers(self) -> Call:
        return DescribeProducers(*self._place())

    def _offset(self, place: Place) -> int:
        end = self._partitions[place].end
        return self._rng.choice((0, end, self._rng.randrange(-1, end + 3)))

    def _fetch(self) -> Call:
        rng, place = self._rng, self._place()
        size = rng.choice((1, 500, 5000, 1 << 20))
        isolation = rng.choice((0, 1, 1))
        version = self._version(4, 18)
        return Fetch(place.topic, version, place.partition, self._offset(place), size, isolation)

    def _list_offsets(self) -> Call:
        place, version = self._place(), self._version(2, 10)
        named = [-1, -1, -2, *([-3] if version >= 7 else []), *([-4] if version >= 8 else [])]
        by_time = self._base_ms + self._rng.randrange(-10, SPAN_MS + 10)
        stamp = self._rng.choice([*named, by_time, by_time])
        isolation = self._rng.choice((0, 1, 1))
        latest_ms = self._base_ms + SPAN_MS
        return ListOffsets(place.topic, version, place.partition, stamp, isolation, latest_ms)

    def _delete_records(self) -> Call:
        place = self._place()
        offset = self._rng.choice((-1, self._offset(place), self._offset(place) // 2))
        return DeleteRecords(place.topic, self._version(0, 2), place.partition, offset)


def run(
    seed: int,
    calls: int,
    kafka: TransactionalSide,
    node: TransactionalSide,
    let_pass: Counter[str],
    version: int = 1,
) -> Difference | None:
    """Runs one sequence; `let_pass` counts what `known` explained."""
    sequence, before = Sequence(seed, int(time.time() * 1000), version), list[Call]()
    for side in (kafka, node):
        for made in sequence.topics_made():
            made.wait_until_seen(side, made.on(side))
        side.await_coordinator(sequence.coordinated)
    for number, call in enumerate(sequence.calls(calls)):
        wanted, seen = call.on(kafka), call.on(node)
        if wanted != seen:
            reason = explained(call, wanted, seen)
            if reason is None:
                return Difference(seed, number, call, wanted, seen, before)
            let_pass[reason.what] += 1
        sequence.learn(call, wanted)
        before.append(call)
    for side in (kafka, node):
        for removed in sequence.topics_removed():
            removed.on(side)
    return None
