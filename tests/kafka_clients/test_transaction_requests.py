"""The same requests of transactions, message by message, to a real Kafka and to a node.

The versions that clients send, and those of KIP-890 that they do not send without the feature
`transaction.version`: codes, producer epochs from the first, what a consumer sees of each step.
Requests that are answered by CONCURRENT_TRANSACTIONS are repeated, as clients do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from streamlog.codec.batch import TRANSACTIONAL, BatchProducer, resealed
from streamlog.codec.records import encode_values
from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.differential.side import Side, visible
from tests.kafka_clients.raw_client import part, request

pytestmark = pytest.mark.xdist_group("kafka_clients")

PARTITIONS = 3
GIVE_UP_AFTER_S = 20.0
CONCURRENT = 51
COORDINATOR_MOVES = (14, 15, 16)
UNCOMMITTED, COMMITTED = 0, 1
Topics = Mapping[str, Sequence[int]]


class Producer(NamedTuple):
    producer_id: int
    epoch: int


NOBODY = Producer(-1, -1)


class Client:
    """Requests to one broker about topics of its own; `seen` are the answers."""

    def __init__(self, side: Side, name: str) -> None:
        self._side = side
        self.topic = name
        self.tx = f"{name}-tx"
        self.seen: list[tuple[Any, ...]] = []
        self._numbers: dict[int, int] = {}
        new = part("create_topics", "CreatableTopic", name=name, num_partitions=PARTITIONS)
        new.replication_factor = 1
        side.call("create_topics", 7, request("create_topics", topics=[new], timeout_ms=10_000))
        side.await_topic(name, PARTITIONS)
        self.find("coordinator", 6, self.tx)  # Kafka makes its topic with the first question.

    def note(self, label: str, *seen: Any) -> None:
        self.seen.append((label, *seen))

    def call(self, api: str, version: int, message: Any) -> Any:
        return self._side.call(api, version, message)

    def _until(self, ask: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
        """Repeats the request while the last transaction ends, or the coordinator is not there."""
        give_up_at = time.monotonic() + GIVE_UP_AFTER_S
        while True:
            answer = ask()
            if code_of(answer) not in (CONCURRENT, *COORDINATOR_MOVES):
                return answer
            assert time.monotonic() < give_up_at, f"{self._side.name}: {code_of(answer)}"
            time.sleep(0.02)

    def number(self, producer_id: int) -> int:
        """Producer ids differ between brokers: they are told by the order of their first sight."""
        if producer_id < 0:
            return producer_id
        return self._numbers.setdefault(producer_id, len(self._numbers))

    def find(self, label: str, version: int, key: str, key_type: int = 1) -> None:
        if version < 4:
            message = request("find_coordinator", key=key, key_type=key_type)
        else:
            message = request("find_coordinator", coordinator_keys=[key], key_type=key_type)

        def code(answer: Any) -> int:
            return int(answer.error_code if version < 4 else answer.coordinators[0].error_code)

        answer = self._until(lambda: self.call("find_coordinator", version, message), code)
        told = answer if version < 4 else answer.coordinators[0]
        self.note(label, version, told.error_code, bool(told.host), told.port > 0)

    def init(
        self,
        label: str,
        version: int = 5,
        *,
        tx: str | None = None,
        timeout_ms: int = 60_000,
        producer: Producer = NOBODY,
    ) -> Producer:
        fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        message = request(
            "init_producer_id",
            transactional_id=self.tx if tx is None else tx,
            transaction_timeout_ms=timeout_ms,
            **fields,
        )
        answer = self._until(
            lambda: self.call("init_producer_id", version, message), lambda one: one.error_code
        )
        told = Producer(answer.producer_id, answer.producer_epoch)
        self.note(label, version, answer.error_code, self.number(told.producer_id), told.epoch)
        return told

    def add(
        self, label: str, version: int, producer: Producer, topics: Topics, tx: str | None = None
    ) -> None:
        named = [
            part("add_partitions_to_txn", "AddPartitionsToTxnTopic", name=name, partitions=numbers)
            for name, numbers in topics.items()
        ]
        message = request(
            "add_partitions_to_txn",
            v3_and_below_transactional_id=self.tx if tx is None else tx,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=named,
        )

        def told(answer: Any) -> list[tuple[str, int, int]]:
            return sorted(
                (topic.name, one.partition_index, one.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            )

        def first(answer: Any) -> int:
            return told(answer)[0][2] if told(answer) else 0

        answer = self._until(lambda: self.call("add_partitions_to_txn", version, message), first)
        self.note(label, version, told(answer))

    def add_as_node(
        self,
        label: str,
        version: int,
        producer: Producer,
        topics: Topics,
        *,
        verify_only: bool = False,
        tx: str | None = None,
    ) -> None:
        named = [
            part("add_partitions_to_txn", "AddPartitionsToTxnTopic", name=name, partitions=numbers)
            for name, numbers in topics.items()
        ]
        one = part(
            "add_partitions_to_txn",
            "AddPartitionsToTxnTransaction",
            transactional_id=self.tx if tx is None else tx,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=verify_only,
            topics=named,
        )
        message = request("add_partitions_to_txn", transactions=[one])

        def told(answer: Any) -> list[tuple[str, int, int]]:
            return sorted(
                (topic.name, one.partition_index, one.partition_error_code)
                for result in answer.results_by_transaction
                for topic in result.topic_results
                for one in topic.results_by_partition
            )

        answer = self._until(
            lambda: self.call("add_partitions_to_txn", version, message),
            lambda answer: told(answer)[0][2] if told(answer) else 0,
        )
        self.note(label, version, answer.error_code, told(answer))

    def end(
        self,
        label: str,
        version: int,
        producer: Producer,
        *,
        commits: bool = True,
        tx: str | None = None,
    ) -> Producer:
        message = request(
            "end_txn",
            transactional_id=self.tx if tx is None else tx,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commits,
        )
        answer = self._until(
            lambda: self.call("end_txn", version, message), lambda one: one.error_code
        )
        told = Producer(answer.producer_id, answer.producer_epoch)
        self.note(label, version, answer.error_code, self.number(told.producer_id), told.epoch)
        return told

    def produce(
        self,
        label: str,
        version: int,
        producer: Producer,
        partition: int,
        sequence: int,
        *,
        tx: str | None = "",
        count: int = 2,
        is_transactional: bool = True,
        partitions: Sequence[int] = (),
    ) -> None:
        """`tx` "": the client's own."""
        data = batch(producer, sequence, count, is_transactional=is_transactional)
        parts = [
            part("produce", "PartitionProduceData", index=number, records=data)
            for number in (partition, *partitions)
        ]
        topic = part("produce", "TopicProduceData", name=self.topic, partition_data=parts)
        if version >= 13:
            topic.topic_id = self._side.topic_id(self.topic)
        message = request(
            "produce",
            transactional_id=self.tx if tx == "" else tx,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[topic],
        )

        def told(answer: Any) -> list[tuple[int, int]]:
            return sorted(
                (one.error_code, one.base_offset) for one in answer.responses[0].partition_responses
            )

        retried = (19, CONCURRENT)  # NOT_ENOUGH_REPLICAS: the coordinator could not say.
        answer = self._until(
            lambda: self.call("produce", version, message),
            lambda answer: CONCURRENT if told(answer)[0][0] in retried else 0,
        )
        self.note(label, version, told(answer))

    def records(self, label: str, partition: int, *, settles: Callable[[Any], bool]) -> None:
        """What both kinds of readers see; `settles`: markers come behind the answer to EndTxn."""

        def look() -> Any:
            return self._fetched(partition, COMMITTED)

        self._until(look, lambda seen: 0 if settles(seen) else CONCURRENT)
        self.note(label, self._fetched(partition, UNCOMMITTED), self._fetched(partition, COMMITTED))

    def _fetched(self, partition: int, isolation: int) -> tuple[Any, ...]:
        place = part("fetch", "FetchPartition", partition=partition, partition_max_bytes=1 << 20)
        topic = part("fetch", "FetchTopic", topic=self.topic, partitions=[place])
        message = request(
            "fetch", topics=[topic], max_wait_ms=0, isolation_level=isolation, session_epoch=-1
        )
        (found,) = self.call("fetch", 12, message).responses[0].partitions
        aborted = [
            (self.number(one.producer_id), one.first_offset)
            for one in found.aborted_transactions or ()
        ]
        offsets = [one["offsets"] for one in visible(found.records or b"")]
        return found.error_code, found.high_watermark, found.last_stable_offset, aborted, offsets

    def describe(self, label: str, *ids: str) -> None:
        answer = self.call(
            "describe_transactions", 0, request("describe_transactions", transactional_ids=ids)
        )
        for one in answer.transaction_states:
            topics = sorted((topic.topic, sorted(topic.partitions)) for topic in one.topics)
            state = (one.transaction_state, one.transaction_timeout_ms, topics)
            is_open = one.transaction_start_time_ms > 0
            who = (self.number(one.producer_id), one.producer_epoch)
            shown = (*state, is_open, *who) if one.error_code == 0 else ()
            self.note(label, one.transactional_id, one.error_code, *shown)

    def await_state(self, state: str) -> None:
        def found() -> Any:
            message = request("describe_transactions", transactional_ids=[self.tx])
            (one,) = self.call("describe_transactions", 0, message).transaction_states
            return one

        self._until(found, lambda one: 0 if one.transaction_state == state else CONCURRENT)

    def list(self, label: str, version: int, **fields: Any) -> None:
        answer = self.call("list_transactions", version, request("list_transactions", **fields))
        found = sorted(
            (one.transactional_id, one.transaction_state)
            for one in answer.transaction_states
            if one.transactional_id.startswith(self.topic)
        )
        self.note(label, version, answer.error_code, sorted(answer.unknown_state_filters), found)

    def mark(
        self, label: str, producer: Producer, topics: Topics, *, coordinator: int, commits: bool
    ) -> None:
        marker = part(
            "write_txn_markers",
            "WritableTxnMarker",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=commits,
            coordinator_epoch=coordinator,
            topics=[
                part(
                    "write_txn_markers",
                    "WritableTxnMarkerTopic",
                    name=name,
                    partition_indexes=numbers,
                )
                for name, numbers in topics.items()
            ],
        )
        answer = self.call("write_txn_markers", 1, request("write_txn_markers", markers=[marker]))
        told = sorted(
            (topic.name, one.partition_index, one.error_code)
            for result in answer.markers
            for topic in result.topics
            for one in topic.partitions
        )
        self.note(label, told)

    def producers(self, label: str, partition: int) -> None:
        asked = part(
            "describe_producers", "TopicRequest", name=self.topic, partition_indexes=[partition]
        )
        answer = self.call("describe_producers", 0, request("describe_producers", topics=[asked]))
        (found,) = answer.topics[0].partitions
        told = sorted(
            (
                self.number(one.producer_id),
                one.producer_epoch,
                one.last_sequence,
                one.coordinator_epoch >= 0,
                one.current_txn_start_offset,
            )
            for one in found.active_producers
        )
        self.note(label, found.error_code, told)


