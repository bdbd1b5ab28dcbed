"""`streamlog backup` and `streamlog restore`: the metadata in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from streamlog.cli.commands.recover import RebuildFlags, rebuild_metadata, rebuild_options
from streamlog.cli.output import emit, note, shortened, size
from streamlog.cli.state import State, json_option, pass_state, remote_options
from streamlog.cli.support.new_file import new_file
from streamlog.cli.support.options import config_option, data_option, store_options


@click.command()
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to make. Until it is whole its name is FILE.*.part; a command that is killed "
    "(SIGKILL) leaves that, and the next one names it.",
)
@data_option
@store_options
@config_option
@remote_options
@pass_state
def backup(
    state: State,
    out: Path,
    data: str | None,
    store: str | None,
    meta: str | None,
    file: str | None,
) -> None:
    """Copy the metadata into a file, while the node runs.

    Asks the node at --server; with --data or --store (and --meta) it reads a stopped node's
    metadata itself. The file holds all keys at one moment: topics, settings, user values, fences,
    and the location of every object that no checkpoint in the store lists. It holds no objects, and
    nothing of topics with log.type=unified but their settings: it names them.
    """
    import asyncio

    if not out.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {out.absolute().parent}", param_hint="--out")
    with new_file(out) as file_out:
        if data is None and store is None:
            if meta is not None:
                raise click.UsageError("--meta needs --store")
            from streamlog.cli.remote import admin

            with admin(state) as client:
                # A streaming call is not repeated. This call is, for --timeout, so that a node that
                # hangs for a moment, or still starts, gives its backup.
                client.status()
                for piece in client.backup():
                    file_out.write(piece)
        else:
            from streamlog.cli.support.offline import locations_of, open_offline
            from streamlog.repair.backup.backup import backup as pieces
            from streamlog.repair.fsck.fsck import cluster_of

            async def run() -> None:
                async with open_offline(locations_of(data, store, meta, file)) as stores:
                    await cluster_of(stores.kv, stores.store)
                    async for piece in pieces(
                        stores.kv, clock=stores.clock, offload=stores.offload
                    ):
                        file_out.write(piece)

            asyncio.run(run())
    elsewhere = _topics_elsewhere(out)
    if state.json:
        emit(
            {
                "file": str(out),
                "size_bytes": out.stat().st_size,
                "topics_not_contained": elsewhere,
            }
        )
        return
    note(f"{out}: {size(out.stat().st_size)}")
    if elsewhere:
        note(
            f"not contained, because they lie in a node's log folder: {shortened(elsewhere)}; copy "
            "the folder of the stopped node, or their records"
        )


def _topics_elsewhere(file: Path) -> list[str]:
    """Reads the new file: whoever relies on it learns now what is wrong with it."""
    from streamlog.repair.backup.file import decode
    from streamlog.repair.backup.restore import topics_elsewhere

    return topics_elsewhere(decode(file.read_bytes(), str(file)))


@click.command()
@click.argument("backup_file", metavar="FILE", type=click.Path(exists=True, path_type=Path))
@rebuild_options
@json_option
@pass_state
def restore(state: State, backup_file: Path, **flags: Unpack[RebuildFlags]) -> None:
    """Rebuild lost metadata from the backup FILE and the object store.

    Stop the nodes first; a node that still runs on the old metadata is ended. Works as streamlog
    recover, and takes from the backup what the store does not hold: user values, settings of
    topics, fencing tokens. Of retention.* and cleanup.policy the value counts that deletes less,
    the backup's or a topic's own in the store; the report names each topic that changes. With the
    nodes' --config it knows what topics have that set nothing. Records stored after the backup are
    read from the objects, so that an old backup loses nothing that was acknowledged with
    --wal object. Nothing in the store is deleted. After an interruption, run it again.
    """
    from streamlog.repair.backup.file import decode
    from streamlog.repair.backup.restore import restore as rebuild

    content = decode(backup_file.read_bytes(), str(backup_file))
    rebuild_metadata(state, flags, rebuild, content)
