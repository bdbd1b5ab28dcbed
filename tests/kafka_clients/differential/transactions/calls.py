"""The calls that transactional sequences are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamlog.codec.batch import TRANSACTIONAL, BatchProducer, with_producer
from tests.kafka_clients.differential.calls import FETCH_BY_ID, PRODUCE_BY_ID, TIMEOUT_MS
from tests.kafka_clients.differential.side import Seen
from tests.kafka_clients.differential.transactions.side import (
    BUSY_PRODUCE,
    NOBODY,
    TransactionalSide,
)
from tests.kafka_clients.raw_client import ConnectionEnded, part, request

PARTITIONS = 2
"""Of each topic."""
LATEST = -1
OFFSETS = "offsets of the topic"
"""Where an answer has start, stable end and end of each partition."""
ADD_MANY = 4
"""The first version of AddPartitionsToTxn with several transactions."""


class Pair(NamedTuple):
    """A producer by its name, and its epoch."""

    producer: int
    epoch: int


NO_PAIR = Pair(NOBODY, -1)


class Place(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True)
class Call:
    """`topic` is one of those whose offsets are compared after the call."""

    topic: str

    def on(self, side: TransactionalSide) -> Seen:
        """What it answered, and where the partitions of its topic then begin and end."""
        try:
            seen = self.ask(side)
        except ConnectionEnded:
            return {"closed": True}
        self._settle(side, seen)
        return seen | {OFFSETS: side.offsets(self.topic, PARTITIONS)}

    def ask(self, side: TransactionalSide) -> Seen:
        """What it answered."""
        raise NotImplementedError

    def _settle(self, side: TransactionalSide, seen: Seen) -> None:
        """Waits for the markers that the call brought about."""


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    return topics


@dataclass(frozen=True)
class InitProducerId(Call):
    """`transactional_id` None: an idempotent producer. `expected` is the caller's pair."""

    version: int
    transactional_id: str | None
    timeout_ms: int
    expected: Pair = NO_PAIR

    def ask(self, side: TransactionalSide) -> Seen:
        api = "init_producer_id"
        asked = request(
            api,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=side.id_of(self.expected.producer),
            producer_epoch=self.expected.epoch,
        )
        answer = side.ask(api, self.version, asked, lambda one: [one.error_code])
        return {
            "error": answer.error_code,
            "producer": side.name_of(answer.producer_id),
            "epoch": answer.producer_epoch,
        }


class Adding(NamedTuple):
    """A transaction's part in AddPartitionsToTxn."""

    transactional_id: str
    pair: Pair
    places: tuple[Place, ...]
    verify_only: bool = False


@dataclass(frozen=True)
class AddPartitions(Call):
    version: int
    transactions: tuple[Adding, ...]

    def ask(self, side: TransactionalSide) -> Seen:
        if self.version < ADD_MANY:
            return self._add_one(side)
        api = "add_partitions_to_txn"
        asked = [
            part(
                api,
                "AddPartitionsToTxnTransaction",
                transactional_id=one.transactional_id,
                producer_id=side.id_of(one.pair.producer),
                producer_epoch=one.pair.epoch,
                verify_only=one.verify_only,
                topics=self._topics(one.places),
            )
            for one in self.transactions
        ]
        message = request(api, transactions=asked)
        answer = side.ask(api, self.version, message, _adding_codes)
        return {
            "error": answer.error_code,
            "transactions": sorted(
                (one.transactional_id, _place_errors(one.topic_results))
                for one in answer.results_by_transaction
            ),
        }

    def _add_one(self, side: TransactionalSide) -> Seen:
        api = "add_partitions_to_txn"
        (one,) = self.transactions
        message = request(
            api,
            v3_and_below_transactional_id=one.transactional_id,
            v3_and_below_producer_id=side.id_of(one.pair.producer),
            v3_and_below_producer_epoch=one.pair.epoch,
            v3_and_below_topics=self._topics(one.places),
        )
        answer = side.ask(api, self.version, message, _adding_codes)
        return {"errors": _place_errors(answer.results_by_topic_v3_and_below)}

    def _topics(self, places: tuple[Place, ...]) -> list[Any]:
        return [
            part("add_partitions_to_txn", "AddPartitionsToTxnTopic", name=name, partitions=numbers)
            for name, numbers in _by_topic(places).items()
        ]


def _place_errors(results: Any) -> list[tuple[str, int, int]]:
    return sorted(
        (topic.name, one.partition_index, one.partition_error_code)
        for topic in results
        for one in topic.results_by_partition
    )


def _adding_codes(answer: Any) -> list[int]:
    results = [
        answer.results_by_topic_v3_and_below,
        *(one.topic_results for one in answer.results_by_transaction),
    ]
    found = [error for one in results for _, _, error in _place_errors(one)]
    return [answer.error_code, *found]


