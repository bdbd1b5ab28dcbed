"""TransactionService's calls: request and result of each, for the blocking and asyncio clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streamlog.client.calls.topic import TopicPartition, by_topic
from streamlog.client.channel import Call
from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.errors import Internal, Invalid, StreamlogError
from streamlog.v1 import log_pb2, transaction_pb2
from streamlog.v1support.errors import from_proto

STATES: Mapping[str, int] = {
    name.removeprefix("TRANSACTION_STATE_").lower(): number
    for name, number in transaction_pb2.TransactionState.items()
    if number
}
"""By name, as `empty` and `prepare_commit`: the proto's numbers."""


def state_name(number: int) -> str:
    return next((name for name, known in STATES.items() if known == number), f"state {number}")


def init_transactional_producer(
    transactional_id: str, timeout_ms: int, identity: ProducerIdentity
) -> Call:
    """Result: id and epoch. `identity` is the producer's own; NO_IDENTITY: it has none yet."""

    def read(response: Any) -> ProducerIdentity:
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    request = log_pb2.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    )
    if identity != NO_IDENTITY:
        request.producer_id, request.producer_epoch = identity
    # A repetition gives the next epoch, and fences nobody but this producer.
    return Call("LogService/InitProducerId", request, log_pb2.InitProducerIdResponse, read)


Refusals = Mapping[TopicPartition, StreamlogError]
"""Partitions that cannot become part of a transaction, and why."""


def add_partitions(
    transactional_id: str, identity: ProducerIdentity, partitions: Collection[TopicPartition]
) -> Call:
    """Result: those that were refused; where there are some, none was added."""

    def read(response: Any) -> Refusals:
        return {
            (refused.partition.topic, refused.partition.partition): from_proto(refused.error)
            for refused in response.refused
        }

    request = transaction_pb2.AddPartitionsRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )
    for topic, numbers in by_topic(partitions).items():
        for number in numbers:
            request.partitions.add(topic=topic, partition=number)
    return Call(
        "TransactionService/AddPartitions",
        request,
        transaction_pb2.AddPartitionsResponse,
        read,
        writes=True,
    )


def end_transaction(
    transactional_id: str,
    identity: ProducerIdentity,
    *,
    is_commit: bool,
    keeps_epoch: bool = False,
    application_epoch: int | None = None,
) -> Call:
    """Result: id and epoch of the producer's next transaction."""

    def read(response: Any) -> ProducerIdentity:
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    request = transaction_pb2.EndTransactionRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        commit=is_commit,
        keeps_epoch=keeps_epoch,
        application_epoch=application_epoch,
    )
    return Call(
        "TransactionService/EndTransaction",
        request,
        transaction_pb2.EndTransactionResponse,
        read,
        writes=True,
    )


def describe_transactions(transactional_ids: Sequence[str]) -> Call:
    """Result: for each id in order, its Transaction or its error."""

    def read(response: Any) -> list[Any | StreamlogError]:
        if len(response.transactions) != len(transactional_ids):
            raise Internal("the answer is not about the transactional ids asked for")
        return [
            from_proto(described.error) if described.HasField("error") else described.transaction
            for described in response.transactions
        ]

    request = transaction_pb2.DescribeTransactionsRequest(transactional_ids=transactional_ids)
    return Call(
        "TransactionService/DescribeTransactions",
        request,
        transaction_pb2.DescribeTransactionsResponse,
        read,
    )


def list_transactions(
    states: Sequence[str],
    producer_ids: Sequence[int],
    open_longer_than_ms: int | None,
    id_pattern: str,
) -> Call:
    """Errors: Invalid for a state that does not exist."""
    unknown = [state for state in states if state not in STATES]
    if unknown:
        raise Invalid(
            f"a transaction has no state {', '.join(map(repr, unknown))}; choose of "
            f"{', '.join(STATES)}"
        )
    request = transaction_pb2.ListTransactionsRequest(
        producer_ids=producer_ids, transactional_id_pattern=id_pattern
    )
    request.states.extend(STATES[state] for state in states)  # type: ignore[misc]
    if open_longer_than_ms is not None:
        request.open_longer_than_ms = open_longer_than_ms
    return Call(
        "TransactionService/ListTransactions",
        request,
        transaction_pb2.ListTransactionsResponse,
        lambda response: list(response.transactions),
    )


def abort_transaction(transactional_id: str) -> Call:
    """Result: the Transaction as it was found. A repetition finds it aborted."""
    return Call(
        "TransactionService/AbortTransaction",
        transaction_pb2.AbortTransactionRequest(transactional_id=transactional_id),
        transaction_pb2.AbortTransactionResponse,
        lambda response: response.transaction,
    )
