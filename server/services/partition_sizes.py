"""How many bytes the partitions of this node hold.

An open log knows its size. To open one costs some reads of the store, so that a question about all
partitions opens OPENS_MAX at most, and leaves out those that it does not know. Retention opens all
partitions of a node within `log.retention.check.interval.ms` of its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.steps import Steps, run_cooperatively
from streamlog.server.context import CLUSTER, Authorize, Operation, RequestContext
from streamlog.server.services.ports import Logs, open_deadline, opened_until
from streamlog.server.services.support.in_order import in_order
from streamlog.settings.limits import LimitsConfig

OPENS_MAX = 500
"""Partitions that one question opens."""
PARTITIONS_PER_STEP = 1000
PAGE = 1000


class PartitionSizes:
    def __init__(
        self, logs: Logs, *, node_id: int, clock: Clock, authorize: Authorize, limits: LimitsConfig
    ) -> None:
        self._logs = logs
        self._node_id = node_id
        self._clock = clock
        self._authorize = authorize
        self._limits = limits

    async def of(
        self, context: RequestContext, asked: Mapping[str, Iterable[int]] | None
    ) -> dict[str, dict[int, int]]:
        """Topic → partition → bytes, of the partitions that this node leads; `asked` None: of all.

        Partitions that do not exist, or did not open in time, are left out. Errors: Unauthorized.
        """
        self._authorize(context, Operation.DESCRIBE, CLUSTER)
        sizes: dict[str, dict[int, int]] = {}
        closed = await run_cooperatively(self._of_open(asked, sizes))
        deadline = open_deadline(context, self._clock, self._limits)
        opened = await in_order([self._opened(partition, deadline) for partition in closed])
        for log in opened:
            if log is not None:
                topic, number = log.topic_partition
                sizes.setdefault(topic, {})[number] = log.size_bytes
        return {
            topic: dict(sorted(partitions.items())) for topic, partitions in sorted(sizes.items())
        }

    def _of_open(
        self, asked: Mapping[str, Iterable[int]] | None, sizes: dict[str, dict[int, int]]
    ) -> Steps[Sequence[TopicPartition]]:
        """Fills `sizes` from the logs that are open; returns the partitions to be opened."""
        closed: list[TopicPartition] = []
        work = 0
        for name, numbers in self._wanted(asked):
            for number in numbers:
                work += 1
                if work % PARTITIONS_PER_STEP == 0:
                    yield
                partition = TopicPartition(name, number)
                log = self._logs.open_log(partition)
                if log is not None:
                    sizes.setdefault(name, {})[number] = log.size_bytes
                elif len(closed) < OPENS_MAX and self._logs.leader_of(partition) == self._node_id:
                    closed.append(partition)
        return closed

    def _wanted(
        self, asked: Mapping[str, Iterable[int]] | None
    ) -> Iterable[tuple[str, Iterable[int]]]:
        if asked is not None:
            for name, numbers in asked.items():
                topic = self._logs.topic(name)
                if topic is not None:
                    yield name, [number for number in numbers if 0 <= number < topic.partitions]
            return
        after = ""
        while page := self._logs.list_topics(after, PAGE):
            for topic in page:
                yield topic.name, range(topic.partitions)
            after = page[-1].name

    async def _opened(self, partition: TopicPartition, deadline: float) -> AbstractLog | None:
        try:
            return await opened_until(deadline, self._clock, self._logs.log(partition), partition)
        except StreamlogError:
            # The partition is away for now, or gone: the answer has the others.
            return None
