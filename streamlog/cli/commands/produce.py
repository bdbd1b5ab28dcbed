"""`streamlog produce`: stdin to a topic, one record a line; a line ends at LF and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import click

from streamlog.cli.interruption import Interrupted, interruptible
from streamlog.cli.output import emit, note
from streamlog.cli.parsing import duration_ms, one_byte_string
from streamlog.cli.progress import RecordProgress
from streamlog.cli.records.line_sender import Headers, LineSender, SilenceWatch
from streamlog.cli.records.lines import LineReader, LineTooLong
from streamlog.cli.records.transactional_sender import TransactionalLineSender
from streamlog.cli.remote import admin, producer
from streamlog.cli.standard_streams import (
    stderr_is_terminal,
    stdin_descriptor,
    stdin_is_terminal,
)
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.client import Producer
from streamlog.client.calls.transaction import STATES
from streamlog.codec.records import record_bytes_max
from streamlog.errors import MessageTooLarge, OutcomeUnknown, StreamlogError, Unavailable

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
PREPARED = {STATES["prepare_commit"], STATES["prepare_abort"]}
MARKERS_PAUSE_S = 0.02
LAST_ANSWERS_S = 5.0
"""How long an interrupted command waits for answers; a second signal ends it at once."""


def _headers(
    ctx: click.Context, param: click.Parameter, values: Iterable[str]
) -> list[tuple[str, bytes | None]]:
    """NAME=VALUE in the order given; names may repeat. NAME alone: a null value."""
    headers: list[tuple[str, bytes | None]] = []
    for text in values:
        name, equals, value = text.partition("=")
        if not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx=ctx, param=param)
        headers.append((name, value.encode(errors="surrogateescape") if equals else None))
    return headers


@click.command()
@click.argument("topic")
@click.option(
    "--key-separator",
    metavar="TEXT",
    callback=one_byte_string,
    help=r"Split each line at the first TEXT (such as \t) into key and value.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_headers,
    help="A header of every record; may be repeated. NAME alone: a null value.",
)
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="none", show_default=True)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    help="Write to this partition. [default: by key, or spread]",
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Write in transactions as ID; an older producer of that ID is fenced.",
)
@click.option(
    "--transaction-records",
    type=click.IntRange(min=1),
    metavar="N",
    help="Commit after every N lines. [default: once, at the end of the input]",
)
@click.option(
    "--transaction-timeout",
    callback=duration_ms,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="The node aborts a transaction that is open for longer, such as 90s, 10m.",
)
@remote_options
@pass_state
def produce(
    state: State,
    topic: str,
    key_separator: bytes | None,
    headers: Headers,
    compression: str,
    partition: int | None,
    transactional_id: str | None,
    transaction_records: int | None,
    transaction_timeout: int,
) -> None:
    """Write the lines of stdin to TOPIC.

    A record is the bytes between two LF; CR, NUL and any other byte are kept. The command ends when
    all records are durable. A line over the topic's max.message.bytes ends it with exit code 1; the
    lines before it are stored. An empty input makes an empty topic, where the node creates topics
    by itself (auto.create.topics.enable).

    After Ctrl-C, SIGTERM or SIGHUP, or an error once lines are read, it says how many of the first
    lines are stored: behind N of them, `tail -n +$((N + 1))` is the rest. A node that does not
    answer for --timeout ends it with exit code 1.

    With --transactional-id readers with `--isolation read_committed` see all lines of a transaction
    or none; what is not committed when the command ends early is aborted, and then the first lines
    that count are those that are committed.
    """
    if transaction_records is not None and transactional_id is None:
        raise click.UsageError("--transaction-records needs --transactional-id")
    descriptor = stdin_descriptor()
    partitions, max_message_bytes = _limits(state, topic)
    if partition is not None and partition >= partitions:
        raise click.UsageError(f"{topic} has partitions 0 to {partitions - 1}, not {partition}")
    line_bytes_max = max_message_bytes - record_bytes_max(b"", b"", list(headers))
    reader = LineReader(descriptor, line_bytes_max=line_bytes_max)
    progress = RecordProgress(is_shown=stderr_is_terminal() and not stdin_is_terminal())
    if stdin_is_terminal():
        note("reading lines from the terminal; Ctrl-D at the start of a line ends the input")
    with (
        interruptible() as interruption,
        producer(state, compression, transactional_id, transaction_timeout) as client,
    ):
        lines_of = partial(_sender, client, transactional_id, transaction_records)
        sender = lines_of(topic, partition=partition, key_separator=key_separator, headers=headers)
        # A node that answers nothing makes a send wait for room until the time limit.
        interruption.when_deferred = lambda: sender.end_soon(_last_answers_s(state))
        try:
            with SilenceWatch(client, state.server, state.timeout_s):
                for lines in interruption.breaking(iter(reader)):
                    sender.send(lines)
                    progress.show(sender.sent, reader.bytes_read)
                with interruption.may_break():
                    sender.flush()
                sender.finish()
            if transactional_id is not None and sender.sent:
                with interruption.may_break():
                    _await_markers(state, transactional_id)
        except Interrupted as error:
            progress.done(sender.sent, reader.bytes_read)
            _end_interrupted(state, topic, sender, error)
        except LineTooLong as error:
            sender.stop(state.timeout_s)
            raise _too_long(error, topic, max_message_bytes, sender) from None
        except StreamlogError as error:
            if interruption.signal_number:
                progress.done(sender.sent, reader.bytes_read)
                _end_interrupted(state, topic, sender, Interrupted(interruption.signal_number))
            is_gone = isinstance(error, Unavailable | OutcomeUnknown)
            sender.stop(0 if is_gone else state.timeout_s)
            raise _with_outcome(error, sender) from error
        except OSError as error:
            sender.stop(state.timeout_s)
            raise StreamlogError(
                f"reading stdin failed ({error}); {sender.outcome()}", stored_lines=sender.stored
            ) from error
    progress.done(sender.sent, reader.bytes_read)
    _tell_stored(state, topic, sender, reader.bytes_read)


def _tell_stored(state: State, topic: str, sender: LineSender, bytes_read: int) -> None:
    """The command's result: on stdout with --json, else a word to who typed the lines."""
    if state.json:
        told: dict[str, Any] = {"topic": topic, "records": sender.sent, "bytes": bytes_read}
        if isinstance(sender, TransactionalLineSender):
            told["transactions"] = sender.transactions
        emit(told)
    elif stdin_is_terminal():
        note(f"{sender.sent} records are stored in {topic}")


