"""Everything about partitions but produce and fetch: offsets, epochs, producer ids, deletion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamlog.errors import StreamlogError
from streamlog.log.abstract import (
    AbstractLog,
    EpochEndOffset,
    Isolation,
    TimestampAndOffset,
    TopicPartition,
)
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.fetch import check_leader_epoch
from streamlog.server.services.ports import Logs


class PartitionQuestion(NamedTuple):
    """`value` is a timestamp, a leader epoch or an offset; None: not given."""

    topic: str
    partition: int
    value: int | None
    current_leader_epoch: int | None = None


class LogService:
    def __init__(self, logs: Logs, *, authorize: Authorize) -> None:
        self._logs = logs
        self._authorize = authorize

    async def list_offsets(
        self,
        context: RequestContext,
        questions: Sequence[PartitionQuestion],
        isolation: Isolation,
    ) -> list[TimestampAndOffset | StreamlogError]:
        """One answer for each question, in order."""
        answers: list[TimestampAndOffset | StreamlogError] = []
        for question in questions:
            try:
                log = await self._log(context, Operation.DESCRIBE, question)
                answers.append(await log.offset_for_timestamp(question.value or 0, isolation))
            except StreamlogError as error:
                answers.append(error)
        return answers

    async def offsets_for_leader_epoch(
        self, context: RequestContext, questions: Sequence[PartitionQuestion]
    ) -> list[EpochEndOffset | StreamlogError]:
        """One answer for each question, in order."""
        answers: list[EpochEndOffset | StreamlogError] = []
        for question in questions:
            try:
                log = await self._log(context, Operation.DESCRIBE, question)
                answers.append(log.end_offset_for_epoch(question.value or 0))
            except StreamlogError as error:
                answers.append(error)
        return answers

    async def delete_records(
        self, context: RequestContext, questions: Sequence[PartitionQuestion]
    ) -> list[int | StreamlogError]:
        """The new log start offset, or the error, of each, in order."""
        answers: list[int | StreamlogError] = []
        for question in questions:
            try:
                log = await self._log(context, Operation.DELETE, question)
                before = -1 if question.value is None else question.value
                answers.append(await log.delete_records(before))
            except StreamlogError as error:
                answers.append(error)
        return answers

    async def init_producer_id(
        self,
        context: RequestContext,
        producer_id: int | None,
        producer_epoch: int | None,
    ) -> tuple[int, int]:
        """Producer id and epoch: new ones, or the next epoch of the one given."""
        self._authorize(context, Operation.IDEMPOTENT_WRITE, CLUSTER)
        return await self._logs.init_producer_id(producer_id, producer_epoch)

    async def _log(
        self, context: RequestContext, operation: Operation, question: PartitionQuestion
    ) -> AbstractLog:
        self._authorize(context, operation, Resource(ResourceType.TOPIC, question.topic))
        partition = TopicPartition(question.topic, question.partition)
        log = self._logs.open_log(partition) or await self._logs.log(partition)
        check_leader_epoch(log, question.current_leader_epoch)
        return log
