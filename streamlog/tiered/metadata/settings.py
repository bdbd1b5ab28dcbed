"""Settings of the topic of remote segments' metadata: Kafka's names, without `rlmm.config.`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from streamlog.errors import InvalidConfig

PARTITIONS = "remote.log.metadata.topic.num.partitions"
WAIT_MS = "remote.log.metadata.consume.wait.ms"
PARTITIONS_MAX, WAIT_MS_MAX = 10_000, 3_600_000
PASSED_OVER = frozenset(
    {
        "broker.id",
        "cluster.id",
        "remote.log.metadata.initialization.retry.interval.ms",
        "remote.log.metadata.initialization.retry.max.timeout.ms",
        "remote.log.metadata.topic.replication.factor",
        "remote.log.metadata.topic.retention.ms",
    }
)
"""What a node says of itself, and settings of Kafka's that mean nothing here."""
PASSED_OVER_PREFIXES = (
    "remote.log.metadata.common.client.",
    "remote.log.metadata.consumer.",
    "remote.log.metadata.producer.",
)
"""Of Kafka's clients, which nobody needs here: a node reads and writes its own logs."""


@dataclass(frozen=True, slots=True)
class RemoteMetadataTopicConfig:
    """The comment behind a field is Kafka's name for it."""

    partitions: int = 5  # remote.log.metadata.topic.num.partitions
    """Fixed when the first record makes the topic be created. More of them spread over more nodes;
    on one node they spread nothing, and each is a log that is opened and replayed. So the default
    is far below Kafka's 50, which serves clusters of many brokers."""
    wait_ms: int = 30_000  # remote.log.metadata.consume.wait.ms
    """A call waits no longer for the topic, and has to ask again."""


def parse(configs: Mapping[str, str]) -> RemoteMetadataTopicConfig:
    """Errors: InvalidConfig."""
    default = RemoteMetadataTopicConfig()
    for name in configs:
        is_passed_over = name in PASSED_OVER or name.startswith(PASSED_OVER_PREFIXES)
        if name not in (PARTITIONS, WAIT_MS) and not is_passed_over:
            near = get_close_matches(name, (PARTITIONS, WAIT_MS), 1, 0)
            raise InvalidConfig(
                f"rlmm.config.{name} is unknown; did you mean {near[0]}?", name=name
            )
    return RemoteMetadataTopicConfig(
        _number(configs, PARTITIONS, default.partitions, PARTITIONS_MAX),
        _number(configs, WAIT_MS, default.wait_ms, WAIT_MS_MAX),
    )


def _number(configs: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    text = configs.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and 1 <= int(text) <= maximum:
        return int(text)
    raise InvalidConfig(
        f"rlmm.config.{name} is {text!r}, but must be a whole number from 1 to {maximum}", name=name
    )
