"""`streamlog kv`: small values under names, over a node's KV service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import BytesOut, emit, note, text_or_base64
from streamlog.cli.parsing import INT64_MAX
from streamlog.cli.remote import key_values
from streamlog.cli.standard_streams import check_reader, read_input, stdout_is_terminal
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.errors import KeyNotFound

if TYPE_CHECKING:
    from streamlog.model.kv import KVChange

READER_CHECKED_EVERY_S = 0.5

_namespace = click.option("--namespace", default="default", show_default=True)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _entry(name: bytes, value: Any) -> dict[str, Any]:
    """`value` None: no such key."""
    if value is None:
        return {**text_or_base64("key", name), "value": None}
    return {
        **text_or_base64("key", name),
        **text_or_base64("value", value.data),
        "revision": value.revision,
    }


@click.group(cls=CommandGroup)
def kv() -> None:
    """Small values under names."""


@kv.command()
@click.argument("key")
@_namespace
@remote_options
@pass_state
def get(state: State, key: str, namespace: str) -> None:
    """Write the value of KEY to stdout, byte for byte; exit code 1 if there is none."""
    with key_values(state) as client:
        value = client.get(_bytes(key), namespace=namespace)
    if value is None:
        raise KeyNotFound(
            f"no key {key!r} in namespace {namespace!r}", namespace=namespace, key=key
        )
    if state.json:
        emit(_entry(_bytes(key), value))
        return
    out = BytesOut()
    out.write(value.data + (b"\n" if stdout_is_terminal() else b""))
    out.flush()


@kv.command()
@click.argument("key")
@click.argument("value", required=False)
@_namespace
@click.option(
    "--if-absent", is_flag=True, help="Keep what is there; the answer says what is stored."
)
@click.option(
    "--expected-revision",
    type=click.IntRange(0, INT64_MAX),
    help="Put only if the key has this revision; 0: only if there is no such key.",
)
@remote_options
@pass_state
def put(
    state: State,
    key: str,
    value: str | None,
    namespace: str,
    if_absent: bool,
    expected_revision: int | None,
) -> None:
    """Put VALUE, or stdin byte for byte where it is left out, under KEY."""
    if if_absent and expected_revision is not None:
        raise click.UsageError("--if-absent and --expected-revision exclude each other")
    name = _bytes(key)
    data = read_input("the value") if value is None else _bytes(value)
    with key_values(state) as client:
        if if_absent:
            stored = client.put_if_absent(name, data, namespace=namespace)
        elif expected_revision is not None:
            stored = client.compare_and_set(name, data, expected_revision, namespace=namespace)
        else:
            stored = client.put(name, data, namespace=namespace)
    if state.json:
        emit(_entry(name, stored))
    else:
        note(f"revision {stored.revision}")


@kv.command()
@click.argument("key")
@_namespace
@remote_options
@pass_state
def delete(state: State, key: str, namespace: str) -> None:
    """Delete KEY; exit code 1 if there is none."""
    with key_values(state) as client:
        removed = client.delete(_bytes(key), namespace=namespace)
    if removed is None:
        raise KeyNotFound(
            f"no key {key!r} in namespace {namespace!r}", namespace=namespace, key=key
        )
    if state.json:
        emit(_entry(_bytes(key), removed))
    else:
        note(f"deleted {key}")


@kv.command("list")
@_namespace
@click.option("--prefix", default="", help="Only keys that begin with this.")
@remote_options
@pass_state
def list_keys(state: State, namespace: str, prefix: str) -> None:
    """List keys in order: revision, size in bytes, key."""
    with key_values(state) as client:
        for entry in client.list(namespace=namespace, prefix=_bytes(prefix)):
            if state.json:
                emit(_entry(entry.key.name, entry.value))
            else:
                name = entry.key.name.decode(errors="backslashreplace")
                click.echo(f"{entry.value.revision:>8}  {len(entry.value.data):>8}  {name}")


@kv.command()
@_namespace
@click.option("--prefix", default="", help="Only keys that begin with this.")
@click.option(
    "--from-revision",
    type=click.IntRange(1, INT64_MAX),
    help="Begin with this revision's changes. [default: from now on]",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N changes.")
@remote_options
@pass_state
def watch(
    state: State, namespace: str, prefix: str, from_revision: int | None, count: int | None
) -> None:
    """Write changes as they happen, until Ctrl-C or --count."""
    with key_values(state) as client:
        if stdout_is_terminal():
            note(f"watching namespace {namespace}; Ctrl-C ends")
        changes = client.watch(
            namespace=namespace, prefix=_bytes(prefix), from_revision=from_revision
        )
        for number, change in enumerate(_while_read(changes), start=1):
            entry = _entry(change.key.name, change.value) | {"revision": change.revision}
            if state.json:
                emit(entry)
            else:
                name = change.key.name.decode(errors="backslashreplace")
                size = "deleted" if change.value is None else len(change.value.data)
                click.echo(f"{change.revision:>8}  {size:>8}  {name}")
            sys.stdout.flush()
            if number == count:
                return


def _while_read(changes: Iterator[KVChange]) -> Iterator[KVChange]:
    """The changes, as long as stdout has a reader: the wait for one would not tell.

    Errors: those of `changes` and of `check_reader`.
    """
    # The thread ends when the client is closed.
    pool = ThreadPoolExecutor(1, "watch")
    while True:
        coming = pool.submit(next, changes, None)
        while not wait([coming], READER_CHECKED_EVERY_S).done:
            check_reader()
        change = coming.result()
        if change is None:
            return
        yield change
