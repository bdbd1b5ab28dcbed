"""`streamlog spark compact`: compaction by executors, for a node that runs or offline."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from streamlog.cli.output import emit, field_list, size
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.cli.support.data_places import checked_places
from streamlog.cli.support.options import config_option, data_option, store_options
from streamlog.cli.support.spark_session import is_offline, spark_options, spark_session

if TYPE_CHECKING:
    from streamlog.spark.jobs.compaction.job import Compacted


@click.command()
@data_option
@store_options
@config_option
@spark_options
@remote_options
@pass_state
def compact(
    state: State,
    data: str | None,
    store: str | None,
    meta: str | None,
    file: str | None,
    master: str,
    conf: dict[str, str],
) -> None:
    """Merge all small objects that are due, on executors, as the node would do over time.

    For the running node at --server: the node plans and commits, executors read and write the
    store (--store, where they reach it under another URL than the node). Or offline: stop the node
    first, and give the options that it was started with (--data, or --store and --meta, and
    --config).

    Merges that a stopped run has committed stay, and the next run goes on. The store needs room for
    the new objects; the node deletes the old ones later. Offline nothing is deleted, no records
    either: retention and the cleaner are left to the node.

    Exit code 1 where objects could not be merged: fsck says why.
    """
    from dataclasses import asdict

    if is_offline():
        done = _offline(state, (data, store, meta, file), master, conf)
    else:
        done = _with_node(state, store, master, conf)
    if state.json:
        emit(asdict(done))
    else:
        field_list(
            {
                "merges": f"{done.specs:,} of {done.inputs:,} inputs into {done.outputs:,} objects",
                "read": size(done.bytes_read),
                "written": size(done.bytes_written),
            }
        )
        for failure in done.failed:
            click.echo(f"given up: {failure}")
    if done.failed:
        sys.exit(1)


def _with_node(state: State, store: str | None, master: str, conf: dict[str, str]) -> Compacted:
    import socket

    from streamlog.cli.remote import await_listener
    from streamlog.cli.support.offline import progress_of
    from streamlog.spark.jobs.compaction.node import compact_node

    await_listener(state)
    with spark_session("compact", master, conf) as made:
        return compact_node(
            made,
            state.server,
            store=store,
            owner=f"spark at {socket.gethostname()}",
            progress=progress_of(state),
            tls=state.connection,
        )


def _offline(
    state: State,
    named: tuple[str | None, str | None, str | None, str | None],
    master: str,
    conf: dict[str, str],
) -> Compacted:
    import asyncio

    from streamlog import settings
    from streamlog.cli.support.offline import locations_of as checked
    from streamlog.cli.support.offline import progress_of
    from streamlog.spark.jobs.compaction.job import CompactionPlaces
    from streamlog.spark.jobs.compaction.job import compact as work

    data, store, meta, file = named
    where = checked(data, store, meta, file)
    flags = {"data": data, "store": store, "meta": meta}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    node = checked_places(settings.load(file, None, given))
    wal: Literal["disk", "object"] | None = None
    if node.wal is not None:
        wal = "disk" if node.wal == "disk" else "object"
    places = CompactionPlaces(where.store, where.meta, wal, node.wal_dir, node.node_id)
    with spark_session("compact", master, conf) as made:
        return asyncio.run(work(made, places, where.config, progress=progress_of(state)))
