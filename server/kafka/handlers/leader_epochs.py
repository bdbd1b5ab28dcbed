"""OffsetForLeaderEpoch (23): where the records of a leader epoch end.

A consumer asks after a change of leader, to learn whether the records that it has read are still in
the log. Undefined (-1, -1): the epoch is newer than any that the log knows. Source: KIP-320.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.errors import StreamlogError
from streamlog.kafka.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from streamlog.kafka.messages.offset_for_leader_epoch_response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.log.api.abstract_log import EpochEndOffset as LogEpochEnd
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Handle, KafkaCall
from streamlog.server.kafka.handlers.partition_questions import (
    check_consumer,
    check_count,
    partition_code,
)
from streamlog.server.services.log import PartitionQuestion

REPLICA_ID_FROM = 3


class LeaderEpochHandler:
    def __init__(self, services: Services) -> None:
        self._logs = services.log
        self._limits = services.resources.limits

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch}

    async def offset_for_leader_epoch(
        self, call: KafkaCall, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Errors: Invalid."""
        if call.version >= REPLICA_ID_FROM:
            check_consumer(request.replica_id)
        check_count(request.topics, self._limits)
        questions = [
            PartitionQuestion(
                topic.topic,
                part.partition,
                part.leader_epoch,
                part.current_leader_epoch if part.current_leader_epoch >= 0 else None,
            )
            for topic in request.topics
            for part in topic.partitions
        ]
        answers = iter(await self._logs.offsets_for_leader_epoch(call.context, questions))
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[_partition(part, next(answers)) for part in topic.partitions],
                )
                for topic in request.topics
            ]
        )


def _partition(
    part: OffsetForLeaderPartition, answer: LogEpochEnd | StreamlogError
) -> EpochEndOffset:
    if isinstance(answer, StreamlogError):
        return EpochEndOffset(partition=part.partition, error_code=partition_code(answer))
    return EpochEndOffset(
        partition=part.partition, leader_epoch=answer.leader_epoch, end_offset=answer.end_offset
    )
