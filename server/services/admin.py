"""Topics: created, listed, described, changed and deleted. Their settings: `configs.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from streamlog.errors import (
    InvalidName,
    StreamlogError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import PartitionDescription
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
from streamlog.server.metrics import ServerMetrics, TopicTraffic
from streamlog.server.services.ports import (
    KnownTopic,
    Logs,
    open_deadline,
    opened_until,
)
from streamlog.server.services.support.in_order import in_order
from streamlog.settings import Settings
from streamlog.settings.limits import TOPIC_NAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """`description` None: `error` says why. `leader_node` None: the partition has no leader now."""

    partition: int
    leader_node: int | None = None
    description: PartitionDescription | None = None
    error: StreamlogError | None = None


class AdminService:
    def __init__(
        self,
        logs: Logs,
        settings: Settings,
        *,
        node_id: int,
        clock: Clock,
        authorize: Authorize,
        metrics: ServerMetrics,
        topic_metrics: TopicTraffic,
        auto_create: Callable[[], bool],
    ) -> None:
        self._logs = logs
        self._settings = settings
        self.node_id = node_id
        self._clock = clock
        self._authorize = authorize
        self._metrics = metrics
        self._topic_metrics = topic_metrics
        self._auto_create = auto_create
        metrics.topics_bound.set(settings.log.topics_max)
        metrics.partitions_bound.set(settings.log.partitions_max)

    def count(self) -> tuple[int, int]:
        """Topics and partitions in the cluster."""
        topics = self._logs.list_topics("", 2**31 - 1)
        return len(topics), sum(topic.partitions for topic in topics)

    async def create_topic(
        self,
        context: RequestContext,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        validate_only: bool,
    ) -> KnownTopic:
        """`partitions` 0: the broker's num.partitions."""
        self._authorize(context, Operation.CREATE, _topic(name))
        if len(name.encode("utf-8", "replace")) > TOPIC_NAME_BYTES_MAX:
            raise InvalidName(
                f"the topic name has more than {TOPIC_NAME_BYTES_MAX} bytes; choose a shorter one"
            )
        return await self._logs.create_topic(name, partitions or None, dict(configs), validate_only)

    async def delete_topic(self, context: RequestContext, name: str, topic_id: str = "") -> None:
        """`topic_id`: only the topic with this id.

        Errors: UnknownTopicOrPartition, UnknownTopicId.
        """
        self._authorize(context, Operation.DELETE, _topic(name))
        await self._logs.delete_topic(name, topic_id)
        self._topic_metrics.forget(name)

    def list_topics(self, context: RequestContext, after: str, limit: int) -> Sequence[KnownTopic]:
        self._authorize(context, Operation.DESCRIBE, CLUSTER)
        return self._logs.list_topics(after, limit)

    async def topic(self, context: RequestContext, name: str, *, auto_create: bool) -> KnownTopic:
        """Creates it where `auto_create` and the broker's setting allow. Errors:
        UnknownTopicOrPartition."""
        self._authorize(context, Operation.DESCRIBE, _topic(name))
        topic = self._logs.topic(name)
        if topic is None and auto_create and self._auto_create():
            try:
                return await self.create_topic(context, name, 0, {}, validate_only=False)
            except TopicAlreadyExists:
                topic = self._logs.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(
                f"there is no topic {name[:80]!r}; create it first", topic=name
            )
        return topic

    def open_deadline(self, context: RequestContext) -> float:
        """Until when a request waits for partitions, of all its topics together, to open."""
        return open_deadline(context, self._clock, self._settings.limits)

    async def partitions(self, topic: str, count: int, deadline: float) -> list[DescribedPartition]:
        """All partitions of the topic as they are now, each with its own error."""
        return await in_order([self._partition(topic, number, deadline) for number in range(count)])

    async def _partition(self, topic: str, partition: int, deadline: float) -> DescribedPartition:
        key = TopicPartition(topic, partition)
        try:
            log = self._logs.open_log(key)
            if log is None:
                log = await opened_until(deadline, self._clock, self._logs.log(key), key)
            return DescribedPartition(partition, self._logs.leader_of(key), log.describe())
        except StreamlogError as error:
            return DescribedPartition(partition, self._logs.leader_of(key), error=error)

    async def create_partitions(
        self, context: RequestContext, name: str, count: int, validate_only: bool = False
    ) -> None:
        self._authorize(context, Operation.ALTER, _topic(name))
        await self._logs.create_partitions(name, count, validate_only)


def _topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)
