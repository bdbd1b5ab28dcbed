"""What topics get that set nothing themselves, and other settings that change at run time.

The static part comes from LogConfig; broker settings that were set at run time lie over it. One
that cannot be read is passed over with a warning: another version may have stored it. Of those by
which records are deleted the static value may delete what the unknown one keeps, so topics that
leave them to the brokers delete nothing meanwhile. Where the policy is unknown, they take no record
without a key either: it may be compact, and the first cleaning afterwards would delete the record.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from streamlog.errors import InvalidConfig
from streamlog.log.api import topic_config
from streamlog.log.api.config import KAFKA_NAMES, LogConfig
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.configs.broker_synonyms import TOPIC_SETTINGS

log = logging.getLogger(__name__)

CLEANER_IO = "log.cleaner.io.max.bytes.per.second"
NUMBERS: Mapping[str, tuple[str, type[int] | type[float]]] = {
    "num.partitions": (KAFKA_NAMES["num.partitions"], int),
    "log.retention.check.interval.ms": (KAFKA_NAMES["log.retention.check.interval.ms"], int),
    CLEANER_IO: (KAFKA_NAMES[CLEANER_IO], float),
}
"""Broker settings of the log layer that change at run time → fields of LogConfig, and their types.
All of them are at least 1."""

_DELETES_NOTHING: Mapping[str, Mapping[str, str | int]] = {
    # Neither delete nor compact: there is no policy without either.
    "cleanup.policy": {
        "cleanup_policy": "delete",
        "is_policy_unknown": True,
        "retention_bytes": -1,
        "retention_ms": -1,
    },
    "retention.bytes": {"retention_bytes": -1},
    "retention.ms": {"retention_ms": -1},
}
"""Topic setting by which records are deleted → what is in force where its value is unknown.

`local.retention.*` is not among them: what goes by it is in the remote tier."""
DELETING = frozenset(
    broker for broker, topic in TOPIC_SETTINGS.items() if topic in _DELETES_NOTHING
)
"""Broker settings by which records are deleted."""


class LogDefaults:
    """The values in force; read them anew for each use."""

    def __init__(self, static: LogConfig) -> None:
        self._static = static
        self._given: tuple[Mapping[str, str], frozenset[str]] = {}, frozenset()
        self._in_force = static
        self._unknown: frozenset[str] = frozenset()

    @property
    def topic(self) -> TopicConfig:
        return self._in_force.topic_defaults

    @property
    def num_partitions(self) -> int:
        return self._in_force.num_partitions

    @property
    def retention_check_interval_ms(self) -> int:
        return self._in_force.retention_check_interval_ms

    @property
    def cleaner_io_bytes_per_second_max(self) -> float:
        return self._in_force.cleaner_io_bytes_per_second_max

    def of_topic(self, own: Mapping[str, str], *, is_internal: bool = False) -> TopicConfig:
        """The settings in force for a topic that sets `own` itself. Errors: InvalidConfig."""
        config = topic_config.parse(own, self.topic, is_stored=True, is_internal=is_internal)
        for broker in sorted(self._unknown):
            name = TOPIC_SETTINGS[broker]
            if name not in own:
                in_force: Mapping[str, Any] = _DELETES_NOTHING[name]
                config = replace(config, **in_force)
        return config

    def apply(self, configs: Mapping[str, str], unknown: Collection[str] = ()) -> bool:
        """Puts broker settings into force; whether topics get others than before.

        `unknown`: those of DELETING of which nobody can tell whether and to what they are set.
        """
        given = dict(configs), frozenset(unknown)
        if given == self._given:
            return False
        self._given = given
        before = self._in_force.topic_defaults, self._unknown
        numbers: dict[str, Any] = _numbers(configs)
        defaults, passed_over = self._topic_defaults(configs)
        self._in_force = replace(self._static, topic_defaults=defaults, **numbers)
        self._unknown = DELETING.intersection({*unknown, *passed_over})
        return before != (self._in_force.topic_defaults, self._unknown)

    def alarms(self) -> list[str]:
        """That topics delete nothing, because it is unknown when they should."""
        if not self._unknown:
            return []
        names = ", ".join(sorted(TOPIC_SETTINGS[broker] for broker in self._unknown))
        alarm = (
            f"what brokers have for {names} cannot be read: a topic that does not set all of "
            "them itself keeps what they may delete"
        )
        if "log.cleanup.policy" in self._unknown:
            alarm += "; one that does not set cleanup.policy refuses records without a key"
        return [alarm]

    def _topic_defaults(self, configs: Mapping[str, str]) -> tuple[TopicConfig, list[str]]:
        """The defaults, and the settings that were passed over."""
        defaults, passed_over = self._static.topic_defaults, []
        for broker, topic in TOPIC_SETTINGS.items():
            if broker in configs:
                try:
                    defaults = topic_config.parse(
                        {topic: configs[broker]}, defaults, is_stored=True
                    )
                except InvalidConfig as error:
                    _passed_over(broker, error)
                    passed_over.append(broker)
        return defaults, passed_over


def _numbers(configs: Mapping[str, str]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, (field_name, kind) in NUMBERS.items():
        if name in configs:
            try:
                number = kind(configs[name])
                if not number >= 1:
                    raise ValueError(f"{number} is not at least 1")
            except ValueError as error:
                _passed_over(name, error)
            else:
                numbers[field_name] = number
    return numbers


def _passed_over(name: str, error: Exception) -> None:
    log.warning("broker setting %s is passed over: %s", name, error)
