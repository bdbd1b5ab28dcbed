"""AddPartitionsToTxn (24): partitions become part of a transaction, or are looked up in one.

Versions 0 to 3 come from clients, with one transaction; from 4 on from nodes, with several, which
they have authorized. If one partition cannot be added, none is: it has its error, and the others
have OPERATION_NOT_ATTEMPTED.
Source: KafkaApis.handleAddPartitionsToTxnRequest; KIP-890 (verification).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import Invalid, StreamlogError, Unauthorized
from streamlog.kafka.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from streamlog.kafka.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError, code_of
from streamlog.model.partition import TopicPartition
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.kafka.handlers.transactions.codes import fenced_code
from streamlog.server.services.support.in_order import in_order
from streamlog.server.services.transactions import PartitionRefusal

NODES_FROM = 4
FENCED_FROM = 2

Codes = Mapping[TopicPartition, KafkaError]


class AddPartitionsHandler:
    def __init__(self, services: Services) -> None:
        self._transactions = services.transactions
        self._limits = services.resources.limits

    def routes(self) -> Mapping[ApiKey, Route]:
        route = Route(self.add_partitions, error_response=_failed)
        return {ApiKey.ADD_PARTITIONS_TO_TXN: route}

    async def add_partitions(
        self, call: KafkaCall, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        """Errors: Unauthorized (no node), Invalid (too many partitions)."""
        asked = _asked(call, request)
        if call.version >= NODES_FROM:
            self._transactions.check_node(call.context)
        self._check_count(asked)
        results = await in_order([self._result(call, one) for one in asked])
        return _response(call, results)

    def _check_count(self, asked: Sequence[AddPartitionsToTxnTransaction]) -> None:
        """Errors: Invalid."""
        count = sum(max(1, sum(len(topic.partitions) for topic in one.topics)) for one in asked)
        most = self._limits.partitions_per_request_max
        if count > most:
            raise Invalid(
                f"the request names {count} partitions; at most {most} are allowed "
                "(limits.partitions_per_request_max): split it"
            )

    async def _result(
        self, call: KafkaCall, one: AddPartitionsToTxnTransaction
    ) -> AddPartitionsToTxnResult:
        partitions = list(_partitions(one.topics))
        try:
            refused = await self._refused(call, one, partitions)
        except StreamlogError as error:
            code = fenced_code(error, call.version, FENCED_FROM)
            return _told(one, dict.fromkeys(partitions, code))
        others = KafkaError.NONE
        if refused and not one.verify_only:
            others = KafkaError.OPERATION_NOT_ATTEMPTED
        codes = dict.fromkeys(partitions, others)
        codes.update((partition, code_of(error)) for partition, error in refused)
        return _told(one, codes)

    async def _refused(
        self,
        call: KafkaCall,
        one: AddPartitionsToTxnTransaction,
        partitions: Sequence[TopicPartition],
    ) -> list[PartitionRefusal]:
        producer = ProducerIdAndEpoch(one.producer_id, one.producer_epoch)
        if one.verify_only:
            return await self._transactions.verify_partitions(
                one.transactional_id, producer, partitions
            )
        return await self._transactions.add_partitions(
            call.context,
            one.transactional_id,
            producer,
            partitions,
            is_from_node=call.version >= NODES_FROM,
        )


def _asked(
    call: KafkaCall, request: AddPartitionsToTxnRequest
) -> Sequence[AddPartitionsToTxnTransaction]:
    if call.version >= NODES_FROM:
        return request.transactions
    return [
        AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
    ]


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> Iterator[TopicPartition]:
    for topic in topics:
        for number in topic.partitions:
            yield TopicPartition(topic.name, number)


def _told(one: AddPartitionsToTxnTransaction, codes: Codes) -> AddPartitionsToTxnResult:
    """Each partition once, as in Kafka."""
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, number), code in codes.items():
        result = AddPartitionsToTxnPartitionResult(
            partition_index=number, partition_error_code=code
        )
        topics.setdefault(topic, []).append(result)
    return AddPartitionsToTxnResult(
        transactional_id=one.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results)
            for topic, results in topics.items()
        ],
    )


def _response(
    call: KafkaCall, results: Sequence[AddPartitionsToTxnResult], error: int = KafkaError.NONE
) -> AddPartitionsToTxnResponse:
    if call.version >= NODES_FROM:
        return AddPartitionsToTxnResponse(error_code=error, results_by_transaction=results)
    [only] = results
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=only.topic_results)


def _failed(
    call: KafkaCall, request: AddPartitionsToTxnRequest, error: StreamlogError
) -> AddPartitionsToTxnResponse:
    code = fenced_code(error, call.version, FENCED_FROM)
    if call.version >= NODES_FROM:
        if isinstance(error, Unauthorized):
            code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
        return _response(call, [], code)
    results = [
        _told(one, dict.fromkeys(_partitions(one.topics), code)) for one in _asked(call, request)
    ]
    return _response(call, results)
