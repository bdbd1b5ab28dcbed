"""What clients are told of topics: who may see them, who leads their partitions, what has changed.

Every answer comes from memory: no partition is opened for it, and no store is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from streamlog.errors import StreamlogError, TopicAlreadyExists, Unauthorized
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.logs import SparseLines
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.ports import KnownTopic, Logs

log = logging.getLogger(__name__)

CREATIONS_MAX = 64
"""Topics that are being created because clients asked for them; the rest waits for the next ask."""
REFUSAL_LOGGED_EVERY_S = 60.0
"""Clients ask for a topic that cannot be created some times a second."""

TOPIC_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


class TopicViews:
    """`auto_create`: a client's question may create a topic. `background` runs the creations."""

    def __init__(
        self,
        logs: Logs,
        *,
        clock: Clock,
        authorize: Authorize,
        background: Background,
        auto_create: Callable[[], bool],
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._authorize = authorize
        self._background = background
        self._auto_create = auto_create
        self._creating: set[str] = set()
        self._refusals = SparseLines(REFUSAL_LOGGED_EVERY_S)

    @property
    def revision(self) -> int:
        """Rises with each change of anything that is told here, permissions apart."""
        return self._logs.revisions.latest

    def revision_of(self, topic: str) -> int:
        """What `revision` was after the topic's last change."""
        return self._logs.revisions.of(topic)

    def topic(self, name: str) -> KnownTopic | None:
        return self._logs.topic(name)

    def topic_by_id(self, topic_id: str) -> KnownTopic | None:
        return self._logs.topic_by_id(topic_id)

    def topics(self, after: str, limit: int) -> Sequence[KnownTopic]:
        """Topics by name, those past `after`. Permissions are not looked at."""
        return self._logs.list_topics(after, limit)

    def leader_of(self, partition: TopicPartition) -> int | None:
        """None: the partition has no leader now."""
        return self._logs.leader_of(partition)

    def leader_epochs(self, topic: str) -> Mapping[int, int]:
        """Partition → leader epoch, of those that were open here since the node started.

        It never falls while the topic exists. Retention opens every partition that this node leads
        within `log.retention.check.interval.ms`.
        """
        return self._logs.revisions.leader_epochs(topic)

    def check(self, context: RequestContext, operation: Operation, topic: str) -> None:
        """Errors: Unauthorized."""
        self._authorize(context, operation, Resource(ResourceType.TOPIC, topic))

    def may(self, context: RequestContext, operation: Operation, topic: str) -> bool:
        return self._may(context, operation, Resource(ResourceType.TOPIC, topic))

    def may_on_cluster(self, context: RequestContext, operation: Operation) -> bool:
        return self._may(context, operation, CLUSTER)

    def topic_operations(self, context: RequestContext, topic: str) -> list[Operation]:
        """What the principal may do with the topic."""
        resource = Resource(ResourceType.TOPIC, topic)
        return [
            operation for operation in TOPIC_OPERATIONS if self._may(context, operation, resource)
        ]

    def cluster_operations(self, context: RequestContext) -> list[Operation]:
        return [
            operation for operation in CLUSTER_OPERATIONS if self._may(context, operation, CLUSTER)
        ]

    def _may(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        try:
            self._authorize(context, operation, resource)
        except Unauthorized:
            return False
        return True

    @property
    def may_create(self) -> bool:
        """The broker's auto.create.topics.enable."""
        return self._auto_create()

    def begin_creation(self, name: str) -> None:
        """Creates the topic, with the broker's num.partitions, while the client goes on.

        Does nothing where it is being created already, or CREATIONS_MAX others are: the client asks
        again. The creation ends with the node, and the next ask begins it anew.
        """
        if name in self._creating or len(self._creating) >= CREATIONS_MAX:
            return
        self._creating.add(name)
        task = self._background.spawn(self._create(name), name="auto_create")
        # Not in the coroutine, which is never begun where the node ends first.
        task.add_done_callback(lambda _: self._creating.discard(name))

    async def _create(self, name: str) -> None:
        try:
            await self._logs.create_topic(name)
        except TopicAlreadyExists:
            return
        except StreamlogError as error:
            if self._refusals.may_write(self._clock.monotonic()):
                log.warning("topic %s, which a client asked for, was not created: %s", name, error)
