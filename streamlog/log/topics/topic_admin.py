"""Creating, changing and deleting topics, and finishing what a crash cut short.

1. A topic exists from the put-if-absent of its record on. Its partitions get their keys next; a
   node that reads a record with pending partitions finishes the work.
2. A deletion is a state of the record first; a node that reads it resumes the deletion.
3. The loser of a race removes the partitions that it created. A crash leaves orphans, which a node
   deletes when it opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from streamlog.errors import (
    Conflict,
    InvalidConfig,
    InvalidPartitions,
    OutcomeUnknown,
    PolicyViolation,
    StreamlogError,
    TopicAlreadyExists,
    UnknownTopicId,
    ValueConflict,
)
from streamlog.log.api import topic_config
from streamlog.log.api.config import LogConfig
from streamlog.log.api.internal_topics import is_internal
from streamlog.log.api.log_factory import LogFactories, LogKind, TopicIdentity
from streamlog.log.broker.log_defaults import LogDefaults
from streamlog.log.configs.draft_names import by_todays_names, todays_names
from streamlog.log.topics.log_cache import LogCache, unknown_topic, usable_topic
from streamlog.log.topics.topic_record import (
    PARTITION_NAMESPACE,
    TopicRecord,
    TopicState,
    decode_partition,
    encode_partition,
    partition_key,
)
from streamlog.log.topics.topics import CachedTopic, TopicDescription, Topics
from streamlog.model.kv import KVClient
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.gather import gather_limited
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

PUT_ATTEMPTS = 5
PAGE = 1000
LOOKED_AT_ONCE = 256
"""Partitions of a topic that are looked at before other tasks get a turn: about 2 ms."""


@contextmanager
def _after_the_record() -> Iterator[None]:
    """A node finishes what the topic's record asks for, so no error says that nothing happens."""
    try:
        yield
    except StreamlogError as error:
        error.has_no_side_effects = False
        raise


