"""`streamlog object`: what lies in the object store, as the node sees it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, field_list, table
from streamlog.cli.remote import admin
from streamlog.cli.state import State, pass_state, remote_options

SUMMARY_FIELDS = ("key", "object_id", "size_bytes", "modified_ms", "live")
BLOCK_FIELDS = (
    "stream_id",
    "epoch",
    "start_offset",
    "end_offset",
    "position",
    "length",
    "compression",
)


def _values(message: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


@click.group("object", cls=CommandGroup)
def objects() -> None:
    """Look at the objects in the store."""


@objects.command("list")
@remote_options
@pass_state
def list_objects(state: State) -> None:
    """List all objects. A live one is committed, and a stream still needs some of it."""
    with admin(state) as client:
        objects = [_values(summary, SUMMARY_FIELDS) for summary in client.list_objects()]
    if state.json:
        for summary in objects:
            emit(summary)
        return
    table(
        ("object", "bytes", "modified", "live", "key"),
        [
            (
                summary["object_id"],
                summary["size_bytes"],
                _when(summary["modified_ms"]),
                "yes" if summary["live"] else "no",
                summary["key"],
            )
            for summary in objects
        ],
    )


@objects.command()
@click.argument("key")
@remote_options
@pass_state
def show(state: State, key: str) -> None:
    """Show the object KEY: who wrote it, and its data blocks."""
    with admin(state) as client:
        description = client.describe_object(key)
    values = _values(description.object, SUMMARY_FIELDS) | _values(
        description, ("format_version", "cluster_id", "tenure")
    )
    blocks = [_values(block, BLOCK_FIELDS) for block in description.blocks]
    if state.json:
        emit(values | {"blocks": blocks})
        return
    field_list(values)
    click.echo()
    table(BLOCK_FIELDS, [tuple(block.values()) for block in blocks])
