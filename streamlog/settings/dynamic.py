"""Broker settings that may be set while a node runs: their names, and changes of them. Pure.

Requests and the metadata store name settings of `[broker]` as Kafka does (`log.retention.ms`), and
others by their paths (`limits.requests_max`). `broker.log.retention.ms` is taken, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from streamlog.errors import Invalid, InvalidConfig
from streamlog.log.api import topic_config
from streamlog.log.configs.broker_synonyms import SYNONYMS, TOPIC_SETTINGS
from streamlog.settings.draft_names import DRAFT_NAMES, MISTAKEN
from streamlog.settings.schema import Knob, knobs
from streamlog.settings.values import parse

BROKER = "broker"
TOPIC_DEFAULTS = "topic-defaults"


@dataclass(frozen=True, slots=True)
class DynamicSetting:
    """`topic`: the topic setting that follows from it. `knob`: None if no table has it."""

    name: str
    topic: str | None
    knob: Knob | None


def name_of(knob: Knob) -> str:
    """The setting's name in requests."""
    return knob.name if knob.table == BROKER else knob.path


@cache
def dynamic_settings() -> Mapping[str, DynamicSetting]:
    """By name, sorted."""
    by_name = {name_of(knob): knob for knob in knobs().values() if knob.is_dynamic}
    return {
        name: DynamicSetting(name, TOPIC_SETTINGS.get(name), by_name.get(name))
        for name in sorted(by_name.keys() | TOPIC_SETTINGS.keys())
    }


def short_name(name: str) -> str:
    """Without the table, where the rest names a setting."""
    short = name.removeprefix(f"{BROKER}.")
    return short if short in dynamic_settings() or short in static_names() else name


def setting_of(name: str) -> DynamicSetting:
    """Errors: Invalid for a setting that is read at the start, InvalidConfig for an unknown one."""
    short = short_name(name)
    setting = dynamic_settings().get(short)
    if setting is not None:
        return setting
    today = {**DRAFT_NAMES, **MISTAKEN}.get(short.removeprefix(f"{BROKER}."))
    if today is not None:
        raise InvalidConfig(f"{short} is no setting: use {today}", name=short)
    topic = name.removeprefix(f"{TOPIC_DEFAULTS}.")
    if topic != name or name in SYNONYMS:
        brokers = SYNONYMS.get(topic)
        hint = f"set {brokers[0]} instead" if brokers else "set it for each topic"
        raise Invalid(f"{name[:80]} is no broker setting that changes at run time: {hint}")
    if short in static_names():
        raise Invalid(
            f"{short} is read when a node starts: change its file, environment or flags, and "
            "restart it"
        )
    near = difflib.get_close_matches(short[:80], dynamic_settings(), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidConfig(f"unknown broker setting {name[:80]!r}{hint}", name=name[:80])


@cache
def static_names() -> frozenset[str]:
    """Names of the settings that are read at the start."""
    return frozenset(name_of(knob) for knob in knobs().values() if not knob.is_dynamic)


def check(name: str, text: str) -> None:
    """Errors: InvalidConfig for a value that the setting does not take; as for `setting_of`."""
    setting = setting_of(name)
    if setting.topic is not None:
        try:
            topic_config.parse({setting.topic: text})
        except InvalidConfig as error:
            raise InvalidConfig(
                f"broker setting {setting.name}: {error.message}", name=setting.name
            ) from error
        return
    assert setting.knob is not None
    if text == "":
        raise InvalidConfig(
            f"{setting.name} has an empty value; delete it to go back to its default",
            name=setting.name,
        )
    if len(text) > topic_config.VALUE_LENGTH_MAX:
        raise InvalidConfig(f"{setting.name} has {len(text)} characters", name=setting.name)
    parse(setting.knob, text, "at run time")


def is_readable(name: str, text: str) -> bool:
    """Whether a stored value is in force. One that this version does not read is passed over."""
    setting = dynamic_settings().get(name)
    if setting is None:
        return False
    try:
        if setting.topic is not None:
            topic_config.parse({setting.topic: text}, is_stored=True)
        elif setting.knob is not None:
            parse(setting.knob, text, "at run time")
    except InvalidConfig:
        return False
    return True


def alter(
    configs: Mapping[str, str],
    *,
    set: Mapping[str, str],
    delete: Sequence[str],
    append: Mapping[str, str],
    subtract: Mapping[str, str],
    in_force: Mapping[str, str],
) -> dict[str, str]:
    """`configs` with the changes made, under the names of requests; checked.

    `in_force`: values of settings that hold lists, which append and subtract begin with where
    `configs` has none. What another version stored can be deleted. Errors: Invalid, InvalidConfig.
    """
    changed = dict(configs)
    for name in delete:
        changed.pop(name if name in changed else setting_of(name).name, None)
    for name, text in set.items():
        check(name, text)
        changed[setting_of(name).name] = text
    for name in (*append, *subtract):
        setting = setting_of(name)
        if setting.topic is None:
            raise InvalidConfig(
                f"{name[:80]} holds one value; set it instead of appending or subtracting",
                name=setting.name,
            )
        begin = changed.get(setting.name, in_force.get(setting.name, ""))
        changed[setting.name] = topic_config.alter(
            {setting.topic: begin},
            set={},
            delete=(),
            append={setting.topic: append[name]} if name in append else {},
            subtract={setting.topic: subtract[name]} if name in subtract else {},
        )[setting.topic]
    given = [setting_of(name) for name in (*set, *append, *subtract)]
    topic_config.parse(
        {setting.topic: changed[setting.name] for setting in given if setting.topic is not None}
    )
    return changed