@dataclass(frozen=True)
class Produce(Call):
    """A batch of one of the producers; `kind` says what is wrong with it, if anything is."""

    version: int
    partition: int
    kind: str
    transactional_id: str | None
    pair: Pair
    sequence: int
    data: bytes

    def __repr__(self) -> str:
        return (
            f"Produce(v{self.version}, {self.topic}-{self.partition}, {self.kind}, "
            f"{self.transactional_id}, {self.pair}, sequence {self.sequence}, "
            f"{len(self.data)} bytes)"
        )

    def ask(self, side: TransactionalSide) -> Seen:
        api = "produce"
        producer = BatchProducer(side.id_of(self.pair.producer), self.pair.epoch, self.sequence)
        records = bytes(with_producer(self.data, producer))
        data = part(api, "PartitionProduceData", index=self.partition, records=records)
        by_id = self.version >= PRODUCE_BY_ID
        topic = part(
            api,
            "TopicProduceData",
            **({"topic_id": side.topic_id(self.topic)} if by_id else {"name": self.topic}),
            partition_data=[data],
        )
        asked = request(
            api,
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[topic],
        )
        answer = side.ask(api, self.version, asked, _produce_codes, BUSY_PRODUCE)
        (found,) = answer.responses[0].partition_responses
        return {"error": found.error_code, "offset": found.base_offset}


def _produce_codes(answer: Any) -> list[int]:
    return [
        partition.error_code
        for topic in answer.responses
        for partition in topic.partition_responses
    ]


@dataclass(frozen=True)
class EndTxn(Call):
    version: int
    transactional_id: str
    pair: Pair
    is_commit: bool

    def ask(self, side: TransactionalSide) -> Seen:
        api = "end_txn"
        asked = request(
            api,
            transactional_id=self.transactional_id,
            producer_id=side.id_of(self.pair.producer),
            producer_epoch=self.pair.epoch,
            committed=self.is_commit,
        )
        answer = side.ask(api, self.version, asked, lambda one: [one.error_code])
        return {
            "error": answer.error_code,
            "producer": side.name_of(answer.producer_id),
            "epoch": answer.producer_epoch,
        }

    def _settle(self, side: TransactionalSide, seen: Seen) -> None:
        if seen["error"] == 0:
            side.await_settled(self.transactional_id)


@dataclass(frozen=True)
class WriteMarkers(Call):
    """A marker as a coordinator writes it whose epoch is the real one's and so much more."""

    pair: Pair
    is_commit: bool
    coordinator_epoch: int
    partitions: tuple[int, ...]

    def ask(self, side: TransactionalSide) -> Seen:
        api = "write_txn_markers"
        topic = part(
            api, "WritableTxnMarkerTopic", name=self.topic, partition_indexes=self.partitions
        )
        marker = part(
            api,
            "WritableTxnMarker",
            producer_id=side.id_of(self.pair.producer),
            producer_epoch=self.pair.epoch,
            transaction_result=self.is_commit,
            topics=[topic],
            coordinator_epoch=side.coordinator_epoch + self.coordinator_epoch,
        )
        answer = side.call(api, 1, request(api, markers=[marker]))
        return {
            "markers": [
                (
                    side.name_of(one.producer_id),
                    sorted(
                        (topic.name, found.partition_index, found.error_code)
                        for topic in one.topics
                        for found in topic.partitions
                    ),
                )
                for one in answer.markers
            ]
        }


@dataclass(frozen=True)
class DescribeTransaction(Call):
    transactional_id: str

    def ask(self, side: TransactionalSide) -> Seen:
        return side.transaction(self.transactional_id)


@dataclass(frozen=True)
class ListTransactions(Call):
    """Those of this sequence among all that the broker knows."""

    version: int
    prefix: str
    states: tuple[str, ...] = ()
    producers: tuple[int, ...] = ()
    open_for_ms: int = -1
    pattern: str | None = None

    def ask(self, side: TransactionalSide) -> Seen:
        api = "list_transactions"
        more: dict[str, Any] = {}
        if self.version >= 1:
            more["duration_filter"] = self.open_for_ms
        if self.version >= 2:
            more["transactional_id_pattern"] = self.pattern
        asked = request(
            api,
            state_filters=list(self.states),
            producer_id_filters=[side.id_of(one) for one in self.producers],
            **more,
        )
        answer = side.ask(api, self.version, asked, lambda one: [one.error_code])
        return {
            "error": answer.error_code,
            "unknown": sorted(answer.unknown_state_filters),
            "transactions": sorted(
                (one.transactional_id, side.name_of(one.producer_id), one.transaction_state)
                for one in answer.transaction_states
                if one.transactional_id.startswith(self.prefix)
            ),
        }


@dataclass(frozen=True)
class DescribeProducers(Call):
    partition: int

    def ask(self, side: TransactionalSide) -> Seen:
        api = "describe_producers"
        topic = part(api, "TopicRequest", name=self.topic, partition_indexes=[self.partition])
        answer = side.call(api, 0, request(api, topics=[topic]))
        (found,) = answer.topics[0].partitions
        return {
            "error": found.error_code,
            "producers": sorted(
                (
                    side.name_of(one.producer_id),
                    one.producer_epoch,
                    one.last_sequence,
                    side.relative_epoch(one.coordinator_epoch),
                    one.current_txn_start_offset,
                )
                for one in found.active_producers
            ),
        }


