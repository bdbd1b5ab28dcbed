"""The tags by which a stream names the partition that it belongs to.

    topic, topic_id, partition, role (meta, data, time, txn), attempt (to create the partition)

They serve people, the deletion of orphans, and staged writes; no log reads its own tags.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.log.api.log_factory import TopicIdentity
from streamlog.model.partition import TopicPartition

ROLES = ("meta", "data", "time", "txn")


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
    return tags.get("role") in ROLES and "attempt" in tags


def partition_of_data(tags: Mapping[str, str]) -> TopicPartition | None:
    """The partition whose data stream has these tags; None: no data stream of a log has them."""
    topic, number = tags.get("topic", ""), tags.get("partition", "")
    if tags.get("role") != "data" or not number.isdigit():
        return None
    return TopicPartition(topic, int(number))
