"""`streamlog status`: one node, as it describes itself."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from streamlog.cli.output import emit, field_list, size
from streamlog.cli.remote import admin
from streamlog.cli.state import State, pass_state, remote_options

FIELDS = (
    "version",
    "cluster_id",
    "node_id",
    "tenure",
    "store_url",
    "meta_url",
    "wal",
    "started_ms",
    "streams",
    "topics",
    "partitions",
    "objects",
    "pending_upload_bytes",
    "wal_bytes",
    "metadata_revision",
    "rss_bytes",
    "connections",
)
LISTENER_FIELDS = ("name", "protocol", "address", "advertised")


@click.command()
@remote_options
@pass_state
def status(state: State) -> None:
    """Show what a node is and holds.

    Alarms stand first: what is wrong with the node now, such as a full disk or a store that does
    not answer. The exit code is 0 with alarms, too; for scripts, `--json` has them as a list.
    """
    with admin(state) as client:
        status = client.status()
    values = {name: getattr(status, name) for name in FIELDS} | {"alarms": list(status.alarms)}
    if state.json:
        listeners = [
            {
                name: getattr(listener, name)
                for name in ("name", "protocol", "address", "advertised")
            }
            for listener in status.listeners
        ]
        emit({"server": state.server} | values | {"listeners": listeners})
        return
    started = datetime.fromtimestamp(values.pop("started_ms") / 1000, UTC)
    readable = {
        name: size(value) if name.endswith("_bytes") else value for name, value in values.items()
    } | {"started": started.isoformat(timespec="seconds")}
    for alarm in status.alarms:
        click.echo(f"ALARM  {alarm}")
    if status.alarms:
        click.echo()
    readable["alarms"] = len(status.alarms) or "none"
    readable["listeners"] = ", ".join(
        f"{listener.protocol} {listener.address}"
        + (f" as {listener.advertised}" if listener.advertised != listener.address else "")
        for listener in status.listeners
    )
    field_list({"server": state.server} | readable)
