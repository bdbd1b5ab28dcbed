"""The topics that a consumer follows, and when it looks for their partitions again. Pure.

Shared by the blocking and the asyncio consumer.
"""

from __future__ import annotations

import logging

from streamlog.client.calls.topic_lookup import TopicEntries
from streamlog.client.consume.fetch_state import FetchState
from streamlog.client.settings import ConsumerSettings
from streamlog.errors import StreamlogError

log = logging.getLogger(__name__)

MISSING_TOPIC_RETRY_S = 1.0
SILENCE_S = 3.0
"""A call that has had no answer for so much longer than a fetch may wait is worth telling of."""


class Subscription:
    """Subscribed topics; empty where the caller assigned partitions itself."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._metadata_max_age_s = settings.metadata_max_age_ms / 1000
        self._answer_s_max = settings.fetch_max_wait_ms / 1000 + SILENCE_S
        self.topics: list[str] = []
        self._seen: set[str] = set()
        """Topics that a look-up found: partitions that they get later are read from their start."""
        self._missing: list[str] = []
        self._refresh_at = 0.0

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics
        self._seen = set()
        self._missing = []
        self._refresh_at = 0.0

    def clear(self) -> None:
        self.subscribe([])

    def due_topics(self, state: FetchState, now: float) -> list[str]:
        """Topics to look up now: stale ones, and all subscribed ones once their time has come."""
        due = state.topics_to_look_up(now)
        if self.topics and now >= self._refresh_at:
            due += self.topics
        return list(dict.fromkeys(due))

    def wake_at(self, fetch_wake_at: float) -> float:
        return min(fetch_wake_at, self._refresh_at) if self.topics else fetch_wake_at

    def topics_found(
        self, state: FetchState, asked: list[str], entries: TopicEntries, now: float
    ) -> None:
        """Follows the partitions of subscribed topics; retries missing topics soon."""
        known = self._seen.union(self._missing)
        missing = state.topics_found(asked, entries, self.topics, known)
        self._seen |= entries.keys()
        if set(self.topics) <= set(asked):
            self._refresh_at = now + self._metadata_max_age_s
        if missing:
            self._refresh_at = min(self._refresh_at, now + MISSING_TOPIC_RETRY_S)
            log.warning("waiting for topics", extra={"topics": missing})
        still_missing = {*missing, *self._missing} - entries.keys()
        self._missing = [topic for topic in self.topics if topic in still_missing]

    def lookup_failed(self, state: FetchState, error: StreamlogError, now: float) -> None:
        state.topic_lookup_failed(error, now)
        self._refresh_at = now + MISSING_TOPIC_RETRY_S

    def waiting_for(self, server: str, state: FetchState, now: float) -> str | None:
        """What keeps records from coming, in words; None: nothing but records."""
        if state.failing_since is not None:
            return f"{server}, for {now - state.failing_since:.0f} s: {state.last_failure}"
        if state.asked_at is not None and now - state.asked_at > self._answer_s_max:
            return f"{server}, for {now - state.asked_at:.0f} s: no answer"
        if self._missing:
            return f"topics that do not exist yet: {', '.join(self._missing)}"
        return None
