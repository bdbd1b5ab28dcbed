"""Topics that are created, deleted, and created again under their name; more of them than a
request names."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from streamlog.client import Consumer, Producer, aio
from streamlog.errors import (
    InconsistentTopicId,
    MessageTooLarge,
    OutcomeUnknown,
    StoreUnavailable,
    Unavailable,
    UnknownTopicOrPartition,
)
from tests.client.fake_node import FakeNode

WAIT_S = 20
QUICK: dict[str, Any] = dict(retry_backoff_ms=1, retry_backoff_max_ms=5, fetch_max_wait_ms=20)


def fill(node: FakeNode, topic: str, values: list[bytes], partition: int = 0) -> None:
    with Producer(node.server) as producer:
        producer.send_many(topic, values, partition=partition).result(WAIT_S)


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    while len(values) < count:
        records = consumer.poll(WAIT_S)
        assert records
        values += [record.value for record in records]
    return values


@pytest.mark.parametrize("subscribes", [True, False])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_topic_made_anew_is_read_from_its_start(
    node: FakeNode, subscribes: bool, reset: str
) -> None:
    node.create("t", 2)
    old, new = [b"old%d" % n for n in range(5)], [b"new%d" % n for n in range(9)]
    with Consumer(node.server, auto_offset_reset=reset, **QUICK) as consumer:
        if subscribes:
            consumer.subscribe(["t"])
        else:
            consumer.assign([("t", 0)])
        while consumer.poll(0.01) or consumer.assignment() == []:
            pass
        consumer.position("t", 0)
        fill(node, "t", old)
        assert read(consumer, 5) == old
        # With more records than were read: without the id they would be taken for later ones.
        node.create("t", 1)
        fill(node, "t", new)
        assert read(consumer, 9) == new
        assert consumer.position("t", 0) == 9
        assert consumer.assignment() == [("t", 0)]


def test_a_topic_made_anew_is_read_from_its_start_in_asyncio(node: FakeNode) -> None:
    node.create("t", 2)
    new = [b"new%d" % n for n in range(9)]

    async def main() -> list[bytes | None]:
        async with aio.Consumer(node.server, **QUICK) as consumer:
            await consumer.subscribe(["t"])
            fill(node, "t", [b"old"])
            assert len(await consumer.poll(WAIT_S)) == 1
            node.create("t", 1)
            await asyncio.to_thread(fill, node, "t", new)
            values: list[bytes | None] = []
            while len(values) < 9:
                values += [record.value for record in await consumer.poll(WAIT_S)]
            assert consumer.assignment() == [("t", 0)]
            return values

    assert asyncio.run(main()) == new


def test_without_a_reset_a_topic_made_anew_is_an_error(node: FakeNode) -> None:
    node.create("t")
    fill(node, "t", [b"old"])
    with Consumer(node.server, auto_offset_reset="none", **QUICK) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        assert read(consumer, 1) == [b"old"]
        node.create("t")
        fill(node, "t", [b"new0", b"new1"])
        with pytest.raises(InconsistentTopicId, match="made anew"):
            consumer.poll(WAIT_S)
        assert consumer.poll(0.05) == []
        consumer.seek("t", 0, 1)
        assert read(consumer, 1) == [b"new1"]


def test_a_subscribed_topic_that_is_deleted_is_waited_for(node: FakeNode) -> None:
    node.create("t", 2)
    fill(node, "t", [b"old"])
    with Consumer(node.server, **QUICK) as consumer:
        consumer.subscribe(["t", "later"])
        assert read(consumer, 1) == [b"old"]
        deleted = node.topics.pop("t")
        while consumer.assignment():
            assert consumer.poll(0.01) == []
        assert consumer.waiting_for() == "topics that do not exist yet: t, later"
        node.create("t")
        fill(node, "t", [b"new"])
        assert read(consumer, 1) == [b"new"]
        assert node.topics["t"].topic_id != deleted.topic_id


def test_a_topic_that_was_waited_for_is_read_from_its_start(node: FakeNode) -> None:
    with Consumer(node.server, auto_offset_reset="latest", **QUICK) as consumer:
        consumer.subscribe(["t"])
        while consumer.waiting_for() is None:
            assert consumer.poll(0.01) == []
        node.create("t")
        fill(node, "t", [b"first"])
        assert read(consumer, 1) == [b"first"]


def test_the_deletion_of_an_assigned_topic_is_reported(node: FakeNode) -> None:
    node.create("t")
    fill(node, "t", [b"old"])
    with Consumer(node.server, **QUICK) as consumer:
        consumer.assign([("t", 0)])
        assert read(consumer, 1) == [b"old"]
        del node.topics["t"]
        with pytest.raises(UnknownTopicOrPartition):
            consumer.poll(WAIT_S)
        node.create("t")
        fill(node, "t", [b"new0", b"new1"])
        values: list[bytes | None] = []
        while len(values) < 2:
            try:
                values += [record.value for record in consumer.poll(WAIT_S)]
            except UnknownTopicOrPartition:
                continue
        assert values == [b"new0", b"new1"]


def test_more_partitions_than_a_request_names_are_asked_for_in_turns(node: FakeNode) -> None:
    node.create("t", 50)
    for partition in range(50):
        fill(node, "t", [b"%d" % partition], partition)
    node.partitions_per_request_max = 7
    everything = [("t", partition) for partition in range(50)]

    async def main() -> list[bytes | None]:
        async with aio.Consumer(node.server, **QUICK) as consumer:
            await consumer.assign(everything)
            assert sum((await consumer.end_offsets(everything)).values()) == 51
            values: list[bytes | None] = []
            while len(values) < 51:
                values += [record.value for record in await consumer.poll(WAIT_S)]
            return values

    with Consumer(node.server, **QUICK) as consumer:
        consumer.assign(everything)
        assert Counter(read(consumer, 50)) == Counter(b"%d" % n for n in range(50))
        fill(node, "t", [b"again"], 49)
        assert read(consumer, 1) == [b"again"]
        assert consumer.beginning_offsets(everything) == dict.fromkeys(everything, 0)
    assert len(set(asyncio.run(main()))) == 51


def test_many_topics_are_looked_up_in_few_calls(node: FakeNode) -> None:
    names = [f"topic-{number:04d}" for number in range(0, 900, 3)]
    for number in range(900):
        node.create(f"topic-{number:04d}")
    with Consumer(node.server, **QUICK) as consumer:
        consumer.subscribe([*names, "absent"])
        while len(consumer.assignment()) < 300:
            consumer.poll(0.01)
        assert consumer.assignment() == [(name, 0) for name in names]
        assert node.calls.count("ListTopics") + node.calls.count("DescribeTopics") <= 4


def test_a_consumer_names_the_server_that_does_not_answer() -> None:
    async def main() -> str | None:
        async with aio.Consumer("127.0.0.1:1", **QUICK) as consumer:
            await consumer.subscribe(["t"])
            while consumer.waiting_for() is None:
                assert await consumer.poll(0.01) == []
            return consumer.waiting_for()

    with Consumer("127.0.0.1:1", default_api_timeout_ms=300, **QUICK) as consumer:
        consumer.assign([("t", 0)])
        while consumer.waiting_for() is None:
            assert consumer.poll(0.01) == []
        assert (consumer.waiting_for() or "").startswith("127.0.0.1:1, for 0 s: ")
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 was not reached within 0\.\d s"):
            consumer.end_offsets([("t", 0)])
    assert (asyncio.run(main()) or "").startswith("127.0.0.1:1, for ")


def test_a_producer_goes_on_in_a_topic_made_anew(node: FakeNode) -> None:
    node.create("t", 3)
    with Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
        for partition in range(3):
            producer.send("t", b"old", partition=partition).result(WAIT_S)
        node.create("t", 1)
        sent = [producer.send("t", b"%d" % n, partition=0) for n in range(20)]
        assert [delivery.result(WAIT_S).offset for delivery in sent] == list(range(20))
        # The partitions that are gone are no more chosen, and are refused where they are named.
        assert {producer.send("t", b"k").result(WAIT_S).partition for _ in range(20)} == {0}
        assert producer.send("t", b"v", key=b"some key").result(WAIT_S).partition == 0
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0"):
            producer.send("t", b"v", partition=2)
    assert node.values("t")[:20] == [b"%d" % n for n in range(20)]


def test_records_keep_their_order_where_the_new_topic_refuses_the_first(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    store, refused = node.store_part, list[str]()

    def refuse_one(topic: str, topic_id: str, part: Any) -> tuple[int, bool]:
        if topic_id == node.topics[topic].topic_id and not refused:
            refused.append(topic_id)
            raise StoreUnavailable("refused on command")
        return store(topic, topic_id, part)

    values = [b"%03d" % number * 40 for number in range(10)]
    small: dict[str, Any] = dict(linger_ms=0, batch_size_bytes=128, batch_size_max_bytes=128)
    with Producer(node.server, retry_backoff_ms=1, **small) as producer:
        producer.send("t", b"old").result(WAIT_S)
        node.create("t")
        monkeypatch.setattr(node, "store_part", refuse_one)
        node.hold.clear()
        sent = [producer.send("t", value) for value in values]
        node.hold.set()
        assert [delivery.result(WAIT_S).offset for delivery in sent] == list(range(10))
    assert refused
    assert node.values("t") == values


def test_the_same_for_a_producer_in_asyncio(node: FakeNode) -> None:
    node.create("t", 3)

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
            await (await producer.send("t", b"old", partition=2))
            node.create("t", 1)
            sent = [await producer.send("t", b"%d" % n, partition=0) for n in range(20)]
            assert [(await delivery).offset for delivery in sent] == list(range(20))
            with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0"):
                await producer.send("t", b"v", partition=2)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_records_for_partitions_that_are_gone_fail(node: FakeNode) -> None:
    node.create("t", 2)
    with Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
        producer.send("t", b"old", partition=1).result(WAIT_S)
        node.create("t", 1)
        lost = producer.send("t", b"lost", partition=1)
        kept = producer.send("t", b"kept", partition=0)
        # Under way when the topic was looked up again, it may have been stored before.
        assert isinstance(lost.exception(WAIT_S), UnknownTopicOrPartition | OutcomeUnknown)
        assert kept.result(WAIT_S).offset == 0
        assert producer.metrics()["buffered_bytes"] == 0


def test_a_producer_sends_to_a_topic_that_is_made_again_later(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=2) as producer:
        producer.send("t", b"old").result(WAIT_S)
        del node.topics["t"]
        assert isinstance(producer.send("t", b"x").exception(WAIT_S), UnknownTopicOrPartition)
        node.create("t")
        assert producer.send("t", b"new").result(WAIT_S).offset == 0


def test_first_records_to_many_topics_take_few_calls(node: FakeNode) -> None:
    names = [f"topic-{number:04d}" for number in range(300)]
    for name in names:
        node.create(name)
    node.create("topic-low", batch_bytes_max=200)
    node.create("topic-wide", batch_bytes_max=4 << 20)

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0) as producer:
            for name in names:
                await producer.send(name, b"aio")
            refused = await producer.send("topic-low", b"x" * 300)
            assert isinstance(await refused.exception(), MessageTooLarge)
            await (await producer.send("topic-wide", b"x" * (2 << 20)))
            await producer.flush(WAIT_S)

    with Producer(node.server, linger_ms=0) as producer:
        sent = [producer.send(name, b"v") for name in names]
        assert [delivery.result(WAIT_S).offset for delivery in sent] == [0] * 300
        assert len(node.calls) <= 20
        # What was guessed of those that were read ahead is asked for when it matters.
        assert producer.send_many("topic-low", [b"y" * 100] * 4).outcomes(WAIT_S)
        with pytest.raises(MessageTooLarge):
            producer.send("topic-low", b"x" * 300)
        with pytest.raises(MessageTooLarge):
            producer.send_many("topic-low", [b"x" * 300])
        assert producer.send("topic-wide", b"x" * (2 << 20)).result(WAIT_S).offset == 0
    node.calls.clear()
    asyncio.run(asyncio.wait_for(main(), 60))
    assert len(node.calls) <= 22
    assert all(node.values(name) == [b"v", b"aio"] for name in names)
    assert node.values("topic-low") == [b"y" * 100] * 4


def test_a_consumer_that_reached_the_node_again_waits_for_the_topic(node: FakeNode) -> None:
    with Consumer(node.server, **QUICK) as consumer:
        node.stop()
        consumer.subscribe(["later"])
        while not (consumer.waiting_for() or "").startswith(node.server):
            assert consumer.poll(0.01) == []
        node.start()
        while consumer.waiting_for() != "topics that do not exist yet: later":
            assert consumer.poll(0.01) == []


def test_an_error_is_raised_once_and_not_as_often_as_it_happened_meanwhile(node: FakeNode) -> None:
    async def main() -> None:
        async with aio.Consumer(node.server, **QUICK) as consumer:
            await consumer.assign([("later", 0)])
            with pytest.raises(UnknownTopicOrPartition):
                await consumer.poll(WAIT_S)
            await asyncio.sleep(0.3)
            node.create("later")
            with pytest.raises(UnknownTopicOrPartition):
                await consumer.poll(WAIT_S)
            assert await consumer.poll(0.3) == []

    with Consumer(node.server, **QUICK) as consumer:
        consumer.assign([("later", 0)])
        with pytest.raises(UnknownTopicOrPartition):
            consumer.poll(WAIT_S)
        # The caller does something else; the topic stays unknown.
        time.sleep(0.3)
        node.create("later")
        with pytest.raises(UnknownTopicOrPartition):
            consumer.poll(WAIT_S)
        assert consumer.poll(0.3) == []
    del node.topics["later"]
    asyncio.run(main())


def test_a_consumer_that_got_partitions_does_not_wait_for_its_former_topics(
    node: FakeNode,
) -> None:
    node.create("t")
    with Consumer(node.server) as consumer:
        consumer.subscribe(["missing"])
        while consumer.waiting_for() is None:
            assert consumer.poll(0.01) == []
        assert "missing" in (consumer.waiting_for() or "")
        consumer.assign([("t", 0)])
        assert consumer.waiting_for() is None
