"""`streamlog consume`: a topic's records to stdout; with `--format value` byte for byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import click

from streamlog.cli.output import note
from streamlog.cli.parsing import START_METAVAR, StartPosition, one_byte_string, start_position
from streamlog.cli.progress import RecordProgress
from streamlog.cli.records.record_copy import (
    CopyLimits,
    RecordCopy,
    TopicPartition,
    TopicProbe,
    out_of_range,
)
from streamlog.cli.records.record_format import (
    NAMED,
    Formatter,
    compile_pattern,
    json_line,
    key_value_line,
    value_line,
)
from streamlog.cli.remote import admin, consumer
from streamlog.cli.standard_streams import check_reader, stderr_is_terminal, stdout_is_terminal
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.client import Consumer
from streamlog.errors import UnknownTopicOrPartition

TOPIC_RETRY_S = 0.5


def _form(ctx: click.Context, param: click.Parameter, value: str) -> str | Formatter:
    """A name of NAMED, or a compiled pattern."""
    if value in NAMED:
        return value
    if "%" not in value:
        raise click.BadParameter(
            f"{value!r} is none of {', '.join(NAMED)}, and no pattern with % in it such as "
            r"'%o %k %s\n'",
            ctx=ctx,
            param=param,
        )
    try:
        return compile_pattern(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=param) from None


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=start_position,
    default="earliest",
    show_default=True,
    metavar=START_METAVAR,
    help="Where to begin: an offset; -100: at the last 100 offsets of each partition; -10m: 10 "
    "minutes ago (s, m, h, d, w); a time such as 2026-01-31T12:00:00Z (without a zone: this "
    "machine's). A time means the first record of that time or later.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Read this one. [default: all]")
@click.option(
    "--isolation",
    type=click.Choice(("read_uncommitted", "read_committed")),
    default="read_uncommitted",
    show_default=True,
    help="read_committed: without the records of aborted transactions, and none at or behind the "
    "first record of one that is open.",
)
@click.option("--count", type=click.IntRange(min=0), metavar="N", help="End after N records.")
@click.option(
    "--until-end",
    is_flag=True,
    help="End at the offsets that were the ends when the command began.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Wait for more at the end, as without --until-end, and for a topic that does not exist.",
)
@click.option(
    "--format",
    "form",
    callback=_form,
    default="value",
    show_default=True,
    metavar="value|key-value|json|PATTERN",
    help="value: the value and LF. key-value: key, separator, value, LF. json: an object a line. "
    "Or a pattern as kcat's -f: %t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s "
    "value, %h headers, %K and %S lengths of key and value (null: -1), %% a percent sign; "
    r"\n, \t, \r, \0, \\, \xNN.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    default=r"\t",
    show_default=True,
    callback=one_byte_string,
    help="Between key and value, with --format key-value.",
)
@remote_options
@pass_state
def consume(
    state: State,
    topic: str,
    start: StartPosition,
    partition: int | None,
    isolation: str,
    count: int | None,
    until_end: bool,
    follow: bool,
    form: str | Formatter,
    key_separator: bytes,
) -> None:
    """Write the records of TOPIC.

    Order holds within a partition. A null key or value is written as nothing; `--format json` tells
    null from empty, and has `value_base64` where a value is not UTF-8.

    A node that does not answer for --timeout ends the command with exit code 1. So does a batch
    that cannot be decoded, after the records before it; the message says where to go on.
    """
    if follow and until_end:
        raise click.UsageError("--follow and --until-end exclude each other")
    description, had_to_wait = _topic(state, topic, is_awaited=follow)
    existing = [described.partition for described in description.partitions]
    if partition is not None and partition not in existing:
        raise click.UsageError(f"{topic} has partitions 0 to {len(existing) - 1}, not {partition}")
    chosen = [(topic, number) for number in (existing if partition is None else [partition])]
    formatter = _formatter("json" if state.json else form, key_separator)
    progress = RecordProgress(is_shown=stderr_is_terminal() and not stdout_is_terminal())
    probe = TopicProbe(
        state.server,
        topic,
        description.topic_id,
        state.timeout_s,
        state.connection,
        is_committed=isolation == "read_committed",
    )
    with consumer(state, isolation) as client, closing(probe):
        client.assign(chosen)
        ends = client.end_offsets(chosen)
        # A topic that did not exist when the command began is read from its start.
        positions = _positions(
            client, chosen, StartPosition("earliest") if had_to_wait else start, ends
        )
        for tp, offset in positions.items():
            client.seek(*tp, offset)
        limits = CopyLimits(
            ends=ends if until_end else None,
            count=count,
            timeout_s=state.timeout_s,
            new_partitions=not until_end and partition is None,
        )
        waiting = _waiting_note(topic, is_told=state.json)
        RecordCopy(client, probe, formatter, limits, progress, waiting).run(positions)


def _topic(state: State, topic: str, *, is_awaited: bool) -> tuple[Any, bool]:
    """The topic's description, and whether the command waited for the topic.

    Errors: UnknownTopicOrPartition unless the topic `is_awaited`.
    """
    had_to_wait = False
    with admin(state) as client:
        while True:
            try:
                return client.describe_topic(topic), had_to_wait
            except UnknownTopicOrPartition:
                if not is_awaited:
                    raise
            if not had_to_wait:
                had_to_wait = True
                note(f"there is no topic {topic} yet; waiting for it (Ctrl-C ends)")
            check_reader()
            time.sleep(TOPIC_RETRY_S)


def _waiting_note(topic: str, *, is_told: bool) -> Callable[[], None]:
    """A callback that says once that the command waits and does not hang."""

    def tell() -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            note(f"no more records in {topic} for now; waiting for new ones (Ctrl-C ends)")

    return tell


def _positions(
    client: Consumer,
    chosen: list[TopicPartition],
    start: StartPosition,
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The first offset to read of each partition."""
    if start.kind == "latest":
        return ends
    if start.kind == "timestamp":
        offsets = client.offsets_for_times(dict.fromkeys(chosen, start.number))
        return {
            tp: end if (first := offsets.get(tp)) is None else first.offset
            for tp, end in ends.items()
        }
    begins = client.beginning_offsets(chosen)
    if start.kind == "earliest":
        return begins
    if start.kind == "last":
        return {tp: max(begins[tp], end - start.number) for tp, end in ends.items()}
    for tp in chosen:
        if not begins[tp] <= start.number <= ends[tp]:
            raise out_of_range(tp, start.number, begins[tp], ends[tp])
    return dict.fromkeys(chosen, start.number)


def _formatter(form: str | Formatter, key_separator: bytes) -> Formatter:
    if form == "json":
        return json_line
    if form == "value":
        return value_line
    if form == "key-value":
        return key_value_line(key_separator)
    assert callable(form)
    return form
