"""Which topic a request means: a name, and the id that its client learned for it.

A topic that was deleted and made anew under the same name is another topic, with another id: its
offsets begin anew, so a client that goes on as before would read and write at the wrong places.
"""

from __future__ import annotations

from streamlog.errors import (
    Closed,
    Fenced,
    InconsistentTopicId,
    NotFound,
    StreamlogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from streamlog.server.services.ports import Logs


def check_topic_id(logs: Logs, topic: str, partition: int, topic_id: str) -> None:
    """Call it once the partition's log is known: ids are never used again, so the log is that of
    the topic that the client means. `topic_id` empty: whatever topic has the name.

    Errors: UnknownTopicId, InconsistentTopicId.
    """
    if not topic_id:
        return
    current = logs.topic(topic)
    if current is None:
        raise UnknownTopicId(
            f"topic {topic} with the id {topic_id} was deleted; look it up again",
            topic=topic,
            partition=partition,
            topic_id=topic_id,
        )
    if current.topic_id != topic_id:
        raise InconsistentTopicId(
            f"topic {topic} with the id {topic_id} was deleted; one that was made under its name "
            "is another: look it up again",
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            current_topic_id=current.topic_id,
        )


def id_of(logs: Logs, topic: str) -> str:
    """The id of the topic that has the name now; empty where none has it."""
    current = logs.topic(topic)
    return "" if current is None else current.topic_id


def as_told(
    error: StreamlogError, logs: Logs, topic: str, partition: int, topic_id: str
) -> StreamlogError:
    """What a client is told of an error of a partition's log.

    The log of a deleted topic is closed, and its streams are gone: that is true and says nothing to
    a client, which would retry. `topic_id`: of the topic that the log belongs to, empty where that
    is not known.
    """
    if not isinstance(error, (Closed, NotFound, Fenced)):
        return error
    current = logs.topic(topic)
    if current is not None and current.topic_id == (topic_id or current.topic_id):
        return error
    if isinstance(error, UnknownTopicOrPartition):
        return error
    told = UnknownTopicOrPartition(
        f"topic {topic} was deleted; create it first, or look it up again",
        topic=topic,
        partition=partition,
    )
    told.__cause__ = error
    return told
