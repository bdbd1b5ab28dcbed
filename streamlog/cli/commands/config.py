"""`streamlog config`: settings of a node, a topic, or of what would be started here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, note, table
from streamlog.cli.remote import admin
from streamlog.cli.state import Function, State, pass_state, remote_options
from streamlog.cli.support.config_changes import ConfigChanges, changes_options
from streamlog.errors import InvalidConfig

COST_NAME = "cost.put_dollars_per_month_max"


@dataclass(frozen=True, slots=True)
class _Shown:
    name: str
    value: str
    source: str
    default: str
    documentation: str
    read_only: bool


_all_brokers = click.option(
    "--all-brokers",
    "--broker-default",
    "all_brokers",
    is_flag=True,
    help="What all nodes of the cluster share.",
)


_client = click.option("--client", metavar="ID", help="The quotas of a client id.")
_client_default = click.option(
    "--client-default",
    is_flag=True,
    help="The quotas of client ids that have none of their own, of each by itself.",
)


def _resource_options(function: Function) -> Function:
    options = (
        click.option("--topic", metavar="TOPIC", help="A topic's settings, asked of the node."),
        click.option(
            "--broker", type=click.IntRange(min=0), metavar="N", help="Node N's settings."
        ),
        _all_brokers,
        _client,
        _client_default,
        click.option(
            "--config",
            "file",
            type=click.Path(exists=True, dir_okay=False),
            envvar="STREAMLOG_CONFIG",
            help="Without a resource: read this file, as dev and serve would.",
        ),
        remote_options,
        pass_state,
    )
    wrapped: Any = function
    for option in reversed(options):
        wrapped = option(wrapped)
    decorated: Function = wrapped
    return decorated


@click.group(cls=CommandGroup)
def config() -> None:
    """Show, explain and change settings.

    With --topic, --broker, --all-brokers, --client or --client-default a node is asked; without,
    show and describe tell what dev or serve would take here from file and environment.
    """


@config.command()
@_resource_options
def show(state: State, **resource: Any) -> None:
    """Show values, and where each comes from.

    With a remote store also what the PUTs of small batches cost a month at most, at list prices:
    the bound that engine.flush.put_rate_max_per_s sets. Larger batches cost by the byte.
    """
    entries = _entries(state, **resource)
    bound = _put_bound({entry.name: entry.value for entry in entries})
    if state.json:
        shown = {entry.name: {"value": entry.value, "source": entry.source} for entry in entries}
        if bound is not None:
            dollars, setting = f"{bound.dollars_per_month:.2f}", bound.setting
            shown[COST_NAME] = {"value": dollars, "source": setting}
        emit(shown)
        return
    table(
        ("setting", "value", "source"),
        [(entry.name, entry.value, entry.source) for entry in entries],
    )
    if bound is not None:
        click.echo(
            f"\nPUTs of small batches cost at most ${bound.dollars_per_month:.2f} a month: "
            f"{bound.setting} allows {bound.rate_per_s:g} a second ({bound.prices}).{bound.trade}"
        )


@dataclass(frozen=True, slots=True)
class _PutBound:
    """Small batches are sent at most at this rate."""

    rate_per_s: float
    dollars_per_month: float
    setting: str
    prices: str
    trade: str
    """What it costs in latency, as a sentence to append; empty for wal=disk."""


def _put_bound(values: Mapping[str, str]) -> _PutBound | None:
    """None for a store that is not paid by the request, and for settings of something else."""
    if not values.get("node.store", "").startswith("s3://"):
        return None
    from streamlog.doctor.costs import PRICES_DATE, PRICES_OF, request_costs
    from streamlog.engine.config import FlushConfig, StreamEngineConfig, UploadConfig

    wal = values["node.wal"] or "object"
    by_rate, by_interval = "engine.flush.put_rate_max_per_s", "engine.upload.upload_interval_ms"
    config = StreamEngineConfig(
        flush=FlushConfig(put_rate_max_per_s=float(values[by_rate])),
        upload=UploadConfig(upload_interval_ms=int(values[by_interval])),
    )
    cost = request_costs(config, wal=wal)
    setting = by_interval if wal == "disk" else by_rate
    prices = f"{PRICES_OF}, list prices of {PRICES_DATE}"
    rate = cost.put_rate_max_per_s
    wait = f" An append that comes sooner waits, up to {1000 / rate:g} ms; higher is quicker."
    trade = "" if wal == "disk" else wait
    return _PutBound(rate, cost.put_dollars_per_month_max, setting, prices, trade)


@config.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_resource_options
def describe(state: State, names: tuple[str, ...], **resource: Any) -> None:
    """Explain all settings, or those whose names contain a NAME: value, default, what it does.

    A NAME that is a setting's whole name means that one alone.
    """
    entries = _entries(state, **resource)
    for name in names:
        if not any(name in entry.name for entry in entries):
            raise _unknown(name, entries)
    if names:
        entries = [
            entry for entry in entries if any(_means(name, entry, entries) for name in names)
        ]
    if state.json:
        emit(
            [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "source": entry.source,
                    "default": entry.default,
                    "read_only": entry.read_only,
                    "documentation": entry.documentation,
                }
                for entry in entries
            ]
        )
        return
    for entry in entries:
        default = "" if entry.value == entry.default else f", default {entry.default or 'none'}"
        fixed = ", fixed while the node runs" if entry.read_only else ""
        click.echo(f"{entry.name} = {entry.value or 'none'}  ({entry.source}{default}{fixed})")
        click.echo(click.wrap_text(entry.documentation, 100, "    ", "    ") + "\n")


@config.command()
@click.option("--topic", metavar="TOPIC", help="A topic's settings.")
@click.option("--broker", type=click.IntRange(min=0), metavar="N", help="Node N's settings.")
@_all_brokers
@_client
@_client_default
@changes_options
@click.option("--validate-only", is_flag=True, help="Check the changes, and make none.")
@remote_options
@pass_state
def alter(
    state: State,
    /,
    topic: str | None,
    broker: int | None,
    all_brokers: bool,
    client: str | None,
    client_default: bool,
    validate_only: bool,
    **given: Any,
) -> None:
    """Change settings while nodes run: of a topic, a node, all nodes, or the quotas of clients.

    All changes take effect at once, or none does. They outlive restarts. `config describe` tells
    which settings are fixed while a node runs.
    """
    changes = ConfigChanges.of(**given)
    resource = _resource(topic, broker, all_brokers, client, client_default)
    if not resource:
        raise click.UsageError(
            "whose settings? give --topic, --broker, --all-brokers, --client or --client-default"
        )
    if not changes:
        raise click.UsageError("nothing to change: give --config, --unset, --append or --subtract")
    with admin(state) as connected:
        changes.make(connected, validate_only=validate_only, **resource)
    if state.json:
        emit({"altered": not validate_only, "valid": True})
    else:
        note("the changes are valid" if validate_only else "altered")


def _resource(
    topic: str | None,
    broker: int | None,
    all_brokers: bool,
    client: str | None,
    client_default: bool,
) -> dict[str, Any]:
    """Arguments of Admin that name the resource; empty where none was given."""
    named = {
        "topic": topic,
        "broker": broker,
        "broker_default": all_brokers or None,
        "client": client,
        "client_default": client_default or None,
    }
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) > 1:
        raise click.UsageError(
            "--topic, --broker, --all-brokers, --client and --client-default exclude each other"
        )
    return given


def _means(name: str, entry: _Shown, entries: list[_Shown]) -> bool:
    if any(name == other.name for other in entries):
        return name == entry.name
    return name in entry.name


def _unknown(name: str, entries: list[_Shown]) -> InvalidConfig:
    """Names the nearest setting, by its whole path or by the last part of it."""
    paths = {
        path: entry.name for entry in entries for path in (entry.name.split(".", 1)[-1], entry.name)
    }
    paths |= {entry.name.rsplit(".", 1)[-1]: entry.name for entry in entries}
    near = difflib.get_close_matches(name, paths, n=1, cutoff=0.6)
    hint = f"did you mean {paths[near[0]]}?" if near else "`streamlog config show` lists all"
    return InvalidConfig(f"no setting's name contains {name[:80]!r}; {hint}", name=name[:80])


def _entries(state: State, file: str | None, **named: Any) -> list[_Shown]:
    resource = _resource(**named)
    if not resource:
        from streamlog import settings

        return [
            _Shown(
                entry.path,
                entry.value,
                entry.source,
                entry.default,
                entry.doc,
                not entry.is_dynamic,
            )
            for entry in settings.load(file).show()
        ]
    with admin(state) as client:
        entries = client.describe_configs(**resource)
    return [
        _Shown(
            entry.name,
            entry.value,
            entry.source,
            entry.default_value,
            entry.documentation,
            entry.read_only,
        )
        for entry in entries
    ]
