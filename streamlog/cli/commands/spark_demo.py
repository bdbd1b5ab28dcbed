"""`streamlog spark demo`: a node, log lines, a streaming job, a result."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamlog.cli.commands.demo import LINE_BYTES_MAX, logs_option
from streamlog.cli.output import emit, note, table
from streamlog.cli.state import State, json_option, pass_state
from streamlog.cli.support.spark_session import spark_options, spark_session

if TYPE_CHECKING:
    from streamlog.spark.demo.pipeline import DemoOutcome

MINUTE_MS = 60_000
TEMPLATE_CHARACTERS_MAX = 100


@click.command()
@logs_option
@click.option(
    "--lines",
    "most",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="Lines taken of each file, at most.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the result stays: Parquet and a picture. [default: a new temporary folder]",
)
@spark_options
@json_option
@pass_state
def demo(
    state: State,
    logs: Path | None,
    most: int,
    out: Path | None,
    master: str,
    conf: dict[str, str],
) -> None:
    """Log lines through a streaming job: parsed, counted by minute and level.

    Starts a node, writes the lines into topics as if they came within one hour, reads them by two
    streaming queries that parse (level, component, template), join a table of level words, count in
    windows of a minute behind a watermark, and write the counts into a topic, exactly once, and
    into Parquet. Exit code 1 unless both have every line once.
    """
    from streamlog.demo import corpus, generator
    from streamlog.demo.node import NodeProcess
    from streamlog.spark.local import find_java

    find_java()
    folder = out or Path(tempfile.mkdtemp(prefix="streamlog-spark-"))
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty; the demonstration needs an empty folder")
    given = logs
    if given is None:
        given = folder / "logs"
        generator.write_samples(given)
        note("sample logs (LOGS=DIR or --logs DIR takes your own)")
    sources = corpus.load(given, line_bytes_max=LINE_BYTES_MAX)
    begun = time.monotonic()

    def progress(text: str) -> None:
        note(f"[{time.monotonic() - begun:5.1f} s] {text}")

    node = NodeProcess(folder / "node", wal="object")
    try:
        node.start()
        progress(f"a node serves at {node.server}; starting Spark")
        conf = {"spark.sql.shuffle.partitions": "2", **conf}
        with spark_session("demo", master, conf) as made:
            from streamlog.spark.demo.pipeline import HOUR_MS, run

            progress(f"Spark {made.version} is up")
            begin_ms = (int(time.time() * 1000) - 2 * HOUR_MS) // MINUTE_MS * MINUTE_MS
            lines = {source.topic: source.lines[:most] for source in sources}
            outcome = run(made, node.server, lines, folder, begin_ms, progress)
        node.stop()
    except KeyboardInterrupt:
        node.discard()
        if out is None:
            shutil.rmtree(folder)
        raise
    finally:
        node.discard()
    for name in ("node", "checkpoints"):
        shutil.rmtree(folder / name)
    if state.json:
        emit(_json_fields(outcome))
    else:
        _report(outcome)
    if not outcome.is_good:
        sys.exit(1)


def _json_fields(outcome: DemoOutcome) -> dict[str, object]:
    counts = [
        {"topic": topic, "level": level, "lines": lines}
        for (topic, level), lines in sorted(outcome.counts.items())
    ]
    templates = [list(template) for template in outcome.templates]
    places = {"parquet": str(outcome.parquet), "picture": str(outcome.picture)}
    more = {"good": outcome.is_good, "counts": counts, "templates": templates}
    return {**asdict(outcome), **places, **more}


def _report(outcome: DemoOutcome) -> None:
    topics = sorted({topic for topic, _ in outcome.counts})
    levels = sorted({level for _, level in outcome.counts})
    rows = [
        (
            topic,
            *(outcome.counts.get((topic, level), 0) for level in levels),
            sum(outcome.counts.get((topic, level), 0) for level in levels),
        )
        for topic in topics
    ]
    click.echo()
    table(("topic", *levels, "lines"), rows)
    click.echo("\nMost frequent lines, numbers taken out:")
    table(
        ("lines", "component", "template"),
        [
            (count, component, template[:TEMPLATE_CHARACTERS_MAX])
            for template, component, count in outcome.templates
        ],
    )
    click.echo(
        f"\n{outcome.lines:,} lines; counted in the topic: {outcome.lines_in_topic:,} "
        f"({outcome.rows_in_topic:,} records), in Parquet: {outcome.lines_in_parquet:,}: "
        + ("every line once" if outcome.is_good else "NOT every line once")
    )
    click.echo(f"Parquet: {outcome.parquet}\npicture: {outcome.picture}")
