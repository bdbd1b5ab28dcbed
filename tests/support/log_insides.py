"""The parts of logs and of their manager, for tests that look inside.

Only this file knows by which private names they are held.
"""

from __future__ import annotations

from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactory, LogKind
from streamlog.log.manager import LogManager
from streamlog.log.shared.shared_log import SharedLog
from streamlog.log.shared.state.recovery import OpenStreams
from streamlog.log.shared.state.tail import LogTail
from streamlog.log.topics.topic_admin import TopicAdmin
from streamlog.log.topics.topics import CachedTopic, Topics


def topics_of(logs: LogManager) -> Topics:
    return logs._topics


def cached_topic(logs: LogManager, name: str) -> CachedTopic:
    """The cache's entry for a topic that exists."""
    topic = logs._topics.get(name)
    assert topic is not None
    return topic


def leadership_of(logs: LogManager) -> Leadership:
    return logs._leadership


def admin_of(logs: LogManager) -> TopicAdmin:
    return logs._admin


def factory_of(logs: LogManager) -> LogFactory:
    """The factory that opens shared logs."""
    return logs._logs._factories.of(LogKind.SHARED)


def tail_of(log: AbstractLog) -> LogTail:
    assert isinstance(log, SharedLog)
    return log._tail


def streams_of(log: AbstractLog) -> OpenStreams:
    assert isinstance(log, SharedLog)
    return log._streams
