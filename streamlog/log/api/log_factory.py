"""What the log manager asks of an engine that logs lie on; nothing here speaks of streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.partition import TopicPartition

LogFailed = Callable[[AbstractLog, StreamlogError], None]


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """`attempt` names one try to create partitions, so that what a lost try left can be told."""

    name: str
    topic_id: UUID
    attempt: str


class LogFactory(Protocol):
    async def create(
        self, topic: TopicIdentity, partitions: Sequence[int], config: TopicConfig
    ) -> list[int]:
        """Empty partitions; a handle for each, durable on return."""
        ...

    async def open(
        self, partition: TopicPartition, handle: int, config: TopicConfig, on_failure: LogFailed
    ) -> AbstractLog:
        """Errors: NotLeader, NotFound, Corrupt, Unavailable."""
        ...

    async def is_there(self, handle: int) -> bool:
        """False only where the partition is gone for every node, as of now; for ever then."""
        ...

    async def remove(self, handle: int) -> None:
        """Deletes a partition that is not open; nothing where it is gone."""
        ...

    async def delete_orphans(
        self,
        attempts_under_way: Callable[[], Set[str]],
        registered: Callable[[], Awaitable[Set[int]]],
    ) -> int:
        """Deletes partitions whose handle is not registered, but for those of attempts under way.

        How many were deleted. What another living node holds is left alone.
        """
        ...
