"""The cluster's topics: cached from the KV store, kept up to date by a watch.

Reads never wait. A change goes to the KV store by compare-and-set first, then into the cache. An
event of the watch counts only where its revision is newer than what is cached or was removed here.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from streamlog.errors import RevisionCompacted, Unavailable, ValueConflict
from streamlog.log.topics.topic_record import (
    TOPIC_NAMESPACE,
    TopicRecord,
    decode_topic,
    encode_topic,
    topic_key,
)
from streamlog.model.kv import KVChange, KVClient, Value

PAGE = 1000
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """`configs`: the settings that were given for the topic. `topic_id` "": not created."""

    name: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CachedTopic:
    record: TopicRecord
    revision: int
    description: TopicDescription


ChangeCallback = Callable[[str, TopicRecord | None], None]


class Topics:
    """`on_change(name, record)` is called for each change, None for a removal."""

    def __init__(self, kv: KVClient, on_change: ChangeCallback) -> None:
        self._kv = kv
        self._on_change = on_change
        self._topics: dict[str, CachedTopic] = {}
        self._names: list[str] = []
        self._name_of: dict[str, str] = {}
        """Topic id → name."""
        self._removed: dict[str, int] = {}
        """Name → revision of the value that was removed here and may still come by the watch."""
        self._watch_from = 1
        self.partitions = 0
        """The partitions of all topics, pending ones included."""

    def __len__(self) -> int:
        return len(self._names)

    def get(self, name: str) -> CachedTopic | None:
        return self._topics.get(name)

    def usable(self, name: str) -> TopicDescription | None:
        topic = self._topics.get(name)
        return topic.description if topic is not None and topic.record.is_usable else None

    def usable_by_id(self, topic_id: str) -> TopicDescription | None:
        name = self._name_of.get(topic_id)
        return None if name is None else self.usable(name)

    def page(self, after: str, limit: int) -> list[TopicDescription]:
        """Usable topics past `after`, by name."""
        topics: list[TopicDescription] = []
        for name in self._from(after):
            topic = self.usable(name)
            if topic is not None:
                topics.append(topic)
                if len(topics) >= limit:
                    break
        return topics

    def _from(self, after: str) -> Iterator[str]:
        for index in range(bisect_right(self._names, after), len(self._names)):
            yield self._names[index]

    def names(self) -> list[str]:
        return list(self._names)

    async def load(self) -> None:
        """Fills the cache from the KV store; call it before `follow`.

        Everything changed after the first page was read has a revision above that page's highest,
        so the watch begins there. What this node creates or removes meanwhile is newer than the
        pages and stays as it is.
        """
        before = {name: topic.revision for name, topic in self._topics.items()}
        stored: dict[str, CachedTopic] = {}
        after: bytes | None = None
        while True:
            page = await self._kv.list_kv(TOPIC_NAMESPACE, after=after, limit=PAGE)
            if after is None:
                self._watch_from = 1 + max((entry.value.revision for entry in page), default=0)
            for entry in page:
                name = entry.key.name.decode()
                stored[name] = _cached(name, entry.value)
            if len(page) < PAGE:
                break
            after = page[-1].key.name
        for name, topic in list(self._topics.items()):
            if name not in stored and before.get(name) == topic.revision:
                self._drop(name)
        for name, topic in stored.items():
            if topic.revision > self._removed.get(name, 0):
                self._put(name, topic)

    async def follow(self) -> None:
        """Applies the changes of other nodes, without end."""
        oldest: int | None = None
        while True:
            try:
                if oldest is not None:
                    await self.load()
                    self._watch_from, oldest = oldest, None
                async for change in self._kv.watch_kv(
                    TOPIC_NAMESPACE, from_revision=self._watch_from
                ):
                    self._apply(change)
                    self._watch_from = change.revision + 1
            except RevisionCompacted as error:
                oldest = int(error.fields["oldest"])
            except Unavailable:
                await asyncio.sleep(RETRY_S)

    async def fresh(self, name: str) -> CachedTopic | None:
        """The topic as the KV store has it now."""
        while True:
            cached = self._topics.get(name)
            value = await self._kv.get_kv(topic_key(name))
            if self._topics.get(name) is cached:
                break
            # The topic was created, changed or removed here meanwhile: the answer may be older.
        if value is not None:
            self._put(name, _cached(name, value))
        elif cached is not None:
            self._removed[name] = cached.revision
            self._drop(name)
        return self._topics.get(name)

    async def create(self, name: str, record: TopicRecord) -> bool:
        """False if another topic has the name.

        Another node may have finished the topic by the time this record is sent again; the stored
        record has other bytes then, and the same id.
        """
        data = encode_topic(record)
        stored = await self._kv.put_kv_if_absent(topic_key(name), data)
        topic = _cached(name, stored)
        self._put(name, topic)
        return topic.record.topic_id == record.topic_id

    async def replace(self, name: str, old: CachedTopic, record: TopicRecord) -> bool:
        """False, with the cache refreshed, if the record is no longer `old`."""
        try:
            stored = await self._kv.compare_and_set_kv(
                topic_key(name), encode_topic(record), old.revision
            )
        except ValueConflict:
            await self.fresh(name)
            return False
        self._put(name, _cached(name, Value(encode_topic(record), stored.revision)))
        return True

    async def remove(self, name: str, old: CachedTopic) -> None:
        """Only refreshes the cache if the record is no longer `old`."""
        try:
            await self._kv.del_kv(topic_key(name), old.revision)
        except ValueConflict:
            await self.fresh(name)
            return
        self._removed[name] = old.revision
        cached = self._topics.get(name)
        if cached is not None and cached.revision <= old.revision:
            self._drop(name)

    async def is_newest(self, name: str, topic: CachedTopic) -> bool:
        """Whether the KV store has this record now."""
        value = await self._kv.get_kv(topic_key(name))
        return value is not None and value.revision == topic.revision

    def _apply(self, change: KVChange) -> None:
        name = change.key.name.decode()
        if change.value is None:
            self._removed.pop(name, None)
            cached = self._topics.get(name)
            if cached is not None and cached.revision < change.revision:
                self._drop(name)
            return
        value = Value(change.value.data, change.revision)
        if change.revision > self._removed.get(name, 0):
            self._removed.pop(name, None)
            self._put(name, _cached(name, value))

    def _put(self, name: str, topic: CachedTopic) -> None:
        old = self._topics.get(name)
        if old is not None and old.revision >= topic.revision:
            return
        if old is not None and old.record.topic_id != topic.record.topic_id:
            # A new topic has the name. The old one's deletion may come by no event of its own, when
            # the watch fell behind and all topics were read again.
            self._drop(name)
            old = None
        if old is None:
            insort(self._names, name)
        else:
            self.partitions -= _count(old.record)
        self._topics[name] = topic
        self._name_of[topic.description.topic_id] = name
        self.partitions += _count(topic.record)
        self._on_change(name, topic.record)

    def _drop(self, name: str) -> None:
        old = self._topics.pop(name, None)
        if old is None:
            return
        self._names.remove(name)
        self._name_of.pop(old.description.topic_id, None)
        self.partitions -= _count(old.record)
        self._on_change(name, None)


def _cached(name: str, value: Value) -> CachedTopic:
    record = decode_topic(name, value.data)
    description = TopicDescription(
        name, str(record.topic_id), record.partitions, dict(record.configs)
    )
    return CachedTopic(record, value.revision, description)


def _count(record: TopicRecord) -> int:
    return record.partitions + len(record.pending)
