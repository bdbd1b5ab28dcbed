"""Random messages of every served version, from the shapes that the generator writes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from streamlog.kafka.protocol.apis import ApiKey, Codec, request_codec, response_codec
from streamlog.kafka.protocol.primitives import Structure

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a", "größe", "x" * 126, "y" * 127, "😀" * 40, "z" * 16_500)
SIZES = (0, 1, 126, 127, 300)
WHOLE_ARRAYS = (0, 1, 3)


@dataclass(frozen=True)
class Shape:
    """One message: its fields by structure, and the versions that are served."""

    name: str
    key: ApiKey
    first: int
    last: int
    structures: dict[str, list[dict[str, Any]]]

    @property
    def is_request(self) -> bool:
        return self.name.endswith("Request")

    @property
    def codec(self) -> Codec:
        return (request_codec if self.is_request else response_codec)(self.key)

    @property
    def versions(self) -> range:
        return range(self.first, self.last + 1)

    def structure_type(self, structure: str) -> type[Structure]:
        kind = "request" if self.is_request else "response"
        module = import_module(f"streamlog.kafka.messages.{self.key.name.lower()}_{kind}")
        found: type[Structure] = getattr(module, structure)
        return found

    def fields(self, structure: str, version: int) -> Iterator[dict[str, Any]]:
        """Fields that the version has."""
        return (one for one in self.structures[structure] if is_in(one, "versions", version))


def is_in(field: dict[str, Any], what: str, version: int) -> bool:
    first, last = field.get(what, (1, 0))
    return bool(first <= version <= last)


@cache
def every_shape() -> tuple[Shape, ...]:
    raw = json.loads((Path(__file__).parent / "shapes.json").read_text())
    return tuple(
        Shape(one["name"], ApiKey(one["key"]), one["first"], one["last"], one["structures"])
        for one in raw
    )


def shape_of(name: str) -> Shape:
    return next(one for one in every_shape() if one.name == name)


def random_message(shape: Shape, version: int, rng: random.Random) -> Structure:
    return _structure(shape, shape.name, version, rng)


def _structure(shape: Shape, name: str, version: int, rng: random.Random) -> Structure:
    values = {}
    for field in shape.fields(name, version):
        is_tagged = is_in(field, "tagged", version)
        if is_tagged and rng.random() < 0.5:
            continue
        can_be_null = is_in(field, "nullable", version)
        value = None if can_be_null and rng.random() < 0.3 else _value(shape, field, version, rng)
        if is_tagged and isinstance(value, Structure) and value == type(value)():
            # Kafka's defaults are not sent, and what is not sent is None.
            value = None
        values[field["name"]] = value
    return shape.structure_type(name)(**values)


def _value(shape: Shape, field: dict[str, Any], version: int, rng: random.Random) -> Any:
    kind = field["type"]
    if not field.get("is_array"):
        return _one(shape, kind, version, rng)
    many = kind in BITS and rng.random() < 0.1
    return [
        _one(shape, kind, version, rng) for _ in range(130 if many else rng.choice(WHOLE_ARRAYS))
    ]


def _one(shape: Shape, kind: str, version: int, rng: random.Random) -> Any:
    if kind in BITS:
        bound = 1 << (BITS[kind] - 1)
        return rng.choice((-bound, -1, 0, bound - 1, rng.randrange(-bound, bound)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        # Long ones are rare, or messages would be little else.
        return rng.choice(TEXTS if rng.random() < 0.02 else TEXTS[:-1])
    if kind == "uuid":
        return rng.randbytes(16)
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice(SIZES))
    return _structure(shape, kind, version, rng)


def joined(shape: Shape, message: Structure, version: int) -> bytes:
    return b"".join(shape.codec.encode(message, version))
