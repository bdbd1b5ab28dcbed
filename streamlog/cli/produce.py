"""`streamlog produce`: stdin to a topic, one record a line; a line ends at LF and nowhere else."""

from __future__ import annotations

import sys
import time
from collections import deque

import click

from streamlog.cli.lines import LineReader, LineTooLong
from streamlog.cli.output import emit, size
from streamlog.cli.parsing import one_byte_string
from streamlog.cli.remote import admin
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.codec.records import record_bytes_max
from streamlog.errors import Invalid, MessageTooLarge

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
    """Write the lines of stdin to TOPIC, one record each; CR, NUL and any other byte are kept.

    Ends when all are durable. A line over the topic's max.message.bytes ends it with exit code 1;
    what came before that line is stored. An empty input makes an empty topic where the node makes
    topics by itself (auto.create.topics.enable).
    """
    limit = _record_limit(state, topic)
    run = _Run(state, topic, key_separator, compression, partition)
    try:
        run.all(LineReader(sys.stdin.fileno(), line_bytes_max=limit))
    finally:
        run.close()
    run.report()
