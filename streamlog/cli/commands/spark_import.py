"""`streamlog spark import`: files into a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamlog.cli.output import emit, field_list
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.cli.support.spark_session import spark_options, spark_session, tls_options


@click.command("import")
@click.argument("topic")
@click.argument("path")
@click.option(
    "--checkpoint",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that knows which files were taken; of this topic and path alone.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(("text", "json", "parquet")),
    default="text",
    show_default=True,
    help="text: each line a value, byte for byte, without a byte order mark at the file's start; "
    "json: each line an object, its fields are the columns.",
)
@click.option(
    "--key",
    metavar="COLUMN",
    help="With json, a field of every object; it may be null.  [default: key, where there is one]",
)
@click.option(
    "--value",
    metavar="COLUMN",
    help="With json, a field of every object; it may be null.  [default: value; where there is "
    "none, with json the line, byte for byte, with parquet the whole row as JSON, without its "
    "nulls]",
)
@click.option(
    "--keep-partitions", is_flag=True, help="Write to the partition that the column partition has."
)
@spark_options
@remote_options
@pass_state
def import_(
    state: State,
    topic: str,
    path: str,
    checkpoint: Path,
    kind: Any,
    key: str | None,
    value: str | None,
    keep_partitions: bool,
    master: str,
    conf: dict[str, str],
) -> None:
    """Write the files in PATH to TOPIC, each file once.

    A run that was stopped goes on, and a later one takes the files that are new: the checkpoint
    tells. A file that is changed after it was taken is not taken again. Records get the time at
    which they are written. With --format json, a line that is no JSON object stops the import: what
    was written stays, and the next run goes on there once the file is mended or removed.
    """
    from streamlog.cli.remote import await_listener
    from streamlog.cli.support.offline import progress_of

    await_listener(state)
    with spark_session("import", master, conf) as made:
        from streamlog.spark.jobs.export.load import import_files

        done = import_files(
            made,
            path,
            state.server,
            topic,
            checkpoint,
            kind=kind,
            key=key,
            value=value,
            keep_partitions=keep_partitions,
            progress=progress_of(state),
            tls=tls_options(state),
        )
    if state.json:
        emit({"records": done.records, "batches": done.batches})
    else:
        field_list({"records": f"{done.records:,}", "micro-batches": done.batches})
