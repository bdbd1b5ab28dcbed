"""Where a node answers transactional calls otherwise than Kafka, and why.

`docs/kafka.md` shows this list; a test compares the two. An entry never lets a difference pass that
changes what later calls see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.kafka_clients.differential.side import Seen
from tests.kafka_clients.differential.transactions.calls import Call, Fetch, ListTransactions

IDLE = frozenset({"Empty", "CompleteCommit", "CompleteAbort"})


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


def _goes_on(call: Call, kafka: Seen, node: Seen) -> bool:
    """Both list the transactions that begin within Kafka's batches."""
    if not isinstance(call, Fetch) or not _same_but(kafka, node, "aborted", "batches"):
        return False
    batches = kafka["batches"]
    if not batches or len(node["batches"]) <= len(batches):
        return False
    end = batches[-1]["offsets"][1]
    needed = [[one for one in side["aborted"] if one[1] <= end] for side in (kafka, node)]
    return bool(node["batches"][: len(batches)] == batches and needed[0] == needed[1])


def _lists_those_that_are_not_open(call: Call, kafka: Seen, node: Seen) -> bool:
    if not isinstance(call, ListTransactions) or call.open_for_ms < 0:
        return False
    if not _same_but(kafka, node, "transactions"):
        return False
    more = [one for one in kafka["transactions"] if one not in node["transactions"]]
    known = len(more) + len(node["transactions"]) == len(kafka["transactions"])
    return known and all(state in IDLE for _, _, state in more)


KNOWN = [
    Known(
        "Fetch: an answer goes on over the end of a segment",
        "Kafka reads one segment file for an answer; a node's segments are no files",
        _goes_on,
    ),
    Known(
        "ListTransactions with a duration: ids without an open transaction are left out",
        "Kafka takes them for open since 1970, or since their last transaction began",
        _lists_those_that_are_not_open,
    ),
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
