"""A producer that waits for the node: it sleeps, keeps its time limits, and wakes up by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from streamlog.client import Producer, aio
from streamlog.client.produce import core
from streamlog.client.produce.core import ProducerCore
from streamlog.codec.batch import scan
from streamlog.errors import OutcomeUnknown, StreamlogError, Unauthorized, Unavailable
from streamlog.v1 import log_pb2
from tests.client.fake_node import FakeNode, Fault, until

WAIT_S = 20
WATCHED_S = 0.3
WAKE_UPS_MAX = 20


@pytest.fixture
def wake_ups(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the producer looked for something to send."""
    moments: list[float] = []
    next_message = ProducerCore.next_message

    def counted(self: ProducerCore, now: float) -> Any:
        moments.append(now)
        return next_message(self, now)

    monkeypatch.setattr(ProducerCore, "next_message", counted)
    return moments


@pytest.mark.parametrize("awaited", ["first answer", "producer id", "room in flight"])
def test_a_producer_sleeps_while_it_may_send_nothing(
    node: FakeNode, wake_ups: list[float], monkeypatch: pytest.MonkeyPatch, awaited: str
) -> None:
    node.create("t")
    if awaited == "room in flight":
        monkeypatch.setattr(core, "BYTES_IN_FLIGHT_MAX", 1)
    if awaited == "producer id":
        node.hold_ids.clear()

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=1) as producer:
            if awaited == "room in flight":
                await (await producer.send("t", b"known"))
            node.hold.clear()
            first = await producer.send("t", b"1")
            await asyncio.sleep(0.1)
            second = await producer.send("t", b"2")
            await asyncio.sleep(0.1)
            wake_ups.clear()
            await asyncio.sleep(WATCHED_S)
            seen = len(wake_ups)
            node.hold_ids.set()
            node.hold.set()
            await asyncio.wait_for(first.result(), WAIT_S)
            await asyncio.wait_for(second.result(), WAIT_S)
            assert seen < WAKE_UPS_MAX

    with Producer(node.server, linger_ms=1) as producer:
        if awaited == "room in flight":
            producer.send("t", b"known").result(WAIT_S)
        node.hold.clear()
        first = producer.send("t", b"1")
        time.sleep(0.1)
        second = producer.send("t", b"2")
        time.sleep(0.1)
        wake_ups.clear()
        time.sleep(WATCHED_S)
        seen = len(wake_ups)
        node.hold_ids.set()
        node.hold.set()
        first.result(WAIT_S)
        second.result(WAIT_S)
        assert seen < WAKE_UPS_MAX
    if awaited == "producer id":
        node.hold_ids.clear()
    asyncio.run(main())