def _too_long(
    error: LineTooLong, topic: str, max_message_bytes: int, sender: LineSender
) -> MessageTooLarge:
    return MessageTooLarge(
        f"line {error.number} is over the topic's max.message.bytes = {max_message_bytes}; "
        f"{sender.outcome()}. Raise it with: streamlog topic alter {topic} --config "
        "max.message.bytes=N",
        line=error.number,
        max_bytes=max_message_bytes,
        stored_lines=sender.stored,
    )


def _sender(
    client: Producer, transactional_id: str | None, records: int | None, topic: str, **given: Any
) -> LineSender:
    if transactional_id is None:
        return LineSender(client, topic, **given)
    return TransactionalLineSender(client, topic, records=records, **given)


def _limits(state: State, topic: str) -> tuple[int, int]:
    """How many partitions the topic has, and its max.message.bytes.

    Makes the topic where the node makes topics by itself.
    """
    with admin(state) as client:
        partitions = len(client.describe_topic(topic, allow_auto_create=True).partitions)
        for entry in client.describe_configs(topic=topic):
            if entry.name == "max.message.bytes":
                return partitions, int(entry.value)
    raise AssertionError("a topic has max.message.bytes")


def _await_markers(state: State, transactional_id: str) -> None:
    """Returns when readers see the last transaction, or after LAST_ANSWERS_S: it is committed, and
    nothing but its visibility is awaited. So a node that is away now makes no error."""
    wait_s = _last_answers_s(state)
    ends_at = time.monotonic() + wait_s
    why = ""
    try:
        with admin(replace(state, timeout_s=wait_s, is_timeout_given=True)) as client:
            while time.monotonic() < ends_at:
                (found,) = client.describe_transactions([transactional_id])
                if isinstance(found, StreamlogError) or found.state not in PREPARED:
                    return
                time.sleep(MARKERS_PAUSE_S)
    except StreamlogError as error:
        why = f" ({error.message})"
    note(
        "the lines are committed, and some partitions may show them later: see "
        f"`streamlog txn list`{why}"
    )


def _last_answers_s(state: State) -> float:
    return min(LAST_ANSWERS_S, state.timeout_s)


def _end_interrupted(state: State, topic: str, sender: LineSender, error: Interrupted) -> NoReturn:
    """Says what is stored, then ends the command with the signal's exit code."""
    try:
        sender.stop(_last_answers_s(state))
    except Interrupted:
        # The second signal.
        sender.stop(0)
    note(f"streamlog: interrupted by {error}: {sender.outcome()}")
    if state.json:
        emit({"topic": topic, "records": sender.stored, "interrupted": True})
    raise click.exceptions.Exit(error.exit_code)


def _with_outcome(error: StreamlogError, sender: LineSender) -> StreamlogError:
    told = type(error)(f"{error.message}; {sender.outcome()}", **error.fields)
    told.fields["stored_lines"] = sender.stored
    told.has_no_side_effects = error.has_no_side_effects
    return told
