"""`streamlog stream`: streams, below topics; their payloads are opaque bytes."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import BytesOut, emit, field_list, note, table
from streamlog.cli.parsing import INT64_MAX, UINT32_MAX, UINT64_MAX, fencing_token, pairs
from streamlog.cli.records.lines import LineReader
from streamlog.cli.remote import streams
from streamlog.cli.standard_streams import read_input, stdin_descriptor
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.errors import OffsetOutOfRange
from streamlog.model.fencing_token import shown_token

INFO_FIELDS = (
    "stream_id",
    "epoch",
    "state",
    "start_offset",
    "confirm_offset",
    "next_offset",
    "holder",
)
PAYLOAD_BYTES_MAX = 1 << 30


def _info(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in INFO_FIELDS} | {
        "tags": dict(info.tags),
        "fencing_token": shown_token(info.fencing_token),
    }


_stream_id = click.argument("stream_id", type=click.IntRange(0, UINT64_MAX), metavar="ID")


@click.group(cls=CommandGroup)
def stream() -> None:
    """Work with streams, below topics."""


@stream.command()
@click.option(
    "--tag", "tags", multiple=True, metavar="NAME=VALUE", callback=pairs, help="May be repeated."
)
@remote_options
@pass_state
def create(state: State, tags: dict[str, str]) -> None:
    """Create a stream, open it on the node, and print its id."""
    with streams(state) as client:
        made = client.create(tags=tags)
    if state.json:
        emit(_info(made))
    else:
        click.echo(made.stream_id)


@stream.command("list")
@remote_options
@pass_state
def list_streams(state: State) -> None:
    """List all streams, those of topics too."""
    with streams(state) as client:
        infos = [_info(info) for info in client.list()]
    if state.json:
        for info in infos:
            emit(info)
        return
    table(INFO_FIELDS, [[info[name] for name in INFO_FIELDS] for info in infos])


@stream.command()
@_stream_id
@remote_options
@pass_state
def describe(state: State, stream_id: int) -> None:
    """Show the stream ID."""
    with streams(state) as client:
        info = _info(client.describe(stream_id))
    if state.json:
        emit(info)
    else:
        field_list(info | {"tags": " ".join(f"{k}={v}" for k, v in info["tags"].items())})


@stream.command()
@_stream_id
@click.option("--lines", is_flag=True, help="Each line of stdin is a batch of its own.")
@click.option(
    "--records",
    type=click.IntRange(1, UINT32_MAX),
    default=1,
    show_default=True,
    help="How many offsets the batch takes.",
)
@click.option(
    "--expected-next-offset",
    type=click.IntRange(0, INT64_MAX),
    help="Refuse unless this is the tail.",
)
@click.option(
    "--fencing-token",
    callback=fencing_token,
    metavar="TOKEN",
    help="Refuse unless the stream has this token (see set-token).",
)
@remote_options
@pass_state
def append(
    state: State,
    stream_id: int,
    lines: bool,
    records: int,
    expected_next_offset: int | None,
    fencing_token: bytes | None,
) -> None:
    """Append stdin to the stream ID as one record batch; prints its offsets when durable."""
    if lines and (records != 1 or expected_next_offset is not None):
        raise click.UsageError("--lines stands alone: a line is one record, wherever the tail is")
    with streams(state) as client:
        for payload in _lines() if lines else [read_input("the batch")]:
            done = client.append(
                stream_id,
                payload,
                record_count=records,
                base_timestamp_ms=int(time.time() * 1000),
                expected_next_offset=expected_next_offset,
                fencing_token=fencing_token,
            )
            if state.json:
                emit({"base_offset": done.base_offset, "end_offset": done.end_offset})
            else:
                note(f"offsets {done.base_offset} to {done.end_offset - 1}")


def _lines() -> Iterator[bytes]:
    for lines in LineReader(stdin_descriptor(), line_bytes_max=PAYLOAD_BYTES_MAX):
        yield from lines


@stream.command()
@_stream_id
@click.option(
    "--from", "start", type=click.IntRange(0, INT64_MAX), help="[default: the stream's start]"
)
@click.option(
    "--to", "end", type=click.IntRange(0, INT64_MAX), help="Exclusive. [default: its end now]"
)
@remote_options
@pass_state
def fetch(state: State, stream_id: int, start: int | None, end: int | None) -> None:
    """Write the payloads of the stream ID to stdout, one after another, byte for byte.

    With --json one object for each batch, its payload as base64.
    """
    if start is not None and end is not None and end < start:
        raise click.UsageError(f"--to {end} is before --from {start}")
    out = BytesOut()
    with streams(state) as client:
        info = client.describe(stream_id)
        first = info.start_offset if start is None else start
        if first > info.confirm_offset:
            raise OffsetOutOfRange(
                f"stream {stream_id} holds offsets {info.start_offset} to {info.confirm_offset} "
                f"(exclusive), not {first}",
                offset=first,
                start_offset=info.start_offset,
                end_offset=info.confirm_offset,
            )
        last = info.confirm_offset if end is None else min(end, info.confirm_offset)
        for batch in client.read(stream_id, first, end_offset=last) if first < last else ():
            if state.json:
                emit(
                    {
                        "base_offset": batch.base_offset,
                        "record_count": batch.record_count,
                        "base_timestamp_ms": batch.base_timestamp_ms,
                        "payload_base64": base64.b64encode(batch.payload).decode(),
                        "attributes_base64": base64.b64encode(batch.attributes).decode(),
                    }
                )
            else:
                out.write(batch.payload)
    out.flush()


@stream.command()
@_stream_id
@click.option(
    "--to",
    "new_start",
    type=click.IntRange(0, INT64_MAX),
    metavar="OFFSET",
    required=True,
    help="The new first offset.",
)
@remote_options
@pass_state
def trim(state: State, stream_id: int, new_start: int) -> None:
    """Drop everything below the offset --to; prints the new start."""
    with streams(state) as client:
        start = client.trim(stream_id, new_start)
    if state.json:
        emit({"start_offset": start})
    else:
        note(f"starts at offset {start}")


@stream.command("set-token")
@_stream_id
@click.argument("token", callback=fencing_token)
@click.option(
    "--expected",
    callback=fencing_token,
    metavar="TOKEN",
    help="Refuse unless the stream has this token now; '' for none.",
)
@click.option(
    "--expected-next-offset",
    type=click.IntRange(0, INT64_MAX),
    help="Refuse unless this is the tail.",
)
@remote_options
@pass_state
def set_token(
    state: State,
    stream_id: int,
    token: bytes,
    expected: bytes | None,
    expected_next_offset: int | None,
) -> None:
    """Set the fencing token of the stream ID: appends that carry another one are refused.

    TOKEN is text of at most 64 bytes, or hex: and the bytes in hex. Appends without a token are
    accepted.
    """
    if not token:
        raise click.UsageError("the token is empty; clear-token takes a stream's token away")
    _change_token(state, stream_id, token, expected, expected_next_offset)


@stream.command("clear-token")
@_stream_id
@click.option(
    "--expected",
    callback=fencing_token,
    metavar="TOKEN",
    help="Refuse unless the stream has this token now.",
)
@remote_options
@pass_state
def clear_token(state: State, stream_id: int, expected: bytes | None) -> None:
    """Take the fencing token of the stream ID away."""
    _change_token(state, stream_id, b"", expected, None)


def _change_token(
    state: State,
    stream_id: int,
    token: bytes,
    expected: bytes | None,
    expected_next_offset: int | None,
) -> None:
    with streams(state) as client:
        client.set_fencing_token(
            stream_id, token, expected_token=expected, expected_next_offset=expected_next_offset
        )
    if state.json:
        emit({"stream_id": stream_id, "fencing_token": shown_token(token)})
    else:
        note(f"stream {stream_id} has {'a new' if token else 'no'} fencing token")


@stream.command()
@_stream_id
@remote_options
@pass_state
def delete(state: State, stream_id: int) -> None:
    """Delete the stream ID and all it holds."""
    with streams(state) as client:
        client.delete(stream_id)
    if state.json:
        emit({"stream_id": stream_id, "deleted": True})
    else:
        note(f"deleted stream {stream_id}")