def test_a_record_behind_one_without_an_answer_says_so(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is there all the time; a connection broke before."""
    monkeypatch.setattr(core, "BYTES_IN_FLIGHT_MAX", 1)
    node.create("t")
    node.faults.append(Fault.BREAK)
    with Producer(node.server, linger_ms=0, delivery_timeout_ms=2_000) as producer:
        producer.send("t", b"0").result(WAIT_S)
        node.hold.clear()
        sent = node.produce_messages
        first = producer.send("t", b"1")
        asyncio.run(until(lambda: node.produce_messages > sent))
        second = producer.send("t", b"2")
        assert isinstance(first.exception(WAIT_S), OutcomeUnknown)
        late = second.exception(WAIT_S)
        node.hold.set()
    assert isinstance(late, Unavailable)
    assert "waited behind a message that has had no answer for" in str(late)


def test_records_expire_while_the_producer_id_is_awaited(node: FakeNode) -> None:
    node.create("t")
    node.hold_ids.clear()

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0, delivery_timeout_ms=1_000) as producer:
            sent = await producer.send("t", b"v")
            error = await asyncio.wait_for(sent.exception(), WAIT_S)
            assert isinstance(error, Unavailable)
            node.hold_ids.set()
            await asyncio.wait_for((await producer.send("t", b"later")).result(), WAIT_S)

    with Producer(node.server, linger_ms=0, delivery_timeout_ms=1_000) as producer:
        assert isinstance(producer.send("t", b"v").exception(WAIT_S), Unavailable)
    node.hold_ids.clear()
    asyncio.run(main())
    assert node.values("t") == [b"later"]


class LateNode(FakeNode):
    """`is_late`: answers for partition 1 come behind the first of partition 0 under a new epoch."""

    def __init__(self) -> None:
        self.is_late = False
        self.held_back: list[Any] = []
        super().__init__()

    def ProduceStream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            (part,) = request.request.topics[0].partitions
            if self.is_late and part.partition == 1:
                self.held_back.append(request)
                continue
            yield self._answer(request)
            (batch,) = scan(part.record_batches)
            if self.is_late and batch.header.producer_epoch > 0:
                self.is_late = False
                for earlier in self.held_back:
                    yield self._answer(earlier)
                self.held_back.clear()

    def _answer(self, request: Any) -> Any:
        response = self.produce(request.request, refuse=False)
        answer = log_pb2.ProduceStreamAnswer(
            correlation_id=request.correlation_id, response=response
        )
        return log_pb2.ProduceStreamResponse(answers=[answer])

    def refuse_the_next_batch_of_each_partition(self) -> None:
        refused: set[int] = set()

        def refusal(_topic: str, partition: int) -> StreamlogError | None:
            if partition in refused:
                return None
            refused.add(partition)
            return Unauthorized("refused on command")

        self.refusal = refusal


RECORD = b"x" * 100
EACH_RECORD_A_BATCH: dict[str, Any] = dict(
    linger_ms=0, batch_size_bytes=128, batch_size_max_bytes=128, retry_backoff_ms=1
)


def test_a_partition_that_lags_behind_the_epoch_of_another_is_sent_on() -> None:
    """Partition 0 is refused a batch, and the epoch rises; only then partition 1 hears of its own
    refusal, and needs no newer epoch than the one that is there."""
    with LateNode() as node:
        node.create("t", 2)
        with Producer(node.server, **EACH_RECORD_A_BATCH) as producer:
            for partition in (0, 1):
                producer.send("t", RECORD, partition=partition).result(WAIT_S)
            node.refuse_the_next_batch_of_each_partition()
            node.is_late = True
            late = [producer.send("t", RECORD, partition=1) for _ in range(2)]
            while len(node.held_back) < 2:
                time.sleep(0.001)
            early = [producer.send("t", RECORD, partition=0) for _ in range(2)]
            for refused, stored in (early, late):
                assert isinstance(refused.exception(WAIT_S), Unauthorized)
                assert stored.result(WAIT_S).offset == 1


def test_the_same_for_a_partition_that_lags_behind_in_asyncio() -> None:
    async def main(node: LateNode) -> None:
        async with aio.Producer(node.server, **EACH_RECORD_A_BATCH) as producer:
            for partition in (0, 1):
                await (await producer.send("t", RECORD, partition=partition))
            node.refuse_the_next_batch_of_each_partition()
            node.is_late = True
            late = [await producer.send("t", RECORD, partition=1) for _ in range(2)]
            await until(lambda: len(node.held_back) == 2)
            early = [await producer.send("t", RECORD, partition=0) for _ in range(2)]
            async with asyncio.timeout(WAIT_S):
                for refused, stored in (early, late):
                    assert isinstance(await refused.exception(), Unauthorized)
                    assert (await stored).offset == 1

    with LateNode() as node:
        node.create("t", 2)
        asyncio.run(main(node))


def test_a_flush_that_ends_early_says_how_long_it_waited(node: FakeNode) -> None:
    node.create("t")
    node.hold.clear()
    with Producer(node.server) as producer:
        producer.send("t", b"v")
        with pytest.raises(TimeoutError, match=r"no answer after 0\.05 s; it is still"):
            producer.flush(0.05)
        node.hold.set()
