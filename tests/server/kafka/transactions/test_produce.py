"""Produce with transactional batches: who is asked, what is refused, and by which codes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    NotCoordinator,
    StoreUnavailable,
    StreamlogError,
    TransactionalIdFenced,
)
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import AbstractLog, TransactionMarker
from streamlog.model.partition import TopicPartition
from streamlog.server.context import Operation
from streamlog.server.kafka.call import CloseConnection
from tests.server.kafka.handlers.produce_world import (
    ProduceWorld,
    batch,
    call,
    produce_request,
    produce_world,
    response_of,
)
from tests.server.kafka.transactions.transactional_batches import P0, P1, batch_of, begun, ends
from tests.support.kafka_handlers import all_but

OK = KafkaError.NONE
DEFAULT, ABORTABLE, ADDS = 9, 11, 12
"""The last versions before each change of what a transactional producer is told."""


def to_both(first: bytes, second: bytes, **fields: Any) -> ProduceRequest:
    parts = [
        PartitionProduceData(index=index, records=memoryview(records))
        for index, records in enumerate((first, second))
    ]
    topic = TopicProduceData(name="t", partition_data=parts)
    return ProduceRequest(
        **{"transactional_id": "tx", "acks": -1, "timeout_ms": 30_000, **fields}, topic_data=[topic]
    )


async def codes(
    world: ProduceWorld, request: ProduceRequest, version: int = DEFAULT
) -> list[KafkaError]:
    response = await world.send(request, version)
    return [KafkaError(part.error_code) for part in response.responses[0].partition_responses]


async def code(
    world: ProduceWorld, records: bytes, version: int = DEFAULT, **fields: Any
) -> KafkaError:
    request = produce_request(records, **{"transactional_id": "tx", **fields})
    [only] = await codes(world, request, version)
    return only


def questions(world: ProduceWorld, name: str = "verify_partitions") -> list[Any]:
    return [call[1:] for call in world.coordinator.calls if call[0] == name]


def test_the_coordinator_is_asked_once_for_a_request_and_once_for_a_transaction() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0, P1])
            first = to_both(batch_of(producer), batch_of(producer))
            assert await codes(world, first) == [OK, OK]
            assert questions(world) == [("tx", producer, [P0, P1])]
            second = to_both(batch_of(producer, 1), batch_of(producer, 1))
            assert await codes(world, second) == [OK, OK]
            assert len(questions(world)) == 1
            assert await ends(world) == [2, 2]

    asyncio.run(main())


def test_requests_that_lie_ready_together_ask_once() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            requests = [
                (
                    call(DEFAULT),
                    produce_request(batch_of(producer, number), transactional_id="tx"),
                )
                for number in range(5)
            ]
            replies = await world.produce.produce_many(requests)
            offsets = []
            for reply in replies:
                response = await response_of(reply)
                offsets.append(response.responses[0].partition_responses[0].base_offset)
            assert offsets == [0, 1, 2, 3, 4]
            assert len(questions(world)) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        (3, KafkaError.INVALID_TXN_STATE),
        (10, KafkaError.INVALID_TXN_STATE),
        (11, KafkaError.TRANSACTION_ABORTABLE),
    ],
)
def test_a_partition_that_was_not_added_is_refused_alone(version: int, refused: KafkaError) -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P1])
            request = to_both(batch_of(producer), batch_of(producer))
            assert await codes(world, request, version) == [refused, OK]
            assert await ends(world) == [0, 1]

    asyncio.run(main())


@pytest.mark.parametrize("version", [12, 13])
def test_newer_requests_add_their_partitions(version: int) -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            request = to_both(batch_of(producer), batch_of(producer))
            if version >= 13:
                topic = world.logs.topic("t")
                request.topic_data[0].topic_id = bytes.fromhex(topic.topic_id.replace("-", ""))
                request.topic_data[0].name = ""
            assert await codes(world, request, version) == [OK, OK]
            assert questions(world) == []
            assert questions(world, "add_partitions") == [("tx", producer, [P0, P1])]
            assert world.coordinator.states["tx"].partitions == (P0, P1)

    asyncio.run(main())


NOT_ENOUGH = KafkaError.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotCoordinator("moved"), [NOT_ENOUGH] * 3),
        (CoordinatorLoadInProgress("replay"), [NOT_ENOUGH] * 3),
        (CoordinatorNotAvailable("no room"), [NOT_ENOUGH] * 3),
        (
            ConcurrentTransactions("markers"),
            [NOT_ENOUGH, NOT_ENOUGH, KafkaError.CONCURRENT_TRANSACTIONS],
        ),
        (StoreUnavailable("away"), [KafkaError.KAFKA_STORAGE_ERROR] * 3),
        (TransactionalIdFenced("a newer instance"), [KafkaError.INVALID_PRODUCER_EPOCH] * 3),
        (InvalidProducerIdMapping("another"), [KafkaError.INVALID_PRODUCER_ID_MAPPING] * 3),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, StreamlogError) else "",
)
def test_the_coordinators_errors_by_version(
    error: StreamlogError, expected: Sequence[KafkaError]
) -> None:
    async def main() -> None:
        async with produce_world() as world:
            for number, version in enumerate((DEFAULT, ABORTABLE, ADDS)):
                tx = f"tx{number}"
                producer = await begun(world, tx)
                asked = "verify_partitions" if version < ADDS else "add_partitions"
                world.coordinator.fails(asked, *[error] * 100)
                told = await code(world, batch_of(producer), version, transactional_id=tx)
                assert told is expected[number], version
                world.coordinator.errors.clear()
            assert await ends(world) == [0, 0]

    asyncio.run(main())


def test_a_refused_batch_comes_again_before_younger_ones() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            world.coordinator.fails("verify_partitions", CoordinatorLoadInProgress("replay"))
            assert await code(world, batch_of(producer, 0)) is NOT_ENOUGH
            # A log takes any first sequence number: this one would be taken.
            assert await code(world, batch_of(producer, 1)) is NOT_ENOUGH
            assert await code(world, batch_of(producer, 0)) is OK
            assert await code(world, batch_of(producer, 1)) is OK
            assert await ends(world) == [2, 0]

    asyncio.run(main())


def test_a_refusal_lets_nothing_in_later() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P1])
            refused = await codes(world, to_both(batch_of(producer), batch_of(producer)))
            assert refused == [KafkaError.INVALID_TXN_STATE, OK]
            assert await code(world, batch_of(producer)) is KafkaError.INVALID_TXN_STATE
            assert len(questions(world)) == 2
            assert await ends(world) == [0, 1]

    asyncio.run(main())


def test_the_coordinator_alone_waits_for_the_last_transactions_markers() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            world.coordinator.fails("add_partitions", ConcurrentTransactions("markers"))
            refused = await code(world, batch_of(producer), ADDS)
            assert refused is KafkaError.CONCURRENT_TRANSACTIONS
            assert len(questions(world, "add_partitions")) == 1
            assert await code(world, batch_of(producer), ADDS) is OK

    asyncio.run(main())


def test_a_transactional_batch_needs_an_id_that_one_may_write_with() -> None:
    async def main() -> None:
        async with produce_world(all_but((Operation.WRITE, "closed"))) as world:
            producer = await begun(world, "closed")
            refused = [KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
            for tx in (None, "closed"):
                request = to_both(batch(b"plain"), batch_of(producer), transactional_id=tx)
                assert await codes(world, request) == refused
            request = to_both(batch(b"plain"), batch_of(producer), transactional_id="")
            assert await codes(world, request) == [KafkaError.INVALID_REQUEST] * 2
            assert questions(world) == []
            assert await ends(world) == [0, 0]

    asyncio.run(main())


def test_plain_batches_under_an_id_are_plain() -> None:
    async def main() -> None:
        async with produce_world(all_but((Operation.WRITE, "tx"))) as world:
            assert await codes(world, to_both(batch(b"a"), batch(b"b"))) == [OK, OK]
            assert world.coordinator.calls == []

    asyncio.run(main())


def test_requests_without_transactions_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with produce_world() as world:
            log = await world.logs.log(P0)

            def never(*_: object) -> bool:
                raise AssertionError("asked for a request without transactions")

            monkeypatch.setattr(type(log), "needs_verification", never)
            request = produce_request(batch(b"a"))
            assert not world.produce.may_wait(call(DEFAULT), request)
            assert await codes(world, request) == [OK]
            assert world.coordinator.calls == []

    asyncio.run(main())


def test_topics_that_one_may_not_write_are_not_asked_about() -> None:
    async def main() -> None:
        async with produce_world(all_but((Operation.WRITE, "other"))) as world:
            await world.logs.create_topic("other", 1)
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0, TopicPartition("other", 0)])
            request = produce_request(batch_of(producer), transactional_id="tx")
            hidden = PartitionProduceData(index=0, records=memoryview(batch_of(producer)))
            missing = PartitionProduceData(index=7, records=memoryview(batch_of(producer)))
            request.topic_data = [
                *request.topic_data,
                TopicProduceData(name="other", partition_data=[hidden]),
                TopicProduceData(name="t", partition_data=[missing]),
            ]
            response = await world.send(request, DEFAULT)
            told = [
                KafkaError(topic.partition_responses[0].error_code) for topic in response.responses
            ]
            assert told == [
                OK,
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert questions(world) == [("tx", producer, [P0])]

    asyncio.run(main())


def test_two_producers_in_one_request_are_refused() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0, P1])
            for other in (producer._replace(producer_id=5), producer._replace(producer_epoch=1)):
                request = to_both(batch_of(producer), batch_of(other))
                refused = KafkaError.INVALID_PRODUCER_ID_MAPPING
                assert await codes(world, request) == [refused, refused]
            assert questions(world) == []
            assert await ends(world) == [0, 0]

    asyncio.run(main())


def test_a_damaged_batch_is_no_question_for_the_coordinator() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P1])
            damaged = bytearray(batch_of(producer))
            damaged[45] ^= 0xFF  # Within the producer id.
            request = to_both(bytes(damaged), batch_of(producer))
            assert await codes(world, request) == [KafkaError.CORRUPT_MESSAGE, OK]
            assert questions(world) == [("tx", producer, [P1])]

    asyncio.run(main())


def test_a_coordinator_that_does_not_answer_costs_the_requests_own_time() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            world.coordinator.gate.clear()
            late = await code(world, batch_of(producer), timeout_ms=30)
            assert late is KafkaError.REQUEST_TIMED_OUT
            assert await ends(world) == [0, 0]
            world.coordinator.gate.set()
            assert await code(world, batch_of(producer)) is OK

    asyncio.run(main())


def test_an_answer_that_the_transactions_end_has_overtaken_lets_nothing_in() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            log: AbstractLog = await world.logs.log(P0)
            world.coordinator.gate.clear()
            world.coordinator.entered.clear()
            sent = asyncio.create_task(code(world, batch_of(producer)))
            await world.coordinator.entered.wait()
            await (await log.append_marker(TransactionMarker(*producer, 1, is_commit=False)))
            world.coordinator.gate.set()
            assert await sent is KafkaError.INVALID_TXN_STATE
            assert log.log_end_offset == 1

    asyncio.run(main())


def test_a_client_that_leaves_while_the_coordinator_is_asked_stores_nothing() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            world.coordinator.gate.clear()
            world.coordinator.entered.clear()
            sent = asyncio.create_task(code(world, batch_of(producer)))
            await world.coordinator.entered.wait()
            sent.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sent
            world.coordinator.gate.set()
            assert await ends(world) == [0, 0]
            assert await code(world, batch_of(producer)) is OK

    asyncio.run(main())


def test_without_an_answer_a_refusal_ends_the_connection() -> None:
    async def main() -> None:
        async with produce_world() as world:
            producer = await begun(world)
            reply = await world.reply(
                produce_request(batch_of(producer), transactional_id="tx", acks=0), DEFAULT
            )
            with pytest.raises(CloseConnection, match="not part of the transaction"):
                await response_of(reply)

    asyncio.run(main())
