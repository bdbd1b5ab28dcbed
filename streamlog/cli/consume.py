"""`streamlog consume`: a topic's records to stdout; with `--format value` byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from streamlog.cli.output import BytesOut, text_or_base64
from streamlog.cli.parsing import Start, one_byte_string, start_position
from streamlog.cli.remote import admin
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.client import Consumer
from streamlog.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from streamlog.client import ConsumerRecord, FetchedBatch

At = tuple[str, int]
Formatter = Callable[["ConsumerRecord"], bytes]

OFFSET_MAX = (1 << 63) - 1
POLL_S = 0.5
"""How long a poll waits at the end of a topic, and so how soon Ctrl-C is seen."""


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=start_position,
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
    """Write the records of TOPIC.

    Order holds within a partition. Without a key or value (null), nothing stands in its place;
    `--format json` tells null from empty, and has `value_base64` where a value is not UTF-8.
    """
    if follow and until_end:
        raise click.UsageError("--follow and --until-end exclude each other")
    with admin(state) as client:
        there = [one.partition for one in client.describe_topic(topic).partitions]
    if partition is not None and partition not in there:
        raise click.UsageError(f"{topic} has partitions 0 to {len(there) - 1}, not {partition}")
    chosen = [(topic, one) for one in (there if partition is None else [partition])]
    formatter = _formatter("json" if state.json else form, key_separator)
    with Consumer(state.server) as consumer:
        consumer.assign(chosen)
        ends = consumer.end_offsets(chosen)
        positions = _positions(consumer, chosen, start, ends)
        for at, offset in positions.items():
            consumer.seek(*at, offset)
        copy = _Copy(consumer, formatter, ends if until_end else None, count)
        copy.run(positions)


def _positions(
    consumer: Consumer, chosen: list[At], start: Start, ends: dict[At, int]
) -> dict[At, int]:
    """The first offset to read of each partition."""
    if start.kind == "latest":
        return ends
    if start.kind == "timestamp":
        found = consumer.offsets_for_times(dict.fromkeys(chosen, start.number))
        return {
            at: end if (first := found.get(at)) is None else first.offset
            for at, end in ends.items()
        }
    begins = consumer.beginning_offsets(chosen)
    if start.kind == "earliest":
        return begins
    for at in chosen:
        if not begins[at] <= start.number <= ends[at]:
            raise OffsetOutOfRange(
                f"{at[0]}-{at[1]} holds offsets {begins[at]} to {ends[at]} (exclusive), "
                f"not {start.number}",
                offset=start.number,
                start_offset=begins[at],
                end_offset=ends[at],
            )
    return dict.fromkeys(chosen, start.number)


class _Copy:
    """Moves records from a consumer to stdout until the ends or the count are reached."""

    def __init__(
        self,
        consumer: Consumer,
        formatter: Formatter,
        ends: dict[At, int] | None,
        count: int | None,
    ) -> None:
        self._consumer = consumer
        self._formatter = formatter
        self._ends = ends
        self._room = count
        self._out = BytesOut()

    def run(self, positions: dict[At, int]) -> None:
        unfinished = (
            None
            if self._ends is None
            else {at for at, end in self._ends.items() if positions[at] < end}
        )
        while self._room != 0 and (unfinished is None or unfinished):
            for batch in self._consumer.poll_batches(POLL_S):
                at = (batch.topic, batch.partition)
                if unfinished is not None and at not in unfinished:
                    continue
                self._write(batch, at)
                if unfinished is not None and batch.next_offset >= self._ends_at(at):
                    unfinished.discard(at)
            self._out.flush()

    def _ends_at(self, at: At) -> int:
        return OFFSET_MAX if self._ends is None else self._ends[at]

    def _write(self, batch: FetchedBatch, at: At) -> None:
        """Whole batches at once where the format allows it; records at the ends."""
        end = self._ends_at(at)
        fits = self._room is None or batch.record_count <= self._room
        if self._formatter is _value_lines and fits and batch.next_offset <= end:
            values = batch.values()
            self._out.write(_joined(values))
            self._took(len(values))
            return
        records = [record for record in batch.records() if record.offset < end]
        records = records[: self._room]
        for record in records:
            self._out.write(self._formatter(record))
        self._took(len(records))

    def _took(self, count: int) -> None:
        if self._room is not None:
            self._room -= count


def _joined(values: Sequence[bytes | None]) -> bytes:
    return b"\n".join([value or b"" for value in values]) + b"\n" if values else b""


def _formatter(form: str, key_separator: bytes) -> Formatter:
    if form == "json":
        return _json_line
    if form == "value":
        return _value_lines

    def key_value_line(record: ConsumerRecord) -> bytes:
        return (record.key or b"") + key_separator + (record.value or b"") + b"\n"

    return key_value_line


def _value_lines(record: ConsumerRecord) -> bytes:
    return (record.value or b"") + b"\n"


def _json_line(record: ConsumerRecord) -> bytes:
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
