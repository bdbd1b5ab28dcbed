"""Random messages of every served version, from the shapes that the generator writes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
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


Choose = Callable[[dict[str, Any], random.Random], Any]
"""A value for a field of a fixed width or a string, or None: any."""


def any_value(field: dict[str, Any], rng: random.Random) -> Any:
    return None


@dataclass(frozen=True)
class RandomMessages:
    """Makes messages of one shape and version."""

    shape: Shape
    version: int
    rng: random.Random
    choose: Choose = any_value

    def message(self) -> Structure:
        return self._structure(self.shape.name)

    def _structure(self, name: str) -> Structure:
        values = {}
        for field in self.shape.fields(name, self.version):
            is_tagged = is_in(field, "tagged", self.version)
            if is_tagged and self.rng.random() < 0.5:
                continue
            can_be_null = is_in(field, "nullable", self.version)
            value = None if can_be_null and self.rng.random() < 0.3 else self._value(field)
            if is_tagged and isinstance(value, Structure) and value == type(value)():
                # Kafka's defaults are not sent, and what is not sent is None.
                value = None
            values[field["name"]] = value
        return self.shape.structure_type(name)(**values)

    def _value(self, field: dict[str, Any]) -> Any:
        if not field.get("is_array"):
            return self._one(field)
        many = field["type"] in BITS and self.rng.random() < 0.1
        return [self._one(field) for _ in range(130 if many else self.rng.choice(WHOLE_ARRAYS))]

    def _one(self, field: dict[str, Any]) -> Any:
        kind, rng = field["type"], self.rng
        chosen = self.choose(field, rng)
        if chosen is not None:
            return chosen
        if kind in BITS:
            bound = 1 << (BITS[kind] - 1)
            return rng.choice((-bound, -1, 0, bound - 1, rng.randrange(-bound, bound)))
        if kind == "float64":
            return rng.choice((0.0, -1.5, 1e300, 2**53 + 0.0, rng.uniform(-1000, 1000)))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "string":
            # Long ones are rare, or messages would be little else; those of errors would be cut.
            is_long = rng.random() < 0.02 and not field["name"].endswith("error_message")
            return TEXTS[-1] if is_long else rng.choice(TEXTS[:-1])
        if kind == "uuid":
            return rng.randbytes(16)
        if kind in ("bytes", "records"):
            return rng.randbytes(rng.choice(SIZES))
        return self._structure(kind)


def random_message(
    shape: Shape, version: int, rng: random.Random, choose: Choose = any_value
) -> Structure:
    return RandomMessages(shape, version, rng, choose).message()


def joined(shape: Shape, message: Structure, version: int) -> bytes:
    return b"".join(shape.codec.encode(message, version))
