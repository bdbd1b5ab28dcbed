"""`streamlog txn`: transactions at their coordinator: list, describe, abort."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, field_list, note, table
from streamlog.cli.parsing import INT64_MAX, duration_ms
from streamlog.cli.remote import admin
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.errors import StreamlogError, TransactionalIdNotFound

if TYPE_CHECKING:
    from streamlog.v1 import transaction_pb2

STATES = (
    *("empty", "ongoing", "prepare_commit", "prepare_abort"),
    *("complete_commit", "complete_abort", "dead", "prepare_epoch_fence"),
)
"""As in `calls.transaction.STATES`; help does not import the protos."""

ID_CHARS_MAX = 80
"""Of a longer id a table shows the beginning, --json all."""


@click.group(cls=CommandGroup)
def txn() -> None:
    """List, describe, abort transactions."""


@txn.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    metavar="STATE",
    help=f"Only in this state; may be repeated. One of {', '.join(STATES)}.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(0, INT64_MAX),
    multiple=True,
    help="Only of this producer; may be repeated.",
)
@click.option(
    "--open-longer-than",
    "open_longer_ms",
    metavar="TIME",
    callback=duration_ms,
    help="Only those that have been open for longer, such as 90s, 10m, 2h.",
)
@click.option("--pattern", default="", metavar="REGEX", help="Only ids that match as a whole.")
@remote_options
@pass_state
def list_transactions(
    state: State,
    states: Sequence[str],
    producer_ids: Sequence[int],
    open_longer_ms: int | None,
    pattern: str,
) -> None:
    """List the transactional ids that the node coordinates, and what each does.

    An open transaction holds back read_committed readers of its partitions: those that have been
    open for long are found with --open-longer-than, and ended with `streamlog txn abort`.
    """
    with admin(state) as client:
        found = client.list_transactions(
            states=states,
            producer_ids=producer_ids,
            open_longer_than_ms=open_longer_ms,
            transactional_id_pattern=pattern,
        )
    if state.json:
        for transaction in found:
            emit(_fields(transaction))
        return
    if not found:
        is_filtered = bool(states or producer_ids or open_longer_ms is not None or pattern)
        note(
            "no transactional id is as asked for; `streamlog txn list` shows all"
            if is_filtered
            else "no producer has a transactional id yet; a producer gets one with "
            "`streamlog produce TOPIC --transactional-id ID`, or transactional_id=… in a client"
        )
        return
    table(
        ("transactional id", "state", "producer", "epoch", "open for", "partitions"),
        [
            (
                _cut(transaction.transactional_id),
                _state(transaction),
                transaction.producer_id,
                transaction.producer_epoch,
                _open_for(transaction),
                len(transaction.partitions),
            )
            for transaction in found
        ],
    )


@txn.command()
@click.argument("transactional_id", metavar="ID")
@remote_options
@pass_state
def describe(state: State, transactional_id: str) -> None:
    """Show what the transactional id ID does: state, producer, time limit, partitions."""
    with admin(state) as client:
        (found,) = client.describe_transactions([transactional_id])
    if isinstance(found, StreamlogError):
        raise _with_hint(found)
    if state.json:
        emit(_fields(found))
    else:
        _show(found)


@txn.command()
@click.argument("transactional_id", metavar="ID")
@remote_options
@pass_state
def abort(state: State, transactional_id: str) -> None:
    """Abort the open transaction of ID, and fence its producer, which has to be opened anew.

    Shows what was found. Where no transaction is open, the producer is fenced all the same.
    """
    with admin(state) as client:
        try:
            found = client.abort_transaction(transactional_id)
        except TransactionalIdNotFound as error:
            raise _with_hint(error) from error
    was_open = found.HasField("start_time_ms")
    if state.json:
        emit({"aborted": was_open, "found": _fields(found)})
        return
    if was_open:
        note(f"aborted; it was open for {_open_for(found)} in {len(found.partitions)} partitions")
    else:
        note(f"no transaction was open ({_state(found)}); the producer is fenced")


def _cut(transactional_id: str) -> str:
    """As a column has it: one id of 32 KiB would make every row as long."""
    is_short = len(transactional_id) <= ID_CHARS_MAX
    return transactional_id if is_short else transactional_id[: ID_CHARS_MAX - 1] + "…"


def _with_hint(error: StreamlogError) -> StreamlogError:
    if not isinstance(error, TransactionalIdNotFound):
        return error
    text = f"{error.message}; `streamlog txn list` shows those that are known"
    return TransactionalIdNotFound(text, **error.fields)


def _state(transaction: transaction_pb2.Transaction) -> str:
    from streamlog.client.calls.transaction import state_name

    return state_name(transaction.state)


def _open_ms(transaction: transaction_pb2.Transaction) -> int | None:
    if not transaction.HasField("start_time_ms"):
        return None
    return max(0, time.time_ns() // 1_000_000 - transaction.start_time_ms)


def _open_for(transaction: transaction_pb2.Transaction) -> str:
    """By this machine's clock; empty where no transaction is open."""
    open_ms = _open_ms(transaction)
    return "" if open_ms is None else f"{open_ms / 1000:.1f} s"


def _by_topic(transaction: transaction_pb2.Transaction) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for one in transaction.partitions:
        topics.setdefault(one.topic, []).append(one.partition)
    return {topic: sorted(partitions) for topic, partitions in sorted(topics.items())}


def _fields(transaction: transaction_pb2.Transaction) -> dict[str, Any]:
    is_open = transaction.HasField("start_time_ms")
    return {
        "transactional_id": transaction.transactional_id,
        "state": _state(transaction),
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "start_time_ms": transaction.start_time_ms if is_open else None,
        "open_ms": _open_ms(transaction),
        "partitions": _by_topic(transaction),
        "coordinator_node": transaction.coordinator_node,
    }


def _show(transaction: transaction_pb2.Transaction) -> None:
    places = [
        f"{topic} {', '.join(map(str, partitions))}"
        for topic, partitions in _by_topic(transaction).items()
    ]
    field_list(
        {
            "transactional id": transaction.transactional_id,
            "state": _state(transaction),
            "producer": f"{transaction.producer_id}, epoch {transaction.producer_epoch}",
            "time limit": f"{transaction.timeout_ms / 1000:g} s",
            "open for": _open_for(transaction) or "no transaction is open",
            "partitions": "; ".join(places) or "none",
            "coordinator": f"node {transaction.coordinator_node}",
        }
    )
