"""What the log manager asks of a kind of log: a factory for each. Nothing here knows streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

from streamlog.errors import PolicyViolation, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.partition import TopicPartition


class LogKind(Enum):
    """How the partitions of a topic keep their data. A topic has one kind for life."""

    SHARED = "shared"
    """On streams, whose batches share objects with those of other partitions."""
    UNIFIED = "unified"
    """In local files of Kafka's own formats, on one node alone."""


LogFailed = Callable[[AbstractLog, StreamlogError], None]


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """`attempt` names one try to create partitions, so that its orphans can be recognised."""

    name: str
    topic_id: UUID
    attempt: str


class LogFactory(Protocol):
    def check(self, config: TopicConfig, before: TopicConfig | None) -> None:
        """Whether logs of this kind can follow the settings here. `before`: those of the topic,
        where they change. Errors: InvalidConfig."""
        ...

    async def create(
        self, topic: TopicIdentity, partitions: Sequence[int], config: TopicConfig
    ) -> list[int]:
        """Creates empty partitions, durable on return. Returns a handle for each."""
        ...

    async def check_created(self, handles: Sequence[int]) -> None:
        """Returns if no other process has taken partitions that this one has created since.

        Called when the topic's record names them: from then on nobody deletes them as orphans who
        has not taken them before. Errors: OutcomeUnknown, Fenced, Unavailable.
        """
        ...

    async def open(
        self, partition: TopicPartition, handle: int, config: TopicConfig, on_failure: LogFailed
    ) -> AbstractLog:
        """Opens the partition; a log that failed meanwhile is not returned, but its error raised.

        Errors: NotLeader, NotFound, Corrupt, Unavailable.
        """
        ...

    async def is_there(self, handle: int) -> bool:
        """False only where the partition is gone for every node; it never comes back then."""
        ...

    async def claim(self, partition: TopicPartition, topic_id: UUID, handle: int) -> bool:
        """Whether a created partition is still there, for the topic's record that names it now; it
        is no orphan from then on. False: `delete_orphans` came before the record did.

        Nobody has opened the partition yet, so that nothing is lost where it is gone.
        """
        ...

    async def release(self, handle: int) -> None:
        """Gives up a partition that is not open here, so that another process can open it.

        This process holds it after its creation, and after a failure of its log. Does nothing where
        another process holds it, or it is gone.
        """
        ...

    async def remove(self, handle: int) -> None:
        """Deletes a partition that is not open; does nothing where it is gone."""
        ...

    async def delete_orphans(
        self,
        attempts_under_way: Callable[[], Set[str]],
        registered: Callable[[], Awaitable[Set[int]]],
    ) -> int:
        """Deletes partitions whose handle is not registered, except those of attempts under way.

        Returns how many. Partitions that another living node holds are left alone.
        """
        ...


class LogFactories:
    """The factories of a process, by kind."""

    def __init__(self, by_kind: Mapping[LogKind, LogFactory]) -> None:
        self._by_kind = dict(by_kind)

    def of(self, kind: LogKind) -> LogFactory:
        """Errors: PolicyViolation."""
        factory = self._by_kind.get(kind)
        if factory is None:
            hint = (
                "" if kind is LogKind.SHARED else ": give it a folder for them (--log-dir, --data)"
            )
            raise PolicyViolation(f"this node keeps no topics with log.type={kind.value}{hint}")
        return factory

    def __iter__(self) -> Iterator[LogKind]:
        return iter(self._by_kind)
