"""send_many takes a whole list, or none of it, or its error says which records it took."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from streamlog.client import Producer, aio
from streamlog.errors import MessageTooLarge, UnknownTopicOrPartition
from tests.client.fake_node import FakeNode, until

WAIT_S = 20
SMALL_ROOM: dict[str, Any] = dict(
    linger_ms=0, batch_size_bytes=1024, batch_size_max_bytes=1024, buffer_memory_bytes=20_000
)
LARGE_AT = 50
VALUES = [b"x" * (8_000 if place == LARGE_AT else 900) for place in range(60)]


def when_full(producer: Producer, do: Callable[[], None]) -> threading.Thread:
    """Does it once the producer has no room for another batch."""

    def run() -> None:
        pause = threading.Event()
        while producer.metrics()["buffered_bytes"] < 18_500:
            pause.wait(0.001)
        do()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_limit_lowered_during_a_send_many_does_not_refuse_its_rest(node: FakeNode) -> None:
    node.create("t", 2, batch_bytes_max=100_000)
    with Producer(node.server, **SMALL_ROOM) as producer:
        producer.send("t", b"first", partition=1).result(WAIT_S)
        node.refusal = lambda _topic, partition: (
            MessageTooLarge("refused on command", size_bytes=15_000, max_bytes=5_000)
            if partition
            else None
        )
        node.hold.clear()
        # The answer to this one makes room, and lowers what the producer holds for the limit.
        refused = producer.send("t", b"x" * 15_000, partition=1)
        release = when_full(producer, node.hold.set)
        sent = producer.send_many("t", VALUES, partition=0)
        release.join()
        assert [outcome.error for outcome in sent.outcomes(WAIT_S) if outcome.error] == []
        assert isinstance(refused.exception(WAIT_S), MessageTooLarge)
    assert node.values("t", 0) == VALUES


def test_a_list_with_a_record_above_the_buffer_is_refused_whole(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, linger_ms=0, buffer_memory_bytes=4096) as producer:
        with pytest.raises(MessageTooLarge, match="buffer_memory_bytes"):
            producer.send_many("t", [b"v", b"x" * 5000])
        producer.flush(WAIT_S)
    assert node.values("t") == []

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0, buffer_memory_bytes=4096) as producer:
            with pytest.raises(MessageTooLarge, match="buffer_memory_bytes"):
                await producer.send_many("t", [b"v", b"x" * 5000])

    asyncio.run(main())
    assert node.values("t") == []


def test_a_partition_lost_during_a_send_many_is_an_error_with_the_taken_records(
    node: FakeNode,
) -> None:
    node.create("t", 2)
    with Producer(node.server, **SMALL_ROOM, retry_backoff_ms=1) as producer:
        producer.send("t", b"first", partition=1).result(WAIT_S)

        def make_anew() -> None:
            node.create("t", 1)
            node.hold.set()

        node.hold.clear()
        making = when_full(producer, make_anew)
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0") as raised:
            producer.send_many("t", VALUES, partition=1)
        making.join()
        many: Any = raised.value.deliveries
        places = [place for outcome in many.outcomes(WAIT_S) for place in outcome.places]
        assert places == list(range(len(places)))
        assert len(places) == raised.value.taken
        assert 0 < len(places) < len(VALUES)


def test_a_partition_lost_while_a_send_waits_for_room_is_named_in_asyncio(node: FakeNode) -> None:
    node.create("t", 2)

    async def main() -> None:
        async with aio.Producer(node.server, **SMALL_ROOM, retry_backoff_ms=1) as producer:
            await (await producer.send("t", b"first", partition=1))
            node.hold.clear()
            filling = asyncio.create_task(producer.send_many("t", VALUES, partition=0))
            await until(lambda: producer.metrics()["buffered_bytes"] >= 18_500)
            # The one answer before the topic is looked up again makes too little room for it.
            large = VALUES[LARGE_AT]
            waiting = asyncio.create_task(producer.send("t", large, partition=1))
            await asyncio.sleep(0)
            node.create("t", 1)
            node.hold.set()
            with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0"):
                await asyncio.wait_for(waiting, WAIT_S)
            await asyncio.wait([filling])

    asyncio.run(main())