def batch(producer: Producer, sequence: int, count: int, *, is_transactional: bool) -> bytes:
    encoded = bytearray(
        encode_values(
            [b"v%d" % number for number in range(count)],
            timestamp_ms=time.time_ns() // 1_000_000,  # A marker's: segments roll by time.
            producer=BatchProducer(producer.producer_id, producer.epoch, sequence),
        ).data
    )
    if is_transactional:
        encoded[22] |= TRANSACTIONAL
    return bytes(resealed(encoded))


def ends_at(offset: int) -> Callable[[Any], bool]:
    """The last stable offset is there: every marker that is due has come."""
    return lambda seen: bool(seen[2] == offset)


def committed_and_aborted(client: Client) -> None:
    topic = client.topic
    for version in (1, 2, 3, 4, 6):
        client.find("coordinator", version, client.tx)
    producer = client.init("first")
    client.describe("nothing yet", client.tx, f"{topic}-none", "")
    client.add("a partition", 3, producer, {topic: [0]})
    client.describe("one partition", client.tx)
    client.produce("of the transaction", 9, producer, 0, 0)
    client.producers("in the transaction", 0)
    client.records("open", 0, settles=ends_at(0))
    client.add("others", 0, producer, {topic: [1, 0]})
    client.produce("of the transaction", 11, producer, 1, 0)
    client.end("commit", 0, producer)
    client.records("committed", 0, settles=ends_at(3))
    client.await_state("CompleteCommit")
    client.end("commit again", 1, producer)
    client.end("abort what is committed", 3, producer, commits=False)
    client.producers("behind the transaction", 0)
    client.add("the next", 3, producer, {topic: [0, 2]})
    client.produce("which is aborted", 10, producer, 0, 2)
    client.end("abort", 4, producer, commits=False)
    client.records("aborted", 0, settles=ends_at(6))
    client.records("aborted without a record", 2, settles=lambda seen: seen[1] == 1)
    client.await_state("CompleteAbort")
    client.describe("aborted", client.tx)


