"""What a producer learns of topics before it sends to them: one call for each, or many at once.

The first topics are asked for one by one: id and partitions, then the limit of their batches. A
producer that goes on to more topics reads ahead: a page of ListTopics has the next thousand names,
so that its first records to thousands of topics do not wait for thousands of calls, one after
another. Limits of those are taken to be the default until a record needs to know better; a batch
that is more than the topic takes is split when it is refused.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from streamlog.client.calls.topic import batch_bytes_max, create_if_missing
from streamlog.client.calls.topic_lookup import PAGE, Found, TopicEntry, just_before, page
from streamlog.client.channel import Call
from streamlog.client.produce.accumulator import TopicDescription
from streamlog.errors import Unauthorized, UnsupportedVersion

READ_AHEAD_FROM = 8
"""Topics that are asked for one by one before pages are."""


class TopicDirectory:
    """Entries that were read ahead; each is used once, within `age_s`."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._entries: dict[str, tuple[TopicEntry, float]] = {}
        self._asked = 0

    def describe(self, topic: str, now: float) -> Generator[Call, Any, TopicDescription]:
        """What is known of a topic that is new to the producer. Errors: those of the calls."""
        entry, read_at = self._entries.pop(topic, (None, 0.0))
        if entry is not None and now - read_at < self._age_s:
            return TopicDescription(entry.partitions, topic_id=entry.topic_id, knows_limit=False)
        self._asked += 1
        is_one_of_many = self._asked > READ_AHEAD_FROM
        entry = yield from self._look_up(topic, now, PAGE if is_one_of_many else 1)
        if is_one_of_many:
            return TopicDescription(entry.partitions, topic_id=entry.topic_id, knows_limit=False)
        return (yield from self._whole(entry))

    def describe_afresh(self, topic: str, now: float) -> Generator[Call, Any, TopicDescription]:
        """As `describe`, but asks the server even where the topic was read ahead."""
        return (yield from self._whole((yield from self._look_up(topic, now, 1))))

    def _look_up(self, topic: str, now: float, limit: int) -> Generator[Call, Any, TopicEntry]:
        """The topic's entry; the topic is made where it is missing and the server makes topics."""
        found: Found = {}
        try:
            found = yield page(just_before(topic), limit)
        except (Unauthorized, UnsupportedVersion):
            # It may be described all the same.
            found = {}
        entry = found.pop(topic, None)
        self._entries.update((name, (other, now)) for name, other in found.items())
        if entry is None:
            entry = yield create_if_missing(topic)
        return entry

    @staticmethod
    def _whole(entry: TopicEntry) -> Generator[Call, Any, TopicDescription]:
        limit = yield batch_bytes_max(entry.name)
        return TopicDescription(entry.partitions, limit, entry.topic_id)
