"""Batches too large for topic, segment or message: split in order, or refused alone and at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamlog.client import Producer, RecordMetadata, aio
from streamlog.errors import (
    MessageTooLarge,
    OutcomeUnknown,
    Overloaded,
    StoreUnavailable,
    StreamlogError,
)
from tests.client.fake_node import FakeNode, Fault

WAIT_S = 20
LIMITS: list[dict[str, int]] = [dict(batch_bytes_max=2000), dict(segment_bytes=2000)]


@contextmanager
def closing_at_once(producer: Producer) -> Iterator[None]:
    """Without waiting for what would never be answered."""
    try:
        yield
    finally:
        producer.close(0)


def lower(node: FakeNode, topic: str, limits: dict[str, int]) -> None:
    """The producer has learned the old limits already."""
    for name, value in limits.items():
        setattr(node.topics[topic], name, value)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_that_is_refused_for_its_size_is_stored_in_parts(
    node: FakeNode, limits: dict[str, int], compression: str
) -> None:
    node.create("t")
    noise = random.Random(7)
    values = [b"%03d" % number + noise.randbytes(97) for number in range(200)]
    offsets: list[int] = []
    with Producer(node.server, linger_ms=10_000, compression=compression) as producer:
        producer.send("t", b"before")
        producer.flush(WAIT_S)
        lower(node, "t", limits)
        sent = [
            producer.send(
                "t", value, on_delivery=lambda at, _: offsets.append(at.offset if at else -1)
            )
            for value in values[:100]
        ]
        many = producer.send_many("t", values[100:])
        producer.flush(WAIT_S)
        assert [delivery.result(WAIT_S).offset for delivery in sent] == list(range(1, 101))
        assert [at.offset for at in many] == list(range(101, 201))
        assert sum(run.record_count for run in many.result(WAIT_S)) == 100
        assert producer.metrics()["buffered_bytes"] == 0
        assert producer.metrics()["producer_epoch"] == 0
    assert node.values("t") == [b"before", *values]
    assert offsets == list(range(1, 101))


@pytest.mark.parametrize("limits", LIMITS)
def test_asyncio_stores_a_batch_refused_for_its_size_in_parts(
    node: FakeNode, limits: dict[str, int]
) -> None:
    node.create("t")
    values = [b"%03d" % number * 30 for number in range(200)]

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=10_000) as producer:
            await producer.send("t", b"before")
            await producer.flush(WAIT_S)
            lower(node, "t", limits)
            many = await producer.send_many("t", values)
            await producer.flush(WAIT_S)
            assert [at.offset async for at in many] == list(range(1, 201))

    asyncio.run(main())
    assert node.values("t") == [b"before", *values]


@pytest.mark.parametrize("limits", LIMITS)
def test_a_record_that_is_too_large_fails_alone(node: FakeNode, limits: dict[str, int]) -> None:
    node.create("t")
    values = [b"%03d" % number * (1000 if number in (30, 31, 70) else 30) for number in range(100)]
    with Producer(
        node.server, linger_ms=0, batch_size_bytes=16 << 10, batch_size_max_bytes=16 << 10
    ) as producer:
        producer.send("t", b"before").result(WAIT_S)
        lower(node, "t", limits)
        node.hold.clear()
        many = producer.send_many("t", values)
        after = [producer.send("t", b"after%d" % number) for number in range(20)]
        node.hold.set()
        outcomes = many.outcomes(WAIT_S)
        failed = {
            at: outcome.error for outcome in outcomes if outcome.error for at in outcome.places
        }
        assert sorted(failed) == [30, 31, 70]
        assert {type(error) for error in failed.values()} <= {MessageTooLarge, type(failed[30])}
        assert all(isinstance(error, MessageTooLarge) for error in failed.values())
        assert sorted(at for outcome in outcomes for at in outcome.places) == list(range(100))
        with pytest.raises(MessageTooLarge):
            many.result(WAIT_S)
        assert isinstance(many.exception(WAIT_S), MessageTooLarge)
        assert producer.metrics()["records_failed"] == 3
        offsets = [delivery.result(WAIT_S).offset for delivery in after]
        assert offsets == sorted(offsets)
    good = [value for number, value in enumerate(values) if number not in (30, 31, 70)]
    assert node.values("t") == [b"before", *good, *(b"after%d" % number for number in range(20))]


@pytest.mark.parametrize("seed", range(6))
def test_splitting_among_faults_neither_loses_nor_doubles_nor_reorders(
    node: FakeNode, seed: int
) -> None:
    node.create("t", 2)
    chance = random.Random(seed)
    faults = [None, None, None, Fault.LOSE_ANSWER, Fault.BREAK, Fault.REFUSE, Fault.REFUSE_WHOLE]
    values = [b"%05d" % number * 40 for number in range(3000)]
    with Producer(
        node.server,
        linger_ms=0,
        batch_size_bytes=8 << 10,
        batch_size_max_bytes=8 << 10,
        retry_backoff_ms=1,
        retry_backoff_max_ms=5,
    ) as producer:
        for partition in (0, 1):
            producer.send("t", b"", partition=partition).result(WAIT_S)
        node.faults.extend(chance.choice(faults) for _ in range(20))
        sent = []
        for number, value in enumerate(values):
            if number in (500, 1500):
                node.topics["t"].batch_bytes_max = chance.choice([1000, 3000, 5000])
            sent.append(producer.send("t", value, partition=number % 2))
        producer.flush(60)
        outcomes = [delivery.exception(0) for delivery in sent]
    for partition in (0, 1):
        stored = node.values("t", partition)[1:]
        assert stored == sorted(stored)
        assert len(set(stored)) == len(stored)
        errors = [error for number, error in enumerate(outcomes) if number % 2 == partition]
        sent_values = values[partition::2]
        acknowledged = [
            value for value, error in zip(sent_values, errors, strict=True) if error is None
        ]
        assert set(acknowledged) <= set(stored)
        refused = [
            value
            for value, error in zip(sent_values, errors, strict=True)
            if error is not None and error.has_no_side_effects
        ]
        assert not set(refused) & set(stored)
    # Only what an earlier attempt may have stored is not sent again in parts.
    assert all(error is None or not error.has_no_side_effects for error in outcomes)


def test_a_record_above_what_a_message_carries_blocks_nothing() -> None:
    with FakeNode(message_bytes_max=1 << 20) as node:
        node.create("big", batch_bytes_max=100_000_000)
        node.create("other")

        async def main() -> StreamlogError | None:
            async with aio.Producer(node.server, linger_ms=0) as producer:
                refused = await producer.send("big", b"x" * 3_000_000)
                small = await producer.send("other", b"aio")
                await asyncio.wait_for(small.result(), WAIT_S)
                return await asyncio.wait_for(refused.exception(), WAIT_S)

        with Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
            producer.send("other", b"before").result(WAIT_S)
            refused = producer.send("big", b"x" * 3_000_000)
            small = [producer.send("other", b"%d" % number) for number in range(5)]
            error = refused.exception(WAIT_S)
            assert isinstance(error, MessageTooLarge)
            assert error.max_bytes == (1 << 20) - 1024
            assert "limits.message_bytes_max" in str(error)
            assert [delivery.result(WAIT_S).offset for delivery in small] == [1, 2, 3, 4, 5]
            with pytest.raises(MessageTooLarge):
                producer.send("big", b"x" * 3_000_000)
            fits = [b"y" * 400_000 for _ in range(8)]
            producer.send_many("big", fits).result(WAIT_S)
        assert isinstance(asyncio.run(main()), MessageTooLarge)
        assert node.values("big") == fits
        assert node.values("other")[-1] == b"aio"


def test_a_batch_above_what_a_message_carries_goes_in_parts() -> None:
    with FakeNode(message_bytes_max=1 << 20) as node:
        node.create("big", batch_bytes_max=100_000_000)
        values = [b"%d" % number * 300_000 for number in range(8)]
        with Producer(node.server, linger_ms=10_000, batch_size_bytes=16 << 20) as producer:
            sent = producer.send_many("big", values)
            producer.flush(WAIT_S)
            assert len(sent.result(WAIT_S)) > 1
        assert node.values("big") == values


def test_after_a_send_many_that_took_a_part_its_outcome_can_be_asked(node: FakeNode) -> None:
    node.create("t", 2)
    node.hold.clear()
    keys = [b"%d" % (number % 7) for number in range(100)]
    values = [b"%03d" % number * 30 for number in range(100)]

    async def main() -> None:
        async with aio.Producer(node.server, **settings) as producer:
            with pytest.raises(Overloaded) as raised:
                await producer.send_many("t", values, keys)
            node.hold.set()
            many: Any = raised.value.deliveries
            places = [at for outcome in await many.outcomes() for at in outcome.places]
            assert len(set(places)) == len(places) == raised.value.taken

    settings: dict[str, Any] = dict(
        linger_ms=0, buffer_memory_bytes=4096, batch_size_bytes=1024, max_block_ms=1_000
    )
    with Producer(node.server, **settings) as producer:
        with pytest.raises(Overloaded) as raised:
            producer.send_many("t", values, keys)
        node.hold.set()
        many: Any = raised.value.deliveries
        stored: dict[int, RecordMetadata] = {}
        for outcome in many.outcomes(WAIT_S):
            for index, place in enumerate(outcome.places):
                at = outcome.metadata
                stored[place] = RecordMetadata("t", at.partition, at.base_offset + index, 0)
        assert len(stored) == raised.value.taken
        assert 0 < len(stored) < 100
    for place, at in stored.items():
        assert node.values("t", at.partition)[at.offset] == values[place]
    node.hold.clear()
    asyncio.run(main())


def test_parts_of_a_batch_end_with_its_delivery_timeout(node: FakeNode) -> None:
    node.create("t")
    attempts: list[str] = []

    def refuse_parts(topic: str, _partition: int) -> StreamlogError | None:
        attempts.append(topic)
        return StoreUnavailable("refused on command") if len(attempts) > 1 else None

    producer = Producer(node.server, delivery_timeout_ms=1_000, retry_backoff_max_ms=20)
    with closing_at_once(producer):
        producer.send("t", b"first").result(WAIT_S)
        node.topics["t"].batch_bytes_max = 4_000
        node.refusal = refuse_parts
        sent = producer.send_many("t", [b"x" * 3_000, b"y" * 3_000])
        for outcome in sent.outcomes(WAIT_S):
            # The second: one of the parts may be under way at that moment.
            assert isinstance(outcome.error, StoreUnavailable | OutcomeUnknown)
        assert producer.metrics()["buffered_bytes"] == 0
    assert len(attempts) > 1
    assert node.values("t") == [b"first"]


def test_a_batch_that_may_be_stored_is_not_split(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    store = node.store_part

    def lower_behind(*arguments: Any) -> tuple[int, bool]:
        place = store(*arguments)
        node.topics["t"].batch_bytes_max = 4_000
        return place

    values = [b"x" * 3_000, b"y" * 3_000]
    with Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
        producer.send("t", b"first").result(WAIT_S)
        monkeypatch.setattr(node, "store_part", lower_behind)
        node.faults.append(Fault.LOSE_ANSWER)
        assert isinstance(producer.send_many("t", values).exception(WAIT_S), OutcomeUnknown)
        assert producer.send("t", b"last").result(WAIT_S).offset == 3
    assert node.values("t") == [b"first", *values, b"last"]


def test_batches_that_are_too_large_together_are_sent_in_smaller_messages() -> None:
    with FakeNode(message_bytes_max=300_000) as node:
        node.create("t", 4)
        producer = Producer(node.server, linger_ms=600_000, retry_backoff_max_ms=20)
        with closing_at_once(producer):
            producer.send("t", b"first", partition=0)
            producer.flush(WAIT_S)
            for partition in range(4):
                producer.send("t", b"x" * 100_000, partition=partition)
            producer.flush(WAIT_S)
        assert [len(node.values("t", partition)) for partition in range(4)] == [2, 1, 1, 1]
