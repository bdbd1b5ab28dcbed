"""Settings from flags, environment, file and defaults, in this order of precedence."""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streamlog.codec.choice import VARIABLE as CODEC
from streamlog.coordinator.config import KAFKA_NAMES as TRANSACTION_NAMES
from streamlog.coordinator.config import TransactionConfig
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import InvalidConfig
from streamlog.log.api import topic_config
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import TopicConfig
from streamlog.settings.broker import BrokerConfig
from streamlog.settings.draft_names import MISTAKEN
from streamlog.settings.earlier_names import TOPIC_DEFAULTS, Given, by_todays_names
from streamlog.settings.limits import MESSAGE_OVERHEAD_BYTES_MAX, LimitsConfig
from streamlog.settings.node import KAFKA_ANY, KAFKA_DEV, NodeConfig
from streamlog.settings.schema import TABLES, Knob, build, knobs, variables
from streamlog.settings.tls import TlsConfig
from streamlog.settings.values import parse, written
from streamlog.tiered.config import KAFKA_NAMES as REMOTE_LOG_NAMES
from streamlog.tiered.config import RemoteLogConfig

log = logging.getLogger(__name__)

PREFIX = "STREAMLOG_"
NOT_SETTINGS = frozenset(
    {
        "STREAMLOG_SERVER",
        "STREAMLOG_CONFIG",
        "STREAMLOG_JSON",
        "STREAMLOG_TLS",
        "STREAMLOG_TLS_CA",
        "STREAMLOG_TLS_CERT",
        "STREAMLOG_TLS_KEY",
        "STREAMLOG_TLS_SERVER_NAME",
        CODEC,
    }
)
"""Variables of the command line itself, and of code that runs before settings are read."""
PLUGIN_PREFIXES = {
    "remote.log.storage.manager.impl.prefix": "storage_configs",
    "remote.log.metadata.manager.impl.prefix": "metadata_configs",
}
"""What says with what the settings begin that a plug-in of tiered storage gets → the field of
RemoteLogConfig for them."""


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """`source`: default, file, environment or flag, with its place."""

    path: str
    value: str
    source: str
    default: str
    doc: str
    is_dynamic: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a node. `topic_overrides` has Kafka's topic-level names."""

    node: NodeConfig = field(default_factory=NodeConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    log: LogConfig = field(default_factory=LogConfig)
    engine: StreamEngineConfig = field(default_factory=StreamEngineConfig)
    topic_overrides: Mapping[str, str] = field(default_factory=dict)
    plugin_configs: Mapping[str, str] = field(default_factory=dict)
    """Those that begin with a prefix of PLUGIN_PREFIXES, which only a plug-in knows."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def topic_defaults(self) -> dict[str, str]:
        """`[topic-defaults]` over what follows from `[broker]`."""
        return {**self.broker.topic_defaults(), **self.topic_overrides}

    def topic_config(self) -> TopicConfig:
        """Errors: InvalidConfig."""
        return topic_config.parse(self.topic_defaults())

    def transaction_config(self) -> TransactionConfig:
        return TransactionConfig(
            **{
                field: getattr(self.broker, name.replace(".", "_"))
                for name, field in TRANSACTION_NAMES.items()
            }
        )

    def remote_log_config(self) -> RemoteLogConfig:
        given: dict[str, Any] = {
            target: getattr(self.broker, name.replace(".", "_"))
            for name, target in REMOTE_LOG_NAMES.items()
        }
        for name_of_prefix, target in PLUGIN_PREFIXES.items():
            prefix = getattr(self.broker, name_of_prefix.replace(".", "_"))
            given[target] = {
                name.removeprefix(prefix): value
                for name, value in self.plugin_configs.items()
                if name.startswith(prefix)
            }
        return RemoteLogConfig(
            **given,
            record_bytes_max=self.log.decoded_bytes_max,
            batch_bytes_max=self.log.message_bytes_max,
        )

    def for_mode(self, mode: str) -> Settings:
        """The same with the mode's own defaults filled in (`dev` or `serve`)."""
        broker, node, is_dev = self.broker, self.node, mode == "dev"
        if broker.auto_create_topics_enable is None:
            broker = replace(broker, auto_create_topics_enable=is_dev)
        if node.kafka_listen is None and is_dev:
            # Who takes any port for gRPC, as tests do, takes any for Kafka's protocol, too.
            is_any = node.listen.endswith(":0")
            node = replace(node, kafka_listen=KAFKA_ANY if is_any else KAFKA_DEV)
        return replace(self, broker=broker, node=node)

    def show(self) -> list[ShownSetting]:
        """Every setting, its value, and where it comes from."""
        sources = self.sources
        shown = [
            ShownSetting(
                knob.path,
                written(_value(self, knob)),
                sources.get(knob.path, "default"),
                written(knob.default),
                knob.doc,
                knob.is_dynamic,
            )
            for knob in knobs().values()
        ]
        derived = self.broker.topic_defaults()
        for name, value in sorted(self.topic_defaults().items()):
            path = f"{TOPIC_DEFAULTS}.{name}"
            shown.append(
                ShownSetting(
                    path,
                    value,
                    sources.get(path, "broker"),
                    derived.get(name, ""),
                    "Default of the topic setting of the same name.",
                    True,
                )
            )
        return shown


def _value(settings: Settings, knob: Knob) -> Any:
    target: Any = settings
    for part in knob.table.split("."):
        target = getattr(target, part)
    return getattr(target, knob.field)


def load(
    file: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads `file` (TOML), `env` (None: the process's), and `overrides` (path → value, from flags).

    A path without a table is one of `[node]`. Overrides that are None are left out.
    An earlier name of a setting is taken, with a warning that names today's.
    Errors: InvalidConfig, which names the nearest known setting for one that is unknown.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    topics: dict[str, str] = {}
    plugins: dict[str, str] = {}
    layers = [
        by_todays_names(layer)
        for layer in (
            _from_file(file),
            _from_environment(os.environ if env is None else env),
            _from_flags(overrides or {}),
        )
    ]
    known, prefixes = knobs(), _plugin_prefixes(layers)
    for layer in layers:
        for path, given, where in layer:
            if path.startswith(f"{TOPIC_DEFAULTS}."):
                topics[path.removeprefix(f"{TOPIC_DEFAULTS}.")] = written(given)
            elif path not in known and path.removeprefix("broker.").startswith(prefixes):
                plugins[path.removeprefix("broker.")] = written(given)
            else:
                values[path] = parse(_known(path, where), given, where)
            sources[path] = where
    built = {
        table.name: build(table.cls, table.name, values, kafka=table.kafka) for table in TABLES
    }
    settings = Settings(**built, topic_overrides=topics, plugin_configs=plugins, sources=sources)
    _check_topic_defaults(topics, sources)
    log = replace(
        settings.log,
        num_partitions=settings.broker.num_partitions,
        retention_check_interval_ms=settings.broker.log_retention_check_interval_ms,
        producer_id_expiration_ms=settings.broker.producer_id_expiration_ms,
        cleaner_io_bytes_per_second_max=settings.broker.log_cleaner_io_max_bytes_per_second,
        topic_defaults=settings.topic_config(),
        message_bytes_max=settings.limits.message_bytes_max - MESSAGE_OVERHEAD_BYTES_MAX,
    )
    return replace(settings, log=log)


def _plugin_prefixes(layers: Iterable[Iterable[Given]]) -> tuple[str, ...]:
    """With what settings begin that no table has. Errors: InvalidConfig for none at all."""
    found = {f"broker.{one}": knobs()[f"broker.{one}"].default for one in PLUGIN_PREFIXES}
    for layer in layers:
        for path, given, where in layer:
            if path in found:
                found[path] = str(given)
                if not found[path]:
                    raise InvalidConfig(
                        f"{path} ({where}) is empty: all settings would be the plug-in's",
                        name=path,
                    )
    return tuple(found.values())


def _check_topic_defaults(topics: Mapping[str, str], sources: Mapping[str, str]) -> None:
    """Errors: InvalidConfig with the place, since a topic has settings of the same names."""
    for name, value in topics.items():
        try:
            topic_config.parse({name: value})
        except InvalidConfig as error:
            path = f"{TOPIC_DEFAULTS}.{name}"
            raise InvalidConfig(
                f"[{TOPIC_DEFAULTS}] ({sources[path]}): {error.message}", **error.fields
            ) from error


def _from_file(file: str | os.PathLike[str] | None) -> Iterator[Given]:
    if file is None:
        return
    path = Path(file)
    try:
        text = path.read_text("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise InvalidConfig(f"config file {path}: {error.strerror}") from error
    except ValueError as error:  # Of TOML, of UTF-8, or of a number with thousands of digits.
        raise InvalidConfig(f"config file {path} is not TOML: {error}") from error
    for name, value in _flat("", document):
        yield name, value, f"file {path}"


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted names come out the same whether TOML read them as tables or as quoted keys."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _from_environment(env: Mapping[str, str]) -> Iterator[Given]:
    by_variable = variables()
    topic_prefix = f"{PREFIX}TOPIC_DEFAULTS__"
    for variable, text in sorted(env.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable.startswith(topic_prefix):
            name = variable.removeprefix(topic_prefix).lower().replace("_", ".")
            yield f"{TOPIC_DEFAULTS}.{name}", text, f"environment {variable}"
            continue
        path = by_variable.get(variable) or by_variable.get(
            f"{PREFIX}NODE__{variable.removeprefix(PREFIX)}"
        )
        if path is None:
            raise InvalidConfig(
                f"environment variable {variable} is no setting{_near(variable, by_variable)}",
                name=variable,
            )
        yield path, text, f"environment {variable}"


def _from_flags(overrides: Mapping[str, Any]) -> Iterator[Given]:
    for name, value in overrides.items():
        if value is not None:
            yield (name if "." in name else f"node.{name}"), value, "flag"


def _known(path: str, where: str) -> Knob:
    knob = knobs().get(path)
    meant = MISTAKEN.get(path.removeprefix("broker."))
    if meant is not None:
        raise InvalidConfig(
            f"{path} ({where}) is no setting, though KIP-956 writes it once: use {meant}", name=path
        )
    if path.removeprefix("broker.") in ("log.dir", "log.dirs"):
        raise InvalidConfig(
            f"{path} ({where}) is no setting: a node has one folder of logs, node.log_dir. For "
            "several disks make one volume of them, or start a node on each",
            name=path,
        )
    if knob is None:
        raise InvalidConfig(
            f"{path} ({where}) is no setting{_near(path, knobs())}; `streamlog config describe` "
            "lists all",
            name=path,
        )
    return knob


def _near(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f": did you mean {nearest[0]}?" if nearest else ""
