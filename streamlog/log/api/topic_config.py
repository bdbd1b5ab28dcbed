"""Topic settings as text: parsed, checked, changed, under Kafka's exact names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any

from streamlog.errors import InvalidConfig
from streamlog.log.configs.topic_fields import (
    CREATE_TIME,
    DAY_MS,
    INT32_MAX,
    INT64_MAX,
    KEPT,
    LOG_APPEND_TIME,
    OF_FILES,
    REFUSED,
    UNKNOWN_SINCE_4,
    TopicConfig,
)

__all__ = [
    "CREATE_TIME",
    "DAY_MS",
    "DEFAULTS",
    "INT32_MAX",
    "INT64_MAX",
    "KEPT",
    "LOG_APPEND_TIME",
    "REFUSED",
    "ConfigType",
    "TopicConfig",
    "alter",
    "capped",
    "check_message_bytes",
    "documentation",
    "names",
    "overrides",
    "parse",
    "public_names",
    "rule_of",
    "type_of",
    "value_of",
]


class ConfigType(Enum):
    """Kafka's types of settings, with the numbers that DescribeConfigs has for them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


DEFAULTS = TopicConfig()
LISTS = frozenset(
    {
        "cleanup.policy",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
    }
)
"""Settings that hold several values, which append and subtract work on."""
INTERNAL = frozenset({"internal.segment.bytes"})
"""Settings for tests, which are not listed; Kafka has the same one."""
MAX_MESSAGE_BYTES = "max.message.bytes"
LOG_TYPE = "log.type"
AS_WHOLE = -2
"""Of `local.retention.*`: what `retention.*` is."""
_OF_UNIFIED = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "remote.copy.lag.bytes",
        "remote.copy.lag.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
)
"""Settings of which unified topics take values that are refused to others."""
VALUE_LENGTH_MAX = 1000
"""Characters of a setting that is given. A topic's record holds texts of 65,535 bytes."""
_REPLICA = re.compile(r"[0-9]+:[0-9]+\Z")
_WHOLE = re.compile(r"[+-]?[0-9]+\Z")
_NEVER_PASSED_OVER = frozenset({"remote.storage.enable"})
"""Stored values of these that this version refuses make the topic unusable: what it did with the
topic's data would be wrong."""


@cache
def names() -> Mapping[str, str]:
    """Kafka's name → field name, by name; those for tests included."""
    settings = [field.name for field in fields(TopicConfig) if field.metadata]
    return {name.replace("_", "."): name for name in settings}


@cache
def public_names() -> Sequence[str]:
    """Kafka's names of all topic settings, sorted; without those for tests."""
    return sorted(names().keys() - INTERNAL)


@cache
def _metadata(field_name: str) -> Mapping[str, Any]:
    return next(field.metadata for field in fields(TopicConfig) if field.name == field_name)


def documentation(name: str) -> str:
    """What the setting does, and, where it has no effect or only one value, why."""
    doc = str(rule_of(name)["doc"])
    if name in OF_FILES:
        return f"{doc} Has an effect with log.type=unified; kept and shown on others: {KEPT[name]}."
    if name in KEPT:
        return f"{doc} Kept and shown, without effect: {KEPT[name]}."
    if name in _OF_UNIFIED:
        reason = REFUSED[name]
        return f"{doc} With log.type=shared only the default is accepted: {reason}."
    if name in REFUSED:
        return f"{doc} Only the default is accepted: {REFUSED[name]}."
    return doc


def rule_of(name: str) -> Mapping[str, Any]:
    """`doc`, `minimum`, `maximum` and `choices` of a setting. Errors: InvalidConfig."""
    return _metadata(_known(name))


def type_of(name: str) -> ConfigType:
    """Errors: InvalidConfig for an unknown name."""
    value = getattr(DEFAULTS, _known(name))
    if name in LISTS:
        return ConfigType.LIST
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, float):
        return ConfigType.DOUBLE
    if isinstance(value, int):
        is_small = (rule_of(name)["maximum"] or INT64_MAX) <= INT32_MAX
        return ConfigType.INT if is_small else ConfigType.LONG
    return ConfigType.STRING


