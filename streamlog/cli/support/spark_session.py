"""What the commands under `streamlog spark` share: options, and a Spark session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from streamlog.cli.state import Function, State
from streamlog.cli.support.options import settings_pairs, wrapped


def spark_options(function: Function) -> Function:
    return wrapped(
        function,
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            help="Where tasks run, as Spark names it.",
        ),
        click.option(
            "--conf",
            multiple=True,
            metavar="NAME=VALUE",
            callback=settings_pairs,
            help="A setting of Spark, such as spark.driver.memory=4g; may be repeated.",
        ),
    )


def topic_options(function: Function) -> Function:
    return wrapped(
        function,
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="May be repeated."),
        click.option(
            "--pattern", metavar="REGEX", help="Topics whose whole names match. [default: all]"
        ),
        click.option(
            "--option",
            "more",
            multiple=True,
            metavar="NAME=VALUE",
            callback=settings_pairs,
            help="Any other option of the source, such as readMode=store; may be repeated.",
        ),
        click.option(
            "--data", metavar="DIR", help="Read the folder of a node that does not run (offline)."
        ),
        click.option("--store", metavar="URL", help="Where executors find the objects."),
        click.option(
            "--meta", metavar="URL", help="With --store: read offline, while no node runs."
        ),
    )


def _in_usable_folder(
    context: click.Context, parameter: click.Parameter, file: Path | None
) -> Path | None:
    """The file is written after the first wave of tasks, and beside it another one.

    Errors: BadParameter.
    """
    if file is not None and not os.access(file.absolute().parent, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{file.absolute().parent} is no folder that can be written to")
    return file


state_option = click.option(
    "--state",
    "state_file",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_in_usable_folder,
    help="Keep here what is done, and go on from it where a run was stopped; removed at the end.",
)


def source_options(
    state: State,
    topics: tuple[str, ...],
    pattern: str | None,
    more: dict[str, str],
    places: tuple[str | None, str | None, str | None],
) -> dict[str, str]:
    """Options of the source for what was typed; `places`: data, store, meta."""
    if topics and pattern is not None:
        raise click.UsageError("give --topic or --pattern, not both")
    options = dict(more)
    if topics:
        options["subscribe"] = ",".join(topics)
    elif pattern is not None or not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribePattern"] = ".*" if pattern is None else pattern
    data, store, meta = places
    if data is not None:
        if store is not None or meta is not None:
            raise click.UsageError("--data stands for --store and --meta: give it or them")
        folder = Path(data).absolute()
        store, meta = f"local://{folder}/objects", f"rocksdb://{folder}/meta"
    if store is not None:
        options["store"] = store
    if meta is not None:
        options["meta"] = meta
    else:
        options.setdefault("server", state.server)
        if options["server"] == state.server:
            options |= tls_options(state)
    return options


def tls_options(state: State) -> dict[str, str]:
    """How the node is reached, as options of the source and the sink."""
    tls = state.connection
    if tls is None:
        return {}
    given = {
        "tlsCa": tls.ca,
        "tlsCertificate": tls.certificate,
        "tlsKey": tls.key,
        "tlsServerName": tls.server_name,
    }
    return {"tls": "true"} | {name: value for name, value in given.items() if value is not None}


def is_offline() -> bool:
    """Whether the command's options name a stopped node's data.

    Errors: UsageError, where a node that runs is named too.
    """
    context = click.get_current_context()

    def is_typed(name: str) -> bool:
        return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

    places = ("data", "meta", "file")
    if is_typed("server"):
        if any(map(is_typed, places)):
            raise click.UsageError("--server is a node that runs; --data, --meta, --config are not")
        return False
    return any(context.params.get(name) is not None for name in places)


@contextmanager
def spark_session(command: str, master: str, conf: dict[str, str]) -> Iterator[Any]:
    """Errors: JavaMissing, Invalid, SparkFailed."""
    from streamlog.spark.local import session

    with session(f"streamlog spark {command}", master, conf) as made:
        yield made
