"""`streamlog spark scrub`: fsck's deep look at objects, by executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamlog.cli.node import config_option, data_option, store_options
from streamlog.cli.output import size
from streamlog.cli.spark_session import spark_options, spark_session, state_option
from streamlog.cli.state import State, json_option, pass_state


@click.command()
@data_option
@store_options
@config_option
@state_option
@spark_options
@json_option
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
    and at what else lies in the store. Stop the nodes first.

    Exit codes: 0 clean (notes are no findings), 1 findings, 2 it could not run.
    """
    import asyncio

    from streamlog.cli.at_rest import opened, places, progress_of, show
    from streamlog.repair.findings import Report
    from streamlog.spark.jobs.scrub import scrub as check

    async def run(spark: Any) -> Report:
        where = places(data, store, meta, file)
        async with opened(where) as at:
            return await check(
                spark,
                at.kv,
                at.store,
                where.store,
                clock=at.clock,
                random=at.random,
                offload=at.offload,
                state_file=state_file,
                progress=progress_of(state),
            )

    def look() -> Report:
        # Before Spark starts.
        places(data, store, meta, file)
        with spark_session("scrub", master, conf) as made:
            return asyncio.run(run(made))

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
