"""ListOffsets (2): the offset at a timestamp, or a special one, for several partitions at once.

-1 is the end (of what the isolation lets read), -2 the start, -3 the record with the largest
timestamp, -4 the start of what is on this node, -5 the last offset in the remote tier (-1 without
one). A timestamp without a record at or after it is answered with offset -1 and no error.
Source: Kafka's ReplicaManager.fetchOffset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from streamlog.errors import Invalid, StreamlogError, UnsupportedVersion
from streamlog.kafka.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from streamlog.kafka.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    TimestampAndOffset,
)
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Handle, KafkaCall
from streamlog.server.kafka.handlers.partition_questions import (
    check_consumer,
    check_count,
    isolation,
    partition_code,
)
from streamlog.server.services.log import PartitionQuestion

OFFSET_NOT_AVAILABLE_FROM = 5
UNKNOWN_EPOCH = -1
"""Any other one is compared, as in Kafka; in a Fetch everything below 0 is unknown."""
NEVER = 1 << 15
SPECIAL_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
}
"""The version from which on a client may ask for the special offset."""


class ListOffsetsHandler:
    def __init__(self, services: Services) -> None:
        self._logs = services.log
        self._limits = services.resources.limits

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {ApiKey.LIST_OFFSETS: self.list_offsets}

    async def list_offsets(
        self, call: KafkaCall, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        """Errors: Invalid."""
        check_consumer(request.replica_id)
        check_count(request.topics, self._limits)
        level = isolation(request.isolation_level)
        named = [(topic.name, part) for topic in request.topics for part in topic.partitions]
        counts = Counter((topic, part.partition_index) for topic, part in named)
        # A partition that is named twice has one answer.
        wanted = {(topic, part.partition_index): part for topic, part in named}
        refusals = [
            _refusal(call.version, topic, part, counts[topic, number])
            for (topic, number), part in wanted.items()
        ]
        questions = [
            PartitionQuestion(
                topic,
                number,
                part.timestamp,
                None if part.current_leader_epoch == UNKNOWN_EPOCH else part.current_leader_epoch,
            )
            for ((topic, number), part), refusal in zip(wanted.items(), refusals, strict=True)
            if refusal is None
        ]
        answers = iter(await self._logs.list_offsets(call.context, questions, level))
        topics: dict[str, list[ListOffsetsPartitionResponse]] = {}
        for ((topic, _), part), refusal in zip(wanted.items(), refusals, strict=True):
            answer = next(answers) if refusal is None else refusal
            topics.setdefault(topic, []).append(_partition(call, part, answer))
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ]
        )


def _refusal(
    version: int, topic: str, part: ListOffsetsPartition, times: int
) -> StreamlogError | None:
    """Why the partition is not looked up."""
    name = f"{topic}-{part.partition_index}"
    if times > 1:
        return Invalid(f"{name} is in the request more than once; ask for it once")
    if part.timestamp < 0 and version < SPECIAL_FROM.get(part.timestamp, NEVER):
        return UnsupportedVersion(
            f"timestamp {part.timestamp} of {name} means nothing in version {version}"
        )
    return None


def _partition(
    call: KafkaCall, part: ListOffsetsPartition, answer: TimestampAndOffset | StreamlogError
) -> ListOffsetsPartitionResponse:
    if isinstance(answer, StreamlogError):
        code = partition_code(answer)
        if code is KafkaError.OFFSET_NOT_AVAILABLE and call.version < OFFSET_NOT_AVAILABLE_FROM:
            code = KafkaError.LEADER_NOT_AVAILABLE
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code)
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        timestamp=answer.timestamp_ms,
        offset=answer.offset,
        leader_epoch=answer.leader_epoch,
    )
