"""`streamlog log append`, `token`, `set-token`, `clear-token`: conditions on a partition's log."""

from __future__ import annotations

from collections.abc import Iterator

import click

from streamlog.cli.output import emit, note
from streamlog.cli.parsing import INT32_MAX, INT64_MAX, one_byte_string
from streamlog.cli.parsing import fencing_token as parse_token
from streamlog.cli.records.lines import LineReader
from streamlog.cli.remote import partitions
from streamlog.cli.standard_streams import stdin_descriptor, stdin_is_terminal
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.client import Record
from streamlog.model.fencing_token import shown_token

LINE_BYTES_MAX = 1 << 30

_topic = click.argument("topic")
_partition = click.option(
    "--partition", type=click.IntRange(0, INT32_MAX), metavar="N", required=True
)
_expected_next_offset = click.option(
    "--expected-next-offset",
    type=click.IntRange(0, INT64_MAX),
    metavar="OFFSET",
    help="Refuse unless the partition ends here.",
)


@click.command()
@_topic
@_partition
@_expected_next_offset
@click.option(
    "--fencing-token",
    callback=parse_token,
    metavar="TOKEN",
    help="Refuse unless the partition has this token (see set-token); '' for none.",
)
@click.option("--key", callback=one_byte_string, help="The key of each record.")
@remote_options
@pass_state
def append(
    state: State,
    topic: str,
    partition: int,
    expected_next_offset: int | None,
    fencing_token: bytes | None,
    key: bytes | None,
) -> None:
    """Append each line of stdin as a record of TOPIC; prints the offsets when durable.

    All of them are one batch: they are stored together, or none is.
    """
    if stdin_is_terminal():
        note("reading lines from the terminal; Ctrl-D at the start of a line ends the input")
    records = [Record(line, key) for line in _lines()]
    if not records:
        raise click.UsageError("stdin is empty: each of its lines is a record")
    with partitions(state) as client:
        done = client.append(
            topic,
            partition,
            records,
            expected_next_offset=expected_next_offset,
            fencing_token=fencing_token,
        )
    if state.json:
        emit({"base_offset": done.base_offset, "end_offset": done.end_offset})
    else:
        note(f"offsets {done.base_offset} to {done.end_offset - 1}")


def _lines() -> Iterator[bytes]:
    for lines in LineReader(stdin_descriptor(), line_bytes_max=LINE_BYTES_MAX):
        yield from lines


@click.command()
@_topic
@_partition
@remote_options
@pass_state
def token(state: State, topic: str, partition: int) -> None:
    """Show the fencing token of one partition of TOPIC, and where the partition ends."""
    with partitions(state) as client:
        info = client.describe(topic, partition)
    shown = shown_token(info.fencing_token)
    if state.json:
        emit({"fencing_token": shown, "next_offset": info.log_end_offset})
        return
    click.echo(shown)
    note(f"{topic}-{partition} ends at offset {info.log_end_offset}")


@click.command("set-token")
@_topic
@click.argument("token", callback=parse_token)
@_partition
@click.option(
    "--expected",
    callback=parse_token,
    metavar="TOKEN",
    help="Refuse unless the partition has this token now; '' for none.",
)
@_expected_next_offset
@remote_options
@pass_state
def set_token(
    state: State,
    topic: str,
    token: bytes,
    partition: int,
    expected: bytes | None,
    expected_next_offset: int | None,
) -> None:
    """Set the fencing token of one partition of TOPIC: appends with another one are refused.

    TOKEN is text of at most 64 bytes, or hex: and the bytes in hex. Appends without a token, as
    Kafka's clients send them, are accepted.
    """
    if not token:
        raise click.UsageError("the token is empty; clear-token takes a partition's token away")
    _change(state, topic, partition, token, expected, expected_next_offset)


@click.command("clear-token")
@_topic
@_partition
@click.option(
    "--expected",
    callback=parse_token,
    metavar="TOKEN",
    help="Refuse unless the partition has this token now.",
)
@remote_options
@pass_state
def clear_token(state: State, topic: str, partition: int, expected: bytes | None) -> None:
    """Take the fencing token of one partition of TOPIC away."""
    _change(state, topic, partition, b"", expected, None)


def _change(
    state: State,
    topic: str,
    partition: int,
    token: bytes,
    expected: bytes | None,
    expected_next_offset: int | None,
) -> None:
    with partitions(state) as client:
        client.set_fencing_token(
            topic,
            partition,
            token,
            expected_token=expected,
            expected_next_offset=expected_next_offset,
        )
    if state.json:
        emit({"topic": topic, "partition": partition, "fencing_token": shown_token(token)})
    else:
        note(f"{topic}-{partition} has {'a new' if token else 'no'} fencing token")


COMMANDS = (append, token, set_token, clear_token)