def value_of(config: TopicConfig, name: str) -> str:
    """The setting as text. Errors: InvalidConfig for an unknown name."""
    value = getattr(config, _known(name))
    return str(value).lower() if isinstance(value, bool) else str(value)


def overrides(config: TopicConfig, defaults: TopicConfig = DEFAULTS) -> dict[str, str]:
    """The settings that differ from the defaults, as text, by name."""
    return {
        name: value_of(config, name)
        for name in sorted(names())
        if getattr(config, names()[name]) != getattr(defaults, names()[name])
    }


def parse(
    configs: Mapping[str, str],
    defaults: TopicConfig = DEFAULTS,
    *,
    is_stored: bool = False,
    is_internal: bool = False,
) -> TopicConfig:
    """The settings with `configs` in force.

    `is_stored`: they were accepted once, so names of another version are passed over, and values
    beyond today's bounds stay. `is_internal`: they are a node's own topic's, which may have what is
    refused to others. Errors: InvalidConfig.
    """
    values = {field.name: getattr(defaults, field.name) for field in fields(TopicConfig)}
    for name, text in configs.items():
        if is_stored and name not in names():
            continue
        is_free = is_internal or (name in _OF_UNIFIED and _is_unified(configs))
        values[_known(name)] = _parse_one(name, text, is_stored, is_free)
    if values["internal_segment_bytes"]:
        values["segment_bytes"] = values["internal_segment_bytes"]
    lags = configs.keys() & {"min.compaction.lag.ms", "max.compaction.lag.ms"}
    is_lag_wrong = values["min_compaction_lag_ms"] > values["max_compaction_lag_ms"]
    if lags and is_lag_wrong and not is_stored:
        raise InvalidConfig(
            "min.compaction.lag.ms is above max.compaction.lag.ms: lower it, or raise the other",
            name="min.compaction.lag.ms",
        )
    config = TopicConfig(**values)
    if not is_stored:
        _check_tiers(config, configs)
    return config


def _check_tiers(config: TopicConfig, configs: Mapping[str, str]) -> None:
    """Errors: InvalidConfig, where the settings given do not go together with the others."""
    if config.remote_storage_enable and config.is_compacted:
        raise InvalidConfig(
            "remote.storage.enable=true does not go with cleanup.policy=compact: a compacted topic "
            "has no closed part that stays as it is",
            name="remote.storage.enable",
        )
    if config.remote_storage_enable:
        _check_local_retention(config, configs)
        _check_copy_lags(config, configs)


