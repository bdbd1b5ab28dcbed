"""Transactions: who may, checks of the request, which node coordinates; markers of tools and nodes.

The coordinator decides (`streamlog/coordinator`); listeners of all protocols call it through here.
Produce asks it by itself (`records/verification.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from streamlog.coordinator.api import (
    ProducerIdAndEpoch,
    TransactionCoordinator,
    TransactionDescription,
    TransactionFilter,
)
from streamlog.coordinator.placement import check_id
from streamlog.errors import (
    CoordinatorNotAvailable,
    DeadlinePassed,
    Invalid,
    OutcomeUnknown,
    StreamlogError,
    Unauthorized,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import TransactionMarker
from streamlog.log.api.internal_topics import is_internal
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
from streamlog.server.services.ports import Logs, opened_until
from streamlog.server.services.support.client_topics import check_clients_write
from streamlog.server.services.support.in_order import in_order
from streamlog.server.services.support.topic_identity import client_error, id_of
from streamlog.settings.limits import LimitsConfig


class PartitionRefusal(NamedTuple):
    """Why a partition cannot be part of the transaction."""

    partition: TopicPartition
    error: StreamlogError


class MarkerWrite(NamedTuple):
    """A marker, and the partitions that get it."""

    marker: TransactionMarker
    partitions: Sequence[TopicPartition]


class TransactionService:
    """Errors of all calls that name a transactional id: Unauthorized, Invalid (an id that is empty
    or too long), and those of the coordinator's call."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        logs: Logs,
        *,
        node_id: int,
        clock: Clock,
        authorize: Authorize,
        limits: LimitsConfig,
    ) -> None:
        self._coordinator = coordinator
        self._logs = logs
        self.node_id = node_id
        self._clock = clock
        self._authorize = authorize
        self._limits = limits

    async def coordinator_of(self, context: RequestContext, transactional_id: str) -> int:
        """The node that coordinates the id. Creates `__transaction_state` where there is none.

        Errors: CoordinatorNotAvailable.
        """
        self._check(context, Operation.DESCRIBE, transactional_id)
        await self._coordinator.ensure_topic()
        partition = self._coordinator.partition_of(transactional_id)
        leader = self._logs.leader_of(partition)
        if leader is None:
            raise CoordinatorNotAvailable(f"{partition} has no leader now; retry with back-off")
        return leader

    async def init_producer_id(
        self,
        context: RequestContext,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        """As `TransactionCoordinator.init_producer_id`."""
        self._check(context, Operation.WRITE, transactional_id)
        return await self._coordinator.init_producer_id(transactional_id, timeout_ms, expected)

    async def add_partitions(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        *,
        is_from_node: bool = False,
    ) -> list[PartitionRefusal]:
        """Partitions that cannot be added; if there is one, none was. Repeated ones count once.

        Reasons: Unauthorized, UnknownTopicOrPartition. `is_from_node`: another node asks for its
        client, whom it has authorized; `check_node` comes first.
        """
        if not is_from_node:
            self._check(context, Operation.WRITE, transactional_id)
        check_id(transactional_id)
        wanted = self._wanted(partitions)
        refused = self._refused(context, wanted, authorizes=not is_from_node)
        if not refused:
            await self._coordinator.add_partitions(transactional_id, producer, wanted)
        return refused

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> list[PartitionRefusal]:
        """Those that are not part of the open transaction. For nodes: `check_node` comes first."""
        check_id(transactional_id)
        wanted = self._wanted(partitions)
        refused = self._refused(RequestContext(), wanted, authorizes=False)
        if refused:
            return refused
        found = await self._coordinator.verify_partitions(transactional_id, producer, wanted)
        return [PartitionRefusal(partition, error) for partition, error in found.items()]

    async def end(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        bumps_epoch: bool = False,
        application_epoch: int | None = None,
    ) -> ProducerIdAndEpoch:
        """As `TransactionCoordinator.end`."""
        self._check(context, Operation.WRITE, transactional_id)
        return await self._coordinator.end(
            transactional_id,
            producer,
            is_commit=is_commit,
            bumps_epoch=bumps_epoch,
            application_epoch=application_epoch,
        )

    async def describe(
        self, context: RequestContext, transactional_ids: Sequence[str]
    ) -> list[TransactionDescription | StreamlogError]:
        """One answer for each id, in order, with the partitions that the caller may describe.

        Errors of the whole call: Invalid (too many ids).
        """
        most = self._limits.partitions_per_request_max
        if len(transactional_ids) > most:
            raise Invalid(
                f"the request names {len(transactional_ids)} transactional ids; at most {most} are "
                "allowed (limits.partitions_per_request_max): split it"
            )
        return await in_order([self._described(context, one) for one in transactional_ids])

    async def _described(
        self, context: RequestContext, transactional_id: str
    ) -> TransactionDescription | StreamlogError:
        try:
            self._check(context, Operation.DESCRIBE, transactional_id)
            found = await self._coordinator.describe(transactional_id)
        except StreamlogError as error:
            return error
        return self._visible(context, found)

    async def transactions(
        self, context: RequestContext, wanted: TransactionFilter
    ) -> list[TransactionDescription]:
        """Of all ids that this node coordinates and the caller may describe, by id.

        Errors: Invalid (the pattern), CoordinatorLoadInProgress.
        """
        found = await self._coordinator.transactions(wanted)
        return [
            self._visible(context, one)
            for one in found
            if self._may(context, Operation.DESCRIBE, _resource(one.transactional_id))
        ]

    async def abort(self, context: RequestContext, transactional_id: str) -> TransactionDescription:
        """As `TransactionCoordinator.abort`."""
        self._check(context, Operation.WRITE, transactional_id)
        found = await self._coordinator.abort(transactional_id)
        return self._visible(context, found)

    def check_node(self, context: RequestContext) -> None:
        """Whether the caller is a node, or may act as one. Errors: Unauthorized."""
        self._authorize(context, Operation.CLUSTER_ACTION, CLUSTER)

    async def write_markers(
        self, context: RequestContext, writes: Sequence[MarkerWrite]
    ) -> list[list[StreamlogError | None]]:
        """Writes markers past the coordinator: an operator ends a transaction that hangs.

        An outcome for each partition of each write, in order; None: the marker is durable. A
        partition's markers are written in the order of `writes`. What is not durable within
        limits.produce_timeout_ms is OutcomeUnknown and goes on. Errors of the whole call:
        Unauthorized, Invalid (too many partitions).
        """
        if not self._may(context, Operation.ALTER, CLUSTER):
            self.check_node(context)
        self._check_count(sum(len(write.partitions) for write in writes))
        of_partition: dict[TopicPartition, dict[TransactionMarker, StreamlogError | None]] = {}
        for marker, partitions in writes:
            for partition in partitions:
                of_partition.setdefault(partition, {})[marker] = None
        deadline = self._clock.monotonic() + self._limits.produce_timeout_ms / 1000
        await in_order(
            [
                self._write_all(partition, outcomes, deadline)
                for partition, outcomes in of_partition.items()
            ]
        )
        return [
            [of_partition[partition][marker] for partition in partitions]
            for marker, partitions in writes
        ]

    async def _write_all(
        self,
        partition: TopicPartition,
        outcomes: dict[TransactionMarker, StreamlogError | None],
        deadline: float,
    ) -> None:
        for marker in outcomes:
            topic_id = id_of(self._logs, partition.topic)
            try:
                await self._write(partition, marker, deadline)
            except StreamlogError as error:
                topic, number = partition
                outcomes[marker] = client_error(error, self._logs, topic, number, topic_id)

    async def _write(
        self, partition: TopicPartition, marker: TransactionMarker, deadline: float
    ) -> None:
        check_clients_write(partition.topic)
        log = self._logs.open_log(partition)
        if log is None:
            log = await opened_until(deadline, self._clock, self._logs.log(partition), partition)
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise DeadlinePassed(
                f"the time was up before a marker was written to {partition}: write it again"
            )
        try:
            async with asyncio.timeout(left):
                await (await log.append_marker(marker))
        except TimeoutError:
            raise OutcomeUnknown(
                f"the marker in {partition} was not durable when the time was up; it goes on: "
                "describe the partition's producers, or write it again"
            ) from None

    def _wanted(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Each once. Errors: Invalid."""
        self._check_count(len(partitions))
        return list(dict.fromkeys(partitions))

    def _check_count(self, count: int) -> None:
        most = self._limits.partitions_per_request_max
        if count > most:
            raise Invalid(
                f"the request names {count} partitions; at most {most} are allowed "
                "(limits.partitions_per_request_max): split it",
                partitions=count,
                max_partitions=most,
            )

    def _refused(
        self, context: RequestContext, partitions: Sequence[TopicPartition], *, authorizes: bool
    ) -> list[PartitionRefusal]:
        unauthorized: dict[str, StreamlogError] = {}
        if authorizes:
            for topic in dict.fromkeys(partition.topic for partition in partitions):
                try:
                    self._check_topic(context, topic)
                except Unauthorized as error:
                    unauthorized[topic] = error
        refused = []
        for partition in partitions:
            reason = unauthorized.get(partition.topic) or self._unknown(partition)
            if reason is not None:
                refused.append(PartitionRefusal(partition, reason))
        return refused

    def _check_topic(self, context: RequestContext, topic: str) -> None:
        """Errors: Unauthorized."""
        if is_internal(topic):
            raise Unauthorized(f"{topic} is an internal topic: the node alone writes it")
        self._authorize(context, Operation.WRITE, Resource(ResourceType.TOPIC, topic))

    def _unknown(self, partition: TopicPartition) -> StreamlogError | None:
        topic, number = partition
        known = self._logs.topic(topic)
        if known is not None and 0 <= number < known.partitions:
            return None
        what = f"topic {topic[:80]!r}" if known is None else f"partition {partition}"
        return UnknownTopicOrPartition(
            f"there is no {what}; create it first, or look it up again",
            topic=topic,
            partition=number,
        )

    def _visible(
        self, context: RequestContext, found: TransactionDescription
    ) -> TransactionDescription:
        """Without the partitions of topics that the caller may not describe."""
        topics = {partition.topic for partition in found.partitions}
        hidden = {
            topic
            for topic in topics
            if not self._may(context, Operation.DESCRIBE, Resource(ResourceType.TOPIC, topic))
        }
        if not hidden:
            return found
        seen = tuple(one for one in found.partitions if one.topic not in hidden)
        return replace(found, partitions=seen)

    def _check(self, context: RequestContext, operation: Operation, transactional_id: str) -> None:
        """Errors: Unauthorized, Invalid."""
        self._authorize(context, operation, _resource(transactional_id))
        check_id(transactional_id)

    def _may(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        try:
            self._authorize(context, operation, resource)
        except Unauthorized:
            return False
        return True


def _resource(transactional_id: str) -> Resource:
    return Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)
