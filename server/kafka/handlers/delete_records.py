"""DeleteRecords (21): raises the log start offset of partitions; -1 is the high watermark.

The answer comes when the deletions are durable, or when `timeout_ms` is over: then those under way
go on, and asking again does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.errors import StreamlogError
from streamlog.kafka.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
)
from streamlog.kafka.messages.delete_records_response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import code_of
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Handle, KafkaCall
from streamlog.server.kafka.handlers.partition_questions import check_count
from streamlog.server.services.log import PartitionQuestion

HIGH_WATERMARK = -1


class DeleteRecordsHandler:
    def __init__(self, services: Services) -> None:
        self._logs = services.log
        self._limits = services.resources.limits

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {ApiKey.DELETE_RECORDS: self.delete_records}

    async def delete_records(
        self, call: KafkaCall, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse:
        """Errors: Invalid."""
        check_count(request.topics, self._limits)
        questions = [
            PartitionQuestion(
                topic.name,
                part.partition_index,
                None if part.offset == HIGH_WATERMARK else part.offset,
            )
            for topic in request.topics
            for part in topic.partitions
        ]
        # 0 stands for the node's own time there; Kafka gives up at once, which no client means.
        timeout_ms = max(0, request.timeout_ms)
        answers = iter(await self._logs.delete_records(call.context, questions, timeout_ms))
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[_partition(part, next(answers)) for part in topic.partitions],
                )
                for topic in request.topics
            ]
        )


def _partition(
    part: DeleteRecordsPartition, answer: int | StreamlogError
) -> DeleteRecordsPartitionResult:
    if isinstance(answer, StreamlogError):
        return DeleteRecordsPartitionResult(
            partition_index=part.partition_index, low_watermark=-1, error_code=code_of(answer)
        )
    return DeleteRecordsPartitionResult(partition_index=part.partition_index, low_watermark=answer)
