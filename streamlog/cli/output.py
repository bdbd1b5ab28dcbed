"""Output: tables for people, JSON for scripts, bytes for pipes."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import click

WRITE_BUFFER_BYTES = 1 << 20
SILENCE_TOLD_AFTER_S = 3.0
"""A command that has waited this long says what it waits for."""


def emit(value: Any) -> None:
    """One JSON value on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns under a heading; numbers to the right."""
    cells = [list(columns), *([_cell(value) for value in row] for row in rows)]
    numeric = [
        all(_is_number(row[index]) for row in cells[1:]) and len(cells) > 1
        for index in range(len(columns))
    ]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    for row in cells:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def field_list(values: Mapping[str, object]) -> None:
    """Names and values, one pair a line."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        click.echo(f"{name.ljust(width)}  {_cell(value)}".rstrip())


def note(text: str) -> None:
    """A line for the person at the terminal: on stderr, so that pipes stay clean."""
    click.echo(text, err=True)


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """{name: text}, or {name_base64: …} where the bytes are not UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


class BytesOut:
    """stdout as bytes through one large buffer; `flush` before waiting for more input."""

    def __init__(self, out: BinaryIO | None = None) -> None:
        self._out = sys.stdout.buffer if out is None else out
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= WRITE_BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            left = memoryview(b"".join(self._held))
            self._held.clear()
            self._held_bytes = 0
            # With PYTHONUNBUFFERED stdout is unbuffered, and a write may take only a part.
            while left:
                left = left[self._out.write(left) :]
        self._out.flush()


def size(count_bytes: float) -> str:
    """12 B, 3.4 KiB, 5.6 MiB."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def shortened(names: Sequence[str], most: int = 10) -> str:
    """The first of them in a row, for people."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} others" if left > 0 else "")
