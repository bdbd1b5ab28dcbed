"""`streamlog produce`: stdin to a topic, one record a line; a line ends at LF and nowhere else."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

import click

from streamlog.cli.lines import LineReader, LineTooLong
from streamlog.cli.output import emit, size
from streamlog.cli.parsing import one_byte_string
from streamlog.cli.remote import admin
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.client import Producer
from streamlog.codec.records import record_bytes_max
from streamlog.errors import InvalidRecord, MessageTooLarge

PROGRESS_EVERY_S = 0.5
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@click.argument("topic")
@click.option(
    "--key-separator",
    metavar="TEXT",
    callback=one_byte_string,
    help=r"Split each line at the first TEXT (such as \t) into key and value.",
)
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="none", show_default=True)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    help="Write to this partition. [default: by key, or spread]",
)
@remote_options
@pass_state
def produce(
    state: State, topic: str, key_separator: bytes | None, compression: str, partition: int | None
) -> None:
    """Write the lines of stdin to TOPIC.

    A record is what stands between two LF; CR, NUL and any other byte are kept. Ends when all are
    durable. A line over the topic's max.message.bytes ends it with exit code 1; what came before
    that line is stored. An empty input makes an empty topic, where the node makes topics by itself
    (auto.create.topics.enable).
    """
    max_message_bytes = _max_message_bytes(state, topic)
    reader = LineReader(
        sys.stdin.fileno(), line_bytes_max=max_message_bytes - record_bytes_max(b"", b"", [])
    )
    progress = _Progress(reader)
    with Producer(state.server, compression=compression) as producer:
        sender = _Sender(producer, topic, partition, key_separator)
        try:
            for lines in reader:
                sender.send(lines)
                progress.show(sender.records)
        except LineTooLong as error:
            sender.finish()
            raise MessageTooLarge(
                f"line {error.number} is over the topic's max.message.bytes = {max_message_bytes}; "
                f"the {sender.records} lines before it are stored. Raise it with: streamlog topic "
                f"alter {topic} --config max.message.bytes=N",
                line=error.number,
                max_bytes=max_message_bytes,
            ) from None
        sender.finish()
    progress.done(sender.records)
    if state.json:
        emit({"topic": topic, "records": sender.records, "bytes": reader.bytes_read})


def _max_message_bytes(state: State, topic: str) -> int:
    """The topic's limit; makes the topic where the node makes topics by itself."""
    with admin(state) as client:
        client.describe_topic(topic, allow_auto_create=True)
        for entry in client.describe_configs(topic=topic):
            if entry.name == "max.message.bytes":
                return int(entry.value)
    raise AssertionError("a topic has max.message.bytes")


class _Sender:
    """Hands lines to the producer and takes its answers; an answer's error ends the run."""

    def __init__(
        self, producer: Producer, topic: str, partition: int | None, key_separator: bytes | None
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._key_separator = key_separator
        self._pending: deque[Any] = deque()
        self.records = 0

    def send(self, lines: list[bytes]) -> None:
        if self._key_separator is None:
            self._send(lines, None)
        else:
            self._send_with_keys(lines, self._key_separator)

    def _send_with_keys(self, lines: list[bytes], separator: bytes) -> None:
        parts = [line.partition(separator) for line in lines]
        good = next((index for index, part in enumerate(parts) if not part[1]), len(parts))
        self._send([part[2] for part in parts[:good]], [part[0] for part in parts[:good]])
        if good < len(parts):
            self.finish()
            raise InvalidRecord(
                f"line {self.records + 1} has no separator {separator!r}; the {self.records} lines "
                "before it are stored",
                line=self.records + 1,
            )

    def _send(self, values: list[bytes], keys: list[bytes] | None) -> None:
        if not values:
            return
        sent = self._producer.send_many(self._topic, values, keys, partition=self._partition)
        self._pending.append(sent)
        self.records += len(values)
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def finish(self) -> None:
        """Returns when everything sent is durable."""
        self._producer.flush()
        while self._pending:
            self._pending.popleft().result()


class _Progress:
    """How much has been read, on stderr, if a person is looking."""

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._is_shown = sys.stderr.isatty() and not sys.stdin.isatty()
        self._next = time.monotonic() + PROGRESS_EVERY_S

    def show(self, records: int, end: str = "") -> None:
        if self._is_shown and (end or time.monotonic() >= self._next):
            self._next = time.monotonic() + PROGRESS_EVERY_S
            text = f"\r{records:,} records, {size(self._reader.bytes_read)}\x1b[K{end}"
            click.echo(text, err=True, nl=False)

    def done(self, records: int) -> None:
        self.show(records, "\n")
