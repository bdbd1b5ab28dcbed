"""Lines of JSON objects become records as they are, or are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from streamlog.errors import InvalidRecord
from streamlog.spark.jobs.export.json_lines import LINE_SHOWN, JsonFields

FILE = "file:/logs/a.json"


def parsed(*lines: bytes, fields: JsonFields | None = None) -> list[dict[str, Any]]:
    columns = {"line": pa.array(lines, pa.binary()), "file": pa.array([FILE] * len(lines))}
    (batch,) = (fields or JsonFields()).records(iter([pa.RecordBatch.from_pydict(columns)]))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def values(*lines: bytes, **fields: Any) -> list[bytes | None]:
    return [row["value"] for row in parsed(*lines, fields=JsonFields(**fields))]


def test_an_object_without_the_field_value_is_taken_byte_for_byte() -> None:
    lines = (
        b'{"m":"x","n":5}',
        b' {"n": "", "none": null, "n2": 1.50}\r',
        b'{"_corrupt_record": 1, "line": "", "file": null, "\\ud800": [1, ""]}',
        b"{}",
    )
    assert values(*lines) == list(lines)
    assert [row["key"] for row in parsed(*lines)] == [None] * 4


def test_blank_lines_are_passed_over() -> None:
    assert values(b"", b"{}", b" \t\r", b"{}") == [b"{}", b"{}"]
    assert values(b"") == []


@pytest.mark.parametrize(
    ("json", "payload"),
    [
        ('"t\\u00e4xt\\n"', "täxt\n".encode()),
        ('""', b""),
        ("null", None),
        ("12345678901234567890.50", b"12345678901234567890.50"),
        ("-0e5", b"-0e5"),
        ("9" * 5000, b"9" * 5000),
        ("true", b"true"),
        ('{"b": {}, "a": [1.0, ""], "value": 2}', b'{"b": {}, "a": [1.0, ""], "value": 2}'),
        ("[ ]", b"[ ]"),
    ],
)
def test_a_field_is_its_string_or_its_json(json: str, payload: bytes | None) -> None:
    line = f'{{"before":{{"value":0}}, "value" : {json},"key":{json}}}'.encode()
    assert parsed(line) == [{"key": payload, "value": payload}]
    named = JsonFields(key="value", value="key")
    assert parsed(line, fields=named) == [{"key": payload, "value": payload}]


def test_the_last_of_two_fields_with_one_name_counts() -> None:
    assert values(b'{"value": [1], "value": [2]}') == [b"[2]"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": "cut o',
        b'{"value": "x"} {"value": "y"}',
        b'{"value": "x"},',
        b'{"value": "x"}garbage',
        b"[]",
        b'[{"value": "x"}]',
        b"null",
        b"7",
        b'"text"',
        b'{"n": NaN}',
        b'{"n": -Infinity}',
        b"{'value': 'x'}",
        b'{"value": "a\x00b"}',
        b'{"value": "\xff"}',
        '{"value": "x"}'.encode("utf-16"),
        b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_line_that_is_no_object_is_refused(line: bytes) -> None:
    shown = repr(line[:LINE_SHOWN].decode(errors="replace"))
    with pytest.raises(InvalidRecord) as raised:
        parsed(b'{"value": "whole"}', line)
    assert raised.value.message == f"{FILE} has a line that is no JSON object: {shown}"


def test_a_field_that_is_named_is_in_every_object() -> None:
    for option, fields in (("key", JsonFields(key="id")), ("value", JsonFields(value="id"))):
        (row,) = parsed(b'{"id": null, "n": 1}', fields=fields)
        assert row[option] is None
        with pytest.raises(InvalidRecord, match=r"without the field id .*: '{\"n\": 1}'"):
            parsed(b'{"id": 1}', b'{"n": 1}', fields=fields)
    with pytest.raises(InvalidRecord, match="whose field value has half a surrogate pair"):
        parsed(b'{"value": "\\ud800"}')


def test_partitions_are_kept() -> None:
    fields = JsonFields(keep_partitions=True)
    lines = b'{"partition": 7}', b'{"partition": "8"}', b'{"partition": null}'
    assert [row["partition"] for row in parsed(*lines, fields=fields)] == [7, 8, None]
    with pytest.raises(InvalidRecord, match="without the field partition"):
        parsed(b"{}", fields=fields)
    for wrong in ("-1", "1.0", "true", "[1]", '"a"', "99999999999"):
        with pytest.raises(InvalidRecord, match="whose field partition is no partition"):
            parsed(f'{{"partition": {wrong}}}'.encode(), fields=fields)
