"""What users type: NAME=VALUE pairs, start positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import click


def pairs(ctx: click.Context, param: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Option values `k=v` as a dict; the value may hold `=` and be empty."""
    found = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx=ctx, param=param)
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins; `number` is the offset, or the timestamp in milliseconds."""

    kind: Literal["earliest", "latest", "offset", "timestamp"]
    number: int = 0


def start_position(ctx: click.Context, param: click.Parameter, value: str) -> Start:
    """earliest, latest, an offset, or timestamp:MS."""
    if value == "earliest":
        return Start("earliest")
    if value == "latest":
        return Start("latest")
    kind, colon, number = value.rpartition(":")
    if number.isascii() and number.isdigit() and int(number) < 1 << 63:
        if not colon:
            return Start("offset", int(number))
        if kind == "timestamp":
            return Start("timestamp", int(number))
    raise click.BadParameter(
        f"{value!r} is not earliest, latest, an offset or timestamp:MS", ctx=ctx, param=param
    )


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
