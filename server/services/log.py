"""Requests about partitions beside produce and fetch: offsets, epochs, producer ids, deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from streamlog.errors import DeadlinePassed, Invalid, OutcomeUnknown, StreamlogError
from streamlog.log.api.abstract_log import (
    LATEST,
    AbstractLog,
    EpochEndOffset,
    Isolation,
    ProducerDescription,
    TimestampAndOffset,
)
from streamlog.model.append_condition import AppendCondition
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.ports import Logs, open_deadline, opened_until
from streamlog.server.services.records.partition_read import check_leader_epoch, epoch_end
from streamlog.server.services.support.client_topics import check_clients_write
from streamlog.server.services.support.in_order import in_order
from streamlog.server.services.support.topic_identity import check_topic_id, client_error, id_of
from streamlog.settings.limits import LimitsConfig

T = TypeVar("T")

PRODUCERS_MAX = 100_000
"""Producers in one answer, after which no further partition is added: 20 MB and a quarter of a
second of the event loop. It is what one partition remembers at most (log.producer_ids_max)."""


class PartitionQuestion(NamedTuple):
    """`value` is a timestamp, a leader epoch or an offset; None: not given.

    `topic_id` empty: any topic of that name.
    """

    topic: str
    partition: int
    value: int | None
    current_leader_epoch: int | None = None
    topic_id: str = ""


class LogService:
    def __init__(
        self, logs: Logs, *, clock: Clock, authorize: Authorize, limits: LimitsConfig
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._authorize = authorize
        self._limits = limits

    async def list_offsets(
        self,
        context: RequestContext,
        questions: Sequence[PartitionQuestion],
        isolation: Isolation,
    ) -> list[TimestampAndOffset | StreamlogError]:
        """One answer for each question, in order."""

        def ask(log: AbstractLog, value: int | None) -> Awaitable[TimestampAndOffset]:
            return log.offset_for_timestamp(value or 0, isolation)

        deadline = open_deadline(context, self._clock, self._limits)
        return await in_order(
            [
                self._answer(context, Operation.DESCRIBE, question, ask, deadline)
                for question in questions
            ]
        )

    async def offsets_for_leader_epoch(
        self, context: RequestContext, questions: Sequence[PartitionQuestion]
    ) -> list[EpochEndOffset | StreamlogError]:
        """One answer for each question, in order."""

        async def ask(log: AbstractLog, value: int | None) -> EpochEndOffset:
            return epoch_end(log, value or 0)

        deadline = open_deadline(context, self._clock, self._limits)
        return await in_order(
            [
                self._answer(context, Operation.DESCRIBE, question, ask, deadline)
                for question in questions
            ]
        )

    async def describe_producers(
        self, context: RequestContext, questions: Sequence[PartitionQuestion]
    ) -> list[Sequence[ProducerDescription] | StreamlogError]:
        """One answer for each question, in order; Invalid once there are PRODUCERS_MAX of them."""
        listed = 0

        async def ask(log: AbstractLog, _: int | None) -> Sequence[ProducerDescription]:
            nonlocal listed
            if listed >= PRODUCERS_MAX:
                raise Invalid(
                    f"the answer lists {listed} producers without this partition, and the bound "
                    f"is {PRODUCERS_MAX}: ask for fewer partitions at once",
                    max_producers=PRODUCERS_MAX,
                )
            found = log.producers()
            listed += len(found)
            # Other requests go on between the partitions of a large one.
            await asyncio.sleep(0)
            return found

        deadline = open_deadline(context, self._clock, self._limits)
        return await in_order(
            [
                self._answer(context, Operation.READ, question, ask, deadline)
                for question in questions
            ]
        )

    async def delete_records(
        self, context: RequestContext, questions: Sequence[PartitionQuestion], timeout_ms: int = 0
    ) -> list[int | StreamlogError]:
        """The new log start offset, or the error, of each, in order.

        `timeout_ms` 0: limits.produce_timeout_ms. A deletion that is under way when the time is up
        goes on (OutcomeUnknown); those that have not begun are not made (DeadlinePassed).
        """
        wait_s = (timeout_ms or self._limits.produce_timeout_ms) / 1000
        deadline = self._clock.monotonic() + wait_s

        async def ask(log: AbstractLog, value: int | None) -> int:
            check_clients_write(log.topic_partition.topic)
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise DeadlinePassed(
                    f"the time was up before records of {log.topic_partition} were deleted; "
                    "nothing was done: ask again, with a longer timeout_ms or fewer partitions"
                )
            try:
                async with asyncio.timeout(left):
                    return await log.delete_records(LATEST if value is None else value)
            except TimeoutError:
                raise OutcomeUnknown(
                    f"records of {log.topic_partition} were not deleted when the time was up; the "
                    "deletion goes on: ask for the log start offset, or delete again"
                ) from None

        return [
            await self._answer(context, Operation.DELETE, question, ask, deadline)
            for question in questions
        ]

    async def set_fencing_token(
        self,
        context: RequestContext,
        question: PartitionQuestion,
        token: bytes,
        condition: AppendCondition,
        timeout_ms: int = 0,
    ) -> None:
        """Durable on return. `timeout_ms` 0: limits.produce_timeout_ms.

        Errors: those of AbstractLog.set_fencing_token, and of finding the log; InvalidName (an
        internal topic).
        """
        deadline = self._clock.monotonic() + (timeout_ms or self._limits.produce_timeout_ms) / 1000
        if context.deadline is not None:
            deadline = min(deadline, context.deadline)

        async def ask(log: AbstractLog, _: int | None) -> None:
            check_clients_write(log.topic_partition.topic)
            await log.set_fencing_token(token, condition, deadline=deadline)

        error = await self._answer(context, Operation.WRITE, question, ask, deadline)
        if error is not None:
            raise error

    async def _answer(
        self,
        context: RequestContext,
        operation: Operation,
        question: PartitionQuestion,
        ask: Callable[[AbstractLog, int | None], Awaitable[T]],
        deadline: float,
    ) -> T | StreamlogError:
        topic, partition, topic_id = question.topic, question.partition, question.topic_id
        try:
            log = await self._log(context, operation, question, deadline)
            topic_id = topic_id or id_of(self._logs, topic)
            return await ask(log, question.value)
        except StreamlogError as error:
            return client_error(error, self._logs, topic, partition, topic_id)

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
        self,
        context: RequestContext,
        operation: Operation,
        question: PartitionQuestion,
        deadline: float,
    ) -> AbstractLog:
        self._authorize(context, operation, Resource(ResourceType.TOPIC, question.topic))
        partition = TopicPartition(question.topic, question.partition)
        log = self._logs.open_log(partition)
        if log is None:
            log = await opened_until(deadline, self._clock, self._logs.log(partition), partition)
        check_topic_id(self._logs, question.topic, question.partition, question.topic_id)
        check_leader_epoch(log, question.current_leader_epoch)
        return log
