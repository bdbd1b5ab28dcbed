"""Settings as clients see them: each with its value, its source, and the values behind it. Pure.

What counts, first match wins, as in Kafka: the topic's own setting, what was set at run time for
this node, for all nodes, what the node got from file, environment or flags, the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from streamlog.errors import InvalidConfig
from streamlog.log.api import topic_config
from streamlog.log.api.topic_config import INT32_MAX, ConfigType
from streamlog.log.configs.broker_synonyms import SYNONYMS, TOPIC_SETTINGS
from streamlog.settings import Settings
from streamlog.settings.dynamic import (
    BROKER,
    TOPIC_DEFAULTS,
    DynamicSetting,
    dynamic_settings,
    is_readable,
    name_of,
)
from streamlog.settings.load import ShownSetting
from streamlog.settings.schema import Knob, knobs
from streamlog.settings.values import written

DEFAULT = "default"
_SECRETS = ("password", "secret")


class ConfigSource(Enum):
    """Where a value comes from, with Kafka's numbers."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    """One of the values behind a setting; the first one counts."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """`kafka_name`: its name over Kafka's protocol; empty where it is not shown there."""

    name: str
    value: str
    source: str
    is_read_only: bool
    documentation: str
    default: str
    configured: str = ""
    """The value that was given, where it is capped and another is in force; else empty."""
    kafka_name: str = ""
    kafka_source: ConfigSource = ConfigSource.DEFAULT
    type: ConfigType = ConfigType.STRING
    synonyms: tuple[Synonym, ...] = ()

    @property
    def is_sensitive(self) -> bool:
        """Whether its value must not be shown."""
        return any(word in self.name for word in _SECRETS)


class Layers:
    """What was set at run time for this node and for all, over what the node was started with."""

    def __init__(
        self,
        settings: Settings,
        node_id: int,
        own: Mapping[str, str],
        all_nodes: Mapping[str, str],
    ) -> None:
        self.settings = settings
        self.node_id = node_id
        self._own = _in_force(own)
        self._all_nodes = _in_force(all_nodes)
        self._static = settings.topic_config()
        self._defaults = {name: self._default_entry(name) for name in topic_config.public_names()}

    def topic_entries(
        self, configs: Mapping[str, str], capped: Mapping[str, str]
    ) -> list[ConfigEntry]:
        """A topic's settings. `capped`: those above what the node carries → the value in force."""
        entries = []
        for name, default in self._defaults.items():
            entry = default
            if name in configs:
                own = Synonym(name, _as_shown(name, configs[name]), ConfigSource.TOPIC)
                entry = replace(
                    entry,
                    value=own.value,
                    source="topic",
                    kafka_source=own.source,
                    synonyms=(own, *entry.synonyms),
                )
            if name in capped:
                entry = replace(entry, value=capped[name], configured=entry.value)
            entries.append(entry)
        return entries

    def _default_entry(self, name: str) -> ConfigEntry:
        """The setting of a topic that does not set it."""
        at_run_time = list(self._at_run_time(name))
        static = topic_config.value_of(self._static, name)
        behind = _that_count((*at_run_time, *self._at_the_start(name)), name)
        source = behind[0].source if behind else ConfigSource.DEFAULT
        value = at_run_time[0].value if at_run_time else static
        return ConfigEntry(
            name,
            value,
            self._text(source, static="broker"),
            False,
            topic_config.documentation(name),
            value,
            kafka_name=name,
            kafka_source=source,
            type=topic_config.type_of(name),
            synonyms=behind,
        )

    def _at_run_time(self, topic: str) -> Iterator[Synonym]:
        """The values behind a topic setting that were set for this node, and for all."""
        for name in SYNONYMS.get(topic, ())[:1]:
            for synonym in self._set(name):
                yield replace(synonym, value=_as_shown(topic, synonym.value))

    def _set(self, name: str) -> Iterator[Synonym]:
        if name in self._own:
            yield Synonym(name, self._own[name], ConfigSource.BROKER)
        if name in self._all_nodes:
            yield Synonym(name, self._all_nodes[name], ConfigSource.ALL_BROKERS)

    def _at_the_start(self, topic: str) -> Iterator[Synonym]:
        """The values behind a topic setting that the node was started with, and the default."""
        sources, brokers = self.settings.sources, SYNONYMS.get(topic, ())
        path = f"{TOPIC_DEFAULTS}.{topic}"
        if path in sources:
            value = topic_config.value_of(self._static, topic)
            yield Synonym(path, value, ConfigSource.STATIC_BROKER)
        if not brokers:
            return
        default = Synonym(
            brokers[-1],
            topic_config.value_of(topic_config.DEFAULTS, topic),
            ConfigSource.DEFAULT,
        )
        for broker in brokers:
            knob = knobs().get(f"{BROKER}.{broker}")
            if knob is None:
                continue
            if knob.path in sources:
                text = written(getattr(self.settings.broker, knob.field))
                yield Synonym(broker, text, ConfigSource.STATIC_BROKER)
            if knob.default is not None:
                default = Synonym(broker, written(knob.default), ConfigSource.DEFAULT)
        yield default

    def _text(self, source: ConfigSource, *, static: str) -> str:
        """The source for people."""
        if source is ConfigSource.TOPIC:
            return "topic"
        if source is ConfigSource.BROKER:
            return f"broker {self.node_id} at run time"
        if source is ConfigSource.ALL_BROKERS:
            return "all brokers at run time"
        return static

    def broker_entries(self) -> list[ConfigEntry]:
        """All settings of the node, and at the end those that only topics follow."""
        shown = [self._shown_entry(setting) for setting in self.settings.show()]
        others = [
            self._unlisted_entry(setting)
            for setting in dynamic_settings().values()
            if setting.knob is None
        ]
        return shown + others

    def _shown_entry(self, shown: ShownSetting) -> ConfigEntry:
        knob = knobs().get(shown.path)
        if knob is None:
            return self._topic_default_entry(shown)
        name = name_of(knob)
        own = [*self._set(name), *_static(knob, shown.value, shown.source)]
        behind = [*own, *self._units_behind(knob)] if own else []
        return ConfigEntry(
            shown.path,
            own[0].value if own else shown.value,
            self._text(own[0].source, static=shown.source) if own else shown.source,
            name not in dynamic_settings(),
            shown.doc,
            shown.default,
            kafka_name=name,
            kafka_source=behind[0].source if behind else ConfigSource.DEFAULT,
            type=_type(knob),
            synonyms=tuple(behind),
        )

    def _units_behind(self, knob: Knob) -> Iterator[Synonym]:
        """What counts where the setting is not given: log.retention.hours behind the minutes."""
        units = next((group for group in SYNONYMS.values() if knob.name in group), ())
        for name in units[units.index(knob.name) + 1 :] if knob.table == BROKER and units else ():
            behind = knobs()[f"{BROKER}.{name}"]
            value = written(getattr(self.settings.broker, behind.field))
            yield from _static(behind, value, self.settings.sources.get(behind.path, DEFAULT))

    def _topic_default_entry(self, shown: ShownSetting) -> ConfigEntry:
        topic = shown.path.removeprefix(f"{TOPIC_DEFAULTS}.")
        behind = tuple(self._at_run_time(topic))
        return ConfigEntry(
            shown.path,
            behind[0].value if behind else shown.value,
            self._text(behind[0].source, static=shown.source) if behind else shown.source,
            True,
            shown.doc,
            shown.default,
            kafka_source=behind[0].source if behind else _static_source(shown),
        )

    def _unlisted_entry(self, setting: DynamicSetting) -> ConfigEntry:
        """A broker setting that `[broker]` lacks, and that a topic setting follows from."""
        topic = TOPIC_SETTINGS[setting.name]
        entry = self._defaults[topic]
        is_unset = len(SYNONYMS[topic]) > 1 and entry.kafka_source is ConfigSource.DEFAULT
        return replace(
            entry,
            value="" if is_unset else entry.value,
            name=f"{BROKER}.{setting.name}",
            source=self._text(entry.kafka_source, static=DEFAULT),
            default=topic_config.value_of(topic_config.DEFAULTS, entry.name),
            kafka_name=setting.name,
        )


