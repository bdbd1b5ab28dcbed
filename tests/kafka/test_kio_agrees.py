"""A second opinion: kio reads what we encode, and writes the same bytes again.

kio makes enums of error codes, dates and durations of times: those have values that it knows.
"""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from streamlog.kafka.protocol.errors import KafkaError
from tests.kafka.shapes import Shape, every_shape, joined, random_message

ROUNDS = 6
CODES = list(KafkaError)
each_message = pytest.mark.parametrize("shape", every_shape(), ids=lambda shape: shape.name)


def known_to_kio(field: dict[str, Any], rng: random.Random) -> int | None:
    name, kind = field["name"], field["type"]
    if kind == "int16" and name.endswith("error_code"):
        return rng.choice(CODES)
    if kind in ("int32", "int64") and name.endswith("_ms"):
        return rng.randrange(1 << 30)
    if kind == "int64" and "time" in name:
        return 1000 * rng.randrange(1 << 31)
    return None


@each_message
def test_kio_reads_and_writes_the_same(shape: Shape) -> None:
    rng = random.Random(shape.name)
    load = load_request_schema if shape.is_request else load_response_schema
    for version in shape.versions:
        schema = load(shape.key, version)
        read, write = entity_reader(schema), entity_writer(schema)
        for _ in range(ROUNDS):
            raw = joined(shape, random_message(shape, version, rng, known_to_kio), version)
            entity, size = read(raw, 0)
            assert size == len(raw)
            again = io.BytesIO()
            write(again, entity)
            assert again.getvalue().hex(" ") == raw.hex(" ")
