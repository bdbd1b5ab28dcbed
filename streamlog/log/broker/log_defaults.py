"""What topics get that set nothing themselves, and other settings that change at run time.

The static part comes from LogConfig; broker settings that were set at run time lie over it. One
that cannot be read is passed over with a warning: another version may have stored it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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


class LogDefaults:
    """The values in force; read them anew for each use."""

    def __init__(self, static: LogConfig) -> None:
        self._static = static
        self._configs: Mapping[str, str] = {}
        self._in_force = static

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

    def apply(self, configs: Mapping[str, str]) -> bool:
        """Puts broker settings into force; whether topics get others than before."""
        if configs == self._configs:
            return False
        self._configs = dict(configs)
        before = self._in_force.topic_defaults
        numbers: dict[str, Any] = _numbers(configs)
        defaults = self._topic_defaults(configs)
        self._in_force = replace(self._static, topic_defaults=defaults, **numbers)
        return before != self._in_force.topic_defaults

    def _topic_defaults(self, configs: Mapping[str, str]) -> TopicConfig:
        defaults = self._static.topic_defaults
        for broker, topic in TOPIC_SETTINGS.items():
            if broker in configs:
                try:
                    defaults = topic_config.parse(
                        {topic: configs[broker]}, defaults, is_stored=True
                    )
                except InvalidConfig as error:
                    _passed_over(broker, error)
        return defaults


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
