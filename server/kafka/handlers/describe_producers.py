"""DescribeProducers (61): the producers that a partition remembers, and their open transactions.

The last timestamp is when the node sequenced the producer's last batch; Kafka gives the batch's
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streamlog.errors import StreamlogError
from streamlog.kafka.messages.describe_producers_request import DescribeProducersRequest
from streamlog.kafka.messages.describe_producers_response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import code_of
from streamlog.log.api.abstract_log import ProducerDescription
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Handle, KafkaCall
from streamlog.server.kafka.handlers.partition_questions import check_count
from streamlog.server.services.log import PartitionQuestion


class _Named(NamedTuple):
    partitions: Sequence[int]


class DescribeProducersHandler:
    def __init__(self, services: Services) -> None:
        self._logs = services.log
        self._limits = services.resources.limits

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {ApiKey.DESCRIBE_PRODUCERS: self.describe_producers}

    async def describe_producers(
        self, call: KafkaCall, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        """Errors: Invalid."""
        check_count([_Named(topic.partition_indexes) for topic in request.topics], self._limits)
        questions = [
            PartitionQuestion(topic.name, number, None)
            for topic in request.topics
            for number in topic.partition_indexes
        ]
        answers = iter(await self._logs.describe_producers(call.context, questions))
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        _partition(number, next(answers)) for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )


def _partition(
    number: int, answer: Sequence[ProducerDescription] | StreamlogError
) -> PartitionResponse:
    if isinstance(answer, StreamlogError):
        return PartitionResponse(
            partition_index=number, error_code=code_of(answer), error_message=answer.message
        )
    states = [
        ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_append_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.current_txn_start_offset,
        )
        for producer in answer
    ]
    return PartitionResponse(partition_index=number, active_producers=states)
