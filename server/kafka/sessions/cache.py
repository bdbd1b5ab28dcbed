"""The fetch sessions of a node, whichever connection they came by; bounded, as Kafka's cache is.

When it is full, a new session takes the place of the one that was unused for longest, if that is
more than EVICTION_S; else of the smallest one that is older than EVICTION_S, if the new one has
more partitions. Otherwise the new one is not kept: its client goes on naming all its partitions,
which is correct and costs more. The same where there is no room for its partitions: sessions that
were unused for so long give them back first. Source: Kafka's FetchSessionCacheShard, which does not
bound partitions.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random
from streamlog.server.kafka.sessions.session import FetchSession
from streamlog.server.metrics import FetchSessionMetrics
from streamlog.settings.limits import LimitsConfig

EVICTION_S = 120.0
_ID_BITS = 31


class FetchSessions:
    def __init__(
        self, clock: Clock, random: Random, limits: LimitsConfig, metrics: FetchSessionMetrics
    ) -> None:
        self._clock = clock
        self._random = random
        self._sessions_max = limits.fetch_sessions_max
        self._partitions_max = limits.fetch_session_partitions_max
        self._metrics = metrics
        self._sessions: dict[int, FetchSession] = {}
        """By id, the one that was unused for longest first."""
        self._ranked: list[tuple[int, int]] = []
        """(size, id) of sessions that a larger one may take the place of, rising."""
        self._counted: dict[int, int] = {}
        """Id → partitions of the session, as they were counted last."""
        self._partitions = 0
        metrics.count.set_function(lambda: len(self._sessions))
        metrics.count_bound.set(limits.fetch_sessions_max)
        metrics.partitions.set_function(lambda: self._partitions)
        metrics.partitions_bound.set(limits.fetch_session_partitions_max)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Of all sessions together."""
        return self._partitions

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def keep(self, session: FetchSession) -> bool:
        """Gives the session an id, or returns False where there is no room for it."""
        now, size = self._clock.monotonic(), len(session.partitions)
        if size > self._partitions_max:
            return False
        while self._partitions + size > self._partitions_max:
            if not self._evict_unused(now):
                return False
        if len(self._sessions) >= self._sessions_max and not self._evict(now, size):
            return False
        session.session_id = self._new_id()
        session.created_s = now
        self._sessions[session.session_id] = session
        self.touch(session)
        return True

    def touch(self, session: FetchSession) -> None:
        """The session is used now, and has the partitions that it has now."""
        session_id, now = session.session_id, self._clock.monotonic()
        session.used_s = now
        self._sessions[session_id] = self._sessions.pop(session_id)
        size = len(session.partitions)
        self._partitions += size - self._counted.get(session_id, 0)
        self._counted[session_id] = size
        if session.ranked_size != size and now - session.created_s > EVICTION_S:
            self._unrank(session)
            session.ranked_size = size
            insort(self._ranked, (size, session_id))

    def has_room(self) -> bool:
        """Whether the partitions of all sessions are within their bound."""
        return self._partitions <= self._partitions_max

    def remove(self, session_id: int) -> None:
        """Ends the session, if there is one of that id; no log knows it after this."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= self._counted.pop(session_id)
            self._unrank(session)
            session.close()

    def _evict(self, now: float, size: int) -> bool:
        if self._evict_unused(now):
            return True
        if self._ranked and size > self._ranked[0][0]:
            self._take_place_of(self._ranked[0][1])
            return True
        return False

    def _evict_unused(self, now: float) -> bool:
        """Ends the session that was unused for longest, if it was so for long enough."""
        session_id, oldest = next(iter(self._sessions.items()), (0, None))
        if oldest is None or now - oldest.used_s <= EVICTION_S:
            return False
        self._take_place_of(session_id)
        return True

    def _take_place_of(self, session_id: int) -> None:
        self.remove(session_id)
        self._metrics.evictions.inc()

    def _unrank(self, session: FetchSession) -> None:
        if session.ranked_size is not None:
            del self._ranked[bisect_left(self._ranked, (session.ranked_size, session.session_id))]
            session.ranked_size = None

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._random.bytes(4)) & ((1 << _ID_BITS) - 1)
            if session_id and session_id not in self._sessions:
                return session_id
