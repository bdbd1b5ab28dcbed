"""`streamlog spark export`: topics as Parquet."""

from __future__ import annotations

from pathlib import Path

import click

from streamlog.cli.output import emit, facts, size
from streamlog.cli.spark_session import (
    source_options,
    spark_options,
    spark_session,
    topic_options,
)
from streamlog.cli.state import State, pass_state, remote_options


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@topic_options
@spark_options
@remote_options
@pass_state
def export(
    state: State,
    folder: Path,
    topics: tuple[str, ...],
    pattern: str | None,
    more: dict[str, str],
    master: str,
    conf: dict[str, str],
    data: str | None,
    store: str | None,
    meta: str | None,
) -> None:
    """Write topics into FOLDER as Parquet, by topic and day.

    Each record once: what is there stands in FOLDER/_streamlog/manifest.json, and a later run goes
    on behind it. The day is that of the record's timestamp, in UTC. All executors reach FOLDER
    under the same name.
    """
    from streamlog.cli.at_rest import progress_of
    from streamlog.spark.jobs.export import export as write

    options = source_options(state, topics, pattern, more, (data, store, meta))
    with spark_session("export", master, conf) as made:
        found = write(made, folder, options, progress=progress_of(state))
    if state.json:
        emit(found.facts())
    else:
        facts(
            {
                "records": f"{found.records:,}",
                "files": f"{found.files:,} ({size(found.size_bytes)})",
                "files in all": f"{found.files_in_all:,}",
                "folder": folder,
            }
        )
