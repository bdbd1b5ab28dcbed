"""`streamlog recover`: the metadata, rebuilt from the object store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from streamlog.cli.node import config_option, data_option, store_options
from streamlog.cli.output import emit, facts
from streamlog.cli.state import State, json_option, pass_state

F = TypeVar("F", bound=Callable[..., None])


def rebuild_options(command: F) -> F:
    """What is rebuilt, where, and how far it may go: of `recover` and `restore`."""
    for option in (
        click.option(
            "--accept-data-loss",
            is_flag=True,
            help="Go on without objects that are gone or cannot be read.",
        ),
        click.option(
            "--overwrite", is_flag=True, help="Replace metadata of the same cluster that is there."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Say what would come back, and write nothing."
        ),
        click.option(
            "--grace",
            "grace_s",
            type=click.FloatRange(min=0),
            default=15.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for nodes that still run on the old metadata to notice that "
            "they were overtaken; 0 only when none can be running.",
        ),
        config_option,
        store_options,
        data_option,
    ):
        command = option(command)
    return command


@click.command()
@rebuild_options
@json_option
@pass_state
def recover(
    state: State,
    data: str | None,
    store: str | None,
    meta: str | None,
    file: str | None,
    dry_run: bool,
    overwrite: bool,
    accept_data_loss: bool,
    grace_s: float,
) -> None:
    """Rebuild lost metadata from the object store.

    Stop the nodes first; one that still runs on the old metadata is ended. Every record that was
    acknowledged with --wal object comes back, and with --wal disk what was uploaded; start the node
    with its WAL folder afterwards for the rest. Topics are found by their own streams. Lost are
    user values (streamlog kv), and what was trimmed, deleted or closed since the last checkpoint
    may come back. With a backup, use streamlog restore. Nothing in the store is deleted. Cut short,
    run it again.
    """
    import asyncio

    from streamlog.cli.at_rest import opened, places, progress_of
    from streamlog.repair.findings import Report
    from streamlog.repair.recover import RecoverOptions
    from streamlog.repair.recover import recover as rebuild

    async def run() -> Report:
        async with opened(places(data, store, meta, file)) as at:
            return await rebuild(
                at.kv,
                at.store,
                clock=at.clock,
                random=at.random,
                offload=at.offload,
                options=RecoverOptions(dry_run, overwrite, accept_data_loss, round(grace_s * 1000)),
                progress=progress_of(state),
            )

    tell(state, asyncio.run(run()), dry_run)


def tell(state: State, report: Any, dry_run: bool) -> None:
    """The report of a recovery or restore."""
    from streamlog.cli.at_rest import print_findings

    if state.json:
        emit(report.facts() | {"dry_run": dry_run})
        return
    print_findings(report)
    counts = report.counts
    facts(
        {
            "cluster": report.cluster_id,
            "streams": f"{counts['streams']:,} with {counts['records']:,} offsets, "
            f"{counts['records_after_checkpoint']:,} of them past the checkpoint",
            "topics": f"{counts['topics']:,} with {counts['partitions']:,} partitions",
            "objects": f"{counts['objects']:,}, {counts['objects_read']:,} of them read",
            "left over": f"{counts['objects_left_over']:,} objects that no stream needs",
            "outcome": "nothing was written" if dry_run else "written; nodes may start",
        }
    )
