"""TransactionService, and the transactional fields of LogService, over a coordinator in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionState
from streamlog.errors import (
    CoordinatorLoadInProgress,
    Invalid,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    StreamlogError,
    TransactionalIdFenced,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from streamlog.v1 import log_pb2, transaction_pb2
from streamlog.v1.transaction_pb2_grpc import TransactionServiceStub
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.server_harness import Running, running

PARTITION = transaction_pb2.TransactionPartition(topic="t", partition=1)


class Transactions:
    def __init__(self, node: Running, coordinator: FakeCoordinator) -> None:
        self.node = node
        self.coordinator = coordinator
        self.stub: Any = TransactionServiceStub(node.channel)

    async def initialise(self, **fields: Any) -> ProducerIdAndEpoch:
        request = log_pb2.InitProducerIdRequest(**{"transactional_id": "x"} | fields)
        answer = await self.node.log_stub.InitProducerId(request)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def add(self, producer: ProducerIdAndEpoch, *partitions: Any) -> Any:
        return await self.stub.AddPartitions(
            transaction_pb2.AddPartitionsRequest(
                transactional_id="x",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                partitions=partitions,
            )
        )

    async def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> ProducerIdAndEpoch:
        answer = await self.stub.EndTransaction(
            transaction_pb2.EndTransactionRequest(
                transactional_id="x",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                commit=commit,
            )
        )
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


def with_node(work: Callable[[Transactions], Awaitable[None]]) -> None:
    async def main() -> None:
        coordinator = FakeCoordinator()
        async with running(transactions=coordinator) as node, asyncio.timeout(60):
            await work(Transactions(node, coordinator))

    asyncio.run(main())


async def refusal(call: Awaitable[Any]) -> StreamlogError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value, may_have_happened=True)


def test_a_transaction_from_its_start_to_its_end() -> None:
    async def work(transactions: Transactions) -> None:
        producer = await transactions.initialise(transaction_timeout_ms=5000)
        assert not (await transactions.add(producer, PARTITION)).refused
        described = await transactions.stub.DescribeTransactions(
            transaction_pb2.DescribeTransactionsRequest(transactional_ids=["x"])
        )
        (one,) = described.transactions
        assert one.transactional_id == one.transaction.transactional_id == "x"
        assert one.transaction == transaction_pb2.Transaction(
            transactional_id="x",
            state=transaction_pb2.TRANSACTION_STATE_ONGOING,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timeout_ms=5000,
            start_time_ms=1234,
            partitions=[PARTITION],
            coordinator_node=1,
        )
        following = await transactions.end(producer, commit=True)
        assert following == (producer.producer_id, producer.producer_epoch + 1)
        assert ("end", "x", producer, True, True) in transactions.coordinator.calls
        state = transactions.coordinator.states["x"]
        assert state.state is TransactionState.COMPLETE_COMMIT

    with_node(work)


def test_the_time_limit_has_a_default() -> None:
    async def work(transactions: Transactions) -> None:
        await transactions.initialise()
        assert transactions.coordinator.states["x"].timeout_ms == 60_000

    with_node(work)


def test_a_producer_with_an_id_is_passed_on_as_expected() -> None:
    async def work(transactions: Transactions) -> None:
        first = await transactions.initialise()
        second = await transactions.initialise(
            producer_id=first.producer_id, producer_epoch=first.producer_epoch
        )
        assert second == (first.producer_id, first.producer_epoch + 1)
        again = transactions.initialise(
            producer_id=first.producer_id, producer_epoch=first.producer_epoch
        )
        assert isinstance(await refusal(again), TransactionalIdFenced)

    with_node(work)


def test_partitions_that_are_refused_are_named() -> None:
    async def work(transactions: Transactions) -> None:
        producer = await transactions.initialise()
        missing = transaction_pb2.TransactionPartition(topic="t", partition=9)
        answer = await transactions.add(producer, PARTITION, missing)
        (refused,) = answer.refused
        assert refused.partition == missing
        error = from_proto(refused.error)
        assert isinstance(error, UnknownTopicOrPartition)
        assert (error.topic, error.partition) == ("t", 9)
        assert transactions.coordinator.states["x"].state is TransactionState.EMPTY

    with_node(work)


def test_errors_keep_their_classes() -> None:
    async def work(transactions: Transactions) -> None:
        producer = await transactions.initialise()
        older = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch)
        newer = await transactions.initialise()
        other = ProducerIdAndEpoch(producer.producer_id + 1, 0)
        for call, kind in (
            (transactions.add(older, PARTITION), TransactionalIdFenced),
            (transactions.add(other, PARTITION), InvalidProducerIdMapping),
            (transactions.end(newer, commit=True), InvalidTxnState),
            (transactions.add(newer), Invalid),
            (transactions.add(ProducerIdAndEpoch(-1, 0), PARTITION), Invalid),
            (transactions.end(ProducerIdAndEpoch(1, 2**15), commit=True), Invalid),
            (transactions.initialise(transactional_id=""), Invalid),
            (transactions.initialise(producer_id=-1), Invalid),
            (transactions.initialise(transaction_timeout_ms=-1), InvalidTransactionTimeout),
            (
                transactions.node.log_stub.InitProducerId(
                    log_pb2.InitProducerIdRequest(transaction_timeout_ms=5)
                ),
                Invalid,
            ),
        ):
            error = await refusal(call)
            assert isinstance(error, kind), error
            assert error.has_no_side_effects
        transactions.coordinator.fails("end", CoordinatorLoadInProgress("replaying"))
        error = await refusal(transactions.end(newer, commit=True))
        assert isinstance(error, CoordinatorLoadInProgress)
        assert error.is_retryable

    with_node(work)


def test_a_description_has_an_error_for_each_id_that_is_not_known() -> None:
    async def work(transactions: Transactions) -> None:
        await transactions.initialise()
        described = await transactions.stub.DescribeTransactions(
            transaction_pb2.DescribeTransactionsRequest(transactional_ids=["no", "x"])
        )
        first, second = described.transactions
        assert isinstance(from_proto(first.error), TransactionalIdNotFound)
        assert not first.HasField("transaction")
        assert not second.HasField("error")
        assert not second.transaction.HasField("start_time_ms")

    with_node(work)


def test_a_list_is_filtered() -> None:
    async def work(transactions: Transactions) -> None:
        first = await transactions.initialise(transactional_id="one")
        await transactions.initialise(transactional_id="two")
        producer = await transactions.initialise()
        await transactions.add(producer, PARTITION)
        empty = transaction_pb2.TRANSACTION_STATE_EMPTY
        ongoing = transaction_pb2.TRANSACTION_STATE_ONGOING

        async def ids(**wanted: Any) -> list[str]:
            request = transaction_pb2.ListTransactionsRequest(**wanted)
            answer = await transactions.stub.ListTransactions(request)
            return [one.transactional_id for one in answer.transactions]

        assert await ids() == ["one", "two", "x"]
        assert await ids(states=[ongoing]) == ["x"]
        assert await ids(states=[empty, ongoing]) == ["one", "two", "x"]
        assert await ids(producer_ids=[first.producer_id]) == ["one"]
        assert await ids(transactional_id_pattern="t.*") == ["two"]
        await ids(open_longer_than_ms=7)
        call, wanted = transactions.coordinator.calls[-1]
        assert call == "transactions"
        assert wanted.open_longer_than_ms == 7  # type: ignore[attr-defined]
        for wrong in (
            {"transactional_id_pattern": "("},
            {"open_longer_than_ms": -1},
            {"states": [99]},
            {"states": [0]},
        ):
            assert isinstance(await refusal(ids(**wrong)), Invalid)

    with_node(work)


def test_an_abort_says_what_was_found() -> None:
    async def work(transactions: Transactions) -> None:
        producer = await transactions.initialise()
        await transactions.add(producer, PARTITION)
        answer = await transactions.stub.AbortTransaction(
            transaction_pb2.AbortTransactionRequest(transactional_id="x")
        )
        assert answer.transaction.state == transaction_pb2.TRANSACTION_STATE_ONGOING
        assert list(answer.transaction.partitions) == [PARTITION]
        assert isinstance(
            await refusal(transactions.end(producer, commit=True)), TransactionalIdFenced
        )
        unknown = transactions.stub.AbortTransaction(
            transaction_pb2.AbortTransactionRequest(transactional_id="no")
        )
        assert isinstance(await refusal(unknown), TransactionalIdNotFound)

    with_node(work)


def test_the_service_is_found_by_health_and_by_reflection() -> None:
    async def work(transactions: Transactions) -> None:
        name = "streamlog.v1.TransactionService"
        stub: Any = health_pb2_grpc.HealthStub(transactions.node.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflected: Any = reflection_pb2_grpc.ServerReflectionStub(transactions.node.channel)
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        async for found in reflected.ServerReflectionInfo(iter([request])):
            (proto,) = found.file_descriptor_response.file_descriptor_proto[:1]
            assert b"EndTransaction" in proto
            break

    with_node(work)
