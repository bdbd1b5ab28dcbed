"""Where a node answers transactional calls otherwise than Kafka, and why.

`docs/kafka.md` shows this list; a test compares the two. An entry never lets a difference pass that
changes what later calls see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.kafka_clients.differential.side import Seen
from tests.kafka_clients.differential.transactions.calls import (
    OFFSETS,
    AddPartitions,
    Call,
    Fetch,
    ListOffsets,
    ListTransactions,
    Produce,
)

OF_THE_REQUEST = (76, 53)
"""zstd in an old version; a transactional batch without a transactional id."""
NOT_ATTEMPTED = 55
MAX_TIMESTAMP = -3
IDLE = frozenset({"Empty", "CompleteCommit", "CompleteAbort"})


class Known(NamedTuple):
    """`applies` has the call, and what Kafka and the node answered."""

    what: str
    reason: str
    applies: Callable[[Call, Seen, Seen], bool]


def _same_but(kafka: Seen, node: Seen, *names: str) -> bool:
    """Whether the answers agree in all other fields."""
    return {**kafka, **dict.fromkeys(names)} == {**node, **dict.fromkeys(names)}


def _is_wrong_twice(call: Call, kafka: Seen, node: Seen) -> bool:
    errors = kafka.get("error"), node.get("error")
    is_of_the_request = any(error in OF_THE_REQUEST for error in errors)
    return (
        isinstance(call, Produce)
        and all(errors)
        and is_of_the_request
        and _same_but(kafka, node, "error")
    )


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


def _verifies_the_others(call: Call, kafka: Seen, node: Seen) -> bool:
    if not isinstance(call, AddPartitions) or not _same_but(kafka, node, "transactions"):
        return False
    verified = {one.transactional_id for one in call.transactions if one.verify_only}
    pairs = zip(kafka["transactions"], node["transactions"], strict=True)
    return all(
        first == second
        or (first[0] in verified and _differ_only_where(first[1], second[1], NOT_ATTEMPTED))
        for first, second in pairs
    )


def _differ_only_where(
    kafka: list[tuple[str, int, int]], node: list[tuple[str, int, int]], code: int
) -> bool:
    return all(
        first == second or (first[:2] == second[:2] and first[2] == code)
        for first, second in zip(kafka, node, strict=True)
    )


def _is_found_behind(call: Call, kafka: Seen, node: Seen) -> bool:
    if not isinstance(call, ListOffsets) or call.timestamp < 0:
        return False
    start, _, _ = node[OFFSETS][call.partition]
    is_same = _same_but(kafka, node, "offset", "timestamp")
    return bool(is_same and kafka["offset"] == -1 and node["offset"] >= start > 0)


def _is_deleted(call: Call, kafka: Seen, node: Seen) -> bool:
    if not isinstance(call, ListOffsets) or call.timestamp != MAX_TIMESTAMP:
        return False
    start, _, _ = node[OFFSETS][call.partition]
    is_same = _same_but(kafka, node, "offset", "timestamp")
    is_hidden = node["offset"] == -1 or node["offset"] >= start
    return bool(is_same and -1 < kafka["offset"] < start and is_hidden)


def _is_largest_of_the_stable(call: Call, kafka: Seen, node: Seen) -> bool:
    if not isinstance(call, ListOffsets) or call.timestamp != MAX_TIMESTAMP:
        return False
    start, stable, _ = node[OFFSETS][call.partition]
    is_same = _same_but(kafka, node, "offset", "timestamp")
    is_stable = start <= node["offset"] < stable
    return bool(is_same and call.isolation and kafka["offset"] == -1 and is_stable)


KNOWN = [
    Known(
        "AddPartitionsToTxn, to verify: a partition that is not there leaves the others their "
        "answers",
        "Kafka answers them with 55 (OPERATION_NOT_ATTEMPTED), though it is asked to change "
        "nothing",
        _verifies_the_others,
    ),
    Known(
        "ListOffsets by time: a record is found behind a segment whose late records are deleted",
        "Kafka looks into the first segment that was late enough, and into no other",
        _is_found_behind,
    ),
    Known(
        "ListOffsets -3: a record that was deleted is not found",
        "Kafka gives the offset of the largest timestamp even where it lies before the log's start",
        _is_deleted,
    ),
    Known(
        "ListOffsets -3, read committed: the largest timestamp of what is stable",
        "Kafka finds none where the largest of all records is not stable yet",
        _is_largest_of_the_stable,
    ),
    Known(
        "two things are wrong with one batch: which of them the answer names",
        "checks run in another order; the batch is refused by both",
        _is_wrong_twice,
    ),
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


UNEVEN = [
    (
        "InitProducerId: an outdated pair while a transaction of the newest one is open",
        "both refuse it; Kafka aborts the newest instance's transaction all the same",
    ),
    (
        "InitProducerId with the newest pair, whose transaction is open: it is aborted, and who "
        "asks again gets the next epoch, as with Kafka's `transaction.version=2`",
        "with version 1 Kafka fences the instance that asked",
    ),
    (
        "Produce: younger batches behind one that was refused as not part of its transaction",
        "Kafka refuses them (45) until the next marker, since it keeps the lowest sequence that it "
        "was asked to verify; a node takes them",
    ),
    (
        "Produce from version 12 on: a producer that the partition does not know begins with any "
        "sequence number",
        "Kafka refuses others than 0 (45), since each transaction has an epoch of its own; clients "
        "of a node do not use these versions yet",
    ),
    (
        "Produce: another transactional id than the one that the producer's batch was verified for",
        "Kafka asks the coordinator before each batch until one is stored; a node asks once for a "
        "producer, partition and transaction",
    ),
    (
        "the last stable offset, where records of an open transaction were deleted",
        "with Kafka it stays before the log's start",
    ),
]
"""Where brokers do what changes their later answers, or what is easily put aside: sequences leave
it out, or compare without it."""


def explained(call: Call, kafka: Seen, node: Seen) -> Known | None:
    """The entry that explains the difference."""
    return next((one for one in KNOWN if one.applies(call, kafka, node)), None)


def table() -> str:
    """The list as rows of Markdown."""
    listed = [*((one.what, one.reason) for one in KNOWN), *UNEVEN]
    rows = [f"| {what} | {reason} |" for what, reason in listed]
    return "\n".join(["| what differs | why |", "|---|---|", *rows])