def _in_force(configs: Mapping[str, str]) -> dict[str, str]:
    """Without what this version passes over."""
    return {name: text for name, text in configs.items() if is_readable(name, text)}


def _as_shown(topic: str, text: str) -> str:
    """The value as the node understands it: true for TRUE, without spaces."""
    try:
        value = topic_config.parse({topic: text}, is_stored=True)
    except InvalidConfig:
        return text
    return topic_config.value_of(value, topic)


def _that_count(synonyms: tuple[Synonym, ...], topic: str) -> tuple[Synonym, ...]:
    """None where there is but the default of another unit: Kafka shows log.retention.hours only
    behind a log.retention.ms that was set."""
    if not synonyms or synonyms[0].source is not ConfigSource.DEFAULT:
        return synonyms
    return synonyms if synonyms[0].name == SYNONYMS[topic][0] else ()


def _static_source(shown: ShownSetting) -> ConfigSource:
    is_given = shown.source not in (DEFAULT, BROKER)
    return ConfigSource.STATIC_BROKER if is_given else ConfigSource.DEFAULT


def _static(knob: Knob, value: str, source: str) -> Iterator[Synonym]:
    """What the node was started with, and the default."""
    name = name_of(knob)
    if source != DEFAULT:
        yield Synonym(name, value, ConfigSource.STATIC_BROKER)
    default = written(knob.default)
    if default == "" and source == DEFAULT:
        default = value  # It depends on the mode of the node.
    if default:
        yield Synonym(name, default, ConfigSource.DEFAULT)


def _type(knob: Knob) -> ConfigType:
    if knob.kind is bool:
        return ConfigType.BOOLEAN
    if knob.kind is float:
        return ConfigType.DOUBLE
    if knob.kind is int:
        most = knob.maximum
        return ConfigType.INT if most is not None and most <= INT32_MAX else ConfigType.LONG
    return ConfigType.LIST if knob.name == "log.cleanup.policy" else ConfigType.STRING