def refused(client: Client) -> None:
    topic = client.topic
    old = client.init("first")
    client.end("nothing is open", 3, old)
    for version in (0, 1, 2, 3):
        client.add("no such partition", version, old, {topic: [0, 9], f"{topic}-none": [0]})
        client.add("another producer id", version, Producer(old.producer_id + 77, 0), {topic: [0]})
        client.add("no such id", version, old, {topic: [0]}, tx=f"{topic}-none")
        client.add("the empty id", version, old, {topic: [0]}, tx="")
        client.add("an internal topic", version, old, {"__transaction_state": [0], topic: [0]})
    client.add("begun", 3, old, {topic: [0]})
    new = client.init("a newer instance, which aborts it")
    for version in (0, 1, 2, 3):
        client.add("fenced", version, old, {topic: [0]})
    for version in (0, 1, 2, 3, 4):
        client.end("fenced", version, old)
        client.end("another producer id", version, Producer(old.producer_id + 77, 0))
        client.end("no such id", version, new, tx=f"{topic}-none")
        client.end("the empty id", version, new, tx="")
    for version in (0, 2, 5):
        for timeout_ms in (0, -1, 900_001):
            client.init("a wrong time-out", version, timeout_ms=timeout_ms)
        client.init("the empty id", version, tx="")
    for version in (3, 4, 5):
        client.init("half a producer", version, producer=Producer(7, -1))
        client.init("fenced", version, producer=old)
    client.init("its own epoch", 5, producer=new)
    client.init("the epoch before once more", 5, producer=new)


