"""The logs that are open on this node: opened at first use, dropped when they fail.

A log is opened only where this node leads its partition. A partition is opened once at a time, for
all callers that ask meanwhile; a caller that gives up leaves the open running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from streamlog.errors import Closed, Invalid, StreamlogError, UnknownTopicOrPartition
from streamlog.log.api import topic_config
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA, is_internal
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.names import check_topic_name
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.api.topic_revisions import TopicRevisions
from streamlog.log.broker.log_defaults import LogDefaults
from streamlog.log.topics.topic_record import (
    TopicRecord,
    TopicState,
    decode_partition,
    partition_key,
)
from streamlog.log.topics.topics import CachedTopic, Topics
from streamlog.model.kv import KVClient
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.gather import run_limited
from streamlog.runtime.concurrency.keyed_lock import KeyedLock
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)

STOPS_AT_ONCE_MAX = 4096
"""Logs that end together when the node stops; each holds a task and two small appends."""


class LogCache:
    """Owns the open logs and ends them. It does not know why a partition is wanted."""

    def __init__(
        self,
        factories: LogFactories,
        kv: KVClient,
        topics: Topics,
        leadership: Leadership,
        revisions: TopicRevisions,
        background: Background,
        metrics: LogMetrics,
        config: LogConfig,
        defaults: LogDefaults,
    ) -> None:
        self._factories = factories
        self._leadership = leadership
        self._kv = kv
        self._topics = topics
        self._revisions = revisions
        self._background = background
        self._metrics = metrics
        self._config = config
        self._defaults = defaults
        self._logs: dict[TopicPartition, AbstractLog] = {}
        self._opening: dict[TopicPartition, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(config.opens_at_once_max)
        self._resigning = KeyedLock[TopicPartition]()
        self._altered: dict[TopicPartition, None] = {}
        """Partitions whose open logs do not have the newest settings of their topic yet."""
        self._is_closed = False
        metrics.open_logs.set_function(lambda: len(self._logs))

    def get(self, partition: TopicPartition) -> AbstractLog | None:
        return self._logs.get(partition)

    async def log(self, partition: TopicPartition) -> AbstractLog:
        """As LogManager.log."""
        while True:
            if self._is_closed:
                raise Closed("the log manager was closed")
            opened = self._logs.get(partition)
            if opened is not None:
                return opened
            opening = self._opening.get(partition)
            if opening is not None:
                await asyncio.wait({opening})
                continue
            _check_partition(partition)
            outcome: list[StreamlogError] = []
            await asyncio.shield(self._spawn_open(partition, outcome))
            if outcome:
                raise outcome[0]

    def _spawn_open(
        self, partition: TopicPartition, outcome: list[StreamlogError]
    ) -> asyncio.Task[None]:
        async def work() -> None:
            try:
                async with self._slot(partition.topic):
                    opened = self._logs[partition] = await self._open(partition)
                    self._revisions.opened(*partition, opened.leader_epoch)
            except StreamlogError as error:
                outcome.append(error)

        task = self._background.spawn(work(), name=f"open {partition}")
        self._opening[partition] = task
        task.add_done_callback(lambda _: self._opening.pop(partition, None))
        return task

    def _slot(self, topic: str) -> AbstractAsyncContextManager[object]:
        """Tiered logs wait for those of `__remote_log_metadata` while they are opened: if these
        waited for slots, which all are taken by tiered ones, neither would ever open."""
        return nullcontext() if topic == REMOTE_LOG_METADATA else self._slots

    def progress(self) -> Due | None:
        """The partition that has been opening for longest."""
        for partition, task in self._opening.items():
            # The task, not its id(), which the next task may have again.
            return Due(task, f"partition {partition} to open; {len(self._opening)} are opening")
        return None

    async def _open(self, partition: TopicPartition) -> AbstractLog:
        topic = await self._topic_of(partition)
        self._leadership.check_led_here(partition)
        key = partition_key(partition)
        value = await self._kv.get_kv(key)
        if value is None:
            raise unknown_topic(partition.topic)
        handle = decode_partition(key.name, value.data)
        settings = self.settings(partition.topic, topic.record)
        factory = self._factories.of(topic.record.log_kind)
        opened = await factory.open(partition, handle, settings, self._failed)
        current = self._topics.get(partition.topic)
        if current is None or current.record.topic_id != topic.record.topic_id:
            await self._put_back(opened, partition.topic)
            raise unknown_topic(partition.topic)
        if not self._leadership.is_led_here(partition):
            await self._close_one(opened)
            self._leadership.check_led_here(partition)
        newest = self.settings(partition.topic, current.record)
        if newest != settings:
            await opened.configure(newest)
        return opened

    async def _put_back(self, opened: AbstractLog, topic: str) -> None:
        """Closes a log whose topic was deleted while the log was being opened.

        `follow` reaches open logs only, so this log would stay, and pass for one of the next topic
        of that name.
        """
        await self._close_one(opened)
        if self._topics.get(topic) is None:
            self._metrics.forget(topic)

    async def _topic_of(self, partition: TopicPartition) -> CachedTopic:
        """The partition's topic, read from the KV store if the cache lacks the partition."""
        topic = await usable_topic(self._topics, partition.topic)
        if not 0 <= partition.partition < topic.record.partitions:
            topic = await self._topics.fresh(partition.topic) or topic
        if not 0 <= partition.partition < topic.record.partitions:
            raise UnknownTopicOrPartition(
                f"{partition.topic} has partitions 0 to {topic.record.partitions - 1}, not "
                f"{partition.partition}",
                topic=partition.topic,
                partition=partition.partition,
            )
        return topic

    def settings(self, name: str, record: TopicRecord) -> TopicConfig:
        """The settings in force for the topic on this node."""
        stored = self._defaults.of_topic(record.configs, is_internal=is_internal(name))
        if record.has_left_tier and not stored.remote_storage_enable:
            # A deletion that has begun is not called off half-way: nobody would come back to it.
            stored = replace(stored, remote_log_delete_on_disable=True)
        return topic_config.capped(stored, self._config.message_bytes_max)

    def follow(self, name: str, record: TopicRecord | None) -> None:
        """Passes the topic's new settings to its open logs; closes them if `record` is None."""
        for partition in [partition for partition in self._logs if partition.topic == name]:
            if record is None:
                work = self._close_one(self._logs.pop(partition))
            elif record.state is TopicState.LIVE:
                self._altered[partition] = None
                work = self._configure(self._logs[partition])
            else:
                continue
            self._background.spawn(work, name=f"follow {partition}")

    def follow_defaults(self) -> None:
        """Passes the newest defaults to all open logs; call it when they have changed."""
        self._altered.update(dict.fromkeys(self._logs))
        self._background.spawn(self._configure_altered(), name="follow defaults")

    async def _configure_altered(self) -> None:
        """One log after the other, with room for other work in between: there may be many."""
        for partition in list(self._altered):
            opened = self._logs.get(partition)
            if opened is None:
                self._altered.pop(partition, None)
            elif partition in self._altered:
                await self._configure(opened)
                await asyncio.sleep(0)

    async def take_out(self, partition: TopicPartition) -> AbstractLog | None:
        """Removes the log from the open ones and returns it; waits for an open under way."""
        opening = self._opening.get(partition)
        if opening is not None:
            await asyncio.wait({opening})
        return self._logs.pop(partition, None)

    async def resign(self, partition: TopicPartition) -> None:
        """This node no longer leads the partition. When this returns, the leader can open it."""
        async with self._resigning.holding(partition):
            opened = await self.take_out(partition)
            if opened is not None:
                await self._close_one(opened)
            if not self._leadership.is_led_here(partition):
                await self._release(partition)

    async def _release(self, partition: TopicPartition) -> None:
        """Ends what this node holds without an open log: it created the partition, or a log failed.

        Does nothing where the topic is gone.
        """
        topic = self._topics.get(partition.topic)
        key = partition_key(partition)
        value = await self._kv.get_kv(key)
        if topic is not None and value is not None:
            factory = self._factories.of(topic.record.log_kind)
            await factory.release(decode_partition(key.name, value.data))

    def _failed(self, failed: AbstractLog, error: StreamlogError) -> None:
        partition = failed.topic_partition
        if self._logs.get(partition) is failed:
            del self._logs[partition]
        self._metrics.failed_logs.inc()
        log.warning("%s was given up: %s", partition, error, extra={"partition": str(partition)})
        if not self._is_closed:
            self._background.spawn(self._close_one(failed), name=f"close {partition}")

    async def _close_one(self, opened: AbstractLog) -> None:
        await self._end_one(opened, opened.close())

    async def _end_one(self, opened: AbstractLog, end: Awaitable[None]) -> None:
        try:
            await end
        except StreamlogError as error:
            log.warning("%s did not close cleanly: %s", opened.topic_partition, error)

    async def _end_configured(
        self, opened: AbstractLog, end: Callable[[], Awaitable[None]]
    ) -> None:
        """Ends a log after it has written settings that the background work left undone.

        A recovery from the store alone knows only the settings that the log itself has written.
        """

        async def configure_and_end() -> None:
            try:
                if opened.topic_partition in self._altered:
                    await self._configure(opened)
            finally:
                await end()

        await self._end_one(opened, configure_and_end())

    async def _configure(self, opened: AbstractLog) -> None:
        """Passes the newest settings of its topic to the log, which keeps its own if they cannot be
        read."""
        partition = opened.topic_partition
        topic = self._topics.get(partition.topic)
        if topic is not None and topic.record.state is TopicState.LIVE:
            try:
                await opened.configure(self.settings(partition.topic, topic.record))
            except StreamlogError as error:
                log.warning("%s keeps its old settings: %s", partition, error)
        self._altered.pop(partition, None)

    async def stop_opening(self) -> None:
        """Refuses further opens; returns when none is under way."""
        self._is_closed = True
        if self._opening:
            await asyncio.wait(self._opening.values())

    async def close(self) -> None:
        """Call it when the background is closed."""
        await self._all(
            self._config.opens_at_once_max,
            lambda opened: self._end_configured(opened, opened.close),
        )

    async def stop(self) -> None:
        """As `close`; the engine below gives up all streams at once.

        The logs write little then, and share objects and syncs: nearly all of them end together.
        """
        await self._all(STOPS_AT_ONCE_MAX, lambda opened: self._end_configured(opened, opened.stop))

    async def kill(self) -> None:
        """Call it when the background is closed."""
        self._is_closed = True
        await self._all(
            self._config.opens_at_once_max, lambda opened: self._end_one(opened, opened.kill())
        )

    async def _all(self, at_once_max: int, end: Callable[[AbstractLog], Awaitable[None]]) -> None:
        logs, self._logs = list(self._logs.values()), {}
        await run_limited(min(at_once_max, len(logs)), (end(opened) for opened in logs))


def _check_partition(partition: TopicPartition) -> None:
    """Anything else would end the node when it is opened in the background. Errors: Invalid."""
    if isinstance(partition, TopicPartition) and isinstance(partition.partition, int):
        check_topic_name(partition.topic)
        return
    raise Invalid(f"{partition!r} is not a partition: give a TopicPartition of a name and a number")


async def usable_topic(topics: Topics, name: str) -> CachedTopic:
    """The topic, read from the KV store if the cache does not have it.

    Errors: UnknownTopicOrPartition, InvalidName.
    """
    topic = topics.get(name)
    if topic is None or not topic.record.is_usable:
        check_topic_name(name)
        topic = await topics.fresh(name)
    if topic is None or not topic.record.is_usable:
        raise unknown_topic(name)
    return topic


def unknown_topic(name: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"there is no topic {name}; create it first", topic=name)
