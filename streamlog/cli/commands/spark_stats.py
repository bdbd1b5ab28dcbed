"""`streamlog spark stats`: sizes, rates, keys and skew of topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamlog.cli.output import emit, note, size, table
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.cli.support.spark_session import (
    source_options,
    spark_options,
    spark_session,
    state_option,
    topic_options,
)

KEY_CHARACTERS_MAX = 40


@click.command()
@topic_options
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a picture of records over time here.",
)
@click.option(
    "--top", type=click.IntRange(0, 1000), default=10, show_default=True, help="Keys shown."
)
@state_option
@spark_options
@remote_options
@pass_state
def stats(
    state: State,
    topics: tuple[str, ...],
    pattern: str | None,
    more: dict[str, str],
    svg: Path | None,
    top: int,
    state_file: Path | None,
    master: str,
    conf: dict[str, str],
    data: str | None,
    store: str | None,
    meta: str | None,
) -> None:
    """Sizes, rates over time, keys and skew of topics.

    One pass over the records, on executors. The number of distinct keys is an estimate (within
    5 %); of the keys shown, the number of records is a lower bound.
    """
    from streamlog.cli.support.offline import progress_of
    from streamlog.spark.jobs.stats.job import over_time
    from streamlog.spark.jobs.stats.job import stats as count
    from streamlog.spark.picture import BARS_MAX, bars

    options = source_options(state, topics, pattern, more, (data, store, meta))
    with spark_session("stats", master, conf) as made:
        topic_stats = count(made, options, state_file=state_file, progress=progress_of(state))
    if svg is not None:
        starts, series = over_time(topic_stats.topics, BARS_MAX)
        svg.write_text(bars("Records over time, by topic", starts, series), "utf-8")
        note(f"wrote {svg}")
    if state.json:
        emit(topic_stats.description(top))
    else:
        _print_stats(topic_stats.description(top))


def _print_stats(stats: dict[str, Any]) -> None:
    columns = ("topic", "partition", "records", "bytes", "records/s", "from", "to", "without key")
    rows = []
    for topic, counts in stats["topics"].items():
        rows.append((topic, "all", *_cells(counts)))
        rows += [(topic, number, *_cells(part)) for number, part in counts["partitions"].items()]
    table(columns, rows)
    for topic, counts in stats["topics"].items():
        keys = counts["keys"]
        click.echo(f"\n{topic}: largest partition {counts['skew'] or 1:g} × the mean, ", nl=False)
        click.echo(f"about {keys['distinct_about']:,} distinct keys")
        if keys["top"]:
            table(
                ("key", "records", "share"),
                [
                    (
                        key["key"][:KEY_CHARACTERS_MAX],
                        key["records_at_least"],
                        f"{100 * key['records_at_least'] / counts['records']:.1f} %",
                    )
                    for key in keys["top"]
                ],
            )


def _cells(counts: dict[str, Any]) -> tuple[object, ...]:
    return (
        counts["records"],
        size(counts["key_bytes"] + counts["value_bytes"]),
        counts["records_per_s"],
        _moment(counts["first_ms"]),
        _moment(counts["last_ms"]),
        counts["without_key"],
    )


def _moment(ms: int | None) -> str:
    from streamlog.spark.picture import utc_text

    return "" if ms is None else utc_text(ms, "%Y-%m-%d %H:%M:%S")
