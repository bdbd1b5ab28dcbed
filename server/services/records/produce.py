"""Produce: sequenced in request order, answered when durable; errors per partition.

1. `sequence_many` collects the batches of requests that lie ready together, and hands each log all
   of its own in one call; the order of a partition's batches is that of the requests.
2. The listener waits for the results later, so that the next request is sequenced meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import cast

from streamlog.errors import (
    OutcomeUnknown,
    StreamlogError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import (
    AbstractLog,
    LogAppend,
    LogAppendInfo,
    ProduceContext,
)
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.prompt_future import ended_within
from streamlog.runtime.offload import Lane
from streamlog.server.context import (
    Operation,
    RequestContext,
    Resource,
    ResourceType,
    topic_resource,
)
from streamlog.server.services.ports import check_partitions, opened_until
from streamlog.server.services.records.awaited_retries import AwaitedRetries
from streamlog.server.services.records.conditions import check_condition
from streamlog.server.services.records.parts import RecordParts
from streamlog.server.services.records.requests import (
    ProduceCall,
    ProducePartitionResult,
    ProduceTopicResult,
)
from streamlog.server.services.records.runs import RUN_BYTES_MAX, RUN_LOGS_MAX, Ready, Runs
from streamlog.server.services.records.unanswered import PartitionAppend, Unanswered, when_stored
from streamlog.server.services.records.verification import (
    Refusals,
    Verifiable,
    Verification,
    needs_verification,
    transactional_producer,
)
from streamlog.server.services.support.client_topics import check_clients_write
from streamlog.server.services.support.plain_records import encode_plain_records
from streamlog.server.services.support.topic_identity import check_topic_id, id_of

AT_ONCE_S = 0.002
"""How long requests that lie ready together hold the event loop at most. In between, the medium
begins to write what has its place, and other connections have their turn."""


class SequencedProduce:
    """One request whose batches have their places.

    `settle`, then `results`; or `results` at once where `is_done`, as for most answers: those that
    became durable together are made without a wait each.
    """

    __slots__ = ("_deadline", "_parts", "_topics", "_unanswered", "wait_durable")

    def __init__(
        self, parts: RecordParts, unanswered: Unanswered, deadline: float, *, wait_durable: bool
    ) -> None:
        self._topics: list[tuple[str, list[PartitionAppend]]] = []
        self.wait_durable = wait_durable
        self._deadline = deadline
        self._parts = parts
        self._unanswered = unanswered

    def add_topic(self, topic: str) -> list[PartitionAppend]:
        """Where the outcomes of the topic's partitions go, in request order."""
        outcomes: list[PartitionAppend] = []
        self._topics.append((topic, outcomes))
        return outcomes

    async def settle(self) -> None:
        """Waits until every batch is durable or has failed, or until the request's time is up.

        Cancelling it leaves the appends under way; `results` must not follow then.
        """
        if not self.wait_durable:
            return
        try:
            for topic, parts in self._topics:
                for part in parts:
                    if not part.is_done():
                        await self._wait(topic, part)
        except BaseException:
            self.abandon()
            raise

    def results(self) -> list[ProduceTopicResult]:
        """In request order; a batch that is not durable by now has the error OutcomeUnknown."""
        results = iter(self.partition_results())
        return [
            ProduceTopicResult(topic, list(islice(results, len(parts))))
            for topic, parts in self._topics
        ]

    def partition_results(self) -> list[ProducePartitionResult]:
        """As `results`, of the partitions of all topics in a row."""
        try:
            return [self._result(topic, part) for topic, parts in self._topics for part in parts]
        except BaseException:
            if self.wait_durable:
                self.abandon()
            raise

    def is_done(self) -> bool:
        """`settle` would not wait."""
        if not self.wait_durable:
            return True
        for _, parts in self._topics:
            for part in parts:
                if not part.is_done():
                    return False
        return True

    def _result(self, topic: str, part: PartitionAppend) -> ProducePartitionResult:
        outcome = part.outcome
        assert outcome is not None
        if isinstance(outcome, StreamlogError):
            return self._failed(part, outcome)
        if not self.wait_durable:
            return ProducePartitionResult(part.partition.partition, None)
        try:
            if not isinstance(outcome, asyncio.Future) or not outcome.done():
                raise OutcomeUnknown(
                    "the batch is in its place but was not durable when the time was up; retry "
                    "with the same producer id and sequence"
                )
            info = cast(LogAppendInfo, outcome.result())
        except StreamlogError as error:
            if part.is_done():
                self._unanswered.failed(part, error)
            return self._failed(part, error)
        self._unanswered.answered(part)
        self._count(topic, part, info)
        base, _, append_time_ms, log_start, is_duplicate = info
        return ProducePartitionResult(
            part.partition.partition, None, base, append_time_ms, log_start, is_duplicate
        )

    def _count(self, topic: str, part: PartitionAppend, info: LogAppendInfo) -> None:
        """Once for each append that is stored, whether or not somebody waited for it."""
        base, last, _, _, is_duplicate = info
        if not is_duplicate and not part.is_counted:
            part.is_counted = True
            self._parts.topics.produced(topic, last - base + 1, len(part.batches))

    def _failed(self, part: PartitionAppend, error: StreamlogError) -> ProducePartitionResult:
        self._parts.metrics.append_failed(error)
        return ProducePartitionResult(part.partition.partition, error)

    async def _wait(self, topic: str, part: PartitionAppend) -> None:
        """Until the deadline at most."""
        ack = part.outcome
        assert ack is not None
        assert not isinstance(ack, StreamlogError)
        part.outcome = future = asyncio.ensure_future(ack)
        wait_s = max(0.0, self._deadline - self._parts.clock.monotonic())
        if await ended_within(future, wait_s):
            return
        # Until then it counts as unanswered: its log may be lost before the client's retry comes.
        future.add_done_callback(lambda _: self._unanswered.ended(part))
        future.add_done_callback(lambda late: when_stored(late, partial(self._count, topic, part)))

    def abandon(self) -> None:
        """The caller has left: the appends go on, their errors are not reported as lost."""
        for topic, parts in self._topics:
            for part in parts:
                part.abandon(partial(self._count, topic, part))
                self._unanswered.answered(part)


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
        self._awaited = AwaitedRetries(parts.clock)
        self._verification = Verification(parts.coordinator, parts.clock)
        self.unanswered = Unanswered(self._awaited)

    async def sequence(self, context: RequestContext, call: ProduceCall) -> SequencedProduce:
        """Gives every batch of the request its place, in request order.

        Errors: Invalid for the request as a whole; everything else is in the results.
        """
        [outcome] = await self.sequence_many([(context, call)])
        if isinstance(outcome, StreamlogError):
            raise outcome
        return outcome

    def has_to_open(self, topic: str, topic_id: str, partitions: Iterable[int]) -> bool:
        """Whether one of the partitions is not open here. `topic` empty: the one with that id."""
        name = topic or self._name_of(topic_id)
        open_log = self._logs.open_log
        return None in [open_log(TopicPartition(name, number)) for number in partitions]

    def has_to_verify(
        self, topic: str, topic_id: str, batches: Iterable[tuple[int, Buffer]]
    ) -> bool:
        """Whether a coordinator has to be asked before batches, by partition, have their places."""
        name = topic or self._name_of(topic_id)
        for number, of_partition in batches:
            log = self._logs.open_log(TopicPartition(name, number))
            if log is not None and needs_verification(log, of_partition):
                return True
        return False

    def refused(
        self, topic: str, topic_id: str, partition: int, batches: Buffer, error: StreamlogError
    ) -> None:
        """A listener answered batches with this error in the place of `sequence`. `topic` empty:
        the one with that id."""
        name = topic or self._name_of(topic_id)
        if name:
            self._awaited.refused(TopicPartition(name, partition), batches, error)

    def check_transactional(self, context: RequestContext, transactional_id: str) -> None:
        """Errors: Unauthorized."""
        resource = Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)
        self._authorize(context, Operation.WRITE, resource)

    async def sequence_many(
        self, requests: Sequence[tuple[RequestContext, ProduceCall]]
    ) -> list[SequencedProduce | StreamlogError]:
        """As `sequence`, for requests that are there together, one after the other.

        An error takes the place of a request that failed as a whole. Cancellation leaves the
        batches that have their places under way.
        """
        done: list[SequencedProduce | StreamlogError] = []
        runs = Runs(self._logs, self._awaited, self.unanswered)
        began = self._clock.monotonic()
        try:
            for context, call in requests:
                if runs.size_bytes >= RUN_BYTES_MAX:
                    await runs.flush()
                now = self._clock.monotonic()
                if done and now - began > AT_ONCE_S:
                    await runs.flush()
                    await asyncio.sleep(0)
                    began = now = self._clock.monotonic()
                try:
                    sequenced, place_by = self._begin(context, call, now)
                except StreamlogError as error:
                    done.append(error)
                    continue
                done.append(sequenced)
                await self._collect(runs, context, call, sequenced, place_by)
            await runs.flush()
        except BaseException:
            for one in done:
                if isinstance(one, SequencedProduce):
                    one.abandon()
            raise
        finally:
            for client_id, size_bytes in runs.sent.items():
                self._clients.sent(client_id, size_bytes)
        for one in done:
            if isinstance(one, SequencedProduce) and not one.wait_durable:
                one.abandon()
        return done

    def _begin(
        self, context: RequestContext, call: ProduceCall, now: float
    ) -> tuple[SequencedProduce, float]:
        """The request, and until when its batches wait for their places.

        Errors: those of the request as a whole.
        """
        self._check(context, call)
        timeout_s = (call.timeout_ms or self._limits.produce_timeout_ms) / 1000
        deadline = now + timeout_s
        if context.deadline is not None and context.deadline < deadline:
            deadline = context.deadline
        # A request that lay behind one that waited in vain, for its partition or for room, waits no
        # time of its own. Each would wait after the other, and the last of a connection would get
        # its place when its client has long given up waiting, and has sent it again. (The order of
        # a producer's batches does not depend on it: `AwaitedRetries`.)
        waits_from = now if call.received_at is None else call.received_at
        place_by = min(deadline, waits_from + timeout_s)
        sequenced = SequencedProduce(
            self._parts, self.unanswered, deadline, wait_durable=call.wait_durable
        )
        return sequenced, place_by

    async def _collect(
        self,
        runs: Runs,
        context: RequestContext,
        call: ProduceCall,
        sequenced: SequencedProduce,
        place_by: float,
    ) -> None:
        """Adds the request's batches to `runs`; waits only where a log has to be opened, or plain
        records to be encoded, after a flush of what came before."""
        produce = ProduceContext(place_by, context.principal, context.client_id, context.trace_id)
        refused: Refusals = {}
        if call.transactional_id:
            refused = await self._refusals(runs, context, call, place_by)
        for topic in call.topics:
            name = topic.topic or self._name_of(topic.topic_id)
            outcomes = sequenced.add_topic(name)
            for part in topic.partitions:
                partition = TopicPartition(name, part.partition)
                append = PartitionAppend(partition, has_answer=sequenced.wait_durable)
                outcomes.append(append)
                topic_id, batches, own = topic.topic_id, part.batches, produce
                try:
                    self._check_access(context, name, topic_id, part.partition)
                    log = self._logs.open_log(partition)
                    if log is None or batches is None:
                        await runs.flush()
                        log = self._logs.open_log(partition)
                    if log is None:
                        may_create = call.may_create and self._auto_create() and not topic_id
                        opening = self._open(context, partition, may_create)
                        log = await opened_until(place_by, self._clock, opening, partition)
                    check_topic_id(self._logs, name, part.partition, topic_id)
                    if refused and partition in refused:
                        raise refused[partition]
                    if part.condition is not None:
                        check_condition(log, part.condition, has_answer=append.has_answer)
                        own = produce._replace(condition=part.condition)
                    if batches is None:
                        topic_id = topic_id or id_of(self._logs, name)
                        batches = await self._offload.run(
                            Lane.CPU, encode_plain_records, part.records, self._clock.now_ms()
                        )
                except StreamlogError as error:
                    runs.refuse(append, part.batches or b"", error, topic_id)
                    continue
                runs.add(log, Ready(append, LogAppend(batches, own), topic_id))
                if runs.logs >= RUN_LOGS_MAX:
                    await runs.flush()
                    await asyncio.sleep(0)

    async def _refusals(
        self, runs: Runs, context: RequestContext, call: ProduceCall, place_by: float
    ) -> Refusals:
        """Partitions of a transactional request whose batches its coordinator does not take.

        Batches of the requests before it have their places when it waits.
        """
        parts = []
        for topic in call.topics:
            name = topic.topic or self._name_of(topic.topic_id)
            for part in topic.partitions:
                partition = TopicPartition(name, part.partition)
                batches = part.batches or b""
                producer = transactional_producer(batches)
                if producer is None:
                    continue
                with suppress(StreamlogError):  # It comes again, with the partition's own batches.
                    self._check_access(context, name, topic.topic_id, part.partition)
                    log = self._logs.open_log(partition)
                    if log is None:
                        await runs.flush()
                        opening = self._logs.log(partition)
                        log = await opened_until(place_by, self._clock, opening, partition)
                    parts.append(Verifiable(partition, log, batches, producer))
        if len({part.producer for part in parts}) < 2:
            if not any(part.needs_verification() for part in parts):
                return {}
            await runs.flush()
        try:
            return await self._verification.refusals(
                call.transactional_id, parts, place_by, adds_partitions=call.adds_partitions
            )
        except StreamlogError as error:
            return dict.fromkeys((part.partition for part in parts), error)

    def _name_of(self, topic_id: str) -> str:
        """Empty where no topic has the id."""
        topic = self._logs.topic_by_id(topic_id) if topic_id else None
        return "" if topic is None else topic.name

    def _check(self, context: RequestContext, call: ProduceCall) -> None:
        if call.transactional_id:
            self.check_transactional(context, call.transactional_id)
        check_partitions(call.topics, self._limits.partitions_per_request_max)

    def _check_access(
        self, context: RequestContext, name: str, topic_id: str, partition: int
    ) -> None:
        """Errors: UnknownTopicId, InvalidName, Unauthorized."""
        if topic_id and not name:
            raise UnknownTopicId(
                f"there is no topic with the id {topic_id!r}; look it up again",
                topic=name,
                partition=partition,
                topic_id=topic_id,
            )
        if name.startswith("__"):
            check_clients_write(name)
        self._authorize(context, Operation.WRITE, topic_resource(name))

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