def produced(client: Client) -> None:
    topic = client.topic
    producer = client.init("first")
    for version in (3, 9, 10, 11):
        client.produce("no partition was added", version, producer, 0, 0)
        client.produce("no transactional id", version, producer, 0, 0, tx=None)
        client.produce("no such id", version, producer, 0, 0, tx=f"{topic}-none")
        client.produce("the empty id", version, producer, 0, 0, tx=" ".strip() or None)
        client.produce("another epoch", version, Producer(producer.producer_id, 5), 0, 0)
        client.produce("another producer id", version, Producer(producer.producer_id + 9, 0), 0, 0)
    client.produce("plain records under the id", 9, NOBODY, 0, -1, is_transactional=False)
    client.add("a partition", 3, producer, {topic: [0]})
    client.produce("one of two", 11, producer, 0, 0, partitions=[1])
    client.produce("the next", 11, producer, 0, 2)
    client.produce("the next again", 11, producer, 0, 2)
    client.produce("without the flag", 11, producer, 0, 4, is_transactional=False)
    client.produce("a gap", 11, producer, 0, 9)
    client.end("abort", 3, producer, commits=False)
    client.records("aborted", 0, settles=ends_at(7))
    client.produce("late", 10, producer, 0, 4)
    client.produce("late", 11, producer, 0, 4)
    client.producers("at the end", 0)


def second_version(client: Client) -> None:
    topic = client.topic
    producer = client.init("first")
    client.produce("adds its partition", 12, producer, 0, 0)
    client.produce("by id", 13, producer, 1, 0)
    client.describe("added", client.tx)
    following = client.end("commit", 5, producer)
    client.records("committed", 0, settles=ends_at(3))
    client.await_state("CompleteCommit")
    client.end("commit again", 5, producer)
    client.produce("the epoch before", 12, producer, 0, 2)
    client.produce("the next epoch", 12, following, 0, 0)
    client.add_as_node("is in", 5, following, {topic: [0, 1]}, verify_only=True)
    client.add_as_node("by a node", 4, following, {topic: [2]})
    client.add_as_node("no such partition", 5, following, {topic: [0, 9]})
    client.add_as_node("fenced", 5, producer, {topic: [0]}, verify_only=True)
    client.add_as_node("no such id", 5, producer, {topic: [0]}, tx=f"{topic}-none")
    last = client.end("abort", 5, following, commits=False)
    client.records("aborted", 0, settles=ends_at(6))
    client.await_state("CompleteAbort")
    client.end("commit nothing", 5, last)
    client.end("abort nothing", 5, last, commits=False)


