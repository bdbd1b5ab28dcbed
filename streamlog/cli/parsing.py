"""Parses what users type: NAME=VALUE pairs, start positions, fencing tokens."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import click

from streamlog.errors import Invalid
from streamlog.model.fencing_token import parsed_token


def pairs(ctx: click.Context, param: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Option values `k=v` as a dict; the value may hold `=` and be empty."""
    values_by_name: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx=ctx, param=param)
        if values_by_name.get(name, value) != value:
            raise click.BadParameter(f"{name} is given twice", ctx=ctx, param=param)
        values_by_name[name] = value
    return values_by_name


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where reading begins.

    `number`: the offset, the timestamp in milliseconds, or how many of the last records.
    """

    kind: Literal["earliest", "latest", "offset", "timestamp", "last"]
    number: int = 0


START_METAVAR = "earliest|latest|OFFSET|-N|-TIME|ISO-TIME|timestamp:MS"
START_FORMS = (
    "earliest, latest, an offset such as 17, -100 (the last 100 of each partition), -10m (the last "
    "10 minutes; s, m, h, d, w), a time such as 2026-01-31T12:00:00Z, or timestamp:MS"
)
INT32_MAX = (1 << 31) - 1
UINT32_MAX = (1 << 32) - 1
INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1
UNIT_MS = {
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_BACK = re.compile(r"-(\d{1,18})([smhdw]?)", re.ASCII)


def start_position(ctx: click.Context, param: click.Parameter, value: str) -> StartPosition:
    """One of START_FORMS."""
    start = parse_start(value, int(time.time() * 1000))
    if start is None:
        raise click.BadParameter(f"{value!r} is none of: {START_FORMS}", ctx=ctx, param=param)
    return start


def parse_start(value: str, now_ms: int) -> StartPosition | None:
    """None where the text is none of START_FORMS. A time without a zone is this machine's."""
    if value == "earliest":
        return StartPosition("earliest")
    if value == "latest":
        return StartPosition("latest")
    if value.isascii() and value.isdigit():
        # Shorter than what Python refuses to read as a number.
        is_offset = len(value) < 100 and int(value) <= INT64_MAX
        return StartPosition("offset", int(value)) if is_offset else None
    back = _BACK.fullmatch(value)
    if back is not None:
        number, unit = int(back[1]), back[2]
        if not unit:
            return StartPosition("last", number)
        return StartPosition("timestamp", max(0, now_ms - number * UNIT_MS[unit]))
    kind, _, number_text = value.partition(":")
    if kind == "timestamp":
        is_number = number_text.isascii() and number_text.isdigit()
        return (
            StartPosition("timestamp", int(number_text))
            if is_number and len(number_text) < 19
            else None
        )
    try:
        moment = datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return StartPosition("timestamp", int(moment * 1000)) if moment >= 0 else None


class FiniteRange(click.FloatRange):
    """A number in a range; click takes nan, and inf where there is no maximum."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number of use here", param, ctx)
        return number


_DURATION = re.compile(r"(\d{1,12})(ms|[smhdw])", re.ASCII)


def duration_ms(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A time such as 500ms, 90s, 10m, 2h, 7d, 1w."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no time such as 90s, 10m or 2h (ms, s, m, h, d, w)", ctx=ctx, param=param
        )
    return int(found[1]) * ({"ms": 1} | UNIT_MS)[found[2]]


def one_byte_string(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    r"""Text as bytes; `\t` and `\0` are understood as written."""
    if value is None:
        return None
    if not value:
        raise click.BadParameter("must not be empty", ctx=ctx, param=param)
    text = value.replace("\\t", "\t").replace("\\0", "\0")
    if "\n" in text:
        raise click.BadParameter("must not hold LF, which ends a record", ctx=ctx, param=param)
    return text.encode(errors="surrogateescape")


def fencing_token(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    """A fencing token: text, or `hex:` and the bytes in hex. Empty: none."""
    if value is None:
        return None
    try:
        return parsed_token(value)
    except Invalid as error:
        raise click.BadParameter(error.message, ctx=ctx, param=param) from None
