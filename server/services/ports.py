"""What the services need of what lies below them, as protocols; the wiring hands in the real parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streamlog.log.abstract import AbstractLog, TopicPartition


class TopicFacts(Protocol):
    """A topic as the log manager knows it."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def configs(self) -> Mapping[str, str]: ...


class Logs(Protocol):
    """Partitions by name."""

    def open_log(self, partition: TopicPartition) -> AbstractLog | None:
        """The log if it is open here; never waits."""
        ...

    async def log(self, partition: TopicPartition) -> AbstractLog:
        """Opens it where needed. Errors: UnknownTopicOrPartition, NotLeader."""
        ...

    def topic(self, name: str) -> TopicFacts | None: ...

    def list_topics(self, after: str = "", limit: int = 1000) -> Sequence[TopicFacts]: ...

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicFacts:
        """Errors: TopicAlreadyExists, InvalidName, InvalidPartitions, InvalidConfig."""
        ...
