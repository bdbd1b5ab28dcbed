"""`streamlog demo`: write, kill, read and compare on this machine, with a verdict."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamlog.cli.invocation import command_name
from streamlog.cli.output import emit, note
from streamlog.cli.parsing import FiniteRange
from streamlog.cli.state import State, json_option, pass_state
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.demo.corpus import Source
    from streamlog.demo.s3_server import S3Server
    from streamlog.demo.scenario import DemoResult

WALS = ("disk", "object")
BUCKET = "streamlog-demo"
LINE_BYTES_MAX = (1 << 20) - 100
"""A line and its batch stay below max.message.bytes' default."""


logs_option = click.option(
    "--logs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of text files (its *.log and *.txt, or else all), one topic each. "
    "[default: generated sample logs]",
)


@click.command()
@logs_option
@click.option(
    "--mib",
    type=FiniteRange(min=0.1, max=16 * 1024),
    default=64,
    show_default=True,
    help="How much is written for each WAL mode, at least.",
)
@click.option("--wal", type=click.Choice((*WALS, "both")), default="both", show_default=True)
@click.option(
    "--store",
    type=click.Choice(("local", "s3")),
    default="local",
    show_default=True,
    help="Where objects go: a folder, or an S3 server that the demonstration builds (once) and "
    "starts.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the sample logs.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the nodes keep their data; stays afterwards. [default: a temporary folder]",
)
@json_option
@pass_state
def demo(
    state: State,
    logs: Path | None,
    mib: float,
    wal: str,
    store: str,
    seed: int,
    data: Path | None,
) -> None:
    """Log lines in, kill -9, log lines out: byte for byte.

    Starts a node, makes a topic for each file, produces the lines in rounds, kills the node with
    SIGKILL while requests are unacknowledged, starts it again, goes on, fetches everything and
    compares it line by line; once in each WAL mode. Exit code 1 if anything is lost, doubled or
    changed.
    """
    from streamlog.demo import corpus, generator

    given = None if logs is None else corpus.load(logs, line_bytes_max=LINE_BYTES_MAX)
    folder = data or Path(tempfile.mkdtemp(prefix="streamlog-demo-"))
    if given is None:
        generator.write_samples(folder / "logs", seed=seed)
        note(f"sample logs with seed {seed} (LOGS=DIR or --logs DIR takes your own)")
    sources = given or corpus.load(folder / "logs", line_bytes_max=LINE_BYTES_MAX)
    for source in sources:
        part = "" if source.is_whole else f", its first {source.size_bytes >> 20} MiB"
        note(f"  {source.path.name} → {source.topic}: {len(source.lines)} lines{part}")
    outcomes = []
    try:
        with _server(folder / "s3", store) as server:
            for mode in WALS if wal == "both" else (wal,):
                outcomes.append(_one(sources, folder / f"wal-{mode}", mode, mib, server))
    except StreamlogError:
        note(f"data and node logs stay in {folder}")
        raise
    except KeyboardInterrupt:
        if data is None:
            shutil.rmtree(folder)
        raise
    good = all(outcome.is_good for outcome in outcomes)
    if state.json:
        emit({"good": good, "runs": [_json_fields(outcome) for outcome in outcomes]})
    else:
        _report(outcomes)
    if good and data is None:
        shutil.rmtree(folder)
    elif not good:
        note(f"data and node logs stay in {folder}")
    if not good:
        sys.exit(1)
    if not state.json:
        _next(folder if data and store == "local" else None)


@contextmanager
def _server(place: Path, store: str) -> Iterator[S3Server | None]:
    """The S3 server with the demonstration's bucket, where one is asked for."""
    if store != "s3":
        yield None
        return
    from streamlog.demo.s3_server import S3Server

    if place.exists():
        raise click.UsageError(f"{place} exists; the demonstration needs an empty folder")
    note("starting an S3 server (versitygw; the first time it is built, in a minute or two)")
    with S3Server(place) as server:
        server.make_bucket(BUCKET)
        note(f"it serves {server.endpoint}; its data is in {place}")
        yield server


def _one(
    sources: Sequence[Source], place: Path, wal: str, mib: float, server: S3Server | None
) -> DemoResult:
    from streamlog.demo import scenario

    if place.exists():
        raise click.UsageError(f"{place} exists; the demonstration needs an empty folder")
    size_bytes = int(mib * (1 << 20))
    return scenario.run(
        sources,
        place,
        wal=wal,
        size_bytes=size_bytes,
        progress=_Progress(wal),
        store=None if server is None else server.url(BUCKET, f"wal-{wal}"),
        environment=None if server is None else server.environment,
    )


class _Progress:
    """One line for each step, with the seconds since the run began."""

    def __init__(self, wal: str) -> None:
        self._wal = wal
        self._begun = time.monotonic()

    def __call__(self, text: str) -> None:
        note(f"[wal={self._wal:<6} {time.monotonic() - self._begun:5.1f} s] {text}")


def _json_fields(outcome: DemoResult) -> dict[str, object]:
    return asdict(outcome) | {
        "mb_per_s_in": outcome.mb_per_s_in,
        "mb_per_s_out": outcome.mb_per_s_out,
    }


def _report(outcomes: list[DemoResult]) -> None:
    rows = [
        ("", [f"wal={run.wal}" for run in outcomes]),
        ("records", [f"{run.records:,}" for run in outcomes]),
        ("bytes", [f"{run.size_bytes:,}" for run in outcomes]),
        ("MB/s in", [f"{run.mb_per_s_in:.0f}" for run in outcomes]),
        ("MB/s out", [f"{run.mb_per_s_out:.0f}" for run in outcomes]),
        ("objects written", [f"{run.objects:,}" for run in outcomes]),
        (
            "unacknowledged at the kill",
            [f"{run.unacknowledged_records:,}" for run in outcomes],
        ),
        ("restart until it serves", [f"{run.restart_s:.1f} s" for run in outcomes]),
        ("kill until the next ack", [f"{run.recover_s:.1f} s" for run in outcomes]),
        ("duplicates", [f"{run.duplicates:,}" for run in outcomes]),
        ("lost", [f"{run.lost:,}" for run in outcomes]),
    ]
    click.echo()
    for name, cells in rows:
        click.echo(f"{name:<28}" + "".join(f"{cell:>16}" for cell in cells))
    click.echo()
    for outcome in outcomes:
        verdict = (
            "every line came back once, in order, byte for byte"
            if outcome.is_good
            else outcome.difference or "the counts differ"
        )
        click.echo(f"wal={outcome.wal}: {verdict}")


def _next(data: Path | None) -> None:
    command = command_name()
    places = [
        (f"{command} dev", "a node of your own; it says what to type"),
        (f"{command} --help", "all commands; docs/cli.md has them on one page"),
        ("README.md", "the three ways to use it, and what is promised"),
        ("ARCHITECTURE.md", "how an append and a fetch go through the files"),
    ]
    if data is not None:
        places.insert(0, (f"{command} dev --data {data}/wal-disk/data", "the data of this run"))
    width = max(len(place) for place, _ in places)
    click.echo("\nWhere to look next:")
    for place, text in places:
        click.echo(f"  {place.ljust(width)}   {text}")
