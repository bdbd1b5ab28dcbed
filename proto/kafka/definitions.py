"""Kafka's message definitions: the JSON of its jars as typed values.

A jar holds one file for each message under `common/message/`, `kafka-storage` under `message/`.
Only what the generator needs is read; a definition that it cannot express (a type it does not know)
is refused.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FIXED = {
    "int8": ("b", 1), "int16": ("h", 2), "uint16": ("H", 2), "int32": ("i", 4),
    "uint32": ("I", 4), "int64": ("q", 8), "float64": ("d", 8), "bool": ("?", 1),
    "uuid": ("16s", 16),
}  # fmt: skip
"""Types of a fixed width: the letter of `struct`, and bytes."""
INTEGERS = ("int8", "int16", "uint16", "int32", "uint32", "int64")
BLOBS = ("bytes", "records")


@dataclass(frozen=True)
class Versions:
    """A range, both ends inclusive; empty where `last` < `first`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @staticmethod
    def parse(text: str | None) -> Versions:
        if text is None or text == "none":
            return Versions(1, 0)
        if text.endswith("+"):
            return Versions(int(text[:-1]), 1 << 15)
        first, _, last = text.partition("-")
        return Versions(int(first), int(last or first))


@dataclass(frozen=True)
class Field:
    name: str
    """In snake_case."""
    type: str
    """Kafka's name of the type; of the element, where `is_array`."""
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int
    tagged: Versions
    default: str | None
    structure: Structure | None
    """Of the value, or of each element."""

    def is_tagged(self, version: int) -> bool:
        return version in self.tagged

    @property
    def is_blob(self) -> bool:
        return not self.is_array and self.type in BLOBS


@dataclass(frozen=True)
class Structure:
    name: str
    fields: Sequence[Field]

    def at(self, version: int) -> list[Field]:
        """Fields of a version that are not tagged, in order of their bytes."""
        return [one for one in self.fields if version in one.versions and version not in one.tagged]

    def tagged_at(self, version: int) -> list[Field]:
        """Tagged fields of a version, by tag."""
        tagged = [one for one in self.fields if version in one.versions and version in one.tagged]
        return sorted(tagged, key=lambda one: one.tag)


@dataclass(frozen=True)
class Message:
    structure: Structure
    key: int
    is_request: bool
    valid: Versions
    flexible: Versions
    is_last_unstable: bool

    @property
    def name(self) -> str:
        return self.structure.name


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def restricted(message: Message, served: Versions) -> Message:
    """The message without fields that no served version has."""

    def kept(structure: Structure) -> Structure:
        fields = [
            replace(one, structure=None if one.structure is None else kept(one.structure))
            for one in structure.fields
            if one.versions.first <= served.last and served.first <= one.versions.last
        ]
        return Structure(structure.name, tuple(fields))

    return replace(message, structure=kept(message.structure))


def structures(message: Message) -> Iterator[Structure]:
    """Every structure of a message once, inner ones before those that hold them."""
    seen: dict[str, Structure] = {}

    def visit(structure: Structure) -> None:
        for field in structure.fields:
            if field.structure is not None:
                visit(field.structure)
        if seen.setdefault(structure.name, structure).fields != structure.fields:
            raise ValueError(f"{message.name} has two structures {structure.name}")

    visit(message.structure)
    yield from seen.values()


def load(jar: Path) -> dict[str, Message]:
    """Requests and responses in a jar, by name."""
    return {raw["name"]: _message(raw) for raw in _definitions(jar, ("request", "response"))}


def load_records(jar: Path, own_fields: Mapping[str, Sequence[Any]]) -> dict[str, Message]:
    """Keys and values of a coordinator's records in a jar, by name; `own_fields` join them."""
    records = {}
    for raw in _definitions(jar, ("coordinator-key", "coordinator-value")):
        raw["fields"] += own_fields.get(raw["name"], ())
        records[raw["name"]] = _message(raw)
    return records


def load_remote_log_records(jar: Path) -> dict[str, Message]:
    """Records of the topic of remote segments in a jar, by name."""
    found = _definitions(jar, ("metadata",), "message/")
    return {raw["name"]: _message(raw) for raw in found}


def _definitions(
    jar: Path, types: Sequence[str], folder: str = "common/message/"
) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(folder) and name.endswith(".json"):
                raw = _parse(archive.read(name).decode())
                if raw["type"] in types and raw["validVersions"] != "none":
                    yield raw


def _parse(text: str) -> dict[str, Any]:
    lines = (re.sub(r"(^|\s)//.*$", "", line) for line in text.splitlines())
    parsed: dict[str, Any] = json.loads("\n".join(lines))
    return parsed


def _message(raw: Mapping[str, Any]) -> Message:
    common = {one["name"]: one["fields"] for one in raw.get("commonStructs", [])}
    return Message(
        structure=_structure(raw["name"], raw["fields"], common),
        key=raw["apiKey"],
        is_request=raw["type"] == "request",
        valid=Versions.parse(raw["validVersions"]),
        flexible=Versions.parse(raw["flexibleVersions"]),
        is_last_unstable=bool(raw.get("latestVersionUnstable", False)),
    )


def _structure(name: str, raw: Sequence[Any], common: Mapping[str, Any]) -> Structure:
    return Structure(name, tuple(_field(one, common) for one in raw))


def _field(raw: Mapping[str, Any], common: Mapping[str, Any]) -> Field:
    kind = raw["type"]
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    inner = raw.get("fields", common.get(kind))
    if inner is None and kind not in FIXED and kind not in ("string", *BLOBS):
        raise ValueError(f"field {raw['name']} has an unknown type {kind}")
    if "flexibleVersions" in raw:
        raise ValueError(f"field {raw['name']} has flexible versions of its own")
    default = raw.get("default")
    return Field(
        name=snake(raw["name"]),
        type=kind,
        is_array=is_array,
        versions=Versions.parse(raw.get("versions", raw.get("taggedVersions"))),
        nullable=Versions.parse(raw.get("nullableVersions")),
        tag=raw.get("tag", -1),
        tagged=Versions.parse(raw.get("taggedVersions")),
        default=None
        if default is None
        else str(default).lower()
        if kind == "bool"
        else str(default),
        structure=None if inner is None else _structure(kind, inner, common),
    )
