"""`streamlog dev` and `streamlog serve`: a node in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from streamlog.cli.addresses import listen_option
from streamlog.cli.data_places import checked_places
from streamlog.cli.invocation import command_name
from streamlog.cli.state import Function, State, json_option, pass_state

data_option = click.option("--data", metavar="DIR", help="Folder for objects, metadata and WAL.")


def settings_pairs(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    from streamlog.cli.parsing import pairs

    return pairs(ctx, param, values)


config_option = click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False),
    envvar="STREAMLOG_CONFIG",
    show_envvar=True,
    help="Settings in TOML; docs/config.md lists them.",
)


more_option = click.option(
    "--set",
    "more",
    multiple=True,
    metavar="NAME=VALUE",
    callback=settings_pairs,
    help="Any other setting, such as engine.append.append_bytes_max=8388608; may be repeated.",
)


def wrapped(function: Function, *options: Callable[[Any], Any]) -> Function:
    """Options in the order in which help shows them."""
    wrapped: Any = function
    for option in reversed(options):
        wrapped = option(wrapped)
    decorated: Function = wrapped
    return decorated


def store_options(function: Function) -> Function:
    """Where objects and metadata are."""
    return wrapped(
        function,
        click.option(
            "--store",
            metavar="URL",
            help="Where objects are: memory://, local:///abs/path, s3://bucket/prefix?…",
        ),
        click.option(
            "--meta",
            metavar="URL",
            help="Where metadata is: memory://, rocksdb:///abs/path, … "
            "[default: rocksdb:///PATH/meta for local:///PATH]",
        ),
    )


def place_options(function: Function) -> Function:
    """Where the data is."""
    return wrapped(
        function,
        data_option,
        store_options,
        click.option(
            "--wal-dir", metavar="DIR", help="Folder of the write-ahead log, with --wal disk."
        ),
    )


def settings_options(function: Function) -> Function:
    """All that decides how a node works."""
    return wrapped(
        function,
        config_option,
        click.option(
            "--listen",
            metavar="HOST:PORT",
            callback=listen_option,
            help="gRPC address; port 0 takes a free one. [default: 127.0.0.1:9644]",
        ),
        click.option(
            "--http-listen",
            metavar="HOST:PORT",
            callback=listen_option,
            help="Address of /metrics, /livez and /readyz. [default: 127.0.0.1:9645]",
        ),
        click.option(
            "--wal",
            type=click.Choice(("disk", "object")),
            help="disk: acknowledged after a sync to the local disk, in milliseconds. "
            "object: after the upload and commit; what was acknowledged is in the store. "
            "[default: disk on local stores, object on remote ones]",
        ),
        click.option(
            "--insecure",
            is_flag=True,
            default=None,
            help="Allow addresses beyond loopback without TLS.",
        ),
        click.option(
            "--wait/--no-wait",
            "wait_at_start",
            default=None,
            help="Whether to wait for a store or metadata that is away. [default: wait]",
        ),
        click.option("--log-format", type=click.Choice(("text", "json")), help="[default: text]"),
        more_option,
        json_option,
        pass_state,
    )


@click.command()
@place_options
@settings_options
def dev(state: State, file: str | None, more: dict[str, str], **flags: Any) -> None:
    """Run a node on this machine's files, to try things.

    Everything lies in one folder (--data, by default ./streamlog-data) and is there again at the
    next start; or objects lie where --store says, such as in a bucket, and metadata where --meta
    says. Topics are made when they are first used. Ctrl-C stops it cleanly; a second one
    stops it at once.

    Where the default addresses are in use, such as by a second `dev` with a --data of its own, it
    takes free ports and says so; an address that you give must be free.
    """
    from streamlog import settings

    _run(settings.load(file, None, {**flags, **more}), "dev", state)


@click.command()
@place_options
@settings_options
def serve(state: State, file: str | None, more: dict[str, str], **flags: Any) -> None:
    """Run a node.

    --data DIR is short for --store local:///DIR/objects --meta rocksdb:///DIR/meta
    --wal-dir DIR/wal. SIGTERM stops it cleanly: requests under way end, the WAL is synced, the port
    is closed.
    """
    from streamlog import settings

    _run(settings.load(file, None, {**flags, **more}), "serve", state)


def _run(loaded: Any, mode: str, state: State) -> None:
    from streamlog.server import node

    checked_places(loaded, mode)
    code = node.run(loaded, mode=mode, json=state.json, command=command_name())
    if code != 0:
        sys.exit(code)
