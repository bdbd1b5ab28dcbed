"""A third opinion: Kafka's own Java classes read and write what we encode, field by field."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamlog.kafka.protocol.primitives import Structure
from tests.kafka.shapes import Shape, every_shape, is_in, joined, random_message
from tests.support.kafka_jars import class_path

PROGRAM = Path(__file__).parent / "java" / "Opinion.java"
ROUNDS = 8
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


@pytest.mark.timeout(300)
def test_javas_classes_read_and_write_the_same() -> None:
    rng = random.Random(7)
    cases = [
        (shape, version, random_message(shape, version, rng))
        for shape in every_shape()
        for version in shape.versions
        for _ in range(ROUNDS)
    ]
    raws = [joined(shape, message, version) for shape, version, message in cases]
    lines = [
        f"{shape.key} {'request' if shape.is_request else 'response'} {version} x{raw.hex()}"
        for (shape, version, _), raw in zip(cases, raws, strict=True)
    ]
    done = subprocess.run(
        [*JAVA, "-cp", class_path(), str(PROGRAM)],
        input="\n".join(lines), capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    opinions = done.stdout.splitlines()
    assert len(opinions) == len(cases)
    for (shape, version, message), raw, opinion in zip(cases, raws, opinions, strict=True):
        left, again, shown = opinion.split(" ", 2)
        assert left == "0", (shape.name, version)
        assert again == "x" + raw.hex(), (shape.name, version)
        compare(shape, shape.name, version, message, json.loads(shown))


def compare(
    shape: Shape, name: str, version: int, structure: Structure, shown: dict[str, Any]
) -> None:
    """Every field that the version has is in Java's JSON under its name with its value."""
    where = f"{shape.name} version {version}, {name}"
    left = dict(shown)
    for field in shape.fields(name, version):
        value = getattr(structure, field["name"])
        key = camel(field["name"])
        if field["type"] == "records" and value is not None:
            key, value = f"{key}SizeInBytes", len(value)
        if key not in left:
            # Java does not show what it does not send.
            assert is_in(field, "tagged", version), f"{where}: no {key}"
            default = getattr(type(structure)(), field["name"])
            assert value == default or value == [], f"{where}: no {key}"
            continue
        compare_values(shape, field, version, value, left.pop(key), f"{where}: {key}")
    assert not left, where


def compare_values(
    shape: Shape, field: dict[str, Any], version: int, value: Any, shown: Any, where: str
) -> None:
    if value is None or shown is None:
        is_default = isinstance(shown, dict) and is_in(field, "tagged", version)
        assert value is None, where
        assert shown is None or is_default, where
    elif field.get("is_array"):
        assert len(value) == len(shown), where
        single = {**field, "is_array": False}
        for one, other in zip(value, shown, strict=True):
            compare_values(shape, single, version, one, other, where)
    elif isinstance(value, Structure):
        compare(shape, field["type"], version, value, shown)
    elif field["type"] == "uuid":
        assert base64.urlsafe_b64encode(value).rstrip(b"=").decode() == shown, where
    else:
        assert value == shown, where


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(one.capitalize() for one in others)
