"""TransactionService over gRPC. A partition, or a transactional id, has its own error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from streamlog.coordinator.api import (
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionFilter,
    TransactionState,
)
from streamlog.errors import Invalid, StreamlogError
from streamlog.model.partition import TopicPartition
from streamlog.server.context import RequestContext
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, Unary, deserializer
from streamlog.server.services.transactions import TransactionService
from streamlog.v1 import transaction_pb2
from streamlog.v1support.errors import to_proto

SERVICE = "streamlog.v1.TransactionService"
EPOCH_MAX = 2**15 - 1

_OPEN = frozenset(
    {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)
_METHODS = (
    "AddPartitions",
    "EndTransaction",
    "DescribeTransactions",
    "ListTransactions",
    "AbortTransaction",
)


class GrpcTransactions:
    def __init__(self, transactions: TransactionService, *, calls: Calls) -> None:
        self._transactions = transactions
        self._calls = calls

    def handlers(self) -> Handlers:
        handles: tuple[Unary, ...] = (
            self._add_partitions,
            self._end_transaction,
            self._describe_transactions,
            self._list_transactions,
            self._abort_transaction,
        )
        raw: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._calls.unary(f"TransactionService/{name}", handle),
                request_deserializer=deserializer(getattr(transaction_pb2, f"{name}Request")),
                response_serializer=getattr(transaction_pb2, f"{name}Response").SerializeToString,
            )
            for name, handle in zip(_METHODS, handles, strict=True)
        }
        return grpc.method_handlers_generic_handler(SERVICE, raw)

    async def _add_partitions(
        self, context: RequestContext, request: transaction_pb2.AddPartitionsRequest, _: Rpc
    ) -> transaction_pb2.AddPartitionsResponse:
        if not request.partitions:
            raise Invalid("the request names no partition")
        refused = await self._transactions.add_partitions(
            context,
            request.transactional_id,
            producer_of(request),
            [TopicPartition(one.topic, one.partition) for one in request.partitions],
        )
        response = transaction_pb2.AddPartitionsResponse()
        for partition, error in refused:
            out = response.refused.add(error=to_proto(error))
            out.partition.topic, out.partition.partition = partition
        return response

    async def _end_transaction(
        self, context: RequestContext, request: transaction_pb2.EndTransactionRequest, _: Rpc
    ) -> transaction_pb2.EndTransactionResponse:
        following = await self._transactions.end(
            context,
            request.transactional_id,
            producer_of(request),
            is_commit=request.commit,
            bumps_epoch=not request.keeps_epoch,
            application_epoch=(
                request.application_epoch if request.HasField("application_epoch") else None
            ),
        )
        return transaction_pb2.EndTransactionResponse(
            producer_id=following.producer_id, producer_epoch=following.producer_epoch
        )

    async def _describe_transactions(
        self, context: RequestContext, request: transaction_pb2.DescribeTransactionsRequest, _: Rpc
    ) -> transaction_pb2.DescribeTransactionsResponse:
        ids = list(request.transactional_ids)
        described = await self._transactions.describe(context, ids)
        response = transaction_pb2.DescribeTransactionsResponse()
        for transactional_id, one in zip(ids, described, strict=True):
            out = response.transactions.add(transactional_id=transactional_id)
            if isinstance(one, StreamlogError):
                out.error.CopyFrom(to_proto(one))
            else:
                out.transaction.CopyFrom(self._to_proto(one))
        return response

    async def _list_transactions(
        self, context: RequestContext, request: transaction_pb2.ListTransactionsRequest, _: Rpc
    ) -> transaction_pb2.ListTransactionsResponse:
        found = await self._transactions.transactions(context, _filter(request))
        return transaction_pb2.ListTransactionsResponse(
            transactions=[self._to_proto(one) for one in found]
        )

    async def _abort_transaction(
        self, context: RequestContext, request: transaction_pb2.AbortTransactionRequest, _: Rpc
    ) -> transaction_pb2.AbortTransactionResponse:
        found = await self._transactions.abort(context, request.transactional_id)
        return transaction_pb2.AbortTransactionResponse(transaction=self._to_proto(found))

    def _to_proto(self, found: TransactionDescription) -> transaction_pb2.Transaction:
        proto = transaction_pb2.Transaction(
            transactional_id=found.transactional_id,
            # The proto's numbers are one higher.
            state=found.state + 1,  # type: ignore[arg-type]
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            timeout_ms=found.timeout_ms,
            partitions=_partitions(found.partitions),
            coordinator_node=self._transactions.node_id,
        )
        if found.application_epoch >= 0:
            proto.application_epoch = found.application_epoch
        # Kafka's records keep the start of a transaction that has ended.
        if found.start_ms >= 0 and found.state in _OPEN:
            proto.start_time_ms = found.start_ms
        return proto


def producer_of(request: Any) -> ProducerIdAndEpoch:
    """Errors: Invalid for an id or an epoch that no producer has."""
    producer_id, epoch = request.producer_id, request.producer_epoch
    if producer_id < 0 or not 0 <= epoch <= EPOCH_MAX:
        raise Invalid(
            f"producer id {producer_id} with epoch {epoch} is no producer; give both as "
            "InitProducerId or EndTransaction returned them"
        )
    return ProducerIdAndEpoch(producer_id, epoch)


def _partitions(partitions: Sequence[TopicPartition]) -> list[transaction_pb2.TransactionPartition]:
    return [
        transaction_pb2.TransactionPartition(topic=topic, partition=partition)
        for topic, partition in partitions
    ]


def _filter(request: transaction_pb2.ListTransactionsRequest) -> TransactionFilter:
    """Errors: Invalid for a state that does not exist, or a negative time."""
    unknown = [state for state in request.states if not 0 < state <= len(TransactionState)]
    if unknown:
        raise Invalid(f"there is no transaction state {unknown[0]}; leave states out for any")
    longer_ms = request.open_longer_than_ms if request.HasField("open_longer_than_ms") else -1
    if request.HasField("open_longer_than_ms") and longer_ms < 0:
        raise Invalid(f"open_longer_than_ms is {longer_ms}; give 0 or more, or leave it out")
    return TransactionFilter(
        states=frozenset(TransactionState(state - 1) for state in request.states),
        producer_ids=frozenset(request.producer_ids),
        open_longer_than_ms=longer_ms,
        id_pattern=request.transactional_id_pattern,
    )
