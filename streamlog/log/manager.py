"""LogManager: the topics of the cluster, and their partitions as logs.

It knows logs as AbstractLog alone and makes them through the LogFactory of their kind. `topics`
has the creation and deletion of topics and the cache of open logs, `retention` the rules of expiry,
`leadership` the partitions that this node may open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import index
from uuid import UUID

from streamlog.errors import (
    Closed,
    InvalidConfig,
    InvalidPartitions,
    NotFound,
    PolicyViolation,
    StreamlogError,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import AbstractLog, PartitionDescription
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.internal_topics import (
    check_not_internal,
    is_internal,
    nodes_own_settings,
)
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories
from streamlog.log.api.names import check_topic_name
from streamlog.log.api.tiering import TierableLog
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.api.topic_revisions import TopicRevisions
from streamlog.log.broker.broker_configs import BrokerConfigs
from streamlog.log.broker.client_configs import ClientConfigs
from streamlog.log.broker.log_defaults import DELETING, LogDefaults
from streamlog.log.broker.stored.stored_configs import Change
from streamlog.log.cleaning.log_cleaner import LogCleaner
from streamlog.log.partition.retention import UNLIMITED, expired, is_roll_due
from streamlog.log.staged_logs import StagedLogs
from streamlog.log.topics.log_cache import LogCache, unknown_topic
from streamlog.log.topics.producer_ids import ProducerIds
from streamlog.log.topics.topic_admin import TopicAdmin
from streamlog.log.topics.topic_record import TopicRecord
from streamlog.log.topics.topics import TopicDescription, Topics
from streamlog.model.kv import KVClient
from streamlog.model.partition import TopicPartition
from streamlog.model.staging import StagedStreams
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)


class LogManager:
    """Made by `open`; every method is called from one event loop.

    It holds the logs of partitions that this node leads, and gives up each whose leader changes.
    """

    def __init__(
        self,
        factories: LogFactories,
        kv: KVClient,
        environment: LogEnvironment,
        leadership: Leadership,
    ) -> None:
        config, metrics = environment.config, environment.metrics
        self._clock = environment.clock
        self._metrics = metrics
        metrics.producer_ids_bound.set(config.producer_ids_max)
        self._config = config
        self._is_closed = False
        self._leadership = leadership
        self._background = Background("log manager", self._background_failed)
        self._topics = Topics(kv, self._topic_changed)
        self.defaults = LogDefaults(config)
        """What topics have that do not set their own."""
        self.broker_configs = BrokerConfigs(kv, leadership.node_id, self._broker_configs_changed)
        self.client_configs = ClientConfigs(kv)
        self._config_listeners: list[Callable[[], None]] = []
        self._configs_changed = asyncio.Event()
        self.revisions = TopicRevisions()
        """What was changed of topics, partitions, leaders and leader epochs; to be read alone."""
        self._logs = LogCache(
            factories,
            kv,
            self._topics,
            leadership,
            self.revisions,
            self._background,
            metrics,
            config,
            self.defaults,
        )
        self._admin = TopicAdmin(
            factories, kv, self._topics, self._logs, environment.random, config, self.defaults
        )
        self._producer_ids = ProducerIds(kv, config.producer_id_block)
        self.staged: StagedLogs | None = None
        """Staged writes, if the medium has them."""
        self.failure: BaseException | None = None
        """Why background work (watch, retention) stopped; None while it runs."""
        self._failed = asyncio.Event()
        leadership.add_listener(self)

    @classmethod
    async def open(
        cls,
        factories: LogFactories,
        kv: KVClient,
        environment: LogEnvironment,
        leadership: Leadership,
        *,
        upkeep: bool = True,
    ) -> LogManager:
        """Background work runs until `close`.

        `upkeep` False: without what deletes (retention, the cleaner, the repair of topics), in a
        process whose settings may be others than the node's.
        Errors: those of reading the topics from `kv`.
        """
        manager = cls(factories, kv, environment, leadership)
        await manager.broker_configs.load()
        await manager.client_configs.load()
        await manager._topics.load()
        background = manager._background
        background.spawn(manager.broker_configs.follow(), name="broker configs")
        background.spawn(manager.client_configs.follow(), name="client configs")
        background.spawn(manager._topics.follow(), name="topics")
        if not upkeep:
            return manager
        background.spawn(manager._repair_and_delete_orphans(), name="orphans")
        if environment.offload is not None and environment.config.cleaner_enable:
            cleaner = LogCleaner(
                environment,
                environment.offload,
                lambda: manager.defaults.cleaner_io_bytes_per_second_max,
                manager._is_compacted_here,
            )
            background.spawn(manager._clean_logs(cleaner), name="cleaner")
        background.spawn(manager._check_retention(), name="retention")
        return manager

    def take_staged(
        self,
        staged: StagedStreams,
        partition_of: Callable[[int], Awaitable[TopicPartition | None]],
    ) -> None:
        """Takes staged writes from now on. `partition_of`: the partition of a data stream."""

        async def of_known_topic(stream_id: int) -> TopicPartition | None:
            partition = await partition_of(stream_id)
            is_known = partition is not None and self._topics.get(partition.topic) is not None
            return partition if is_known else None

        self.staged = StagedLogs(staged, of_known_topic, self.log, self._background)

    @property
    def message_bytes_max(self) -> int:
        """Bytes of the largest record batch that any topic takes."""
        return self._config.message_bytes_max

    def topic(self, name: str) -> TopicDescription | None:
        """None where there is no such topic; never waits."""
        return self._topics.usable(name)

    def topic_by_id(self, topic_id: str) -> TopicDescription | None:
        """None where no topic has the id, or none that this node knows of; never waits."""
        return self._topics.usable_by_id(topic_id)

    def list_topics(self, after: str = "", limit: int = 1000) -> list[TopicDescription]:
        """By name, those past `after`; never waits."""
        return self._topics.page(after, limit)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        topic_id: UUID | None = None,
    ) -> TopicDescription:
        """Creates a topic, durable on return. `partitions` None: `num.partitions`.

        `topic_id`: that of a topic that is taken over; None: a new one.

        The creation goes on when the caller is cancelled; a crash leaves the whole topic or, after
        repair, nothing of it. Errors: InvalidName, InvalidPartitions, InvalidConfig,
        PolicyViolation (too many topics, or an internal topic), TopicAlreadyExists, Unavailable,
        OutcomeUnknown.
        """
        self._check_open()
        check_topic_name(name)
        check_not_internal(name)
        count = None if partitions is None else _checked_count(partitions)
        given = dict(configs or {})
        return await self._background.shielded(
            lambda: self._admin.create(name, count, given, validate_only, topic_id),
            name="create",
        )

    async def create_internal_topic(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        topic_id: UUID | None = None,
    ) -> TopicDescription:
        """As `create_topic`, for a node's own topic (`log/api/internal_topics.py`)."""
        self._check_open()
        given = dict(configs)
        return await self._background.shielded(
            lambda: self._admin.create(name, partitions, given, False, topic_id),
            name="create",
        )

    async def create_partitions(
        self, name: str, count: int, validate_only: bool = False
    ) -> TopicDescription:
        """Raises the number of partitions to `count`; `validate_only`: checks whether it could.

        Errors: UnknownTopicOrPartition, InvalidPartitions, Conflict (changed at the same time),
        PolicyViolation (an internal topic).
        """
        self._check_open()
        check_topic_name(name)
        check_not_internal(name)
        checked = _checked_count(count)
        return await self._background.shielded(
            lambda: self._admin.create_partitions(name, checked, validate_only),
            name="create_partitions",
        )

    async def alter_topic_configs(
        self,
        name: str,
        *,
        set: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        is_replacing: bool = False,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Makes all changes or none; open partitions follow at once.

        `is_replacing`: the topic's settings are what `set` has, and no others.
        Errors: UnknownTopicOrPartition, InvalidConfig, PolicyViolation (those of an internal topic
        that its nodes rely on).
        """
        self._check_open()
        if is_internal(name):
            changed = {*(set or {}), *delete, *(append or {}), *(subtract or {})}
            nodes_own = nodes_own_settings(name)
            own = nodes_own if is_replacing else nodes_own & changed
            if own:
                raise PolicyViolation(f"{name} is an internal topic: its {min(own)} stays")
        return await self._admin.alter(
            name,
            set=set or {},
            delete=delete,
            append=append or {},
            subtract=subtract or {},
            is_replacing=is_replacing,
            validate_only=validate_only,
        )

    async def delete_topic(self, name: str, topic_id: str = "") -> None:
        """Deletes a topic: its data is out of reach on return. A crash leaves the rest to repair.

        `topic_id`: only the topic with this id, and not one that has got its name meanwhile.
        Errors: UnknownTopicOrPartition; UnknownTopicId, where another topic has the name;
        PolicyViolation (an internal topic).
        """
        self._check_open()
        check_topic_name(name)
        check_not_internal(name)
        await self._background.shielded(lambda: self._admin.delete(name, topic_id), name="delete")

    async def repair(self) -> None:
        """Finishes creations and deletions that a crash cut short; runs at open and each tick."""
        await self._admin.repair()

    async def delete_orphans(self) -> int:
        """Deletes partitions that no topic names; returns how many. It runs at open."""
        return await self._admin.delete_orphans()

    async def _repair_and_delete_orphans(self) -> None:
        await self.repair()
        try:
            await self.delete_orphans()
        except StreamlogError as error:
            log.warning("could not look for orphaned partitions: %s", error)

    def open_log(self, partition: TopicPartition) -> AbstractLog | None:
        """The log if it is open here; never waits."""
        return self._logs.get(partition)

    @property
    def leadership(self) -> Leadership:
        """Who else holds something for partitions that this node leads listens to it."""
        return self._leadership

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The node that leads the partition; never waits, and opens nothing."""
        return self._leadership.leader_of(partition)

    async def on_leadership_change(
        self, partition: TopicPartition, leader_node: int | None
    ) -> None:
        """As LeadershipListener."""
        self.revisions.changed(partition.topic)
        if leader_node != self._leadership.node_id:
            await self._background.shielded(lambda: self._logs.resign(partition), name="resign")

    def progress(self) -> Due | None:
        """The partition that has been opening for longest."""
        return self._logs.progress()

    async def log(self, partition: TopicPartition) -> AbstractLog:
        """The log, opened if needed; concurrent callers share one open.

        Errors: UnknownTopicOrPartition, NotLeader, WalPending, Corrupt, Unavailable, Closed.
        """
        try:
            return await self._logs.log(partition)
        except UnknownTopicOrPartition:
            raise
        except NotFound as error:
            name = partition.topic
            work = self._background.shielded(
                lambda: self._admin.remove_if_gone(name), name="remove_if_gone"
            )
            if await work:
                raise unknown_topic(name) from error
            raise

    def describe_partition(self, partition: TopicPartition) -> PartitionDescription:
        """Describes a partition that is open here; never waits, and opens nothing.

        Errors: UnknownTopicOrPartition.
        """
        opened = self._logs.get(partition)
        if opened is None:
            raise UnknownTopicOrPartition(
                f"{partition} is not open here",
                topic=partition.topic,
                partition=partition.partition,
            )
        return opened.describe()

    async def init_producer_id(
        self, producer_id: int | None = None, producer_epoch: int | None = None
    ) -> tuple[int, int]:
        """(id, epoch): a new id with epoch 0, or the given id with its next epoch."""
        self._check_open()
        return await self._producer_ids.init(producer_id, producer_epoch)

    async def pass_over_producer_ids(self, first_free: int) -> None:
        """Gives out no id below `first_free` any more: logs that are taken over know them."""
        self._check_open()
        await self._producer_ids.pass_over(first_free)

    async def alter_broker_configs(self, node_id: int | None, change: Change) -> None:
        """As BrokerConfigs.alter: for one node or, None, for all; open partitions follow at once.

        A caller that is cancelled does not know whether it was done.
        """
        self._check_open()
        await self.broker_configs.alter(node_id, change)

    async def alter_client_configs(self, client_id: str | None, change: Change) -> None:
        """As ClientConfigs.alter: for one client id or, None, for those without their own.

        A caller that is cancelled does not know whether it was done.
        """
        self._check_open()
        await self.client_configs.alter(client_id, change)

    def config_alarms(self) -> list[str]:
        """What is wrong with the settings of brokers."""
        return [*self.broker_configs.alarms(), *self.defaults.alarms()]

    def on_broker_configs(self, listener: Callable[[], None]) -> None:
        """`listener()` is called after each change of broker settings that concerns this node."""
        self._config_listeners.append(listener)

    def _broker_configs_changed(self) -> None:
        configs = self.broker_configs
        if self.defaults.apply(configs.in_force(), configs.unknown(DELETING)):
            self._logs.follow_defaults()
        self._configs_changed.set()
        for listener in self._config_listeners:
            listener()

    def _topic_changed(self, name: str, record: TopicRecord | None) -> None:
        if record is None:
            self._metrics.forget(name)
            self.revisions.removed(name)
        else:
            self.revisions.changed(name)
        if record is not None or name not in self._admin.busy:
            self._logs.follow(name, record)

    async def _check_retention(self) -> None:
        """Ticks without end; a wait begins anew where its interval changes."""
        while True:
            interval_ms = self.defaults.retention_check_interval_ms
            try:
                async with asyncio.timeout(interval_ms / 1000):
                    while interval_ms == self.defaults.retention_check_interval_ms:
                        self._configs_changed.clear()
                        await self._configs_changed.wait()
            except TimeoutError:
                await self.retention_tick()

    async def retention_tick(self) -> None:
        """Removes expired segments of the partitions that this node leads.

        Partitions are opened for it, because data without traffic expires, too.
        """
        await self.repair()
        for name in self._topics.names():
            topic = self._topics.get(name)
            if topic is None or not topic.record.is_usable:
                continue
            try:
                settings = self._logs.settings(name, topic.record)
            except InvalidConfig as error:
                self._metrics.retention_errors.inc(topic.record.partitions)
                log.warning("retention of topic %s: %s", name, error)
                continue
            # A partition with a remote tier is opened so that it is copied.
            is_limited = settings.is_deleted_by_age and (
                settings.remote_storage_enable
                or settings.retention_ms != UNLIMITED
                or settings.retention_bytes != UNLIMITED
            )
            for number in range(topic.record.partitions):
                partition = TopicPartition(name, number)
                if not self._leadership.is_led_here(partition):
                    continue
                if is_limited or self._logs.get(partition) is not None:
                    await self._retain(partition, settings)

    async def _retain(self, partition: TopicPartition, settings: TopicConfig) -> None:
        try:
            opened = await self.log(partition)
            copied_end = opened.copied_end_offset if isinstance(opened, TierableLog) else 0
            now_ms = self._clock.now_ms()
            for step in expired(opened, settings, now_ms, copied_end):
                await opened.delete_oldest_segments(step.end_offset, step.reason)
            if is_roll_due(opened, settings, now_ms):
                await opened.roll()
        except StreamlogError as error:
            self._metrics.retention_errors.inc()
            log.warning("retention of %s: %s", partition, error)

    async def _clean_logs(self, cleaner: LogCleaner) -> None:
        """Cleans compacted logs, without end; waits where there is nothing to clean."""
        while True:
            was_dirty = await cleaner.clean_one(await self._compacted_logs())
            await asyncio.sleep(0 if was_dirty else self._config.cleaner_backoff_ms / 1000)

    async def _compacted_logs(self) -> list[tuple[AbstractLog, TopicConfig]]:
        """Of partitions that this node leads. Each is opened for it, except those of the node's own
        topics, which their users open."""
        found: list[tuple[AbstractLog, TopicConfig]] = []
        for name in self._topics.names():
            topic = self._topics.get(name)
            if topic is None or not topic.record.is_usable:
                continue
            try:
                settings = self._logs.settings(name, topic.record)
                if not settings.is_compacted:
                    continue
            except InvalidConfig as error:
                log.warning("topic %s is not cleaned: %s", name, error)
                continue
            for number in range(topic.record.partitions):
                partition = TopicPartition(name, number)
                if not self._leadership.is_led_here(partition):
                    continue
                try:
                    if is_internal(name):
                        opened = self._logs.get(partition)
                    else:
                        opened = await self.log(partition)
                    if opened is not None:
                        found.append((opened, settings))
                except StreamlogError as error:
                    log.warning("%s is not cleaned: %s", partition, error)
        return found

    def _is_compacted_here(self, partition: TopicPartition) -> bool:
        """Whether it is there, led here, and compacted by its settings of now."""
        topic = self._topics.get(partition.topic)
        if topic is None or not topic.record.is_usable:
            return False
        try:
            settings = self._logs.settings(partition.topic, topic.record)
        except InvalidConfig:
            return False
        return settings.is_compacted and self._leadership.is_led_here(partition)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the log manager was closed")

    def _background_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._failed.set()

    async def wait_failed(self) -> BaseException:
        """Returns when background work has stopped for good, with the reason."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    async def close(self) -> None:
        """Makes sequenced batches durable and gives up the partitions for other nodes."""
        if await self._ended():
            await self._logs.close()

    async def stop(self) -> None:
        """As `close`; the caller closes the engine next, which gives up all streams at once."""
        if await self._ended():
            await self._logs.stop()

    async def _ended(self) -> bool:
        """Ends opens and background work; False if they had ended before."""
        if self._is_closed:
            return False
        self._is_closed = True
        await self._logs.stop_opening()
        await self._background.close()
        return True

    async def kill(self) -> None:
        """Stops at once, as a crash would: it waits for nothing and gives up nothing."""
        self._is_closed = True
        await self._background.close()
        await self._logs.kill()


def _checked_count(partitions: int) -> int:
    """Arguments of another type are refused here: in shielded work they would end the node.

    Errors: InvalidPartitions.
    """
    try:
        return index(partitions)
    except TypeError:
        raise InvalidPartitions(
            f"the number of partitions is a whole number, not {partitions!r}"
        ) from None
