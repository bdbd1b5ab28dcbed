"""Logs as lists and topics in a dict, for tests of listeners that need no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from streamlog.codec.batch import placed, scan
from streamlog.errors import (
    Invalid,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import (
    AbstractLog,
    AbstractLogSegment,
    EpochEndOffset,
    Isolation,
    LogAppendInfo,
    LogFetch,
    ProduceContext,
    TimestampAndOffset,
)
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_revisions import TopicRevisions
from streamlog.log.broker.broker_configs import BrokerConfigs
from streamlog.log.broker.client_configs import ClientConfigs
from streamlog.log.broker.log_defaults import LogDefaults
from streamlog.log.broker.stored.stored_configs import Change
from streamlog.model.kv import KVClient
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer, Parts

_CONTEXT = ProduceContext()


class ListLog(AbstractLog):
    """Keeps its batches in a list; between `hold` and `let_go` no append becomes durable."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._batches: list[tuple[int, int, Parts]] = []
        self._end = 0
        self._visible = 0
        self._held: list[tuple[asyncio.Future[LogAppendInfo], LogAppendInfo]] | None = None
        self._changed = asyncio.Event()
        self._subscribers: dict[Callable[[], None], None] = {}
        self.appended_bytes = 0

    topic_partition = property(lambda self: self._partition)
    leader_epoch = property(lambda self: 3)
    log_start_offset = property(lambda self: 0)
    high_watermark = property(lambda self: self._visible)
    last_stable_offset = property(lambda self: self._visible)
    log_end_offset = property(lambda self: self._end)
    size_bytes = property(lambda self: self.appended_bytes)

    @property
    def segments(self) -> Sequence[AbstractLogSegment]:
        return ()

    def hold(self) -> None:
        self._held = []

    def let_go(self) -> None:
        held, self._held = self._held or [], None
        for future, info in held:
            if not future.done():
                future.set_result(info)
        self._show()

    def _show(self) -> None:
        self._visible = self._end
        self._changed.set()
        self._changed = asyncio.Event()
        subscribers, self._subscribers = self._subscribers, {}
        for changed in subscribers:
            changed()

    async def append(
        self, batches: Buffer, context: ProduceContext = _CONTEXT
    ) -> Awaitable[LogAppendInfo]:
        base = self._end
        for batch in scan(batches):
            count = batch.header.last_offset_delta + 1
            data = bytes(batch.view)
            self._batches.append((self._end, count, placed(memoryview(data), self._end, 3)))
            self._end += count
        self.appended_bytes += len(batches)
        info = LogAppendInfo(base, self._end - 1, -1, 0)
        future: asyncio.Future[LogAppendInfo] = asyncio.get_running_loop().create_future()
        if self._held is not None:
            self._held.append((future, info))
        else:
            future.set_result(info)
            self._show()
        return future

    async def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        deadline: float | None = None,
    ) -> LogFetch:
        if not 0 <= offset <= self._end:
            raise OffsetOutOfRange(
                f"offset {offset} is outside 0 to {self._end}",
                offset=offset,
                start_offset=0,
                end_offset=self._end,
            )
        parts: list[Buffer] = []
        size = batches = 0
        next_offset = offset
        for base, count, data in self._batches:
            if base + count <= offset or base + count > self._visible:
                continue
            length = sum(len(part) for part in data)
            if size + length > max_bytes and (parts or not min_one_batch):
                break
            parts.extend(data)
            size += length
            batches += 1
            next_offset = base + count
        return LogFetch(tuple(parts), size, batches, next_offset, self._visible, self._visible, 0)

    async def wait_for(self, offset: int, isolation: Isolation) -> None:
        while self._visible <= offset:
            await self._changed.wait()

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._subscribers[changed] = None

    def unsubscribe(self, changed: Callable[[], None]) -> None:
        self._subscribers.pop(changed, None)

    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation
    ) -> TimestampAndOffset:
        if timestamp_ms == -2:
            return TimestampAndOffset(-1, 0, 3)
        if timestamp_ms == -1:
            return TimestampAndOffset(-1, self._visible, 3)
        return TimestampAndOffset(-1, -1, -1)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        return EpochEndOffset(3, self._end) if leader_epoch == 3 else EpochEndOffset(-1, -1)

    async def delete_records(self, before_offset: int) -> int:
        raise Invalid("not in this log")

    async def delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        return 0

    async def roll(self) -> None: ...

    async def close(self) -> None: ...

    async def delete(self) -> None: ...


@dataclass
class FakeTopic:
    name: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


class FakeLogs:
    message_bytes_max = 1 << 30

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.open: dict[TopicPartition, ListLog] = {}
        self.defaults = LogDefaults(LogConfig())
        self.broker_configs = BrokerConfigs(cast(KVClient, None), 1, lambda: None)
        self.client_configs = ClientConfigs(cast(KVClient, None))
        self.revisions = TopicRevisions()

    def on_broker_configs(self, listener: Callable[[], None]) -> None: ...

    async def alter_broker_configs(self, node_id: int | None, change: Change) -> None: ...

    async def alter_client_configs(self, client_id: str | None, change: Change) -> None: ...

    def open_log(self, partition: TopicPartition) -> ListLog | None:
        return self.open.get(partition)

    async def log(self, partition: TopicPartition) -> ListLog:
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partitions:
            raise UnknownTopicOrPartition(
                f"there is no partition {partition}",
                topic=partition.topic,
                partition=partition.partition,
            )
        return self.open.setdefault(partition, ListLog(partition))

    def leader_of(self, partition: TopicPartition) -> int | None:
        return 1

    def topic(self, name: str) -> FakeTopic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: str) -> FakeTopic | None:
        return next((t for t in self.topics.values() if t.topic_id == topic_id), None)

    def list_topics(self, after: str = "", limit: int = 1000) -> list[FakeTopic]:
        return sorted((t for t in self.topics.values() if t.name > after), key=lambda t: t.name)[
            :limit
        ]

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> FakeTopic:
        if name in self.topics:
            raise TopicAlreadyExists(f"there is a topic {name}")
        topic = FakeTopic(name, f"id-{name}", partitions or 1, dict(configs or {}))
        if not validate_only:
            self.topics[name] = topic
            self.revisions.changed(name)
        return topic

    async def delete_topic(self, name: str, topic_id: str = "") -> None:
        del self.topics[name]
        self.revisions.removed(name)

    async def create_partitions(self, name: str, count: int, validate_only: bool = False) -> None:
        self.topics[name].partitions = count
        self.revisions.changed(name)

    async def alter_topic_configs(self, name: str, **_: Any) -> None: ...

    async def init_producer_id(
        self, producer_id: int | None, producer_epoch: int | None
    ) -> tuple[int, int]:
        return 7, 0
