"""Topics and partitions as a reader sees them."""

from __future__ import annotations

from typing import NamedTuple

TopicPartition = tuple[str, int]


class Topic(NamedTuple):
    """A topic that is deleted and created again has another `topic_id`."""

    partitions: int
    topic_id: str


class Offsets(NamedTuple):
    """Readable offsets of a partition: start (inclusive) to end (exclusive)."""

    start: int
    end: int
