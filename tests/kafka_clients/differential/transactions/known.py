"""Where a node answers transactional calls otherwise than Kafka, and why.

`docs/kafka.md` shows this list; a test compares the two. An entry never lets a difference pass that
changes what later calls see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.kafka_clients.differential.side import Seen
from tests.kafka_clients.differential.transactions.calls import Call, Fetch


class Known(NamedTuple):
    """`applies` has the call, and what Kafka and the node answered."""

    what: str
    reason: str
    applies: Callable[[Call, Seen, Seen], bool]


def _same_but(kafka: Seen, node: Seen, *names: str) -> bool:
    """Whether the answers agree in all other fields."""
    return {**kafka, **dict.fromkeys(names)} == {**node, **dict.fromkeys(names)}


def _lists_fewer(call: Call, kafka: Seen, node: Seen) -> bool:
    """Both list the transactions that begin within the node's batches."""
    if not isinstance(call, Fetch) or not _same_but(kafka, node, "aborted"):
        return False
    end = max((batch["offsets"][1] for batch in node["batches"]), default=-1)
    needed = [one for one in kafka["aborted"] if one[1] <= end]
    return set(needed) <= set(node["aborted"]) <= set(kafka["aborted"])


KNOWN = [
    Known(
        "Fetch: aborted transactions that begin behind the records of the answer",
        "Kafka lists those up to the next entry of its offset index, a node only those that a "
        "reader needs",
        _lists_fewer,
    ),
]


def explained(call: Call, kafka: Seen, node: Seen) -> Known | None:
    """The entry that explains the difference."""
    return next((one for one in KNOWN if one.applies(call, kafka, node)), None)


def table() -> str:
    """The list as rows of Markdown."""
    rows = [f"| {one.what} | {one.reason} |" for one in KNOWN]
    return "\n".join(["| what differs | why |", "|---|---|", *rows])