def _check_local_retention(config: TopicConfig, configs: Mapping[str, str]) -> None:
    """Errors: InvalidConfig. Source: Kafka's LogConfig, which asks it of tiered topics alone."""
    switches = {"remote.storage.enable", "remote.log.copy.disable"}
    for local, limit, whole in (
        ("local.retention.ms", config.local_retention_ms, config.retention_ms),
        ("local.retention.bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        general = local.removeprefix("local.")
        if not configs.keys() & {local, general, *switches} or limit == AS_WHOLE:
            continue
        if whole != -1 and (limit == -1 or limit > whole):
            raise InvalidConfig(
                f"{local}={limit} is more than {general}={whole}: the local part of a log is a "
                "part of the whole",
                name=local,
            )
        if config.remote_log_copy_disable and limit != whole:
            raise InvalidConfig(
                f"{local}={limit} is another than {general}={whole}, and with "
                "remote.log.copy.disable=true no segment leaves for the remote tier: the node "
                f"keeps all that {general} says; set {local} to the same, or to {AS_WHOLE}",
                name=local,
            )


def _check_copy_lags(config: TopicConfig, configs: Mapping[str, str]) -> None:
    """Errors: InvalidConfig, for a segment that would be deleted before it may be copied."""
    limit_bytes, limit_ms = config.local_limits
    for name, lag, local, limit in (
        ("remote.copy.lag.ms", config.remote_copy_lag_ms, "local.retention.ms", limit_ms),
        (
            "remote.copy.lag.bytes",
            config.remote_copy_lag_bytes,
            "local.retention.bytes",
            limit_bytes,
        ),
    ):
        if lag > limit >= 0 and configs.keys() & {name, local, local.removeprefix("local.")}:
            raise InvalidConfig(
                f"{name}={lag} is more than {local}, in force {limit}: the node would keep for "
                "longer what it may delete",
                name=name,
            )


def check_message_bytes(configs: Mapping[str, str], bound: int) -> None:
    """`bound`: bytes of the largest record batch that a message carries and an append takes.

    Errors: InvalidConfig, with the bound in `max_bytes`.
    """
    text = configs.get(MAX_MESSAGE_BYTES)
    if text is not None and int(text) > bound:
        raise InvalidConfig(
            f"{MAX_MESSAGE_BYTES} is {int(text)}, but a record batch of more than {bound} bytes "
            "cannot be sent: set it to that or less, or raise the node's limits.message_bytes_max, "
            "engine.append.batch_bytes_max and, with wal=disk, engine.wal.wal_bytes_max",
            name=MAX_MESSAGE_BYTES,
            max_bytes=bound,
        )


def capped(config: TopicConfig, bound: int) -> TopicConfig:
    """The settings in force where a record batch has at most `bound` bytes."""
    if config.max_message_bytes <= bound:
        return config
    return replace(config, max_message_bytes=bound)


def alter(
    configs: Mapping[str, str],
    *,
    set: Mapping[str, str],
    delete: Sequence[str],
    append: Mapping[str, str],
    subtract: Mapping[str, str],
    defaults: TopicConfig = DEFAULTS,
    is_internal: bool = False,
) -> dict[str, str]:
    """`configs` with the changes made, in the order delete, set, append, subtract; checked.

    A setting that another version stored can be deleted. Errors: InvalidConfig.
    """
    changed = dict(configs)
    for name in delete:
        if name not in changed:
            _known(name)
        changed.pop(name, None)
    is_free = is_internal or _is_unified(changed)
    for name, text in set.items():
        _parse_one(name, text, is_free=is_free and name in _OF_UNIFIED)
        changed[name] = text
    for name, text in append.items():
        changed[name] = ",".join(_list_of(name, changed, defaults) + _split(text, name))
    for name, text in subtract.items():
        gone = _split(text, name)
        left = [value for value in _list_of(name, changed, defaults) if value not in gone]
        changed[name] = ",".join(left)
    for name in (*append, *subtract):
        changed[name] = ",".join(dict.fromkeys(_split(changed[name], name)))
        _parse_one(name, changed[name], is_free=is_free and name in _OF_UNIFIED)
    altered = {name: changed[name] for name in (*set, *append, *subtract)}
    if LOG_TYPE in changed:
        altered.setdefault(LOG_TYPE, changed[LOG_TYPE])
    parse(altered, parse(changed, defaults, is_stored=True, is_internal=is_internal))
    return changed


def _list_of(name: str, configs: Mapping[str, str], defaults: TopicConfig) -> list[str]:
    return _split(configs.get(name, value_of(defaults, name)), name)


def _split(text: str, name: str) -> list[str]:
    _known(name)
    if name not in LISTS:
        raise InvalidConfig(
            f"{name} holds one value; set it instead of appending or subtracting", name=name
        )
    return _values(_checked_text(name, text))


def _values(text: str) -> list[str]:
    return [value.strip() for value in text.split(",") if value.strip()]


def _known(name: str) -> str:
    """The field name."""
    if not isinstance(name, str):
        raise InvalidConfig(f"a topic setting's name is text, not {name!r}")
    field_name = names().get(name)
    if field_name is not None:
        return field_name
    if name in UNKNOWN_SINCE_4:
        raise InvalidConfig(f"{name} is not supported: {UNKNOWN_SINCE_4[name]}", name=name)
    near = get_close_matches(name[:80].replace("_", ".").lower(), names(), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(public_names())}"
    raise InvalidConfig(f"unknown topic setting {name[:80]!r}{hint}", name=name[:80])


def _checked_text(name: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidConfig(f"{name} is {text!r}, but must be given as text", name=name)
    return text


def _is_unified(configs: Mapping[str, str]) -> bool:
    return configs.get(LOG_TYPE) == "unified"


def _parse_one(name: str, text: str, is_stored: bool = False, is_free: bool = False) -> Any:
    """The value, which is Kafka's own for the setting, and one that is accepted here.

    `is_free`: it may be one that other topics are refused.
    """
    field_name = _known(name)
    _checked_text(name, text)
    if len(text) > VALUE_LENGTH_MAX and not is_stored:
        raise InvalidConfig(
            f"{name} has {len(text)} characters, but must have {VALUE_LENGTH_MAX} at most",
            name=name,
        )
    default = getattr(DEFAULTS, field_name)
    value = _typed(name, text, _metadata(field_name), default, is_stored=is_stored)
    is_checked = not is_free and (not is_stored or name in _NEVER_PASSED_OVER)
    if name in REFUSED and value != default and is_checked:
        raise InvalidConfig(f"{name}={text[:80]} is not supported: {REFUSED[name]}", name=name)
    return value


def _typed(
    name: str, text: str, rule: Mapping[str, Any], default: object, *, is_stored: bool
) -> Any:
    if isinstance(default, bool):
        return _parse_flag(name, text)
    if isinstance(default, float):
        return _parse_fraction(name, text, rule)
    if isinstance(default, int):
        return _parse_number(name, text, {} if is_stored else rule)
    if name in LISTS:
        return _parse_list(name, text, rule["choices"])
    if text in rule["choices"]:
        return text
    raise InvalidConfig(
        f"{name} is {text!r}, but must be {' or '.join(rule['choices'])}", name=name
    )


def _parse_flag(name: str, text: str) -> bool:
    flag = text.strip().lower()
    if flag not in ("true", "false"):
        raise InvalidConfig(f"{name} is {text!r}, but must be true or false", name=name)
    return flag == "true"


def _parse_fraction(name: str, text: str, rule: Mapping[str, Any]) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InvalidConfig(f"{name} is {text!r}, but must be a number", name=name) from None
    least, most = rule["minimum"], rule["maximum"]
    if not least <= number <= most:
        raise InvalidConfig(f"{name} is {text}, but must be {least} to {most}", name=name)
    return number


def _parse_number(name: str, text: str, rule: Mapping[str, Any]) -> int:
    least, most = rule.get("minimum", -INT64_MAX), rule.get("maximum") or INT64_MAX
    try:
        if not _WHOLE.match(text.strip()):
            raise ValueError
        number = int(text)
    except ValueError:
        raise InvalidConfig(f"{name} is {text!r}, but must be a whole number", name=name) from None
    if name == "retention.bytes":
        number = max(-1, number)  # Kafka takes any negative number for no limit.
    if not least <= number <= most:
        raise InvalidConfig(f"{name} is {number}, but must be {least} to {most}", name=name)
    if name == "compression.gzip.level" and number == 0:
        raise InvalidConfig(f"{name} is 0, but must be -1 or 1 to 9", name=name)
    return number


def _parse_list(name: str, text: str, choices: tuple[str, ...]) -> str:
    """The values without repetition and spaces, joined by commas."""
    values = list(dict.fromkeys(_values(text)))
    if choices:
        if not values or not set(values) <= set(choices):
            raise InvalidConfig(
                f"{name} is {text!r}, but must be of {', '.join(choices)}", name=name
            )
    elif values != ["*"] and not all(_REPLICA.match(value) for value in values):
        raise InvalidConfig(
            f"{name} is {text[:80]!r}, but must be *, or partition:broker, as in 0:1,1:1", name=name
        )
    return ",".join(values)
