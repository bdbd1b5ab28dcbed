"""`streamlog fsck`: is everything there, and right?"""

from __future__ import annotations

from typing import Any

import click

from streamlog.cli.output import size
from streamlog.cli.state import State, json_option, pass_state
from streamlog.cli.support.options import config_option, data_option, store_options


@click.command()
@data_option
@store_options
@config_option
@click.option("--deep", is_flag=True, help="Read all data and check every CRC, too.")
@click.option(
    "--repair",
    is_flag=True,
    help="Delete orphaned objects and checkpoint files, nothing that a stream needs; write a lost "
    "cluster.json.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --repair: also when there are more orphans than crashes explain.",
)
@click.option(
    "--cluster-id",
    metavar="ID",
    help="With --repair: write a lost cluster.json although nothing in the store proves it to be "
    "that of the metadata's cluster, which is ID.",
)
@json_option
@pass_state
def fsck(
    state: State,
    data: str | None,
    store: str | None,
    meta: str | None,
    file: str | None,
    deep: bool,
    repair: bool,
    force: bool,
    cluster_id: str | None,
) -> None:
    """Check metadata and objects against each other.

    Stop the nodes first. Every stream's ranges must meet; every object that holds them must be in
    the store, with the right size, CRCs and contents; every metadata key must be readable and agree
    with the others; and the store should hold nothing else. A missing or damaged object is named
    with the offsets that are lost with it, and left alone.

    Exit codes: 0 clean (notes are no findings), 1 findings, 2 the check could not run.
    """
    import asyncio

    from streamlog.cli.support.offline import locations_of, open_offline, progress_of, show
    from streamlog.repair.findings import RepairReport
    from streamlog.repair.fsck.fsck import FsckOptions
    from streamlog.repair.fsck.fsck import fsck as check

    if force and not repair:
        raise click.UsageError("--force goes with --repair")
    if cluster_id is not None and not repair:
        raise click.UsageError("--cluster-id goes with --repair")

    async def run() -> RepairReport:
        async with open_offline(locations_of(data, store, meta, file)) as stores:
            return await check(
                stores.kv,
                stores.store,
                clock=stores.clock,
                random=stores.random,
                offload=stores.offload,
                options=FsckOptions(deep, repair, force, cluster_id),
                progress=progress_of(state),
            )

    show(state, lambda: asyncio.run(run()), _summary)


def _summary(report: Any) -> dict[str, object]:
    counts, remote = report.counts, {}
    if counts["remote_files"]:
        there = f"{counts['remote_files']:,} files of remote segments"
        remote["remote"] = f"{there} ({size(counts['remote_bytes'])}), not looked at"
    return {
        "cluster": report.cluster_id,
        "streams": f"{counts['streams']:,} with {counts['records']:,} offsets",
        "objects": f"{counts['objects']:,} live of {counts['objects_in_store']:,} in the store "
        f"({size(counts['bytes_in_store'])})",
        **remote,
        "read": size(counts["read_bytes"]),
        "keys": f"{counts['keys']:,}",
        "outcome": "clean" if report.is_clean else "findings",
    }
