"""Produce: sequenced in request order, answered when durable; errors per partition.

1. `sequence` hands each partition's batches to its log, in request order, one await each.
2. The listener awaits `results` later, so that the next request is sequenced meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import NamedTuple

from streamlog.errors import (
    InvalidTxnState,
    OutcomeUnknown,
    StreamlogError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import AbstractLog, LogAppendInfo, ProduceContext
from streamlog.model.partition import TopicPartition
from streamlog.runtime.offload import Lane
from streamlog.server.context import Operation, RequestContext, Resource, ResourceType
from streamlog.server.services.ports import check_partitions, opened_until
from streamlog.server.services.records.parts import RecordParts
from streamlog.server.services.records.requests import (
    ProduceCall,
    ProducePartition,
    ProducePartitionResult,
    ProduceTopicResult,
)
from streamlog.server.services.support.plain_records import encode_plain_records
from streamlog.server.services.support.topic_identity import check_topic_id, client_error, id_of

Outcome = Awaitable[LogAppendInfo] | StreamlogError

AT_ONCE_S = 0.002
"""How long requests that lie ready together hold the event loop at most. In between, the medium
begins to write what has its place, and other connections have their turn."""


class _Sequenced(NamedTuple):
    partition: int
    size_bytes: int
    outcome: Outcome


class SequencedProduce:
    """One request whose batches have their places; `results` waits until they are durable."""

    __slots__ = ("_deadline", "_parts", "_topics", "_wait_durable", "size_bytes")

    def __init__(self, parts: RecordParts, deadline: float, *, wait_durable: bool) -> None:
        self._topics: list[tuple[str, list[_Sequenced]]] = []
        self.size_bytes = 0
        """Bytes of batches that have their places."""
        self._wait_durable = wait_durable
        self._deadline = deadline
        self._parts = parts

    def add_topic(self, topic: str) -> list[_Sequenced]:
        """Where the outcomes of the topic's partitions go, in request order."""
        outcomes: list[_Sequenced] = []
        self._topics.append((topic, outcomes))
        return outcomes

    async def results(self) -> list[ProduceTopicResult]:
        """In request order. Cancelling it leaves the appends under way."""
        try:
            return [
                ProduceTopicResult(topic, [await self._result(topic, part) for part in parts])
                for topic, parts in self._topics
            ]
        except BaseException:
            if self._wait_durable:
                self.abandon()
            raise

    def is_done(self) -> bool:
        """`results` would not wait."""
        if not self._wait_durable:
            return True
        for _, parts in self._topics:
            for part in parts:
                outcome = part.outcome
                if isinstance(outcome, asyncio.Future):
                    if not outcome.done():
                        return False
                elif not isinstance(outcome, StreamlogError):
                    return False
        return True

    async def _result(self, topic: str, part: _Sequenced) -> ProducePartitionResult:
        outcome = part.outcome
        if isinstance(outcome, StreamlogError):
            return self._failed(part, outcome)
        if not self._wait_durable:
            return ProducePartitionResult(part.partition, None)
        try:
            if isinstance(outcome, asyncio.Future) and outcome.done():
                info = outcome.result()
            else:
                info = await self._durable(outcome)
        except StreamlogError as error:
            return self._failed(part, error)
        if not info.is_duplicate:
            records = info.last_offset - info.base_offset + 1
            self._parts.topics.produced(topic, records, part.size_bytes)
        return ProducePartitionResult(
            part.partition,
            None,
            info.base_offset,
            info.log_append_time_ms,
            info.log_start_offset,
            info.is_duplicate,
        )

    def _failed(self, part: _Sequenced, error: StreamlogError) -> ProducePartitionResult:
        self._parts.metrics.append_failed(error)
        return ProducePartitionResult(part.partition, error)

    async def _durable(self, ack: Awaitable[LogAppendInfo]) -> LogAppendInfo:
        try:
            async with asyncio.timeout(max(0.0, self._deadline - self._parts.clock.monotonic())):
                return await ack
        except TimeoutError:
            raise OutcomeUnknown(
                "the batch is in its place but was not durable when the time was up; retry with "
                "the same producer id and sequence"
            ) from None

    def abandon(self) -> None:
        """The caller has left: the appends go on, their errors are not reported as lost."""
        for _, parts in self._topics:
            for part in parts:
                if isinstance(part.outcome, asyncio.Future):
                    part.outcome.add_done_callback(_observe)
                elif isinstance(part.outcome, Coroutine):
                    part.outcome.close()


def _observe(future: asyncio.Future[LogAppendInfo]) -> None:
    if not future.cancelled():
        future.exception()


