"""Interfaces of the parts that the services call; the node hands in the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from streamlog.errors import DeadlinePassed, Invalid
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.topic_revisions import TopicRevisions
from streamlog.log.broker.broker_configs import BrokerConfigs
from streamlog.log.broker.client_configs import ClientConfigs
from streamlog.log.broker.log_defaults import LogDefaults
from streamlog.log.broker.stored.stored_configs import Change
from streamlog.log.staged_logs import StagedLogs
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.server.context import RequestContext
from streamlog.settings.limits import LimitsConfig


class NamesPartitions(Protocol):
    """A topic of a request."""

    @property
    def partitions(self) -> Sequence[object]: ...


def check_partitions(
    topics: Sequence[NamesPartitions], most: int, *, may_be_empty: bool = False
) -> None:
    """Errors: Invalid, whose `max_partitions` tells a client how to split the request."""
    count = 0
    for topic in topics:
        count += len(topic.partitions)
    if count == 0 and not may_be_empty:
        raise Invalid("the request names no partition")
    if count > most:
        raise Invalid(
            f"the request names {count} partitions; at most {most} are allowed "
            "(limits.partitions_per_request_max): split it",
            partitions=count,
            max_partitions=most,
        )


def open_deadline(context: RequestContext, clock: Clock, limits: LimitsConfig) -> float:
    """Until when a request without a timeout of its own waits for all its partitions to open."""
    deadline = clock.monotonic() + limits.open_wait_ms / 1000
    return deadline if context.deadline is None else min(deadline, context.deadline)


async def opened_until(
    deadline: float | None,
    clock: Clock,
    open_log: Coroutine[Any, Any, AbstractLog],
    partition: TopicPartition,
) -> AbstractLog:
    """As `opened_within`, until `deadline` on the clock; None: without bound."""
    wait_s = None if deadline is None else deadline - clock.monotonic()
    return await opened_within(wait_s, open_log, partition)


async def opened_within(
    wait_s: float | None, open_log: Coroutine[Any, Any, AbstractLog], partition: TopicPartition
) -> AbstractLog:
    """The log that `open_log` returns. When the time is up, the open goes on without the caller.

    Errors: those of `open_log`; DeadlinePassed.
    """
    try:
        async with asyncio.timeout(wait_s):
            return await open_log
    except TimeoutError:
        raise DeadlinePassed(
            f"{partition} was still being opened when the time was up: the open waits for the "
            "object store, the metadata store or its turn among other opens, and goes on. Nothing "
            "was read, stored or deleted: retry with back-off, and see the node's alarms if it "
            "stays so"
        ) from None


class KnownTopic(Protocol):
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

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The node that leads the partition; never waits, and opens nothing."""
        ...

    @property
    def revisions(self) -> TopicRevisions:
        """What was changed of topics, partitions, leaders and leader epochs; to be read alone."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """Bytes of the largest record batch that any topic takes."""
        ...

    @property
    def defaults(self) -> LogDefaults:
        """What topics have that do not set their own."""
        ...

    @property
    def broker_configs(self) -> BrokerConfigs:
        """What was set at run time for nodes."""
        ...

    async def alter_broker_configs(self, node_id: int | None, change: Change) -> None:
        """For one node or, None, for all. Errors: those of `change`; then nothing is changed."""
        ...

    def on_broker_configs(self, listener: Callable[[], None]) -> None:
        """`listener()` is called after each change of what was set at run time."""
        ...

    @property
    def client_configs(self) -> ClientConfigs:
        """The quotas that were set for clients."""
        ...

    async def alter_client_configs(self, client_id: str | None, change: Change) -> None:
        """For one client id or, None, for those without their own. Errors: those of `change`."""
        ...

    def topic(self, name: str) -> KnownTopic | None: ...

    def topic_by_id(self, topic_id: str) -> KnownTopic | None:
        """None where no topic has the id, or none that this node knows of; never waits."""
        ...

    def list_topics(self, after: str = "", limit: int = 1000) -> Sequence[KnownTopic]: ...

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> KnownTopic:
        """Errors: TopicAlreadyExists, InvalidName, InvalidPartitions, InvalidConfig."""
        ...

    async def delete_topic(self, name: str, topic_id: str = "") -> object:
        """`topic_id`: only the topic with this id.

        Errors: UnknownTopicOrPartition, UnknownTopicId.
        """
        ...

    async def create_partitions(
        self, name: str, count: int, validate_only: bool = False
    ) -> object: ...

    async def alter_topic_configs(
        self,
        name: str,
        *,
        set: Mapping[str, str],
        delete: Sequence[str],
        append: Mapping[str, str],
        subtract: Mapping[str, str],
        is_replacing: bool = False,
        validate_only: bool = False,
    ) -> object:
        """Errors: InvalidConfig; then nothing is changed."""
        ...

    @property
    def staged(self) -> StagedLogs | None:
        """None: the medium has no staged writes."""
        ...

    async def init_producer_id(
        self, producer_id: int | None, producer_epoch: int | None
    ) -> tuple[int, int]: ...
