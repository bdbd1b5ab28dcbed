"""Every setting, gathered from the components' own classes.

A setting's path is its table and its name: `node.listen`, `engine.append.append_bytes_max`,
`broker.num.partitions`. In Kafka's tables the name is the field's with `.` for `_`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from streamlog.engine.config import StreamEngineConfig
from streamlog.log.api.config import KAFKA_NAMES, LogConfig
from streamlog.settings.broker import BrokerConfig
from streamlog.settings.draft_names import DRAFT_NAMES
from streamlog.settings.limits import LimitsConfig
from streamlog.settings.node import NodeConfig
from streamlog.settings.tls import TlsConfig


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the file. `kafka`: names are dotted. `skip`: fields that other tables set."""

    name: str
    cls: type[Any]
    kafka: bool = False
    skip: frozenset[str] = frozenset()


TABLES: tuple[Table, ...] = (
    Table("node", NodeConfig),
    Table("broker", BrokerConfig, kafka=True),
    Table("limits", LimitsConfig),
    Table("tls", TlsConfig),
    Table(
        "log",
        LogConfig,
        skip=frozenset({"topic_defaults", "message_bytes_max", *KAFKA_NAMES.values()}),
    ),
    Table("engine", StreamEngineConfig),
)


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: its table in the file, its name there, and its rules.

    `renamed_from`: its earlier name in the same table; empty: it never had another.
    """

    table: str
    name: str
    field: str
    kind: type[Any]
    is_optional: bool
    default: Any
    doc: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    is_dynamic: bool
    renamed_from: str

    @property
    def path(self) -> str:
        return f"{self.table}.{self.name}"

    @property
    def environment(self) -> str:
        return _variable(self.table, self.name)


def _variable(table: str, name: str) -> str:
    """The environment variable: upper case, `__` between tables, `_` for every dot of a name."""
    table = table.replace("-", "_").replace(".", "__")
    return f"STREAMLOG_{table}__{name.replace('.', '_')}".upper()


@cache
def knobs() -> dict[str, Knob]:
    """Path → setting, in the order of the documentation."""
    by_path: dict[str, Knob] = {}
    for table in TABLES:
        for knob in _knobs_of(table.name, table.cls, kafka=table.kafka, skip=table.skip):
            by_path[knob.path] = knob
    return by_path


@cache
def earlier_paths() -> dict[str, str]:
    """Path under an earlier name → path today."""
    renamed = {
        f"{knob.table}.{knob.renamed_from}": knob.path
        for knob in knobs().values()
        if knob.renamed_from
    }
    drafts = {f"broker.{name}": f"broker.{today}" for name, today in DRAFT_NAMES.items()}
    return {**renamed, **drafts}


def variables() -> dict[str, str]:
    """Environment variable → path, earlier names included."""
    earlier = {}
    for path, today in earlier_paths().items():
        table = knobs()[today].table
        earlier[_variable(table, path.removeprefix(f"{table}."))] = path
    return {**earlier, **{knob.environment: knob.path for knob in knobs().values()}}


def _knobs_of(
    table: str, cls: type[Any], *, kafka: bool, skip: frozenset[str] = frozenset()
) -> Iterator[Knob]:
    hints = typing.get_type_hints(cls)
    nested: list[tuple[str, type[Any]]] = []
    for field in dataclasses.fields(cls):
        if field.name in skip:
            continue
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            nested.append((f"{table}.{field.name}", typing.cast("type[Any]", hint)))
            continue
        kind, is_optional = _kind(hint)
        stated = field.metadata
        yield Knob(
            table=table,
            name=field.name.replace("_", ".") if kafka else field.name,
            field=field.name,
            kind=kind,
            is_optional=is_optional,
            default=field.default,
            doc=stated["doc"],
            minimum=stated["minimum"],
            maximum=stated["maximum"],
            choices=stated["choices"],
            is_dynamic=stated["dynamic"],
            renamed_from=stated["renamed_from"],
        )
    for name, inner in nested:
        yield from _knobs_of(name, inner, kafka=kafka)


def _kind(hint: Any) -> tuple[type[Any], bool]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0], True
    return hint, False


def build(cls: type[Any], table: str, values: dict[str, Any], *, kafka: bool) -> Any:
    """An instance of `cls` from path → value."""
    hints = typing.get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            inner = typing.cast("type[Any]", hint)
            arguments[field.name] = build(inner, f"{table}.{field.name}", values, kafka=kafka)
            continue
        name = field.name.replace("_", ".") if kafka else field.name
        if f"{table}.{name}" in values:
            arguments[field.name] = values[f"{table}.{name}"]
    return cls(**arguments)
