"""`streamlog spark scrub`: fsck's deep look at objects, by executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamlog.cli.output import size
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.cli.support.options import config_option, data_option, store_options
from streamlog.cli.support.spark_session import (
    is_offline,
    spark_options,
    spark_session,
    state_option,
)


@click.command()
@data_option
@store_options
@config_option
@state_option
@spark_options
@remote_options
@pass_state
def scrub(
    state: State,
    data: str | None,
    store: str | None,
    meta: str | None,
    file: str | None,
    state_file: Path | None,
    master: str,
    conf: dict[str, str],
) -> None:
    """Read every live object on executors and check every CRC and range.

    What `streamlog fsck --deep` finds in streams and objects, in parallel; fsck also looks at keys
    and at what else lies in the store. Of the node at --server, as it is when the scrub begins; it
    goes on meanwhile (--store, where executors find the store elsewhere than the node does). Or
    offline: stop the nodes first (--data, or --store and --meta).

    Exit codes: 0 clean (notes are no findings), 1 findings, 2 it could not run.
    """
    import asyncio

    from streamlog.cli.support.offline import locations_of, open_offline, progress_of, show
    from streamlog.repair.findings import RepairReport

    progress = progress_of(state)

    async def offline(spark: Any) -> RepairReport:
        from streamlog.spark.jobs.scrub.job import scrub as check

        where = locations_of(data, store, meta, file)
        async with open_offline(where) as opened:
            return await check(
                spark,
                opened.kv,
                opened.store,
                where.store,
                clock=opened.clock,
                random=opened.random,
                offload=opened.offload,
                state_file=state_file,
                progress=progress,
            )

    async def beside(spark: Any) -> RepairReport:
        from streamlog.spark.jobs.scrub.node import scrub_node

        return await scrub_node(
            spark,
            state.server,
            store=store,
            state_file=state_file,
            progress=progress,
            tls=state.connection,
        )

    is_stopped = is_offline()

    def look() -> RepairReport:
        # Before Spark starts.
        if is_stopped:
            locations_of(data, store, meta, file)
        else:
            from streamlog.cli.remote import await_listener

            await_listener(state)
        with spark_session("scrub", master, conf) as made:
            return asyncio.run(offline(made) if is_stopped else beside(made))

    show(state, look, _summary)


def _summary(report: Any) -> dict[str, object]:
    counts = report.counts
    return {
        "cluster": report.cluster_id,
        "streams": f"{counts['streams']:,} with {counts['records']:,} offsets",
        "objects": f"{counts['objects']:,} with {counts['blocks']:,} blocks",
        "read": size(counts["read_bytes"]),
        "outcome": "clean" if report.is_clean else "findings",
    }