def markers(client: Client) -> None:
    topic = client.topic
    client.init("first")
    producer = client.init("second")
    client.add("a partition", 3, producer, {topic: [0]})
    client.produce("of the transaction", 9, producer, 0, 0)
    older = Producer(producer.producer_id, producer.epoch - 1)
    client.mark("no such partition", producer, {topic: [9]}, coordinator=0, commits=False)
    client.mark("abort", producer, {topic: [0, 1]}, coordinator=70_000, commits=False)
    client.records("aborted", 0, settles=ends_at(3))
    client.mark("an older coordinator", producer, {topic: [0]}, coordinator=3, commits=True)
    client.mark("an older epoch", older, {topic: [0]}, coordinator=70_000, commits=False)
    client.records("the same", 0, settles=ends_at(3))
    client.producers("aborted", 0)


def lists(client: Client) -> None:
    topic = client.topic
    producer = client.init("first")
    client.init("empty", tx=f"{topic}-b")
    client.add("a partition", 3, producer, {topic: [0]})
    for version in (0, 1, 2):
        client.list("all", version)
        client.list("open", version, state_filters=["Ongoing"])
        client.list("unknown and empty", version, state_filters=["Empty", "ongoing", "No"])
        client.list("unknown alone", version, state_filters=["No"])
        client.list("of the producer", version, producer_id_filters=[producer.producer_id])
        client.list("of nobody", version, producer_id_filters=[1 << 40])
    # Kafka takes ids without a transaction for ones that have been open since 1969.
    open_alone = {"state_filters": ["Ongoing"]}
    client.list("open for long", 1, duration_filter=10_000_000, **open_alone)
    client.list("open at all", 1, duration_filter=0, **open_alone)
    client.list("any duration", 1, duration_filter=-7)
    client.list("by a pattern", 2, transactional_id_pattern=f"{topic}-b.*")
    client.list("by a part of the id", 2, transactional_id_pattern="-b")
    client.list("by the empty pattern", 2, transactional_id_pattern="")
    client.list("by a wrong pattern", 2, transactional_id_pattern="(")
    client.end("abort", 3, producer, commits=False)


def internal_topics(client: Client) -> None:
    client.init("first")
    name = "__transaction_state"
    new = part("create_topics", "CreatableTopic", name=name, num_partitions=1)
    new.replication_factor = 1
    answer = client.call("create_topics", 7, request("create_topics", topics=[new]))
    client.note("create", answer.topics[0].error_code)
    asked = part("metadata", "MetadataRequestTopic", name=name)
    (found,) = client.call("metadata", 12, request("metadata", topics=[asked])).topics
    client.note("metadata", found.error_code, found.is_internal)
    written = part("produce", "PartitionProduceData", index=0)
    written.records = batch(NOBODY, -1, 1, is_transactional=False)
    topic = part("produce", "TopicProduceData", name=name, partition_data=[written])
    message = request("produce", acks=-1, timeout_ms=10_000, topic_data=[topic])
    (answer,) = client.call("produce", 9, message).responses[0].partition_responses
    client.note("produce", answer.error_code)
    place = part("fetch", "FetchPartition", partition=0, partition_max_bytes=1 << 20)
    fetched = part("fetch", "FetchTopic", topic=name, partitions=[place])
    message = request("fetch", topics=[fetched], max_wait_ms=0, session_epoch=-1)
    (found,) = client.call("fetch", 12, message).responses[0].partitions
    client.note("fetch", found.error_code)


@pytest.fixture
def sides(kafka: Broker, node: Broker) -> Any:
    made = (Side("kafka", kafka.server), Side("streamlog", node.server))
    yield made
    for side in made:
        side.close()


CASES = (
    committed_and_aborted,
    refused,
    produced,
    second_version,
    markers,
    lists,
    internal_topics,
)


@pytest.mark.parametrize("ask", CASES, ids=lambda case: case.__name__)
def test_both_brokers_answer_the_same(sides: tuple[Side, Side], ask: Any) -> None:
    seen = []
    for side in sides:
        client = Client(side, f"txn-{ask.__name__}".replace("_", "-"))
        ask(client)
        seen.append(client.seen)
    by_kafka, by_node = seen
    assert by_kafka
    for kafka, node in zip(by_kafka, by_node, strict=True):
        assert kafka == node
