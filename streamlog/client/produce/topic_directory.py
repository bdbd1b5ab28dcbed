"""Metadata of topics before the first record to them: one look-up for each, or many at once.

The first topics are looked up one by one: id and partitions, then the limit of their batches. For
further topics the producer reads ahead: a page of ListTopics has the next thousand names, so that
its first records to thousands of topics do not wait for thousands of calls, one after another. The
limits of those are taken to be the default until a larger record comes; a batch that is more than
its topic takes is split when it is refused.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from streamlog.client.calls.topic import batch_bytes_max, create_if_missing
from streamlog.client.calls.topic_lookup import PAGE, TopicEntries, TopicEntry, just_before, page
from streamlog.client.channel import Call
from streamlog.client.produce.accumulator import TopicMetadata
from streamlog.errors import Unauthorized, UnsupportedVersion

READ_AHEAD_FROM = 8
"""How many topics are looked up one by one before pages are read."""


class TopicDirectory:
    """Entries that were read ahead; each is used once, within `age_s`."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._entries: dict[str, tuple[TopicEntry, float]] = {}
        self._asked = 0

    def metadata(self, topic: str, now: float) -> Generator[Call, Any, TopicMetadata]:
        """The metadata of a topic that is new to the producer. Errors: those of the calls."""
        entry, read_at = self._entries.pop(topic, (None, 0.0))
        if entry is not None and now - read_at < self._age_s:
            return TopicMetadata(entry.partitions, topic_id=entry.topic_id, knows_limit=False)
        self._asked += 1
        reads_ahead = self._asked > READ_AHEAD_FROM
        entry = yield from self._look_up(topic, now, PAGE if reads_ahead else 1)
        if reads_ahead:
            return TopicMetadata(entry.partitions, topic_id=entry.topic_id, knows_limit=False)
        return (yield from self._with_limit(entry))

    def fresh_metadata(self, topic: str, now: float) -> Generator[Call, Any, TopicMetadata]:
        """As `metadata`, but asks the server even where the topic was read ahead."""
        return (yield from self._with_limit((yield from self._look_up(topic, now, 1))))

    def _look_up(self, topic: str, now: float, limit: int) -> Generator[Call, Any, TopicEntry]:
        """The topic's entry; the topic is made where it is missing and the server makes topics."""
        entries: TopicEntries = {}
        try:
            entries = yield page(just_before(topic), limit)
        except (Unauthorized, UnsupportedVersion):
            # Such a client may still describe the topic.
            entries = {}
        entry = entries.pop(topic, None)
        self._entries.update((name, (other, now)) for name, other in entries.items())
        if entry is None:
            entry = yield create_if_missing(topic)
        return entry

    @staticmethod
    def _with_limit(entry: TopicEntry) -> Generator[Call, Any, TopicMetadata]:
        limit = yield batch_bytes_max(entry.name)
        return TopicMetadata(entry.partitions, limit, entry.topic_id)
