"""The asyncio clients over real sockets: the same promises as the blocking ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from streamlog.client import OffsetReset
from streamlog.client.aio import Admin, Consumer, Producer
from streamlog.errors import (
    Closed,
    Invalid,
    InvalidConfig,
    MessageTooLarge,
    ObjectNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    StoreUnavailable,
    StreamlogError,
    UnknownTopicOrPartition,
)
from tests.client.fake_node import FakeNode, Fault

WAIT_S = 20


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


def test_produce_and_consume(node: FakeNode) -> None:
    node.create("t", 3)
    values = [b"%05d" % number for number in range(3000)]

    async def main() -> None:
        async with Producer(node.server, batch_size_bytes=4096) as producer:
            reports: list[object] = []
            first = await producer.send(
                "t",
                b"v",
                key=b"k",
                on_delivery=lambda metadata, error: reports.append((metadata, error)),
            )
            metadata = await first
            assert reports == [(metadata, None)]
            assert first.done()
            assert await first.exception() is None
            sent = await producer.send_many("t", values, [value[-1:] for value in values])
            assert sum(run.record_count for run in await sent) == len(sent) == 3000
            places = [metadata async for metadata in sent]
        stored = [node.values("t", partition) for partition in range(3)]
        for value, place in zip(values, places, strict=True):
            assert stored[place.partition][place.offset] == value
        with pytest.raises(Closed):
            await producer.send("t", b"v")
        async with Consumer(node.server) as consumer:
            await consumer.subscribe(["t"])
            records = []
            async for record in consumer:
                records.append(record)
                if len(records) == 3001:
                    break
            assert sorted(record.value or b"" for record in records) == sorted([*values, b"v"])
            ends = await consumer.end_offsets([("t", 0), ("t", 1), ("t", 2)])
            for (topic, partition), end in ends.items():
                assert await consumer.position(topic, partition) == end
            await consumer.seek("t", metadata.partition, metadata.offset)
            assert (await consumer.poll(WAIT_S))[0].value == b"v"

    run(main)


@pytest.mark.parametrize("seed", range(4))
def test_random_faults(node: FakeNode, seed: int) -> None:
    node.create("t", 2)
    values = [b"%06d" % number for number in range(4000)]
    choose = random.Random(seed)
    kinds = [None, None, Fault.LOSE_ANSWER, Fault.BREAK, Fault.REFUSE, Fault.REFUSE_WHOLE]
    node.faults.extend(choose.choice(kinds) for _ in range(20))
    node.faults.append(Fault.STORE_AND_HANG)

    async def main() -> None:
        async with Producer(
            node.server,
            batch_size_bytes=1024,
            batch_size_max_bytes=1024,
            retry_backoff_ms=5,
            retry_backoff_max_ms=20,
            request_timeout_ms=300,
        ) as producer:
            views = [
                await producer.send("t", value, partition=number % 2)
                for number, value in enumerate(values)
            ]
            await producer.flush(WAIT_S)
            for value, view in zip(values, views, strict=True):
                metadata = await view
                assert metadata.partition == int(value) % 2
                assert metadata.offset == int(value) // 2

    run(main)
    assert node.values("t", 0) == values[0::2]
    assert node.values("t", 1) == values[1::2]


def test_limits_and_errors(node: FakeNode) -> None:
    node.create("t", batch_bytes_max=4096)

    async def main() -> None:
        async with Producer(
            node.server, buffer_memory_bytes=16384, max_block_ms=1_000, batch_size_bytes=4096
        ) as producer:
            with pytest.raises(MessageTooLarge):
                await producer.send("t", bytes(5000))
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("unknown", b"v")
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("t", b"v", partition=1)
            node.hold.clear()
            with pytest.raises(Overloaded):
                await producer.send_many("t", [bytes(1000)] * 100)
            node.hold.set()
            # How long the node takes to make room is the machine's affair.
            for _ in range(300):
                with suppress(Overloaded):
                    await (await producer.send("t", b"after"))
                    break
        with pytest.raises(InvalidConfig, match="linger"):
            Producer(node.server, linger=3)
        with pytest.raises(InvalidConfig):
            Consumer(node.server, fetch_min=3)
        with pytest.raises(Invalid):
            Consumer(node.server, group_id="g")

    run(main)
    assert node.values("t")[-1] == b"after"


def test_no_answer_in_time(node: FakeNode) -> None:
    node.create("t")

    async def main() -> None:
        async with Producer(
            node.server, linger_ms=0, delivery_timeout_ms=1_000, retry_backoff_ms=5
        ) as producer:
            await (await producer.send("t", b"first"))
            node.faults.append(Fault.STORE_AND_HANG)
            lost = await producer.send("t", b"stored")
            with pytest.raises(OutcomeUnknown):
                await lost
            node.refusal = lambda _topic, _partition: StoreUnavailable("away")
            node.stop()
            node.start()
            refused = await producer.send("t", b"refused")
            assert isinstance(await refused.exception(), StreamlogError)
            node.refusal = lambda _topic, _partition: None
            await (await producer.send("t", b"after"))

    run(main)
    assert node.values("t") == [b"first", b"stored", b"after"]


def test_consumer_faults_and_resets(node: FakeNode) -> None:
    node.create("t")

    async def main() -> None:
        async with Producer(node.server) as producer:
            await (await producer.send_many("t", [b"%d" % n for n in range(100)]))
        node.topics["t"].partitions[0].start_offset = 10
        node.fetch_errors.extend([StoreUnavailable("away")] * 2)
        async with Consumer(node.server, retry_backoff_ms=5) as consumer:
            await consumer.assign([("t", 0)])
            await consumer.seek("t", 0, 5)
            batches = await consumer.poll_batches(WAIT_S)
            assert batches[0].base_offset == 10
            assert consumer.take_offset_resets() == [OffsetReset("t", 0, 5, 10, 5, 10, 100)]
            node.stop()
            node.start()
            await consumer.seek("t", 0, 50)
            assert (await consumer.poll(WAIT_S, max_records=3))[2].value == b"52"
            assert consumer.assignment() == [("t", 0)]
            assert (await consumer.beginning_offsets([("t", 0)])) == {("t", 0): 10}
        async with Consumer(node.server, auto_offset_reset="none") as strict:
            await strict.assign([("t", 0)])
            with pytest.raises(OffsetOutOfRange):
                await strict.poll(WAIT_S)

    run(main)


def test_a_cancelled_poll_loses_nothing(node: FakeNode) -> None:
    node.create("t")

    async def main() -> None:
        async with Consumer(node.server) as consumer, Producer(node.server) as producer:
            await consumer.assign([("t", 0)])
            waiting = asyncio.create_task(consumer.poll(WAIT_S))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await (await producer.send("t", b"v"))
            assert [record.value for record in await consumer.poll(WAIT_S)] == [b"v"]

    run(main)


def test_admin(node: FakeNode) -> None:
    node.create("t", 4)

    async def main() -> None:
        async with Admin(node.server) as admin:
            assert (await admin.status()).topics == 1
            assert len((await admin.describe_topic("t")).partitions) == 4
            with pytest.raises(UnknownTopicOrPartition):
                await Admin(node.server, timeout_ms=10_000).describe_topic("unknown")
            with pytest.raises(ObjectNotFound):
                await admin.describe_object("key")

    run(main)
