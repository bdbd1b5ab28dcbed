"""`streamlog spark export`: topics as Parquet, or into an Iceberg table."""

from __future__ import annotations

from pathlib import Path

import click

from streamlog.cli.output import emit, field_list, size
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.cli.support.options import settings_pairs
from streamlog.cli.support.spark_session import (
    source_options,
    spark_options,
    spark_session,
    topic_options,
)


@click.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--iceberg",
    "table",
    metavar="CATALOG.NAMESPACE.TABLE",
    help="Into this Iceberg table instead, made where it is not there; needs the extra iceberg.",
)
@click.option(
    "--catalog-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    callback=settings_pairs,
    help="Of the Iceberg catalog, beside .pyiceberg.yaml and PYICEBERG_CATALOG__…; may be "
    "repeated.",
)
@topic_options
@spark_options
@remote_options
@pass_state
def export(
    state: State,
    folder: Path | None,
    table: str | None,
    properties: dict[str, str],
    topics: tuple[str, ...],
    pattern: str | None,
    more: dict[str, str],
    master: str,
    conf: dict[str, str],
    data: str | None,
    store: str | None,
    meta: str | None,
) -> None:
    """Write topics into FOLDER as Parquet, by topic and day, or into an Iceberg table.

    Each record once: a later run goes on behind what is there, which the file manifest.json in
    FOLDER/_streamlog tells, or the table's snapshots. The day is that of the record's timestamp, in
    UTC. All executors reach FOLDER under the same name.
    """
    from streamlog.cli.support.offline import progress_of

    if (folder is None) == (table is None):
        raise click.UsageError("give FOLDER or --iceberg, one of them")
    if table is not None:
        _check_installed()
    options = source_options(state, topics, pattern, more, (data, store, meta))
    progress = progress_of(state)
    last: dict[str, object]
    with spark_session("export", master, conf) as spark:
        if folder is not None:
            from streamlog.spark.jobs.export.job import export as write

            exported = write(spark, folder, options, progress=progress)
            result = exported.description()
            last = {"files in all": f"{exported.files_in_all:,}", "folder": folder}
        else:
            assert table is not None
            from streamlog.spark.jobs.iceberg.job import export_iceberg

            added = export_iceberg(
                spark, table, options, catalog_properties=properties, progress=progress
            )
            result = added.description()
            last = {"snapshots": f"{added.rounds:,}", "table": table}
    if state.json:
        emit(result)
    else:
        files = f"{result['files']:,} ({size(result['size_bytes'])})"
        field_list({"records": f"{result['records']:,}", "files": files, **last})


def _check_installed() -> None:
    from importlib.util import find_spec

    from streamlog.errors import Invalid

    if find_spec("pyiceberg") is None:
        raise Invalid("PyIceberg is not installed: install this package with its extra iceberg")
