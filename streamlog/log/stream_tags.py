"""The tags by which a stream names the partition that it belongs to.

    topic, topic_id, partition, role (meta, data, time, txn; cleaned_data, cleaned_time and
    cleaned_txn of a log that was cleaned), attempt (to create the partition)

They serve people, the deletion of orphans, and staged writes. A log reads its own only to make and
to find streams of cleaned segments.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.log.api.log_factory import TopicIdentity
from streamlog.model.partition import TopicPartition

ROLES = ("meta", "data", "time", "txn")
CLEANED_ROLES = ("cleaned_data", "cleaned_time", "cleaned_txn")
_ALL_ROLES = frozenset(ROLES + CLEANED_ROLES)


def tags_of(topic: TopicIdentity, partition: int, role: str) -> dict[str, str]:
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "partition": str(partition),
        "role": role,
        "attempt": topic.attempt,
    }


def belongs_to_log(tags: Mapping[str, str]) -> bool:
    """Whether a stream with these tags is one of a partition's streams."""
    return tags.get("role") in _ALL_ROLES and "attempt" in tags


def is_cleaned_of(tags: Mapping[str, str], meta_tags: Mapping[str, str]) -> bool:
    """Whether a stream is for cleaned segments of the log whose meta stream has `meta_tags`."""
    same = ("topic", "topic_id", "partition", "attempt")
    return tags.get("role") in CLEANED_ROLES and all(
        tags.get(name) == meta_tags.get(name) for name in same
    )


def partition_of_data(tags: Mapping[str, str]) -> TopicPartition | None:
    """The partition whose data stream has these tags; None: no data stream of a log has them."""
    topic, number = tags.get("topic", ""), tags.get("partition", "")
    if tags.get("role") != "data" or not number.isdigit():
        return None
    return TopicPartition(topic, int(number))
