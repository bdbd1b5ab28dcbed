"""Arguments of consumers, checked before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamlog.client.calls.topic import TopicPartition
from streamlog.client.settings import ConsumerSettings, check
from streamlog.errors import Invalid, InvalidConfig

PARTITION_END = 2**31
OFFSET_END = 2**63


def consumer_settings(group_id: str | None, given: Mapping[str, Any]) -> ConsumerSettings:
    """Errors: Invalid for a group, InvalidConfig."""
    if group_id is not None:
        raise Invalid(
            "consumer groups come with a later version; leave group_id out, and use assign() or "
            "subscribe(), which takes all partitions"
        )
    unknown = given.keys() - ConsumerSettings.__dataclass_fields__.keys()
    if unknown:
        raise InvalidConfig(f"a consumer has no setting {', '.join(sorted(unknown))}")
    settings = ConsumerSettings(**given)
    check(settings)
    return settings


def checked_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Errors: Invalid for anything but (topic, partition)."""
    checked: list[TopicPartition] = []
    for tp in partitions:
        if not isinstance(tp, tuple | list) or len(tp) != 2:
            raise Invalid(f"give (topic, partition), not {tp!r}")
        topic, partition = tp
        if not _is_name(topic) or not _is_whole(partition):
            raise Invalid(f"give (topic, partition), a text and a number, not {tp!r}")
        if not 0 <= partition < PARTITION_END:
            raise Invalid(f"a partition is a number from 0 to 2^31 - 1, not {partition}")
        checked.append((topic, partition))
    return checked


def checked_topics(topics: Sequence[str]) -> list[str]:
    """Errors: Invalid for anything but a list of texts."""
    if isinstance(topics, str) or not all(map(_is_name, topics)):
        raise Invalid(f"subscribe takes a list of topics, not {topics!r}")
    return list(dict.fromkeys(topics))


def check_offset(offset: int) -> None:
    """Errors: Invalid."""
    if not _is_whole(offset) or not 0 <= offset < OFFSET_END:
        raise Invalid(f"an offset is a number from 0 to 2^63 - 1, not {offset!r}")


def _is_name(topic: Any) -> bool:
    """A text that a request can hold: a lone surrogate is no UTF-8."""
    return isinstance(topic, str) and not any("\ud800" <= char <= "\udfff" for char in topic)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