class ProduceService:
    """`auto_create()`: a topic that does not exist is created when records come for it."""

    def __init__(self, parts: RecordParts, *, auto_create: Callable[[], bool]) -> None:
        self._parts = parts
        self._logs = parts.logs
        self._clients = parts.clients
        self._offload = parts.offload
        self._clock = parts.clock
        self._authorize = parts.authorize
        self._limits = parts.limits
        self._auto_create = auto_create

    async def sequence(self, context: RequestContext, call: ProduceCall) -> SequencedProduce:
        """Gives every batch of the request its place, in request order.

        Errors: Invalid for the request as a whole; everything else is in the results.
        """
        [outcome] = await self.sequence_many([(context, call)])
        if isinstance(outcome, StreamlogError):
            raise outcome
        return outcome

    async def sequence_many(
        self, requests: Sequence[tuple[RequestContext, ProduceCall]]
    ) -> list[SequencedProduce | StreamlogError]:
        """As `sequence`, for requests that are there together, one after the other.

        An error takes the place of a request that failed as a whole. Cancellation leaves the
        batches that have their places under way.
        """
        done: list[SequencedProduce | StreamlogError] = []
        sent: dict[str, int] = {}
        began = now = self._clock.monotonic()
        try:
            for context, call in requests:
                if done:
                    now = self._clock.monotonic()
                    if now - began > AT_ONCE_S:
                        await asyncio.sleep(0)
                        began = now = self._clock.monotonic()
                try:
                    sequenced = await self._sequence(context, call, now)
                except StreamlogError as error:
                    done.append(error)
                    continue
                done.append(sequenced)
                sent[context.client_id] = sent.get(context.client_id, 0) + sequenced.size_bytes
        except BaseException:
            for one in done:
                if isinstance(one, SequencedProduce):
                    one.abandon()
            raise
        finally:
            for client_id, size_bytes in sent.items():
                self._clients.sent(client_id, size_bytes)
        return done

    async def _sequence(
        self, context: RequestContext, call: ProduceCall, now: float
    ) -> SequencedProduce:
        self._check(call)
        timeout_s = (call.timeout_ms or self._limits.produce_timeout_ms) / 1000
        deadline = now + timeout_s
        if context.deadline is not None and context.deadline < deadline:
            deadline = context.deadline
        # A request that lay behind one that waited in vain, for its partition or for room, waits no
        # time of its own: it would get its place after the one before it was refused, and the
        # producer's retry of that one would come out of sequence.
        waits_from = now if call.received_at is None else call.received_at
        place_by = min(deadline, waits_from + timeout_s)
        produce = ProduceContext(place_by, context.principal, context.client_id, context.trace_id)
        may_create = call.may_create and self._auto_create()
        sequenced = SequencedProduce(self._parts, deadline, wait_durable=call.wait_durable)
        try:
            for topic in call.topics:
                name = topic.topic or self._name_of(topic.topic_id)
                outcomes = sequenced.add_topic(name)
                for part in topic.partitions:
                    outcome = await self._sequence_one(
                        context, produce, name, topic.topic_id, part, may_create=may_create
                    )
                    outcomes.append(outcome)
                    sequenced.size_bytes += outcome.size_bytes
        except BaseException:
            sequenced.abandon()
            raise
        if not call.wait_durable:
            sequenced.abandon()
        return sequenced

    def _name_of(self, topic_id: str) -> str:
        """Empty where no topic has the id."""
        topic = self._logs.topic_by_id(topic_id) if topic_id else None
        return "" if topic is None else topic.name

    def _check(self, call: ProduceCall) -> None:
        if call.transactional_id:
            raise InvalidTxnState("transactions come with a later version; leave it unset")
        check_partitions(call.topics, self._limits.partitions_per_request_max)

    async def _sequence_one(
        self,
        context: RequestContext,
        produce: ProduceContext,
        name: str,
        topic_id: str,
        part: ProducePartition,
        *,
        may_create: bool,
    ) -> _Sequenced:
        try:
            if topic_id and not name:
                raise UnknownTopicId(
                    f"there is no topic with the id {topic_id!r}; look it up again",
                    topic=name,
                    partition=part.partition,
                    topic_id=topic_id,
                )
            self._authorize(context, Operation.WRITE, Resource(ResourceType.TOPIC, name))
            partition = TopicPartition(name, part.partition)
            log = self._logs.open_log(partition)
            if log is None:
                # A client that names an id means a topic that was there before.
                opening = self._open(context, partition, may_create and not topic_id)
                log = await opened_until(produce.deadline, self._clock, opening, partition)
            check_topic_id(self._logs, name, part.partition, topic_id)
            topic_id = topic_id or id_of(self._logs, name)
            batches = part.batches
            if batches is None:
                batches = await self._offload.run(
                    Lane.CPU, encode_plain_records, part.records, self._clock.now_ms()
                )
            return _Sequenced(part.partition, len(batches), await log.append(batches, produce))
        except StreamlogError as error:
            refusal = client_error(error, self._logs, name, part.partition, topic_id)
            return _Sequenced(part.partition, 0, refusal)

    async def _open(
        self, context: RequestContext, partition: TopicPartition, may_create: bool
    ) -> AbstractLog:
        """Creates the topic where needed and allowed."""
        try:
            return await self._logs.log(partition)
        except UnknownTopicOrPartition:
            if not may_create or self._logs.topic(partition.topic) is not None:
                raise
        self._authorize(context, Operation.CREATE, Resource(ResourceType.TOPIC, partition.topic))
        with suppress(TopicAlreadyExists):  # Another request may have created it meanwhile.
            await self._logs.create_topic(partition.topic)
        return await self._logs.log(partition)
