"""`streamlog dev` and `streamlog serve`: a node in this process."""

from __future__ import annotations

import sys
from typing import Any

import click

from streamlog.cli.invocation import command_name
from streamlog.cli.state import State
from streamlog.cli.support.data_places import checked_places
from streamlog.cli.support.options import place_options, setting_paths, settings_options


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

    _run(settings.load(file, None, {**setting_paths(flags), **more}), "dev", state)


@click.command()
@place_options
@settings_options
def serve(state: State, file: str | None, more: dict[str, str], **flags: Any) -> None:
    """Run a node.

    --data DIR is short for --store local:///DIR/objects --meta rocksdb:///DIR/meta
    --wal-dir DIR/wal --log-dir DIR/logs. SIGTERM, SIGHUP or Ctrl-C stops it cleanly: requests under
    way end, the WAL is synced, the port is closed.
    """
    from streamlog import settings

    _run(settings.load(file, None, {**setting_paths(flags), **more}), "serve", state)


def _run(loaded: Any, mode: str, state: State) -> None:
    from streamlog.server import node

    checked_places(loaded, mode)
    code = node.run(loaded, mode=mode, json=state.json, command=command_name())
    if code != 0:
        sys.exit(code)
