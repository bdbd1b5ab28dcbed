"""Lines of JSON objects → the columns of records, in tasks.

A line is one JSON object in UTF-8, with nothing but white space around it; blank lines are passed
over. The text of a field is that of its string, and for any other kind its JSON as it stands in the
line; null is null. Of two fields with one name, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any, Never

import pyarrow as pa

from streamlog.errors import InvalidRecord

LINE_SHOWN = 80
_BEFORE_NAME = re.compile(r"[ \t\r\n{,]*")
_BEFORE_VALUE = re.compile(r"[ \t\r\n:]*")
_PARTITION = re.compile(r"[0-9]{1,9}")


class _LineRefused(Exception):
    """The text goes on behind "a line"."""


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")


# Numbers keep their digits.
_DECODER = JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True)
class JsonFields:
    """Where records come from. A field that is named here must be in every object."""

    key: str | None = None
    """None: the field `key`, where there is one."""
    value: str | None = None
    """None: the field `value`, and in an object without it the line, byte for byte."""
    keep_partitions: bool = False
    """By the field `partition`."""

    @property
    def schema(self) -> str:
        return "key BINARY, value BINARY" + ", partition INT" * self.keep_partitions

    def records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of columns `line` and `file`.

        Errors: InvalidRecord, which names the file and shows the beginning of the line.
        """
        for batch in batches:
            keys: list[bytes | None] = []
            values: list[bytes | None] = []
            partitions: list[int | None] = []
            for row, line in enumerate(batch.column("line").to_pylist()):
                if not line.strip():
                    continue
                try:
                    fields = _LineFields(line)
                    keys.append(fields.payload(self.key or "key", is_needed=self.key is not None))
                    values.append(self._value(fields))
                    if self.keep_partitions:
                        partitions.append(fields.partition())
                except _LineRefused as error:
                    file = batch.column("file")[row].as_py()
                    shown = line[:LINE_SHOWN].decode(errors="replace")
                    raise InvalidRecord(f"{file} has a line {error}: {shown!r}") from error
            arrays = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
            if self.keep_partitions:
                arrays["partition"] = pa.array(partitions, pa.int32())
            yield pa.RecordBatch.from_pydict(arrays)

    def _value(self, fields: _LineFields) -> bytes | None:
        if self.value is not None:
            return fields.payload(self.value, is_needed=True)
        return fields.payload("value") if fields.has("value") else fields.line


class _LineFields:
    """The object of one line. Errors: _LineRefused."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        try:
            self._text = line.decode()
            found = _DECODER.decode(self._text)
        except (ValueError, RecursionError) as error:
            raise _LineRefused("that is no JSON object") from error
        if not isinstance(found, dict):
            raise _LineRefused("that is no JSON object")
        self._values: dict[str, Any] = found

    def has(self, name: str) -> bool:
        return name in self._values

    def payload(self, name: str, *, is_needed: bool = False) -> bytes | None:
        """The field's text in UTF-8; None for null, and for a field that is not there."""
        if is_needed and name not in self._values:
            raise _LineRefused(f"without the field {name} (it may be null)")
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return (value if isinstance(value, str) else self._json(name)).encode()
        except UnicodeEncodeError as error:
            raise _LineRefused(f"whose field {name} has half a surrogate pair") from error

    def partition(self) -> int | None:
        text = self.payload("partition", is_needed=True)
        if text is None:
            return None
        if not _PARTITION.fullmatch(text.decode()):
            raise _LineRefused("whose field partition is no partition")
        return int(text)

    def _json(self, name: str) -> str:
        """The field's JSON as it stands in the line."""
        text, at, found = self._text, 0, ""
        while True:
            at = _end(_BEFORE_NAME, text, at)
            if text[at] == "}":
                return found
            field, at = _DECODER.raw_decode(text, at)
            start = _end(_BEFORE_VALUE, text, at)
            _, at = _DECODER.raw_decode(text, start)
            if field == name:
                found = text[start:at]


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None  # An empty match at the least.
    return match.end()