@dataclass(frozen=True)
class Fetch(Call):
    version: int
    partition: int
    offset: int
    max_bytes: int
    isolation: int

    def ask(self, side: TransactionalSide) -> Seen:
        api = "fetch"
        place = part(
            api,
            "FetchPartition",
            partition=self.partition,
            fetch_offset=self.offset,
            partition_max_bytes=self.max_bytes,
        )
        by_id = self.version >= FETCH_BY_ID
        topic = part(
            api,
            "FetchTopic",
            **({"topic_id": side.topic_id(self.topic)} if by_id else {"topic": self.topic}),
            partitions=[place],
        )
        asked = request(
            api, topics=[topic], max_wait_ms=0, min_bytes=0, isolation_level=self.isolation
        )
        answer = side.call(api, self.version, asked)
        if answer.error_code:
            return {"error": answer.error_code}
        (found,) = answer.responses[0].partitions
        return {
            "error": found.error_code,
            "high_watermark": found.high_watermark,
            "stable": max(found.last_stable_offset, side.start_of(self.topic, self.partition)),
            "batches": side.batches(found.records or b""),
            "aborted": sorted(
                (side.name_of(one.producer_id), one.first_offset)
                for one in found.aborted_transactions or ()
            ),
            "start": found.log_start_offset if self.version >= 5 else -1,
        }


@dataclass(frozen=True)
class ReadAll(Call):
    """Fetches to the end, and drops what a consumer drops: what it is handed in the end."""

    partition: int
    isolation: int

    def ask(self, side: TransactionalSide) -> Seen:
        handed: list[Seen] = []
        aborted_seen: set[tuple[int, int]] = set()
        start, stable, end = side.offsets(self.topic, PARTITIONS)[self.partition]
        offset, last = start, stable if self.isolation else end
        while offset < last:
            fetch = Fetch(self.topic, 11, self.partition, offset, 1 << 26, self.isolation)
            seen = fetch.ask(side)
            if seen["error"] or not seen["batches"]:
                return seen | {"stuck at": offset}
            visible, used = _handed(seen)
            handed += [one for one in visible if one["offsets"][1] >= start]
            aborted_seen |= used
            offset = seen["batches"][-1]["offsets"][1] + 1
        return {"handed": handed, "aborted": sorted(aborted_seen)}


def _handed(seen: Seen) -> tuple[list[Seen], set[tuple[int, int]]]:
    """The batches that a consumer hands out, and the aborted transactions that it needed."""
    waiting = sorted(seen["aborted"], key=lambda one: int(one[1]))
    dropped: set[int] = set()
    handed, used = [], set()
    for batch in seen["batches"]:
        while waiting and waiting[0][1] <= batch["offsets"][1]:
            one = waiting.pop(0)
            dropped.add(one[0])
            used.add(tuple(one))
        producer = batch["producer"][0]
        if "key" in batch:
            dropped.discard(producer)
        if producer not in dropped or not batch["attributes"] & TRANSACTIONAL:
            handed.append(batch)
    return handed, used


@dataclass(frozen=True)
class ListOffsets(Call):
    """`latest_ms`: a later timestamp is a marker's, which the broker's clock gave."""

    version: int
    partition: int
    timestamp: int
    isolation: int
    latest_ms: int

    def ask(self, side: TransactionalSide) -> Seen:
        api = "list_offsets"
        place = part(
            api, "ListOffsetsPartition", partition_index=self.partition, timestamp=self.timestamp
        )
        topic = part(api, "ListOffsetsTopic", name=self.topic, partitions=[place])
        more: dict[str, Any] = {"timeout_ms": TIMEOUT_MS} if self.version >= 10 else {}
        asked = request(api, replica_id=-1, topics=[topic], isolation_level=self.isolation, **more)
        (found,) = side.call(api, self.version, asked).topics[0].partitions
        offset = found.offset
        if self.timestamp == LATEST:
            offset = max(offset, side.start_of(self.topic, self.partition))
        return {
            "error": found.error_code,
            "timestamp": min(found.timestamp, self.latest_ms),
            "offset": offset,
        }


@dataclass(frozen=True)
class DeleteRecords(Call):
    version: int
    partition: int
    offset: int

    def ask(self, side: TransactionalSide) -> Seen:
        api = "delete_records"
        place = part(
            api, "DeleteRecordsPartition", partition_index=self.partition, offset=self.offset
        )
        topic = part(api, "DeleteRecordsTopic", name=self.topic, partitions=[place])
        asked = request(api, topics=[topic], timeout_ms=TIMEOUT_MS)
        (found,) = side.call(api, self.version, asked).topics[0].partitions
        return {"error": found.error_code, "low_watermark": found.low_watermark}
