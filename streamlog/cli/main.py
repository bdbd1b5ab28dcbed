"""The `streamlog` command. Exit codes: 0 done, 1 failed (one line on stderr), 2 wrong usage.

Interrupted by Ctrl-C: 130; ended by SIGTERM or SIGHUP: 143 or 129. The reader of the output went
away: 141 without a message, as for any Unix filter.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import ClassVar

import click

from streamlog.cli import standard_streams
from streamlog.cli.interruption import Interrupted
from streamlog.cli.lazy import LazyGroup
from streamlog.cli.state import State, root_options
from streamlog.errors import Invalid, StreamlogError

FAILURE = 1
INTERRUPTED = 130
READER_WENT_AWAY = 141
TEXT_SHOWN_MAX = 200


class Commands(LazyGroup):
    lazy: ClassVar = {
        "dev": (
            "streamlog.cli.commands.node:dev",
            "Run a node on this machine's files, to try things.",
        ),
        "serve": ("streamlog.cli.commands.node:serve", "Run a node."),
        "demo": (
            "streamlog.cli.commands.demo:demo",
            "Log lines in, kill -9, log lines out: byte for byte.",
        ),
        "status": ("streamlog.cli.commands.status:status", "Show what a node is and holds."),
        "topic": (
            "streamlog.cli.commands.topic:topic",
            "Create, list, describe, alter, delete topics.",
        ),
        "produce": ("streamlog.cli.commands.produce:produce", "Write the lines of stdin to TOPIC."),
        "consume": ("streamlog.cli.commands.consume:consume", "Write the records of TOPIC."),
        "txn": ("streamlog.cli.commands.txn:txn", "List, describe, abort transactions."),
        "stream": ("streamlog.cli.commands.stream:stream", "Work with streams, below topics."),
        "kv": ("streamlog.cli.commands.kv:kv", "Small values under names."),
        "object": ("streamlog.cli.commands.objects:objects", "Look at the objects in the store."),
        "log": (
            "streamlog.cli.commands.log:log",
            "Look inside a partition's log, or append to it under conditions.",
        ),
        "remote-index": (
            "streamlog.cli.commands.remote_index:remote_index",
            "Write and read an index of a partition's remote records.",
        ),
        "wal": (
            "streamlog.cli.commands.wal:wal",
            "Look at a write-ahead log, or empty it into the store.",
        ),
        "meta": ("streamlog.cli.commands.meta:meta", "Mend a node's own metadata store."),
        "config": ("streamlog.cli.commands.config:config", "Show, explain and change settings."),
        "doctor": (
            "streamlog.cli.commands.doctor:doctor",
            "Check stores, disk and machine, and say what they cost.",
        ),
        "fsck": (
            "streamlog.cli.commands.fsck:fsck",
            "Check metadata and objects against each other.",
        ),
        "recover": (
            "streamlog.cli.commands.recover:recover",
            "Rebuild lost metadata from the object store.",
        ),
        "backup": (
            "streamlog.cli.commands.backup:backup",
            "Copy the metadata into a file, while the node runs.",
        ),
        "restore": (
            "streamlog.cli.commands.backup:restore",
            "Rebuild lost metadata from the backup FILE and the object store.",
        ),
        "bench": (
            "streamlog.cli.commands.bench:bench",
            "Put load on a node, and check what it keeps.",
        ),
        "spark": ("streamlog.cli.commands.spark:spark", "Bulk work on Apache Spark."),
    }


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        from streamlog.codec import choice

        click.echo(f"streamlog {version('streamlog-engine')}, {choice.description()}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
@root_options
def cli() -> None:
    """A shared log on object storage.

    Options given here hold for every command; given after a command, they win.
    """


def run(argv: Sequence[str]) -> int:
    """Runs one command line; the exit code."""
    state = State()
    try:
        with cli.make_context("streamlog", list(argv), obj=state) as ctx:
            cli.invoke(ctx)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Interrupted as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_WENT_AWAY
    except StreamlogError as error:
        report_error(error, state)
        return FAILURE
    except UnicodeEncodeError as error:
        # A name that the shell gave as other bytes than UTF-8, which no request can hold.
        text = f"{error.object[:TEXT_SHOWN_MAX]!r} cannot be written as {error.encoding}"
        report_error(Invalid(text), state)
        return FAILURE
    except OSError as error:
        report_os_error(error, state)
        return FAILURE


def report_os_error(error: OSError, state: State) -> None:
    """As `report_error`, for a file or a stream of the command itself."""
    if state.json:
        # It has no name and no code of this program's own.
        report_error(StreamlogError(str(error)), state)
    else:
        click.echo(f"streamlog: {error}", err=True)


def report_error(error: StreamlogError, state: State) -> None:
    """One line on stderr."""
    name = type(error).__name__
    if state.json:
        fields = {"name": name, "code": int(error.code), "message": error.message} | {
            "retryable": error.is_retryable,
            "fields": error.fields,
        }
        click.echo(json.dumps({"error": fields}), err=True)
    else:
        click.echo(f"streamlog: {name}: {' '.join(error.message.split())}", err=True)


def main() -> None:
    """Ends the process without the interpreter's teardown.

    The teardown stops gRPC's threads wherever they are, at times while they hold a lock of gRPC,
    and then waits for that lock for ever.
    """
    standard_streams.prepare()
    # gRPC would print each failed handshake on stderr, beside the command's own words for it.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        code = run(sys.argv[1:])
    except BrokenPipeError:
        # The reader of stderr went away while an error was reported there.
        code = READER_WENT_AWAY
    logging.shutdown()
    # After Ctrl-C in the middle of a write its reader may read no more, and would be waited for.
    for stream in (sys.stderr,) if code == INTERRUPTED else (sys.stdout, sys.stderr):
        # `run` has noticed a reader that went away, and the exit code says so.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
