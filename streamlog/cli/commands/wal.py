"""`streamlog wal`: a node's write-ahead log, also of a node that is gone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, field_list, note, size, table
from streamlog.cli.state import State, json_option, pass_state
from streamlog.cli.support.options import config_option, more_option, store_options


def _with_log(context: click.Context, parameter: click.Parameter, folder: Path) -> Path:
    """Refuses a folder without a log: an empty answer would look like "nothing to save"."""
    if any(folder.glob("wal-*")):
        return folder
    if any((folder / "wal").glob("wal-*")):
        raise click.BadParameter(f"{folder} is a node's --data folder; its log is in {folder}/wal")
    raise click.BadParameter(f"there is no write-ahead log in {folder}")


_folder = click.argument(
    "folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    callback=_with_log,
)


@click.group(cls=CommandGroup)
def wal() -> None:
    """Look at a write-ahead log, or empty it into the store.

    With wal=disk a node acknowledges what its own disk holds, and uploads it soon after. DIR is the
    folder of that log: DATA/wal with --data DATA.
    """


@wal.command()
@_folder
@store_options
@config_option
@click.option("--entries", is_flag=True, help="List every append that was not uploaded yet.")
@json_option
@pass_state
def show(
    state: State,
    folder: Path,
    store: str | None,
    meta: str | None,
    file: str | None,
    entries: bool,
) -> None:
    """Show what the log in DIR holds; nothing is changed.

    A damaged log is shown as far as it can be read, and each damaged place is named. With --store
    (and --meta) each append is stored (in the store as well), pending (nowhere else), or elsewhere
    or gone (given up, because another node took the stream without it).

    Exit code 1 when something is damaged.
    """
    import asyncio

    from streamlog import settings
    from streamlog.repair.wal.folder import ClusterUrls, Seen, groups_of, look

    if store is None and meta is not None:
        raise click.UsageError("--meta needs --store")
    urls = None if store is None else ClusterUrls(store, meta)
    seen: Seen = asyncio.run(look(folder, urls, settings.load(file).engine))
    content = seen.content
    identity = content.identity
    summary: dict[str, Any] = {
        "folder": str(folder),
        "cluster_id": identity.cluster_id if identity else None,
        "tenures": [str(item) for item in sorted(identity.tenures)] if identity else [],
        "in_use": seen.in_use or None,
        "released_through": content.released_through,
        "groups": groups_of(content.entries),
        "appends": len(content.entries),
        "payload_bytes": sum(item.size_bytes for item in content.entries),
    }
    if state.json:
        emit(
            summary
            | {
                "files": [_plain(item) for item in content.files],
                "streams": [_plain(item) for item in seen.streams],
                "entries": [_plain(item) for item in content.entries],
                "torn": None if content.torn is None else _plain(content.torn),
                "damage": [_plain(item) for item in content.damage],
            }
        )
    else:
        _print(summary, seen, entries)
    if content.damage:
        click.get_current_context().exit(1)


def _print(summary: dict[str, Any], seen: Any, entries: bool) -> None:
    content = seen.content
    field_list(
        summary
        | {
            "tenures": ", ".join(summary["tenures"]),
            "in_use": summary["in_use"] or "no",
            "payload_bytes": size(summary["payload_bytes"]),
        }
    )
    click.echo()
    table(
        ("file", "state", "bytes", "tenure", "first group", "last group"),
        [
            (f.name, f.state, f.size_bytes, f.tenure, f.first_sequence, f.last_sequence)
            for f in content.files
        ],
    )
    if seen.streams:
        click.echo()
        table(
            ("stream", "epoch", "from", "to", "appends", "bytes", "state"),
            [
                (
                    *(stream.stream_id, stream.epoch, stream.start_offset, stream.end_offset),
                    *(stream.appends, stream.size_bytes),
                    stream.state or "unknown without --store",
                )
                for stream in seen.streams
            ],
        )
    if entries and content.entries:
        click.echo()
        table(
            ("group", "tenure", "stream", "epoch", "from", "to", "bytes"),
            [
                (
                    *(entry.sequence, entry.tenure, entry.stream_id, entry.epoch),
                    *(entry.base_offset, entry.end_offset, entry.size_bytes),
                )
                for entry in content.entries
            ],
        )
    if content.torn is not None:
        torn = content.torn
        click.echo(f"\ntorn: {torn.file}, bytes {torn.start} to {torn.end}: {torn.what}")
    for damage in content.damage:
        click.echo(f"\ndamaged: {damage.file}, bytes {damage.start} to {damage.end}: {damage.what}")


@wal.command()
@_folder
@store_options
@config_option
@click.option("--force", is_flag=True, help="Also while another process runs as this node.")
@more_option
@json_option
@pass_state
def upload(
    state: State,
    folder: Path,
    store: str | None,
    meta: str | None,
    file: str | None,
    force: bool,
    more: dict[str, str],
) -> None:
    """Bring what the log in DIR holds into the store.

    For a node that does not come back: all appends that it acknowledged are uploaded and committed,
    and any other node may open its streams. An interruption loses nothing; start the command again.
    It is refused while the node runs, here or elsewhere, and with the metadata of another cluster.
    Retention and the cleaner do not run: that is left to the nodes.

    A damaged log is refused as well. With --set engine.wal.accept_data_loss=true the missing
    appends are given up, and so are the appends behind them in the same streams; keep a copy of DIR
    first.
    """
    import asyncio

    from streamlog import settings
    from streamlog.repair.wal.folder import ClusterUrls, Uploaded
    from streamlog.repair.wal.folder import upload as bring

    if store is None:
        raise click.UsageError("where to? give --store URL, and --meta URL")
    config = settings.load(file, None, more).engine
    done: Uploaded = asyncio.run(bring(folder, ClusterUrls(store, meta), config, note, force=force))
    if state.json:
        emit(_plain(done))
        return
    click.echo(
        f"uploaded {done.appends} appends to {done.streams} streams, {size(done.size_bytes)}, of "
        f"node {done.node_id}"
    )
    if done.left:
        click.echo(
            f"left out: appends to {len(done.left)} streams that another node took, accepting "
            f"their loss: {', '.join(map(str, done.left[:20]))}"
        )
    if done.given_up:
        click.echo(
            f"given up: appends to {len(done.given_up)} streams, because appends "
            f"before them are missing: {', '.join(map(str, done.given_up[:20]))}"
        )


def _plain(value: Any) -> dict[str, Any]:
    values = asdict(value)
    if values.get("tenure") is not None:
        values["tenure"] = str(value.tenure)
    return values
