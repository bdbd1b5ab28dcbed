"""The same requests of consumers, message by message, to a real Kafka and to a node.

Fetch with and without sessions, OffsetForLeaderEpoch and DeleteRecords, in every version: error
codes, offsets, which partitions an answer holds, and whether it came at once or after the wait.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from streamlog.codec.records import encode_values
from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.differential.side import Side
from tests.kafka_clients.raw_client import part, request

PARTITIONS = 4
WAIT_MS = 50
"""Where nothing is there to be answered."""
LONG_MS = 15_000
AT_ONCE_S = 10.0
"""Where an answer has to come before the wait is over: long, as a busy machine may be slow."""
IDS_FROM = 13
UNKNOWN_ID = bytes(range(16))
Seen = tuple[Any, ...]
Wanted = tuple[int, int]
"""A partition and an offset."""


class Consumer:
    """Requests to one broker about a topic of its own; `seen` are the answers, in comparable form.

    Partition 0 has offsets 0 to 4, partition 1 offset 0, the others are empty.
    """

    def __init__(self, side: Side, topic: str) -> None:
        self._side = side
        self.topic = topic
        self.seen: list[Seen] = []
        new = part("create_topics", "CreatableTopic", name=topic, num_partitions=PARTITIONS)
        new.replication_factor = 1
        side.call("create_topics", 7, request("create_topics", topics=[new], timeout_ms=10_000))
        side.await_topic(topic, PARTITIONS)
        asked = part("metadata", "MetadataRequestTopic", topic_id=bytes(16), name=topic)
        (found,) = side.call("metadata", 12, request("metadata", topics=[asked])).topics
        self._topic_id = found.topic_id
        for partition, values in ((0, 3), (0, 2), (1, 1)):
            self._produce(partition, values)
        self.epoch = self._leader_epoch()

    def _produce(self, partition: int, values: int) -> None:
        data = bytes(encode_values([b"v"] * values, timestamp_ms=1000).data)
        written = part("produce", "PartitionProduceData", index=partition, records=data)
        topic = part("produce", "TopicProduceData", name=self.topic, partition_data=[written])
        message = request("produce", acks=-1, timeout_ms=10_000, topic_data=[topic])
        (answer,) = self._side.call("produce", 9, message).responses[0].partition_responses
        assert answer.error_code == 0

    def _leader_epoch(self) -> int:
        asked = part("list_offsets", "ListOffsetsPartition", partition_index=0, timestamp=-1)
        topic = part("list_offsets", "ListOffsetsTopic", name=self.topic, partitions=[asked])
        message = request("list_offsets", replica_id=-1, topics=[topic])
        (found,) = self._side.call("list_offsets", 7, message).topics[0].partitions
        return int(found.leader_epoch)

    def fetch(
        self,
        label: str,
        version: int,
        *wanted: Wanted,
        session: tuple[int, int] = (0, -1),
        forget: Sequence[int] = (),
        waits: bool = False,
        is_unknown: bool = False,
        epochs: tuple[int, int] | None = None,
        **fields: Any,
    ) -> int:
        """Notes the answer; the session's id. `epochs`: current and last, from the leader's.

        `waits`: the answer comes when the wait is over, and not before.
        """
        named: dict[str, Any] = {"topic": "unknown" if is_unknown else self.topic}
        if version >= IDS_FROM:
            named = {"topic_id": UNKNOWN_ID if is_unknown else self._topic_id}
        parts = [
            part(
                "fetch",
                "FetchPartition",
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=1 << 20,
                current_leader_epoch=-1 if epochs is None else self.epoch + epochs[0],
                last_fetched_epoch=-1 if epochs is None else self.epoch + epochs[1],
            )
            for partition, offset in wanted
        ]
        topics = [part("fetch", "FetchTopic", **named, partitions=parts)] if parts else []
        forgotten = part("fetch", "ForgottenTopic", **named, partitions=list(forget))
        values = {
            "max_wait_ms": WAIT_MS if waits else LONG_MS,
            "min_bytes": 1,
            "session_id": session[0],
            "session_epoch": session[1],
            "topics": topics,
            "forgotten_topics_data": [forgotten] if forget else [],
            **fields,
        }
        message = request("fetch", **values)
        began = time.monotonic()
        answer = self._side.call("fetch", version, message)
        took_s = time.monotonic() - began
        assert took_s >= 0.9 * WAIT_MS / 1000 if waits else took_s < AT_ONCE_S, (label, took_s)
        found = sorted(_of_partition(one) for topic in answer.responses for one in topic.partitions)
        is_kept = answer.session_id > 0
        self.seen.append((label, version, answer.error_code, is_kept, *found))
        return int(answer.session_id)

    def epoch_end(
        self, label: str, version: int, epoch: int, *, current: int | None = None, of: int = 0
    ) -> None:
        asked = part(
            "offset_for_leader_epoch",
            "OffsetForLeaderPartition",
            partition=of,
            leader_epoch=epoch if epoch < 0 else self.epoch + epoch,
            current_leader_epoch=-1 if current is None else self.epoch + current,
        )
        topic = part("offset_for_leader_epoch", "OffsetForLeaderTopic", topic=self.topic)
        topic.partitions = [asked]
        message = request("offset_for_leader_epoch", replica_id=-1, topics=[topic])
        (found,) = self._side.call("offset_for_leader_epoch", version, message).topics
        (end,) = found.partitions
        relative = end.leader_epoch if end.leader_epoch < 0 else end.leader_epoch - self.epoch
        self.seen.append((label, version, end.error_code, relative, end.end_offset))

    def delete(self, label: str, version: int, *wanted: Wanted) -> None:
        parts = [
            part("delete_records", "DeleteRecordsPartition", partition_index=number, offset=offset)
            for number, offset in wanted
        ]
        topic = part("delete_records", "DeleteRecordsTopic", name=self.topic, partitions=parts)
        message = request("delete_records", topics=[topic], timeout_ms=10_000)
        (found,) = self._side.call("delete_records", version, message).topics
        answers = [(p.partition_index, p.low_watermark, p.error_code) for p in found.partitions]
        self.seen.append((label, version, *sorted(answers)))


def _of_partition(one: Any) -> Seen:
    aborted = None if one.aborted_transactions is None else len(one.aborted_transactions)
    diverging = one.diverging_epoch and one.diverging_epoch.end_offset
    offsets = (one.high_watermark, one.last_stable_offset, one.log_start_offset)
    return (one.partition_index, one.error_code, *offsets, aborted, diverging, _end(one.records))


def _end(records: memoryview) -> int:
    """The offset behind the whole batches; -1 where there are none."""
    at, end = 0, -1
    while at + 61 <= len(records):
        base, size = struct.unpack_from(">qi", records, at)
        if at + 12 + size > len(records):
            break  # Kafka's last batch may be cut.
        (last,) = struct.unpack_from(">i", records, at + 23)
        at, end = at + 12 + size, base + last + 1
    return end


@pytest.fixture
def sides(kafka: Broker, node: Broker) -> Iterator[tuple[Side, Side]]:
    both = Side("kafka", kafka.server), Side("streamlog", node.server)
    yield both
    for side in both:
        side.close()


def without_session(consumer: Consumer) -> None:
    for version in range(4, 19):
        consumer.fetch("read", version, (0, 0), (1, 0), (2, 0))
        consumer.fetch("committed", version, (0, 1), isolation_level=1)
        consumer.fetch("out of range", version, (0, 6), (1, 0))
        consumer.fetch("negative", version, (0, -1))
        consumer.fetch("no such partition", version, (9, 0))
        consumer.fetch("no such partition beside another", version, (9, 0), (2, 0), waits=True)
        consumer.fetch("no such topic", version, (0, 0), is_unknown=True)
        consumer.fetch("nothing", version)
        consumer.fetch("no bytes", version, (2, 0), min_bytes=0)
        consumer.fetch("too few bytes", version, (0, 0), min_bytes=10_000, waits=True)
        if version >= 12:
            consumer.fetch("same epoch", version, (0, 2), epochs=(0, 0))
            consumer.fetch("newer epoch", version, (0, 2), epochs=(1, 0))
            consumer.fetch("newer last epoch", version, (0, 2), epochs=(0, 5))
    consumer.fetch("one byte", 12, (2, 0), (0, 0), (1, 0), max_bytes=1)
    consumer.fetch("named twice", 12, (0, 0), (0, 3))


def with_session(consumer: Consumer) -> None:
    fetch = consumer.fetch
    for version in (7, 12, 18):
        session = fetch("open", version, (0, 5), (1, 0), (2, 0), session=(0, 0))
        fetch("another epoch", version, session=(session, 2))
        fetch("another id", version, session=(session + 1, 1))
        fetch("no id", version, session=(0, 1))
        fetch("another kind", 12 if version == 18 else 18, session=(session, 1))
        fetch("the same again", version, session=(session, 1))
        fetch("moved on", version, (1, 1), session=(session, 2), waits=True)
        fetch("nothing new", version, session=(session, 3), waits=True)
        fetch("no such partition", version, (9, 0), session=(session, 4), waits=True)
        fetch("still no such partition", version, session=(session, 5), waits=True)
        fetch("forgotten", version, session=(session, 6), forget=[9], waits=True)
        fetch("out of range", version, (0, 77), session=(session, 7))
        fetch("still out of range", version, session=(session, 8))
        fetch("in range again", version, (0, 5), session=(session, 9), waits=True)
        fetch("and told", version, session=(session, 10), waits=True)
        fetch("named and forgotten", version, (3, 0), session=(session, 11), forget=[3], waits=True)
        fetch("all forgotten", version, session=(session, 12), forget=[0, 1, 2])
        fetch("gone", version, session=(session, 13))
        session = fetch("open without partitions", version, session=(0, 0))
        fetch("filled", version, (0, 0), session=(session, 1))
        fetch("ended", version, (0, 4), session=(session, -1))
        fetch("after the end", version, session=(session, 2))
        fetch("open with an unknown id", version, (0, 4), session=(999, 0))
    session = fetch("open", 12, (0, 5), (1, 1), session=(0, 0), waits=True)
    consumer.delete("delete", 2, (0, 4))
    fetch("the start has moved", 12, session=(session, 1), waits=True)
    fetch("and told", 12, session=(session, 2), waits=True)


def epochs_and_deletions(consumer: Consumer) -> None:
    for version in (2, 3, 4):
        consumer.epoch_end("the newest", version, 0)
        consumer.epoch_end("newer", version, 9)
        consumer.epoch_end("none", version, -1)
        consumer.epoch_end("a newer leader", version, 0, current=1)
        consumer.epoch_end("no such partition", version, 0, of=9)
        consumer.epoch_end("no record yet", version, 0, of=2)
    for version in (0, 1, 2):
        consumer.delete("some", version, (0, 1 + version), (1, 0))
        consumer.delete("fewer", version, (0, 0))
        consumer.delete("too many", version, (0, 99))
        consumer.delete("negative", version, (0, -2))
        consumer.delete("no such partition", version, (9, 0))
        consumer.delete("up to the high watermark", version, (2, -1))


@pytest.mark.parametrize("ask", [without_session, with_session, epochs_and_deletions])
def test_both_brokers_answer_a_consumer_the_same(sides: tuple[Side, Side], ask: Any) -> None:
    seen: list[list[Seen]] = []
    for side in sides:
        consumer = Consumer(side, f"asked-{ask.__name__}".replace("_", "-"))
        ask(consumer)
        seen.append(consumer.seen)
    by_kafka, by_node = seen
    assert by_kafka
    for kafka, node in zip(by_kafka, by_node, strict=True):
        assert kafka == node
