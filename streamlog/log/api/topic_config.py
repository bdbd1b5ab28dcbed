"""Topic settings under Kafka's exact names: one frozen class, parsed from and checked as text.

A field's Kafka name is its own with dots for underscores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from streamlog.errors import InvalidConfig
from streamlog.runtime.config import setting

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
DAY_MS = 24 * 60 * 60 * 1000
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Defaults and least values are Kafka 4.1's."""

    cleanup_policy: str = setting(
        "delete", "What happens to old segments. Compaction comes later.", choices=("delete",)
    )
    compression_type: str = setting(
        "producer", "Batches are stored as the producer compressed them.", choices=("producer",)
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of data per time index entry of 12 bytes. More: smaller index, longer timestamp "
        "look-ups.",
        minimum=0,
        maximum=INT32_MAX,
    )
    internal_segment_bytes: int = setting(
        0,
        "For tests: takes the place of segment.bytes, without its least value; 0: not set.",
        minimum=0,
        maximum=INT32_MAX,
    )
    max_message_bytes: int = setting(
        1_048_588,
        "Largest record batch, bytes, as it is sent (compressed). At most what one message carries "
        "(limits.message_bytes_max less 1 KiB) and one append takes "
        "(engine.append.batch_bytes_max). Larger batches cost fewer requests and less overhead per "
        "record; each holds up those behind it, and needs as much memory at once in producer, node "
        "and consumer.",
        minimum=0,
        maximum=INT32_MAX,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, "How far a record's timestamp may be ahead of the server's clock.", minimum=0
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX, "How far a record's timestamp may be behind the server's clock.", minimum=0
    )
    message_timestamp_type: str = setting(
        CREATE_TIME,
        "Whose clock stamps records. LogAppendTime makes the server compute each batch's CRC anew.",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
    )
    min_insync_replicas: int = setting(
        1, "Durability is the store's, not that of replicas: 1.", minimum=1, maximum=1
    )
    retention_bytes: int = setting(
        -1, "Oldest segments go while the partition is larger; -1: no limit.", minimum=-1
    )
    retention_ms: int = setting(
        7 * DAY_MS,
        "Segments go when their newest record is older; -1: never. Longer costs storage.",
        minimum=-1,
    )
    segment_bytes: int = setting(
        1 << 30,
        "A new segment starts before this one grows larger; a record batch must fit into one. "
        "Smaller: retention is more exact, for whole segments go, at the price of more meta "
        "records.",
        minimum=1 << 20,
        maximum=INT32_MAX,
    )
    segment_jitter_ms: int = setting(
        0,
        "Random part of segment.ms that is left out, so that partitions do not roll at once.",
        minimum=0,
    )
    segment_ms: int = setting(
        7 * DAY_MS, "A new segment starts when records span more time than this.", minimum=1
    )


DEFAULTS = TopicConfig()
LISTS = frozenset({"cleanup.policy"})
"""Settings that hold several values, which append and subtract work on."""
INTERNAL = frozenset({"internal.segment.bytes"})
"""Settings for tests, which are not listed; Kafka has the same one."""
MAX_MESSAGE_BYTES = "max.message.bytes"
VALUE_LENGTH_MAX = 1000
"""Characters of a setting that is given. A topic's record holds texts of 65,535 bytes."""
_LATER = "it would have no effect yet: it comes with "
REFUSED = {
    "delete.retention.ms": _LATER + "compaction",
    "max.compaction.lag.ms": _LATER + "compaction",
    "min.cleanable.dirty.ratio": _LATER + "compaction",
    "min.compaction.lag.ms": _LATER + "compaction",
    "local.retention.bytes": _LATER + "tiered storage",
    "local.retention.ms": _LATER + "tiered storage",
    "remote.storage.enable": _LATER + "tiered storage",
    "file.delete.delay.ms": "it would have no effect: a partition has no files of its own, and "
    "objects hold data of many topics; the node's setting engine.collector.deletion_delay_ms says "
    "when removed data leaves the store",
}
"""Kafka's settings that a topic cannot have here → why."""


@cache
def names() -> Mapping[str, str]:
    """Kafka's name → field name, by name; those for tests included."""
    return {field.name.replace("_", "."): field.name for field in fields(TopicConfig)}


@cache
def public_names() -> Sequence[str]:
    """Kafka's names, sorted; without those for tests."""
    return sorted(names().keys() - INTERNAL)


@cache
def _metadata(field_name: str) -> Mapping[str, Any]:
    return next(field.metadata for field in fields(TopicConfig) if field.name == field_name)


def documentation(name: str) -> str:
    return str(rule_of(name)["doc"])


