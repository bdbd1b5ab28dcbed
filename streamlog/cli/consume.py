"""`streamlog consume`: a topic's records to stdout; with `--format value` byte for byte."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from streamlog.cli.output import BytesOut, text_or_base64
from streamlog.cli.parsing import Start, StartType, one_byte_string
from streamlog.cli.remote import admin
from streamlog.cli.state import State, pass_state, remote_options

POLL_S = 0.5
"""How long a poll waits at the end of a topic, and so how soon Ctrl-C is seen."""


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|timestamp:MS",
    help="Where to begin; a time means the first record of that time or later.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Read this one. [default: all]")
@click.option("--count", type=click.IntRange(min=0), metavar="N", help="End after N records.")
@click.option("--until-end", is_flag=True, help="End at what was the end when the command began.")
@click.option(
    "--follow", is_flag=True, help="Wait for more at the end; so it is without --until-end."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("value", "key-value", "json")),
    default="value",
    show_default=True,
    help="value: the value and LF. key-value: key, separator, value, LF. json: an object a line.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    default=r"\t",
    show_default=True,
    callback=one_byte_string,
    help="Between key and value.",
)
@remote_options
@pass_state
def consume(
    state: State,
    topic: str,
    start: Start,
    partition: int | None,
    count: int | None,
    until_end: bool,
    follow: bool,
    form: str,
    key_separator: bytes,
) -> None:
    """Write the records of TOPIC to stdout.

    Order holds within a partition. Without a key or value (null), nothing stands in its place;
    `--format json` tells null from empty, and has `value_base64` where a value is not UTF-8.
    """
    if follow and until_end:
        raise click.UsageError("--follow and --until-end exclude each other")
    from streamlog.client import Consumer

    with admin(state) as client:
        there = [one.partition for one in client.describe_topic(topic).partitions]
    if partition is not None and partition not in there:
        raise click.UsageError(f"{topic} has partitions 0 to {len(there) - 1}, not {partition}")
    chosen = [(topic, one) for one in (there if partition is None else [partition])]
    with Consumer(state.server) as consumer:
        consumer.assign(chosen)
        ends = consumer.end_offsets(chosen)
        for at, offset in _positions(consumer, chosen, start, ends).items():
            consumer.seek(*at, offset)
        _copy(
            consumer,
            chosen,
            ends if until_end else None,
            count,
            _formatter("json" if state.json else form, key_separator),
        )


At = tuple[str, int]
Formatter = Callable[[Any], bytes]


def _positions(consumer: Any, chosen: list[At], start: Start, ends: dict[At, int]) -> dict[At, int]:
    if start.kind == "earliest":
        return dict(consumer.beginning_offsets(chosen))
    if start.kind == "latest":
        return ends
    if start.kind == "offset":
        return dict.fromkeys(chosen, start.number)
    found = consumer.offsets_for_times(dict.fromkeys(chosen, start.number))
    return {at: ends[at] if found.get(at) is None else found[at].offset for at in chosen}