class _Turns:
    """Calls that finish or delete one topic."""

    __slots__ = ("calls", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.calls = 0


class TopicAdmin:
    """It owns the records of topics and the keys of partitions. Logs are opened elsewhere."""

    def __init__(
        self,
        factories: LogFactories,
        kv: KVClient,
        topics: Topics,
        logs: LogCache,
        random: Random,
        config: LogConfig,
        defaults: LogDefaults,
    ) -> None:
        self._factories = factories
        self._kv = kv
        self._topics = topics
        self._logs = logs
        self._random = random
        self._config = config
        self._defaults = defaults
        self._attempts: set[str] = set()
        """Attempts to create partitions that are under way on this node."""
        self._slots = asyncio.Semaphore(config.opens_at_once_max)
        self.busy: dict[str, _Turns] = {}
        """Topics that calls on this node are finishing or deleting."""

    async def create(
        self,
        name: str,
        partitions: int | None,
        given: dict[str, str],
        validate_only: bool,
        topic_id: UUID | None = None,
    ) -> TopicDescription:
        """As LogManager.create_topic."""
        count = self._defaults.num_partitions if partitions is None else partitions
        given = by_todays_names(given, f"topic {name}")
        settings = topic_config.parse(given, self._defaults.topic, is_internal=is_internal(name))
        topic_config.check_message_bytes(given, self._config.message_bytes_max)
        # The node's own topics are read by every node.
        kind = LogKind.SHARED if is_internal(name) else LogKind(settings.log_type)
        if kind is not LogKind.SHARED:
            # It is the topic's for life, whatever the defaults become.
            given = {**given, topic_config.LOG_TYPE: kind.value}
        factory = self._factories.of(kind)
        factory.check(settings, None)
        cached = self._topics.get(name)
        if cached is not None and not cached.record.is_usable and not validate_only:
            await self._try_to_finish(name)
        cached = self._topics.get(name)
        if cached is not None:
            raise _exists(name, is_finished=cached.record.is_usable)
        self._check_limits(count, count, new_topics=1)
        if validate_only:
            return TopicDescription(name, "", count, given)
        made_id = self._random.uuid() if topic_id is None else topic_id
        identity = TopicIdentity(name, made_id, self._random.uuid().hex)
        self._attempts.add(identity.attempt)
        try:
            handles = await factory.create(identity, range(count), settings)
            record = TopicRecord(
                identity.topic_id,
                0,
                given,
                tuple(handles),
                log_kind=kind,
                was_compacted=settings.is_compacted and kind is LogKind.UNIFIED,
            )
            if not await self._put(name, record):
                await self._remove_all(record.log_kind, handles)
                raise _exists(name)
            with _after_the_record():
                await factory.check_created(handles)
                await self._exclusively(name, self._finish)
        finally:
            self._attempts.discard(identity.attempt)
        created = self._topics.usable(name)
        if created is None:
            raise unknown_topic(name)
        return created

    async def _put(self, name: str, record: TopicRecord) -> bool:
        """Resolves an unknown outcome by putting the same bytes again."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._topics.create(name, record)
            except StreamlogError as error:
                if attempt > 1:
                    error.has_no_side_effects = False  # The bytes may be there already.
                if attempt == PUT_ATTEMPTS or not isinstance(error, OutcomeUnknown):
                    raise
                log.info("creating topic %s: %s; asking again", name, error)

    async def create_partitions(
        self, name: str, count: int, validate_only: bool
    ) -> TopicDescription:
        """As LogManager.create_partitions."""
        topic = await usable_topic(self._topics, name)
        record = topic.record
        if count <= record.partitions:
            raise InvalidPartitions(
                f"{name} has {record.partitions} partitions; their number can only grow"
            )
        if record.pending:
            raise Conflict(f"partitions are being added to {name} already; try again")
        self._check_limits(count, count - record.partitions, new_topics=0)
        if validate_only:
            return topic.description
        identity = TopicIdentity(name, record.topic_id, self._random.uuid().hex)
        self._attempts.add(identity.attempt)
        try:
            new = range(record.partitions, count)
            factory = self._factories.of(record.log_kind)
            handles = await factory.create(identity, new, self._logs.settings(name, record))
            if not await self._topics.replace(name, topic, replace(record, pending=tuple(handles))):
                await self._remove_all(record.log_kind, handles)
                raise Conflict(f"{name} was changed at the same time; look at it and try again")
            with _after_the_record():
                await factory.check_created(handles)
                await self._exclusively(name, self._finish)
        finally:
            self._attempts.discard(identity.attempt)
        return (await usable_topic(self._topics, name)).description

    async def alter(
        self,
        name: str,
        *,
        set: Mapping[str, str],
        delete: Sequence[str],
        append: Mapping[str, str],
        subtract: Mapping[str, str],
        is_replacing: bool,
        validate_only: bool,
    ) -> TopicDescription:
        """As LogManager.alter_topic_configs."""
        where = f"topic {name}"
        set, append, subtract = (
            by_todays_names(configs, where) for configs in (set, append, subtract)
        )
        delete = todays_names(delete, where)
        while True:
            topic = await usable_topic(self._topics, name)
            kept = topic.record.configs
            if is_replacing:
                kept = {name: kept[name] for name in kept.keys() & {topic_config.LOG_TYPE}}
            changed = topic_config.alter(
                kept,
                set=set,
                delete=delete,
                append=append,
                subtract=subtract,
                defaults=self._defaults.topic,
                is_internal=is_internal(name),
            )
            topic_config.check_message_bytes(set, self._config.message_bytes_max)
            _check_kind(name, topic.record, changed)
            record = self._with_marks(name, topic.record, changed)
            if validate_only:
                return replace(topic.description, configs=changed)
            if await self._topics.replace(name, topic, record):
                return (await usable_topic(self._topics, name)).description

    def _with_marks(self, name: str, record: TopicRecord, changed: dict[str, str]) -> TopicRecord:
        """The record with the changed settings, and what it remembers of those before. Errors:
        InvalidConfig, where its kind of log cannot follow the change."""
        before = self._logs.settings(name, record)
        after = self._logs.settings(name, replace(record, configs=changed))
        self._factories.of(record.log_kind).check(after, before)
        was_compacted = record.was_compacted or before.is_compacted
        if after.remote_storage_enable and was_compacted:
            raise InvalidConfig(
                f"{name} has or once had cleanup.policy=compact, and no such topic is tiered: the "
                "offsets of its segments have gaps, and a cleaning that is under way would change "
                "segments that are copied. Create another topic and copy the records",
                name="remote.storage.enable",
            )
        if record.log_kind is not LogKind.UNIFIED:
            return replace(record, configs=changed)
        had_tier = before.remote_storage_enable or record.has_left_tier
        return replace(
            record,
            configs=changed,
            was_compacted=was_compacted or after.is_compacted,
            has_left_tier=had_tier and not after.remote_storage_enable,
        )

    async def delete(self, name: str, topic_id: str) -> None:
        """As LogManager.delete_topic."""
        while True:
            topic = await usable_topic(self._topics, name)
            if topic_id not in ("", topic.description.topic_id):
                raise UnknownTopicId(
                    f"the topic with the id {topic_id} was deleted; the one that is called {name} "
                    "now is another: look it up again",
                    topic=name,
                    topic_id=topic_id,
                )
            deleting = replace(topic.record, state=TopicState.DELETING)
            if await self._topics.replace(name, topic, deleting):
                break
        with _after_the_record():
            await self._exclusively(name, self._finish_deletion)

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

    async def _exclusively(self, name: str, work: Callable[[str], Awaitable[None]]) -> None:
        """One call at a time: a creation finishes the deletion of the name that is under way, and
        two that delete the same partitions at once would take them for another node's."""
        turns = self.busy.get(name)
        if turns is None:
            turns = self.busy[name] = _Turns()
        turns.calls += 1
        try:
            async with turns.lock:
                await work(name)
        finally:
            turns.calls -= 1
            if not turns.calls:
                del self.busy[name]

    async def _finish(self, name: str) -> None:
        await self._finish_pending(name)
        await self._finish_deletion(name)

    async def _finish_pending(self, name: str) -> None:
        """Writes the keys of pending partitions, then makes them part of the topic.

        If the data of a pending partition is gone, the record came by a late request, after its
        orphans had been deleted: the pending partitions are given up, and so is a topic without
        any other partition.
        """
        while True:
            topic = self._topics.get(name)
            if topic is None or topic.record.state is not TopicState.LIVE:
                return
            record = topic.record
            if not record.pending:
                return
            if not await self._claim_pending(name, record):
                await self._give_up_pending(name, topic)
                continue
            first = record.partitions
            await gather_limited(
                self._slots,
                (
                    self._write_key(TopicPartition(name, first + index), handle, topic)
                    for index, handle in enumerate(record.pending)
                ),
            )
            done = replace(record, partitions=first + len(record.pending), pending=())
            if await self._topics.replace(name, topic, done):
                return

    async def _claim_pending(self, name: str, record: TopicRecord) -> bool:
        """False: one at least is gone."""
        factory = self._factories.of(record.log_kind)
        for number, handle in enumerate(record.pending):
            partition = TopicPartition(name, record.partitions + number)
            if not await factory.claim(partition, record.topic_id, handle):
                return False
            if number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
        return True

    async def _give_up_pending(self, name: str, topic: CachedTopic) -> None:
        record = topic.record
        log.warning("partitions of topic %s came when their data had gone", name)
        if record.partitions == 0:
            await self._topics.replace(name, topic, replace(record, state=TopicState.DELETING))
        elif await self._topics.replace(name, topic, replace(record, pending=())):
            await self._remove_all(record.log_kind, record.pending)

    async def _write_key(self, partition: TopicPartition, handle: int, topic: CachedTopic) -> None:
        """By compare-and-set, so that a late request does not overwrite another topic's key."""
        data = encode_partition(handle, topic.record.log_kind)
        key, revision = partition_key(partition), 0
        while True:
            try:
                await self._kv.compare_and_set_kv(key, data, revision)
            except ValueConflict:
                stored = await self._kv.get_kv(key)
                if not await self._topics.is_newest(partition.topic, topic):
                    return
                if stored is not None and stored.data == data:
                    return
                revision = 0 if stored is None else stored.revision
            else:
                return

    async def _finish_deletion(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.record.state is not TopicState.DELETING:
            return
        record = topic.record
        total = record.partitions + len(record.pending)
        partitions = (TopicPartition(name, index) for index in range(total))
        await gather_limited(
            self._slots, (self._delete_partition(one, topic) for one in partitions)
        )
        await self._remove_all(record.log_kind, record.pending)
        await self._topics.remove(name, topic)
        log.info("topic deleted", extra={"topic": name, "partitions": total})

    async def _delete_partition(self, partition: TopicPartition, topic: CachedTopic) -> None:
        """Does nothing if another node has finished the deletion: a new topic may have the name."""
        key = partition_key(partition)
        while True:
            value = await self._kv.get_kv(key)
            if not await self._topics.is_newest(partition.topic, topic):
                return
            opened = await self._logs.take_out(partition)
            if opened is not None:
                await opened.delete()
            if value is None:
                return
            if opened is None:
                factory = self._factories.of(topic.record.log_kind)
                await factory.remove(decode_partition(key.name, value.data))
            try:
                await self._kv.del_kv(key, value.revision)
            except ValueConflict:
                continue
            return

    async def _remove_all(self, kind: LogKind, handles: Iterable[int]) -> None:
        factory = self._factories.of(kind)
        await gather_limited(self._slots, (factory.remove(handle) for handle in handles))

    async def repair(self) -> None:
        """Finishes creations and deletions that a crash cut short; failures are tried again."""
        for name in self._topics.names():
            topic = self._topics.get(name)
            if topic is None or name in self.busy:
                continue
            if topic.record.state is TopicState.DELETING or topic.record.pending:
                await self._try_to_finish(name)

    async def _try_to_finish(self, name: str) -> None:
        try:
            await self._exclusively(name, self._finish)
        except StreamlogError as error:
            log.warning("topic %s is not finished yet: %s", name, error)

    async def remove_if_gone(self, name: str) -> bool:
        """Removes a topic that has no partition left; True if it is gone.

        Its record came back by a late request, while its streams were being removed.
        """
        topic = await self._topics.fresh(name)
        if topic is None or topic.record.state is not TopicState.LIVE:
            return True
        factory = self._factories.of(topic.record.log_kind)
        for index in range(topic.record.partitions):
            key = partition_key(TopicPartition(name, index))
            value = await self._kv.get_kv(key)
            if value is None:
                continue
            if await factory.is_there(decode_partition(key.name, value.data)):
                return False
        for number, handle in enumerate(topic.record.pending):
            partition = TopicPartition(name, topic.record.partitions + number)
            if await factory.claim(partition, topic.record.topic_id, handle):
                return False
        deleting = replace(topic.record, state=TopicState.DELETING)
        if name in self.busy or not await self._topics.replace(name, topic, deleting):
            return False
        log.warning("topic %s is removed: none of its partitions is there", name)
        await self._exclusively(name, self._finish_deletion)
        return True

    async def delete_orphans(self) -> int:
        """Deletes partitions that no topic names; returns how many."""
        deleted = 0
        for kind in self._factories:
            factory = self._factories.of(kind)
            deleted += await factory.delete_orphans(lambda: self._attempts, self._registered)
        return deleted

    async def _registered(self) -> set[int]:
        """The handles in keys of partitions and records of topics, of every kind of log.

        A key does not tell the kind, and a handle too many only spares an orphan.
        """
        await self._topics.load()
        handles = {
            handle
            for name in self._topics.names()
            if (topic := self._topics.get(name)) is not None
            for handle in topic.record.pending
        }
        after: bytes | None = None
        while True:
            page = await self._kv.list_kv(PARTITION_NAMESPACE, after=after, limit=PAGE)
            handles |= {decode_partition(entry.key.name, entry.value.data) for entry in page}
            if len(page) < PAGE:
                return handles
            after = page[-1].key.name


def _check_kind(name: str, record: TopicRecord, configs: Mapping[str, str]) -> None:
    """Errors: InvalidConfig."""
    kept = LogKind(configs.get(topic_config.LOG_TYPE, LogKind.SHARED.value))
    if kept is not record.log_kind:
        raise InvalidConfig(
            f"{name} has log.type={record.log_kind.value} for life: create another topic with "
            f"log.type={kept.value} and copy the records",
            name=topic_config.LOG_TYPE,
        )


def _exists(name: str, *, is_finished: bool = True) -> TopicAlreadyExists:
    more = (
        ", though its creation or deletion has not ended: the node goes on with that while it "
        "runs. Where it is stopped, start it once, and try again"
    )
    return TopicAlreadyExists(
        f"topic {name} exists already{'' if is_finished else more}", topic=name
    )