def rule_of(name: str) -> Mapping[str, Any]:
    """`doc`, `minimum`, `maximum` and `choices` of a setting. Errors: InvalidConfig."""
    return _metadata(_known(name))


def value_of(config: TopicConfig, name: str) -> str:
    """The setting as text. Errors: InvalidConfig for an unknown name."""
    return str(getattr(config, _known(name)))


def overrides(config: TopicConfig, defaults: TopicConfig = DEFAULTS) -> dict[str, str]:
    """The settings that differ from the defaults, as text, by name."""
    return {
        name: value_of(config, name)
        for name in sorted(names())
        if getattr(config, names()[name]) != getattr(defaults, names()[name])
    }


def parse(
    configs: Mapping[str, str], defaults: TopicConfig = DEFAULTS, *, is_stored: bool = False
) -> TopicConfig:
    """The settings with `configs` in force.

    `is_stored`: they were accepted once, so names of another version are passed over, and values
    beyond today's bounds stay. Errors: InvalidConfig.
    """
    values = {field.name: getattr(defaults, field.name) for field in fields(TopicConfig)}
    for name, text in configs.items():
        if is_stored and name not in names():
            continue
        values[_known(name)] = _parse_one(name, text, is_stored=is_stored)
    if values["internal_segment_bytes"]:
        values["segment_bytes"] = values["internal_segment_bytes"]
    return TopicConfig(**values)


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
) -> dict[str, str]:
    """`configs` with the changes made, in the order delete, set, append, subtract; checked.

    Errors: InvalidConfig.
    """
    changed = dict(configs)
    for name in delete:
        _known(name)
        changed.pop(name, None)
    for name, text in set.items():
        _parse_one(name, text)
        changed[name] = text
    for name, text in append.items():
        changed[name] = ",".join(_list_of(name, changed, defaults) + _split(text, name))
    for name, text in subtract.items():
        gone = _split(text, name)
        left = [value for value in _list_of(name, changed, defaults) if value not in gone]
        changed[name] = ",".join(left)
    for name in (*append, *subtract):
        unique = dict.fromkeys(_split(changed[name], name))
        changed[name] = ",".join(unique)
        _parse_one(name, changed[name])
    return changed


def _list_of(name: str, configs: Mapping[str, str], defaults: TopicConfig) -> list[str]:
    return _split(configs.get(name, value_of(defaults, name)), name)


def _split(text: str, name: str) -> list[str]:
    _known(name)
    if name not in LISTS:
        raise InvalidConfig(f"{name} holds one value; set it instead of appending or subtracting")
    return [value.strip() for value in text.split(",") if value.strip()]


def _known(name: str) -> str:
    """The field name."""
    if not isinstance(name, str):
        raise InvalidConfig(f"a topic setting's name is text, not {name!r}")
    field_name = names().get(name)
    if field_name is not None:
        return field_name
    if name in REFUSED:
        raise InvalidConfig(f"{name} is not supported: {REFUSED[name]}", name=name)
    near = get_close_matches(name[:80].replace("_", ".").lower(), names(), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(public_names())}"
    raise InvalidConfig(f"unknown topic setting {name[:80]!r}{hint}", name=name[:80])


def _parse_one(name: str, text: str, *, is_stored: bool = False) -> Any:
    field_name = _known(name)
    rule = _metadata(field_name)
    if not isinstance(text, str):
        raise InvalidConfig(f"{name} is {text!r}, but must be given as text", name=name)
    if len(text) > VALUE_LENGTH_MAX and not is_stored:
        raise InvalidConfig(
            f"{name} has {len(text)} characters, but must have {VALUE_LENGTH_MAX} at most",
            name=name,
        )
    if isinstance(getattr(DEFAULTS, field_name), int):
        return _parse_number(name, text, {} if is_stored else rule)
    if text in rule["choices"]:
        return text
    if name == "cleanup.policy" and "compact" in text:
        raise InvalidConfig(
            f"cleanup.policy={text} is not supported yet: compaction comes later; use delete",
            name=name,
        )
    raise InvalidConfig(
        f"{name} is {text!r}, but must be {' or '.join(rule['choices'])}", name=name
    )


def _parse_number(name: str, text: str, rule: Mapping[str, Any]) -> int:
    least, most = rule.get("minimum", -INT64_MAX), rule.get("maximum") or INT64_MAX
    try:
        number = int(text)
    except ValueError:
        raise InvalidConfig(f"{name} is {text!r}, but must be a whole number", name=name) from None
    if not least <= number <= most:
        raise InvalidConfig(f"{name} is {number}, but must be {least} to {most}", name=name)
    return number
