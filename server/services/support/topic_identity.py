"""Which topic a request means: its name, and the id that the client knows for that name.

A topic that was deleted and created again is another topic, with another id and other offsets. A
client that did not notice would read and write at the wrong offsets.
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
    """Checks that the name still belongs to the topic with this id; call it with the log open.

    Ids are never used again, so the open log is the one of the topic that the client means.
    `topic_id` empty: any topic of that name. Errors: UnknownTopicId, InconsistentTopicId.
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
    """The id of the topic that has the name now; empty where there is none."""
    current = logs.topic(topic)
    return "" if current is None else current.topic_id


def client_error(
    error: StreamlogError, logs: Logs, topic: str, partition: int, topic_id: str
) -> StreamlogError:
    """The error for a client in place of an error of a partition's log.

    The log of a deleted topic raises Closed or StreamNotFound, which a client would retry: it gets
    UnknownTopicOrPartition. `topic_id`: that of the log's topic, empty where it is not known.
    """
    if not isinstance(error, (Closed, NotFound, Fenced)):
        return error
    current = logs.topic(topic)
    if current is not None and current.topic_id == (topic_id or current.topic_id):
        return error
    if isinstance(error, UnknownTopicOrPartition):
        return error
    deleted = UnknownTopicOrPartition(
        f"topic {topic} was deleted; create it first, or look it up again",
        topic=topic,
        partition=partition,
    )
    deleted.__cause__ = error
    return deleted
