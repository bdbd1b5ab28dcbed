"""Which session gives way when there is no place left: Kafka's FetchSessionCacheShard."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from streamlog.log.api.abstract_log import Isolation
from streamlog.runtime.rand import SeededRandom
from streamlog.server.kafka.sessions.cache import EVICTION_S, FetchSessions
from streamlog.server.kafka.sessions.session import (
    FetchSession,
    WantedPartition,
    WantedTopic,
)
from streamlog.server.metrics import FetchSessionMetrics
from streamlog.settings.limits import LimitsConfig
from streamlog.testing.clocks import ManualClock


class Cache:
    def __init__(self, sessions_max: int, partitions_max: int = 250_000) -> None:
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        limits = replace(
            LimitsConfig(),
            fetch_sessions_max=sessions_max,
            fetch_session_partitions_max=partitions_max,
        )
        self.sessions = FetchSessions(
            self.clock, SeededRandom(1), limits, FetchSessionMetrics(self.registry)
        )

    def keep(self, size: int) -> FetchSession | None:
        """A new session of that many partitions; None where it found no place."""
        session = FetchSession(uses_topic_ids=False, isolation=Isolation.READ_UNCOMMITTED)
        parts = [WantedPartition(number, 0, 1, None, None) for number in range(size)]
        session.update([WantedTopic("t", parts)])
        return session if self.sessions.keep(session) else None

    def passes(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))

    def has(self, session: FetchSession | None) -> bool:
        return session is not None and self.sessions.get(session.session_id) is session

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"streamlog_fetch_session{name}")


def test_ids_are_positive_and_differ() -> None:
    cache = Cache(1000)
    kept = [cache.keep(1) for _ in range(1000)]
    ids = {session.session_id for session in kept if session is not None}
    assert len(ids) == 1000
    assert min(ids) > 0
    assert max(ids) < 1 << 31


def test_a_full_cache_refuses_while_all_sessions_are_young_and_used() -> None:
    cache = Cache(2)
    first, second = cache.keep(1), cache.keep(1)
    assert cache.keep(100) is None
    cache.passes(EVICTION_S)
    assert cache.keep(100) is None
    assert cache.has(first)
    assert cache.has(second)


def test_the_session_unused_for_longest_gives_way() -> None:
    cache = Cache(2)
    first, second = cache.keep(5), cache.keep(5)
    assert first is not None
    cache.passes(1)
    cache.sessions.touch(first)
    cache.passes(EVICTION_S)
    third = cache.keep(1)
    assert (cache.has(first), cache.has(second), cache.has(third)) == (True, False, True)
    assert cache.metric("_evictions_total") == 1


def test_an_old_session_gives_way_to_a_larger_one_alone() -> None:
    cache = Cache(3)
    small, large, young = cache.keep(2), cache.keep(9), None
    assert small is not None
    assert large is not None
    cache.passes(EVICTION_S / 2 + 1)
    cache.sessions.touch(small)
    cache.sessions.touch(large)
    cache.passes(EVICTION_S / 2)
    young = cache.keep(1)
    for session in (small, large):
        cache.sessions.touch(session)
    assert cache.keep(2) is None
    third = cache.keep(3)
    assert third is not None
    assert [cache.has(session) for session in (small, large, young)] == [False, True, True]
    # The next in rank has nine partitions.
    assert cache.keep(9) is None
    assert cache.keep(10) is not None
    assert not cache.has(large)


def test_the_rank_of_a_session_follows_its_size() -> None:
    cache = Cache(2)
    grown, other = cache.keep(1), cache.keep(5)
    assert grown is not None
    assert other is not None
    cache.passes(EVICTION_S + 1)
    for session in (grown, other):
        cache.sessions.touch(session)
    grown.update([WantedTopic("u", [WantedPartition(n, 0, 1, None, None) for n in range(9)])])
    cache.sessions.touch(grown)
    assert cache.keep(6) is not None
    assert (cache.has(grown), cache.has(other)) == (True, False)


def test_the_cache_counts_sessions_and_their_partitions() -> None:
    cache = Cache(10)
    first, _ = cache.keep(3), cache.keep(4)
    assert first is not None
    assert (cache.metric("s"), cache.metric("_partitions")) == (2, 7)
    first.forget([("t", 0), ("t", 1)])
    cache.sessions.touch(first)
    assert cache.metric("_partitions") == 5
    cache.sessions.remove(first.session_id)
    cache.sessions.remove(first.session_id)
    assert (cache.metric("s"), cache.metric("_partitions")) == (1, 4)


def test_sessions_of_clients_that_have_gone_give_their_partitions_back() -> None:
    """A large consumer that was killed again and again, long before there are many sessions."""
    cache = Cache(1000, partitions_max=10)
    gone = [cache.keep(5), cache.keep(5)]
    assert cache.keep(5) is None
    cache.passes(EVICTION_S + 1)
    assert cache.keep(11) is None
    assert [cache.has(one) for one in gone] == [True, True]
    assert cache.has(cache.keep(7))
    assert [cache.has(one) for one in gone] == [False, False]
    assert cache.sessions.partitions == 7
    assert cache.metric("_evictions_total") == 2


def test_a_session_that_is_too_large_takes_no_other_ones_place() -> None:
    cache = Cache(2, partitions_max=10)
    used = [cache.keep(1), cache.keep(8)]
    cache.passes(EVICTION_S + 1)
    for one in used:
        assert one is not None
        cache.sessions.touch(one)
    assert cache.keep(9) is None
    assert [cache.has(one) for one in used] == [True, True]
