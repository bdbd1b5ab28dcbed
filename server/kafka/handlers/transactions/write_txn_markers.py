"""WriteTxnMarkers (27): markers that a tool (`kafka-transactions abort`) or a node writes.

Results of markers of one producer come together, as in Kafka, whose client reads no second one.
Source: KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlog.errors import StreamlogError, Unauthorized
from streamlog.kafka.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from streamlog.kafka.messages.write_txn_markers_response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError, code_of
from streamlog.log.api.abstract_log import TransactionMarker
from streamlog.model.partition import TopicPartition
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.services.transactions import MarkerWrite

Codes = dict[int, dict[TopicPartition, KafkaError]]
"""By producer id."""


class WriteTxnMarkersHandler:
    def __init__(self, services: Services) -> None:
        self._transactions = services.transactions

    def routes(self) -> Mapping[ApiKey, Route]:
        route = Route(self.write_txn_markers, error_response=_failed)
        return {ApiKey.WRITE_TXN_MARKERS: route}

    async def write_txn_markers(
        self, call: KafkaCall, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Errors: Unauthorized, Invalid (too many partitions)."""
        writes = [_write(marker) for marker in request.markers]
        outcomes = await self._transactions.write_markers(call.context, writes)
        codes: Codes = {}
        for (marker, partitions), errors in zip(writes, outcomes, strict=True):
            told = codes.setdefault(marker.producer_id, {})
            for partition, error in zip(partitions, errors, strict=True):
                told[partition] = KafkaError.NONE if error is None else code_of(error)
        return _response(codes)


def _write(marker: WritableTxnMarker) -> MarkerWrite:
    return MarkerWrite(
        TransactionMarker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
        ),
        [
            TopicPartition(topic.name, number)
            for topic in marker.topics
            for number in topic.partition_indexes
        ],
    )


def _failed(
    call: KafkaCall, request: WriteTxnMarkersRequest, error: StreamlogError
) -> WriteTxnMarkersResponse:
    code = code_of(error)
    if isinstance(error, Unauthorized):
        code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
    codes: Codes = {}
    for marker, partitions in map(_write, request.markers):
        codes.setdefault(marker.producer_id, {}).update(dict.fromkeys(partitions, code))
    return _response(codes)


def _response(codes: Codes) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(producer_id=producer_id, topics=_topics(told.items()))
            for producer_id, told in codes.items()
        ]
    )


def _topics(
    told: Iterable[tuple[TopicPartition, KafkaError]],
) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for (topic, number), code in told:
        result = WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
        topics.setdefault(topic, []).append(result)
    return [
        WritableTxnMarkerTopicResult(name=topic, partitions=results)
        for topic, results in topics.items()
    ]
