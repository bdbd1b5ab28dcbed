"""Requests of transactions, with what they need filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    DeadlinePassed,
    Fenced,
    Internal,
    Invalid,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NotCoordinator,
    OutcomeUnknown,
    Overloaded,
    StoreUnavailable,
    StreamlogError,
)
from streamlog.kafka.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from streamlog.kafka.messages.end_txn_request import EndTxnRequest
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from tests.support.kafka_handlers import KafkaHandlers

Topics = Mapping[str, Sequence[int]]
Codes = dict[tuple[str, int], KafkaError]

PASSING: list[tuple[StreamlogError, KafkaError]] = [
    (NotCoordinator("it moved"), KafkaError.NOT_COORDINATOR),
    (CoordinatorLoadInProgress("replay"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    (CoordinatorNotAvailable("no room"), KafkaError.COORDINATOR_NOT_AVAILABLE),
    (ConcurrentTransactions("markers"), KafkaError.CONCURRENT_TRANSACTIONS),
    (StoreUnavailable("the store is away"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    (Overloaded("20000 requests"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    (DeadlinePassed("late"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    (OutcomeUnknown("perhaps"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    (Fenced("a newer owner"), KafkaError.NOT_COORDINATOR),
]
"""Errors that pass by themselves, and the codes after which every client asks again."""
LASTING: list[tuple[StreamlogError, KafkaError]] = [
    (InvalidProducerIdMapping("another id"), KafkaError.INVALID_PRODUCER_ID_MAPPING),
    (InvalidTxnState("nothing is open"), KafkaError.INVALID_TXN_STATE),
    (Invalid("no"), KafkaError.INVALID_REQUEST),
    (Internal("a bug"), KafkaError.UNKNOWN_SERVER_ERROR),
]


async def begun(node: KafkaHandlers, transactional_id: str = "tx") -> ProducerIdAndEpoch:
    """A producer with the transactional id."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    answer = await node.ask(ApiKey.INIT_PRODUCER_ID, 5, request)
    assert answer.error_code == 0
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


def transaction(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Topics,
    *,
    verify_only: bool = False,
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        verify_only=verify_only,
        topics=_topics(topics),
    )


async def added(
    node: KafkaHandlers,
    producer: ProducerIdAndEpoch,
    topics: Topics,
    *,
    version: int = 3,
    transactional_id: str = "tx",
) -> Codes:
    """What a client's AddPartitionsToTxn says of each partition."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=_topics(topics),
    )
    answer = await node.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
    return codes(answer.results_by_topic_v3_and_below)


async def added_by_node(
    node: KafkaHandlers, *transactions: AddPartitionsToTxnTransaction, version: int = 5
) -> tuple[int, dict[str, Codes]]:
    """The code of the whole answer, and those of each transaction's partitions."""
    request = AddPartitionsToTxnRequest(transactions=transactions)
    answer = await node.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
    return answer.error_code, {
        result.transactional_id: codes(result.topic_results)
        for result in answer.results_by_transaction
    }


async def ended(
    node: KafkaHandlers,
    producer: ProducerIdAndEpoch,
    *,
    version: int = 4,
    transactional_id: str = "tx",
    is_commit: bool = True,
) -> tuple[KafkaError, ProducerIdAndEpoch]:
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=is_commit,
    )
    answer = await node.ask(ApiKey.END_TXN, version, request)
    following = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
    return KafkaError(answer.error_code), following


def codes(topic_results: Any) -> Codes:
    return {
        (topic.name, part.partition_index): KafkaError(part.partition_error_code)
        for topic in topic_results
        for part in topic.results_by_partition
    }


def _topics(topics: Topics) -> list[AddPartitionsToTxnTopic]:
    return [
        AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()
    ]
