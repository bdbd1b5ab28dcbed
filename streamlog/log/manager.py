"""LogManager: topics, and their partitions as logs, opened when first used.

It knows logs as AbstractLog and makes them through a LogFactory. What it decides:
1. A topic exists from the put-if-absent of its record on; partitions get their keys right after,
   and whoever finds a record with pending partitions finishes the work.
2. A deletion is a state of the record first; it is resumed by whoever finds it.
3. One open per partition at a time; a log that failed is dropped, and opened anew at its next use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from streamlog.errors import (
    Closed,
    InvalidPartitions,
    OutcomeUnknown,
    PolicyViolation,
    StreamlogError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from streamlog.log import topic_config
from streamlog.log.abstract import AbstractLog, TopicPartition
from streamlog.log.config import LogConfig
from streamlog.log.environment import LogEnvironment
from streamlog.log.log_factory import LogFactory, TopicIdentity
from streamlog.log.metrics import LogMetrics
from streamlog.log.names import check_topic_name
from streamlog.log.producer_ids import ProducerIds
from streamlog.log.retention import UNLIMITED, expired
from streamlog.log.shared_logs import SharedLogFactory
from streamlog.log.topic_config import TopicConfig
from streamlog.log.topic_record import (
    PARTITION_NAMESPACE,
    TopicRecord,
    TopicState,
    decode_partition,
    encode_partition,
    partition_key,
)
from streamlog.log.topics import CachedTopic, TopicInfo, Topics
from streamlog.model.kv import KVClient
from streamlog.model.stream import StreamClient
from streamlog.runtime.background import Background
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

PUT_ATTEMPTS = 5
PAGE = 1000


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """An open partition; stream ids 0 where its log does not lie on streams."""

    partition: TopicPartition
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    size_bytes: int
    segments: int
    meta_stream_id: int = 0
    data_stream_id: int = 0
    time_stream_id: int = 0
    txn_stream_id: int = 0


class LogManager:
    """Made by `open`; every method is called from one event loop."""

    def __init__(
        self,
        factory: LogFactory,
        kv: KVClient,
        clock: Clock,
        random: Random,
        metrics: LogMetrics,
        config: LogConfig,
    ) -> None:
        self._factory = factory
        self._kv = kv
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._config = config
        self._topics = Topics(kv, self._topic_changed)
        self._producer_ids = ProducerIds(kv, config.producer_id_block)
        self._logs: dict[TopicPartition, AbstractLog] = {}
        self._opening: dict[TopicPartition, asyncio.Task[None]] = {}
        self._attempts: set[str] = set()
        self._busy: set[str] = set()
        """Topics that a call here is finishing or deleting."""
        self._slots = asyncio.Semaphore(config.opens_at_once_max)
        self._is_closed = False
        self._background = Background("log manager", self._background_failed)
        self.failure: BaseException | None = None
        """Why background work (watch, retention) stopped; None while it runs."""

    @classmethod
    async def open(
        cls,
        streams: StreamClient,
        kv: KVClient,
        *,
        clock: Clock,
        random: Random,
        registry: CollectorRegistry,
        config: LogConfig | None = None,
        offload: Offload | None = None,
    ) -> LogManager:
        """With shared logs over `streams`; background work runs until `close`."""
        config = config or LogConfig()
        metrics = LogMetrics(registry)
        environment = LogEnvironment(clock, random, config, metrics, offload)
        factory = SharedLogFactory(streams, environment)
        return await cls.open_with(factory, kv, clock, random, metrics, config)

    @classmethod
    async def open_with(
        cls,
        factory: LogFactory,
        kv: KVClient,
        clock: Clock,
        random: Random,
        metrics: LogMetrics,
        config: LogConfig,
    ) -> LogManager:
        """With logs of any kind."""
        manager = cls(factory, kv, clock, random, metrics, config)
        await manager._topics.load()
        metrics.open_logs.set_function(lambda: len(manager._logs))
        manager._background.spawn(manager._topics.follow(), name="topics")
        manager._background.spawn(manager._repair_and_reap(), name="reaper")
        manager._background.every(
            lambda: config.retention_check_interval_ms / 1000,
            manager.retention_tick,
            name="retention",
        )
        return manager

    # Topics

    def topic(self, name: str) -> TopicInfo | None:
        """None where there is no such topic; never waits."""
        return self._topics.usable(name)

    def list_topics(self, after: str = "", limit: int = 1000) -> list[TopicInfo]:
        """By name, those past `after`."""
        return self._topics.page(after, limit)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """Durable on return. `partitions` None: `num.partitions`.

        Errors: InvalidName, InvalidPartitions, InvalidConfig, PolicyViolation (too many topics),
        TopicAlreadyExists, MetadataUnavailable, OutcomeUnknown.
        """
        self._check_open()
        check_topic_name(name)
        count = self._config.num_partitions if partitions is None else partitions
        given = dict(configs or {})
        config = topic_config.parse(given, self._config.topic_defaults)
        if self._topics.get(name) is not None:
            raise _exists(name)
        self._check_limits(count, count, new_topics=1)
        if validate_only:
            return TopicInfo(name, "", count, given)
        identity = TopicIdentity(name, self._random.uuid(), self._random.uuid().hex)
        self._attempts.add(identity.attempt)
        try:
            handles = await self._factory.create(identity, range(count), config)
            record = TopicRecord(identity.topic_id, 0, given, tuple(handles))
            if not await self._put_topic(name, record):
                await self._remove_all(handles)
                raise _exists(name)
            await self._exclusively(name, self._finish_pending)
        finally:
            self._attempts.discard(identity.attempt)
        found = self._topics.usable(name)
        if found is None:
            raise _unknown(name)
        return found

    async def _put_topic(self, name: str, record: TopicRecord) -> bool:
        """An unknown outcome is settled by putting the same bytes again."""
        for attempt in range(PUT_ATTEMPTS):
            try:
                return await self._topics.create(name, record)
            except OutcomeUnknown:
                if attempt == PUT_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def create_partitions(self, name: str, count: int) -> TopicInfo:
        """Raises the number of partitions to `count`. Errors: as create_topic."""
        self._check_open()
        topic = await self._usable(name)
        record = topic.record
        if count <= record.partitions:
            raise InvalidPartitions(
                f"{name} has {record.partitions} partitions; their number can only grow"
            )
        self._check_limits(count, count - record.partitions, new_topics=0)
        identity = TopicIdentity(name, record.topic_id, self._random.uuid().hex)
        self._attempts.add(identity.attempt)
        try:
            config = topic_config.parse(record.configs, self._config.topic_defaults, is_stored=True)
            new = range(record.partitions, count)
            handles = await self._factory.create(identity, new, config)
            if not await self._topics.replace(name, topic, replace(record, pending=tuple(handles))):
                await self._remove_all(handles)
                raise TopicAlreadyExists(
                    f"{name} was changed at the same time; look at it and try again"
                )
            await self._exclusively(name, self._finish_pending)
        finally:
            self._attempts.discard(identity.attempt)
        return (await self._usable(name)).info

    async def alter_topic_configs(
        self,
        name: str,
        *,
        set: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """All changes or none; open partitions follow at once.

        Errors: UnknownTopicOrPartition, InvalidConfig.
        """
        self._check_open()
        while True:
            topic = await self._usable(name)
            changed = topic_config.alter(
                topic.record.configs,
                set=set or {},
                delete=delete,
                append=append or {},
                subtract=subtract or {},
                defaults=self._config.topic_defaults,
            )
            if validate_only:
                return replace(topic.info, configs=changed)
            if await self._topics.replace(name, topic, replace(topic.record, configs=changed)):
                return (await self._usable(name)).info

    async def delete_topic(self, name: str) -> None:
        """Data is out of reach on return. Errors: UnknownTopicOrPartition."""
        self._check_open()
        while True:
            topic = await self._usable(name)
            deleting = replace(topic.record, state=TopicState.DELETING)
            if await self._topics.replace(name, topic, deleting):
                break
        await self._exclusively(name, self._finish_deletion)

    async def _usable(self, name: str) -> CachedTopic:
        """As the KV store has it where the cache does not know it. Errors: UnknownTopic…"""
        topic = self._topics.get(name)
        if topic is None or not topic.record.is_usable:
            check_topic_name(name)
            topic = await self._topics.fresh(name)
        if topic is None or not topic.record.is_usable:
            raise _unknown(name)
        return topic

    def _check_limits(self, count: int, new_partitions: int, *, new_topics: int) -> None:
        config = self._config
        if not 1 <= count <= config.partitions_per_topic_max:
            raise InvalidPartitions(
                f"a topic has 1 to {config.partitions_per_topic_max} partitions, not {count}"
            )
        if len(self._topics) + new_topics > config.topics_max:
            raise PolicyViolation(
                f"the cluster holds {config.topics_max} topics at most (topics_max); delete some"
            )
        if self._topics.partitions + new_partitions > config.partitions_max:
            raise InvalidPartitions(
                f"the cluster holds {config.partitions_max} partitions at most (partitions_max) "
                f"and has {self._topics.partitions}; ask for fewer or delete some topics"
            )

    # Finishing what was begun

    async def _exclusively(self, name: str, work: Callable[[str], Awaitable[None]]) -> None:
        self._busy.add(name)
        try:
            await work(name)
        finally:
            self._busy.discard(name)

    async def _finish_pending(self, name: str) -> None:
        """Writes the keys of pending partitions, then counts them in."""
        while True:
            topic = self._topics.get(name)
            if topic is None or topic.record.state is not TopicState.LIVE:
                return
            record = topic.record
            if not record.pending:
                return
            await self._each(
                (
                    self._kv.put_kv(
                        partition_key(TopicPartition(name, record.partitions + index)),
                        encode_partition(handle),
                    )
                    for index, handle in enumerate(record.pending)
                )
            )
            done = replace(record, partitions=record.partitions + len(record.pending), pending=())
            if await self._topics.replace(name, topic, done):
                return

    async def _finish_deletion(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.record.state is not TopicState.DELETING:
            return
        record = topic.record
        total = record.partitions + len(record.pending)
        await self._each(
            self._delete_partition(TopicPartition(name, index)) for index in range(total)
        )
        await self._remove_all(record.pending)
        await self._topics.remove(name)
        log.info("topic deleted", extra={"topic": name, "partitions": total})

    async def _delete_partition(self, partition: TopicPartition) -> None:
        opening = self._opening.get(partition)
        if opening is not None:
            await asyncio.wait({opening})
        opened = self._logs.pop(partition, None)
        if opened is not None:
            await opened.delete()
        key = partition_key(partition)
        value = await self._kv.get_kv(key)
        if value is None:
            return
        if opened is None:
            await self._factory.remove(decode_partition(key.name, value.data))
        await self._kv.del_kv(key)

    async def _remove_all(self, handles: Iterable[int]) -> None:
        await self._each(self._factory.remove(handle) for handle in handles)

    async def _each(self, work: Iterable[Awaitable[object]]) -> None:
        """All of them, a bounded number at a time; then the first error, if there was one."""

        async def one(item: Awaitable[object]) -> None:
            async with self._slots:
                await item

        results = await asyncio.gather(*(one(item) for item in work), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _repair_and_reap(self) -> None:
        await self.repair()
        try:
            await self.reap()
        except StreamlogError as error:
            log.warning("could not look for abandoned streams: %s", error)

    async def repair(self) -> None:
        """Finishes creations and deletions that a crash cut short; what fails is tried again."""
        for name in self._topics.names():
            topic = self._topics.get(name)
            if topic is None or name in self._busy:
                continue
            is_deleting = topic.record.state is TopicState.DELETING
            if not is_deleting and not topic.record.pending:
                continue
            work = self._finish_deletion if is_deleting else self._finish_pending
            try:
                await self._exclusively(name, work)
            except StreamlogError as error:
                log.warning("topic %s is not finished yet: %s", name, error)

    async def reap(self) -> int:
        """Removes partitions that no topic names: lost races, crashes in mid-creation."""
        return await self._factory.reap(lambda: self._attempts, self._registered)

    async def _registered(self) -> set[int]:
        """Handles that a partition's key, or a topic's record, names."""
        await self._topics.load()
        found = {
            handle
            for name in self._topics.names()
            if (topic := self._topics.get(name)) is not None
            for handle in topic.record.pending
        }
        after: bytes | None = None
        while True:
            page = await self._kv.list_kv(PARTITION_NAMESPACE, after=after, limit=PAGE)
            found |= {decode_partition(one.key.name, one.value.data) for one in page}
            if len(page) < PAGE:
                return found
            after = page[-1].key.name

    # Logs

    def open_log(self, partition: TopicPartition) -> AbstractLog | None:
        """The log if it is open here; never waits."""
        return self._logs.get(partition)

    async def log(self, partition: TopicPartition) -> AbstractLog:
        """The log, opened where needed; callers at the same time share one open.

        Errors: UnknownTopicOrPartition, NotLeader, WalPending, Corrupt, Unavailable, Closed.
        """
        while True:
            self._check_open()
            found = self._logs.get(partition)
            if found is not None:
                return found
            task = self._opening.get(partition)
            if task is None:
                outcome: list[StreamlogError] = []
                task = self._background.spawn(
                    self._open_log(partition, outcome), name=f"open {partition}"
                )
                self._opening[partition] = task
                task.add_done_callback(lambda _: self._opening.pop(partition, None))
                await asyncio.shield(task)
                if outcome:
                    raise outcome[0]
            else:
                await asyncio.wait({task})

    async def _open_log(self, partition: TopicPartition, outcome: list[StreamlogError]) -> None:
        try:
            async with self._slots:
                self._logs[partition] = await self._opened(partition)
        except StreamlogError as error:
            outcome.append(error)

    async def _opened(self, partition: TopicPartition) -> AbstractLog:
        topic = await self._usable(partition.topic)
        if not 0 <= partition.partition < topic.record.partitions:
            topic = await self._topics.fresh(partition.topic) or topic
        if not 0 <= partition.partition < topic.record.partitions:
            raise UnknownTopicOrPartition(
                f"{partition.topic} has partitions 0 to {topic.record.partitions - 1}, not "
                f"{partition.partition}",
                topic=partition.topic,
                partition=partition.partition,
            )
        key = partition_key(partition)
        value = await self._kv.get_kv(key)
        if value is None:
            raise _unknown(partition.topic)
        handle = decode_partition(key.name, value.data)
        config = self._parsed(topic.record)
        opened = await self._factory.open(partition, handle, config, self._log_failed)
        current = self._topics.get(partition.topic)
        if current is not None and current.record.configs != topic.record.configs:
            await opened.configure(self._parsed(current.record))
        return opened

    def _parsed(self, record: TopicRecord) -> TopicConfig:
        return topic_config.parse(record.configs, self._config.topic_defaults, is_stored=True)

    def partition_info(self, partition: TopicPartition) -> PartitionInfo:
        """Of a partition that is open here; never waits. Errors: UnknownTopicOrPartition."""
        found = self._logs.get(partition)
        if found is None:
            raise UnknownTopicOrPartition(
                f"{partition} is not open here",
                topic=partition.topic,
                partition=partition.partition,
            )
        ids = found.stream_ids
        return PartitionInfo(
            partition,
            found.leader_epoch,
            found.log_start_offset,
            found.high_watermark,
            found.last_stable_offset,
            found.log_end_offset,
            found.size_bytes,
            len(found.segments),
            *(() if ids is None else (ids.meta, ids.data, ids.time, ids.txn)),
        )

    async def init_producer_id(
        self, producer_id: int | None = None, producer_epoch: int | None = None
    ) -> tuple[int, int]:
        """(id, epoch): a new id, or the given one with its next epoch."""
        self._check_open()
        return await self._producer_ids.init(producer_id, producer_epoch)

    def _log_failed(self, failed: AbstractLog, error: StreamlogError) -> None:
        partition = failed.topic_partition
        if self._logs.get(partition) is failed:
            del self._logs[partition]
        self._metrics.failed_logs.inc()
        log.warning("%s was given up: %s", partition, error, extra={"partition": str(partition)})
        if not self._is_closed:
            self._background.spawn(self._close_log(failed), name=f"close {partition}")

    async def _close_log(self, opened: AbstractLog) -> None:
        try:
            await opened.close()
        except StreamlogError as error:
            log.warning("%s did not close cleanly: %s", opened.topic_partition, error)

    def _topic_changed(self, name: str, record: TopicRecord | None) -> None:
        """Open partitions follow; those that another node deletes are given up."""
        for partition in [one for one in self._logs if one.topic == name]:
            if record is not None and record.state is TopicState.LIVE:
                work = self._logs[partition].configure(self._parsed(record))
                self._background.spawn(work, name=f"configure {partition}")
            elif name not in self._busy and record is None:
                self._background.spawn(
                    self._close_log(self._logs.pop(partition)), name=f"close {partition}"
                )

    # Retention

    async def retention_tick(self) -> None:
        """Removes what every partition's retention lets go; partitions are opened for it."""
        await self.repair()
        for name in self._topics.names():
            topic = self._topics.get(name)
            if topic is None or not topic.record.is_usable:
                continue
            config = self._parsed(topic.record)
            is_limited = config.retention_ms != UNLIMITED or config.retention_bytes != UNLIMITED
            for index in range(topic.record.partitions):
                partition = TopicPartition(name, index)
                if is_limited or partition in self._logs:
                    await self._retain(partition, config)

    async def _retain(self, partition: TopicPartition, config: TopicConfig) -> None:
        try:
            opened = await self.log(partition)
            for step in expired(opened, config, self._clock.now_ms()):
                await opened.delete_oldest_segments(step.end_offset, step.reason)
        except StreamlogError as error:
            self._metrics.retention_errors.inc()
            log.warning("retention of %s: %s", partition, error)

    # The end

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the log manager was closed")

    def _background_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error

    async def close(self) -> None:
        """What was sequenced becomes durable; partitions are given up for others to open."""
        if self._is_closed:
            return
        self._is_closed = True
        opening = list(self._opening.values())
        if opening:
            await asyncio.wait(opening)
        await self._background.close()
        logs, self._logs = list(self._logs.values()), {}
        await self._each(self._close_log(one) for one in logs)

    async def kill(self) -> None:
        """Stops at once, as a crash would: nothing is waited for, nothing given up."""
        self._is_closed = True
        await self._background.close()
        logs, self._logs = list(self._logs.values()), {}
        await self._each(one.kill() for one in logs)


def _exists(name: str) -> TopicAlreadyExists:
    return TopicAlreadyExists(f"topic {name} exists already", topic=name)


def _unknown(name: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"there is no topic {name}; create it first", topic=name)
