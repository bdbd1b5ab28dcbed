"""The topics of Metadata answers as bytes, kept until something about them changes.

1,000 clients that refresh what they know of 10,000 partitions would otherwise keep the event loop
busy for seconds. A topic is encoded once for each version in use, in steps of about 1 ms; an answer
about all topics joins them, and is kept as well. Bytes depend neither on who asks nor on the
listener: permissions are asked for each request, and addresses stand in front of the topics.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamlog.kafka.messages.metadata_response import MetadataResponseTopic
from streamlog.kafka.protocol.topic_ids import id_bytes
from streamlog.log.api.internal_topics import is_internal
from streamlog.runtime.concurrency.steps import Steps, run_cooperatively
from streamlog.server.kafka.describing.metadata_pieces import MetadataPieces
from streamlog.server.kafka.describing.partitions import PartitionStates
from streamlog.server.services.ports import KnownTopic
from streamlog.server.services.topic_views import TopicViews

VERSIONS_MAX = 4
"""Versions whose bytes are kept: of Java and its like, librdkafka, kcat, and one more."""
ROWS_PER_STEP = 400
TOPICS_PER_STEP = 200
PAGE = 1000


@dataclass(frozen=True, slots=True)
class AllTopics:
    """Every topic at one revision; `names` and `topics` have the same order, that of names."""

    revision: int
    names: Sequence[str]
    topics: Sequence[bytes]
    joined: bytes


@dataclass(slots=True)
class _Version:
    pieces: MetadataPieces
    topics: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    """Name → revision, topic id, bytes."""
    all: AllTopics | None = None
    topics_expected: int = PAGE
    """With more of them, some have been deleted since."""


class EncodedTopics:
    def __init__(self, views: TopicViews, states: PartitionStates) -> None:
        self._views = views
        self._states = states
        self._versions: OrderedDict[int, _Version] = OrderedDict()
        self._encoding = asyncio.Lock()
        """Held while topics are encoded: who waits for it finds them encoded."""

    def __len__(self) -> int:
        """Topics that are kept, in all versions together."""
        return sum(len(kept.topics) for kept in self._versions.values())

    def pieces(self, version: int) -> MetadataPieces:
        return self._of(version).pieces

    def kept(self, version: int, topic: KnownTopic) -> bytes | None:
        """The topic's bytes, if they are there and true."""
        return self._kept(self._of(version), topic)

    def _kept(self, kept: _Version, topic: KnownTopic) -> bytes | None:
        encoded = kept.topics.get(topic.name)
        if encoded is None or encoded[0] != self._views.revision_of(topic.name):
            return None
        return encoded[2] if encoded[1] == topic.topic_id else None

    async def topic(self, version: int, topic: KnownTopic) -> bytes:
        """Whatever is awaited, the bytes are not older than the call."""
        kept = self.kept(version, topic)
        if kept is not None:
            return kept
        revision = self._views.revision_of(topic.name)
        async with self._encoding:
            # A partition may have been opened since: those who asked before it share the bytes.
            encoded = self._of(version).topics.get(topic.name)
            if encoded is not None and encoded[0] >= revision and encoded[1] == topic.topic_id:
                return encoded[2]
            return await run_cooperatively(self._encode(self._of(version), topic))

    async def all_topics(self, version: int) -> AllTopics:
        """Not older than the call. A topic that changes meanwhile is as before or as after it."""
        kept = self._of(version).all
        if kept is not None and kept.revision == self._views.revision:
            return kept
        revision = self._views.revision
        async with self._encoding:
            kept = self._of(version).all
            if kept is not None and kept.revision >= revision:
                return kept
            return await run_cooperatively(self._encode_all(self._of(version)))

    def _of(self, version: int) -> _Version:
        kept = self._versions.get(version)
        if kept is None:
            kept = self._versions[version] = _Version(MetadataPieces(version))
            if len(self._versions) > VERSIONS_MAX:
                self._versions.popitem(last=False)
        self._versions.move_to_end(version)
        return kept

    def _encode(self, kept: _Version, topic: KnownTopic) -> Steps[bytes]:
        name = topic.name
        # Taken together, and first: what changes from now on has a later revision.
        revision, current = self._views.revision_of(name), self._views.topic(name)
        is_current = current is not None and current.topic_id == topic.topic_id
        if current is not None and is_current:
            topic = current
        rows = []
        for start in range(0, topic.partitions, ROWS_PER_STEP):
            if start:
                yield
            numbers = range(start, min(start + ROWS_PER_STEP, topic.partitions))
            rows.append(kept.pieces.rows(self._states.of(name, numbers)))
        head = MetadataResponseTopic(
            name=name, topic_id=id_bytes(topic.topic_id), is_internal=is_internal(name)
        )
        encoded = kept.pieces.topic(head, rows, topic.partitions)
        if is_current:
            kept.topics[name] = revision, topic.topic_id, encoded
            if len(kept.topics) > kept.topics_expected:
                self._forget_deleted(kept)
                kept.topics_expected = 2 * len(kept.topics) + PAGE
        return encoded

    def _forget_deleted(self, kept: _Version) -> None:
        deleted = [name for name in kept.topics if self._views.topic(name) is None]
        for name in deleted:
            del kept.topics[name]

    def _encode_all(self, kept: _Version) -> Steps[AllTopics]:
        revision = self._views.revision
        names: list[str] = []
        topics: list[bytes] = []
        work = 0
        after = ""
        while page := self._views.topics(after, PAGE):
            for topic in page:
                encoded = self._kept(kept, topic)
                work += 1
                if encoded is None:
                    encoded = yield from self._encode(kept, topic)
                    work += 4 + topic.partitions % ROWS_PER_STEP // 2
                if work >= TOPICS_PER_STEP:
                    work = 0
                    yield
                names.append(topic.name)
                topics.append(encoded)
            after = page[-1].name
        if len(kept.topics) > len(names):
            self._forget_deleted(kept)
        kept.all = AllTopics(revision, names, topics, b"".join(topics))
        return kept.all
