"""`streamlog recover`: the metadata, rebuilt from the object store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import click

from streamlog.cli.output import emit, field_list, note, shortened
from streamlog.cli.parsing import FiniteRange
from streamlog.cli.state import State, json_option, pass_state
from streamlog.cli.support.options import config_option, data_option, store_options

GRACE_S_MAX = 86_400.0
F = TypeVar("F", bound=Callable[..., None])


class RebuildFlags(TypedDict):
    """The values of `rebuild_options`."""

    data: str | None
    store: str | None
    meta: str | None
    file: str | None
    dry_run: bool
    overwrite: bool
    accept_data_loss: bool
    grace_s: float


def rebuild_options(command: F) -> F:
    """The options that `recover` and `restore` share."""
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
            "--dry-run",
            is_flag=True,
            help="Say what would come back, and write nothing. Exit code 1: without it the command "
            "would refuse, because data is lost.",
        ),
        click.option(
            "--grace",
            "grace_s",
            type=FiniteRange(0, GRACE_S_MAX),
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
def recover(state: State, **flags: Unpack[RebuildFlags]) -> None:
    """Rebuild lost metadata from the object store.

    Stop the nodes first; a node that still runs on the old metadata is ended. Every record that was
    acknowledged with --wal object comes back, and with --wal disk every uploaded one; start the
    node with its WAL folder afterwards for the rest. Topics come back from their own streams. User
    values (streamlog kv), settings of brokers and quotas of clients that were set at run time are
    lost, and data that was trimmed, deleted or closed since the last checkpoint may come back. With
    a backup, use streamlog restore. Nothing in the store is deleted.
    Topics with log.type=unified are in no store: those of DIR/logs are named, and streamlog topic
    adopt takes them back. After an interruption, run it again.
    """
    from streamlog.repair.recover.recover import recover as rebuild

    rebuild_metadata(state, flags, rebuild)


def rebuild_metadata(
    state: State, flags: RebuildFlags, rebuild: Callable[..., Awaitable[Any]], *sources: Any
) -> None:
    """Runs `rebuild` on the data that the flags name, and prints its report.

    `rebuild` gets the metadata store, the object store and the `sources`, then the options by name.
    """
    import asyncio

    from streamlog.cli.support.offline import (
        HAS_FINDINGS,
        locations_of,
        open_offline,
        progress_of,
    )
    from streamlog.repair.recover.recover import RecoverOptions
    from streamlog.wiring import IfAbsent
    from streamlog.wiring.adoption import local_topics

    locations = locations_of(flags["data"], flags["store"], flags["meta"], flags["file"])
    options = RecoverOptions(
        dry_run=flags["dry_run"],
        overwrite=flags["overwrite"],
        accept_data_loss=flags["accept_data_loss"],
        grace_ms=round(flags["grace_s"] * 1000),
        topic_defaults=locations.topic_defaults,
    )

    async def run() -> Any:
        if_absent: IfAbsent = "stand in" if options.dry_run else "make"
        async with open_offline(locations, if_absent=if_absent) as stores:
            return await rebuild(
                stores.kv,
                stores.store,
                *sources,
                clock=stores.clock,
                random=stores.random,
                offload=stores.offload,
                options=options,
                progress=progress_of(state),
            )

    report = asyncio.run(run())
    local = () if flags["data"] is None else local_topics(Path(flags["data"]) / "logs")
    _tell(state, report, options.dry_run, local)
    if report.has_errors and not options.accept_data_loss:
        # A dry run: any other one was refused.
        click.get_current_context().exit(HAS_FINDINGS)


def _tell(state: State, report: Any, dry_run: bool, local: Sequence[str]) -> None:
    """Prints the report of a recovery or restore. `local`: topics of the data's log folder."""
    from streamlog.cli.support.offline import print_findings

    if state.json:
        emit(report.description() | {"dry_run": dry_run, "topics_not_contained": list(local)})
        return
    print_findings(report)
    if local:
        note(
            f"not contained, because no store has them: {shortened(local)}, topics of the log "
            "folder. The next start puts them aside; `streamlog topic adopt` takes them back from "
            "there while the node is stopped"
        )
    counts = report.counts
    field_list(
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
