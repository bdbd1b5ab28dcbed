"""The blocking consumer over real sockets: assignment, seeking, iteration, faults, resets."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from streamlog.client import Consumer, ConsumerRecord, OffsetAndTimestamp, OffsetReset, Producer
from streamlog.errors import (
    Closed,
    CorruptMessage,
    Invalid,
    InvalidConfig,
    OffsetOutOfRange,
    StoreUnavailable,
    Unauthorized,
    UnknownTopicOrPartition,
)
from tests.client.fake_node import FakeNode

WAIT_S = 20


def fill(node: FakeNode, topic: str, count: int, partitions: int = 1, batch: int = 50) -> None:
    """Numbered records, record n in partition n % partitions, at timestamp 1000 + n."""
    if topic not in node.topics:
        node.create(topic, partitions)
    with Producer(node.server) as producer:
        for start in range(0, count, batch):
            for number in range(start, min(start + batch, count)):
                producer.send(
                    topic,
                    b"%d" % number,
                    partition=number % partitions,
                    timestamp_ms=1000 + number,
                )
            producer.flush(WAIT_S)


def read_all(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    all_records: list[ConsumerRecord] = []
    while len(all_records) < count:
        records = consumer.poll(WAIT_S, max_records=count - len(all_records))
        assert records
        all_records += records
    return all_records


def test_reading_from_the_start(node: FakeNode) -> None:
    fill(node, "t", 500, partitions=2)
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        records = read_all(consumer, 500)
        assert [record.value for record in records if record.partition == 1] == [
            b"%d" % number for number in range(1, 500, 2)
        ]
        assert records[0] == ConsumerRecord(
            "t", records[0].partition, 0, 1000 + records[0].partition, None, records[0].value, []
        )
        assert consumer.position("t", 0) == consumer.position("t", 1) == 250
        assert consumer.poll(0.01) == []
        assert consumer.poll_batches(0.01) == []


def test_iteration_sees_what_comes_later(node: FakeNode) -> None:
    fill(node, "t", 10)
    with Consumer(node.server, fetch_max_wait_ms=5000) as consumer:
        consumer.subscribe(["t"])
        records = iter(consumer)
        assert [next(records).value for _ in range(10)] == [b"%d" % n for n in range(10)]
        later = threading.Thread(target=fill, args=(node, "t", 5))
        later.start()
        assert [next(records).offset for _ in range(5)] == list(range(10, 15))
        later.join()
        assert consumer.position("t", 0) == 15


def test_a_seek_drops_what_was_fetched(node: FakeNode) -> None:
    fill(node, "t", 300)
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        assert consumer.poll(WAIT_S, max_records=5)[-1].offset == 4
        assert consumer.position("t", 0) == 5
        consumer.seek("t", 0, 123)
        assert consumer.position("t", 0) == 123
        assert consumer.poll(WAIT_S, max_records=2)[0].offset == 123
        for record in consumer:
            if record.offset == 130:
                consumer.seek("t", 0, 7)
            if record.offset == 7:
                break
        consumer.seek("t", 0, 290)
        assert [record.offset for record in read_all(consumer, 10)] == list(range(290, 300))
        with pytest.raises(Invalid, match="not assigned"):
            consumer.seek("t", 1, 0)
        with pytest.raises(Invalid, match="not -1"):
            consumer.seek("t", 0, -1)


def test_batches_decode_when_asked(node: FakeNode) -> None:
    fill(node, "t", 100)
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 70)
        (batch,) = consumer.poll_batches(WAIT_S)
        assert (batch.topic, batch.partition) == ("t", 0)
        assert (batch.base_offset, batch.next_offset, batch.record_count) == (70, 100, 30)
        assert isinstance(batch.data, memoryview)
        assert batch.values() == [b"%d" % number for number in range(70, 100)]
        assert [record.offset for record in batch.records()] == list(range(70, 100))
        consumer.seek("t", 0, 0)
        first = consumer.poll(WAIT_S, max_records=20)
        rest = consumer.poll_batches(WAIT_S)
        assert [record.offset for record in first] == list(range(20))
        assert rest[0].base_offset == 20
        assert sum(batch.record_count for batch in rest) == rest[-1].next_offset - 20
        assert consumer.position("t", 0) == rest[-1].next_offset


def test_small_fetches_read_everything(node: FakeNode) -> None:
    fill(node, "t", 600, partitions=3)
    with Consumer(node.server, fetch_max_bytes=200, max_partition_fetch_bytes=100) as consumer:
        consumer.subscribe(["t"])
        records = read_all(consumer, 600)
    assert sorted(int(record.value or b"") for record in records) == list(range(600))


def test_offsets(node: FakeNode) -> None:
    fill(node, "t", 100, partitions=2)
    both = [("t", 0), ("t", 1)]
    with Consumer(node.server) as consumer:
        assert consumer.beginning_offsets(both) == dict.fromkeys(both, 0)
        assert consumer.end_offsets(both) == dict.fromkeys(both, 50)
        records = consumer.offsets_for_times({("t", 0): 1021, ("t", 1): 5000})
        assert records == {("t", 0): OffsetAndTimestamp(11, 1022), ("t", 1): None}
        assert consumer.offsets_for_times({}) == {}
        with pytest.raises(UnknownTopicOrPartition):
            Consumer(node.server, default_api_timeout_ms=10_000).end_offsets([("unknown", 0)])


def test_where_reading_begins(node: FakeNode) -> None:
    fill(node, "t", 10)
    with Consumer(node.server, auto_offset_reset="latest") as consumer:
        consumer.assign([("t", 0)])
        assert consumer.position("t", 0) == 10
        fill(node, "t", 1)
        assert consumer.poll(WAIT_S)[0].offset == 10
    with Consumer(node.server, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(OffsetOutOfRange, match="seek"):
            consumer.position("t", 0)
        with pytest.raises(OffsetOutOfRange, match="seek"):
            consumer.poll(WAIT_S)
        consumer.seek("t", 0, 3)
        assert consumer.poll(WAIT_S)[0].offset == 3


class _AnswersPositionLast(FakeNode):
    """Of two look-ups of a start the first waits for the second, and the second until the consumer
    has taken an answer to a fetch: it looks for its topics again then."""

    def ListOffsets(self, request: Any, context: Any) -> Any:
        response = super().ListOffsets(request, context)
        lookups = self.calls.count("ListOffsets")
        with self.changed:
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: self.calls.count("ListOffsets") > lookups or self._is_fetched(), WAIT_S
            )
        return response

    def _is_fetched(self) -> bool:
        return "Fetch" in self.calls and "ListTopics" in self.calls[self.calls.index("Fetch") :]

    def Fetch(self, request: Any, context: Any) -> Any:
        response = super().Fetch(request, context)
        self.calls.append("Fetch")
        return response

    def ListTopics(self, request: Any, context: Any) -> Any:
        response = super().ListTopics(request, context)
        with self.changed:
            self.changed.notify_all()
        return response


def test_a_position_that_is_found_late_does_not_bring_records_twice() -> None:
    with _AnswersPositionLast() as node:
        fill(node, "t", 3)
        with Consumer(node.server, metadata_max_age_ms=20, fetch_max_wait_ms=50) as consumer:
            consumer.subscribe(["t"])
            assert consumer.poll(0) == []
            with node.changed:
                assert node.changed.wait_for(lambda: "ListOffsets" in node.calls, WAIT_S)
            assert consumer.position("t", 0) == 0
            assert [record.offset for record in read_all(consumer, 3)] == [0, 1, 2]
            fill(node, "t", 1)
            assert [record.offset for record in consumer.poll(WAIT_S)] == [3]


def test_an_offset_that_is_gone(node: FakeNode) -> None:
    fill(node, "t", 100)
    node.topics["t"].partitions[0].start_offset = 50
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 10)
        assert consumer.poll(WAIT_S)[0].offset == 50
    with Consumer(node.server, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 10)
        with pytest.raises(OffsetOutOfRange) as caught:
            consumer.poll(WAIT_S)
        assert (caught.value.start_offset, caught.value.end_offset) == (50, 100)
        consumer.seek("t", 0, 60)
        assert consumer.poll(WAIT_S)[0].offset == 60


def test_records_deleted_during_a_read_are_reported(node: FakeNode) -> None:
    fill(node, "t", 100, batch=10)
    with Consumer(node.server, fetch_max_bytes=1) as consumer:
        consumer.assign([("t", 0)])
        records = read_all(consumer, 10)
        assert consumer.take_offset_resets() == []
        node.topics["t"].partitions[0].start_offset = 70
        while records[-1].offset < 70:
            records += consumer.poll(WAIT_S)
        (reset,) = consumer.take_offset_resets()
        kept = [record.offset for record in records if record.offset < 70]
        assert kept == list(range(len(kept)))
        assert reset == OffsetReset("t", 0, len(kept), 70, 70 - len(kept), 70, 100)
        assert reset.is_deleted
        assert consumer.take_offset_resets() == []
        node.topics["t"].partitions[0].start_offset = 100
        while consumer.position("t", 0) < 100:
            records += consumer.poll(0.01)
        (reset,) = consumer.take_offset_resets()
        assert (reset.from_offset, reset.to_offset) == (records[-1].offset + 1, 100)


def test_a_position_beyond_the_end_is_reported(node: FakeNode) -> None:
    fill(node, "t", 10)
    with Consumer(node.server, auto_offset_reset="latest") as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 25)
        while consumer.position("t", 0) != 10:
            assert consumer.poll(0.01) == []
        (reset,) = consumer.take_offset_resets()
    assert reset == OffsetReset("t", 0, 25, 10, 0, 0, 10)
    assert not reset.is_deleted


def test_subscribing_follows_new_topics_and_partitions(node: FakeNode) -> None:
    with Consumer(node.server, metadata_max_age_ms=20, fetch_max_wait_ms=50) as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(0.05) == []
        fill(node, "t", 5)
        assert len(read_all(consumer, 5)) == 5
        node.topics["t"].partitions += type(node.topics["t"])(
            [type(node.topics["t"].partitions[0])()]
        ).partitions
        with Producer(node.server) as producer:
            producer.send("t", b"new", partition=1).result(WAIT_S)
        assert read_all(consumer, 1)[0][:3] == ("t", 1, 0)
        assert consumer.assignment() == [("t", 0), ("t", 1)]
        with pytest.raises(Invalid):
            consumer.subscribe("t")


def test_errors_that_pass_are_retried(node: FakeNode) -> None:
    fill(node, "t", 100)
    with Consumer(node.server, retry_backoff_ms=5) as consumer:
        consumer.assign([("t", 0)])
        node.fetch_errors.extend([StoreUnavailable("away")] * 3)
        assert consumer.poll(WAIT_S)[0].offset == 0
        assert not node.fetch_errors
        node.stop()
        node.start()
        consumer.seek("t", 0, 90)
        assert read_all(consumer, 10)[0].offset == 90


def test_errors_that_stay_are_raised(node: FakeNode) -> None:
    fill(node, "t", 10)
    with Consumer(node.server, retry_backoff_ms=1, retry_backoff_max_ms=2) as consumer:
        with pytest.raises(Invalid, match="nothing to read"):
            consumer.poll(WAIT_S)
        consumer.assign([("t", 0)])
        node.fetch_errors.append(Unauthorized("not you"))
        with pytest.raises(Unauthorized):
            consumer.poll(WAIT_S)
        assert consumer.poll(WAIT_S)[0].offset == 0
        consumer.assign([("t", 0), ("unknown", 0)])
        with pytest.raises(UnknownTopicOrPartition):
            consumer.poll(WAIT_S)
    with pytest.raises(Closed):
        consumer.poll(1)
    with pytest.raises(Invalid, match="groups come"):
        Consumer(node.server, group_id="g")
    with pytest.raises(InvalidConfig):
        Consumer(node.server, auto_offset_reset="middle")


def test_a_damaged_batch_is_not_decoded(node: FakeNode) -> None:
    fill(node, "t", 10)
    partition = node.topics["t"].partitions[0]
    header, data = partition.batches[0]
    partition.batches[0] = (header, data[:-3] + b"\x7f" + data[-2:])
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(CorruptMessage):
            consumer.poll(WAIT_S)
        consumer.seek("t", 0, 0)
        (batch,) = consumer.poll_batches(WAIT_S)
        with pytest.raises(CorruptMessage):
            batch.values()
