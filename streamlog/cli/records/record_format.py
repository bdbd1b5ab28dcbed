"""How `consume` writes a record: named forms, or a pattern as kcat's `-f` takes.

A pattern is compiled once to a list of pieces: fixed bytes, and functions of the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamlog.cli.output import text_or_base64

if TYPE_CHECKING:
    from streamlog.client import ConsumerRecord

Formatter = Callable[["ConsumerRecord"], bytes]

NAMED = ("value", "key-value", "json")
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(
        name.encode() + (b"" if value is None else b"=" + value) for name, value in record.headers
    )


PLACES: dict[str, Formatter] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "h": _headers,
    "%": lambda record: b"%",
}
"""Letters behind `%`, as kcat has them; a null key or value has the length -1."""


def compile_pattern(text: str) -> Formatter:
    """Errors: ValueError for an unknown letter behind `%` or a backslash."""
    pieces: list[bytes | Formatter] = []
    fixed = bytearray()
    index = 0
    while index < len(text):
        sign = text[index]
        letter = text[index + 1 : index + 2]
        if sign == "%":
            place = PLACES.get(letter)
            if place is None:
                raise ValueError(
                    f"'%{letter}' is none of: {', '.join(f'%{known}' for known in PLACES)}"
                )
            pieces += [bytes(fixed), place]
            fixed.clear()
            index += 2
        elif sign == "\\":
            if letter == "x":
                fixed += _hex_byte(text[index + 2 : index + 4])
                index += 4
                continue
            if letter not in ESCAPES:
                raise ValueError(rf"'\{letter}' is none of: \n, \t, \r, \0, \\, \xNN")
            fixed += ESCAPES[letter]
            index += 2
        else:
            fixed += sign.encode(errors="surrogateescape")
            index += 1
    pieces.append(bytes(fixed))

    def write(record: ConsumerRecord) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(record) for piece in pieces])

    return write


def _hex_byte(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits) if len(digits) == 2 else bytes([int(digits, 16)])
    except ValueError:
        raise ValueError(rf"'\x{digits}': two hexadecimal digits are needed") from None


def value_line(record: ConsumerRecord) -> bytes:
    return (record.value or b"") + b"\n"


def key_value_line(separator: bytes) -> Formatter:
    def write(record: ConsumerRecord) -> bytes:
        return (record.key or b"") + separator + (record.value or b"") + b"\n"

    return write


def json_line(record: ConsumerRecord) -> bytes:
    values = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"key": name, **text_or_base64("value", value)} for name, value in record.headers
        ],
    }
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
