"""Where a node answers otherwise than Kafka, and why: all that the differential test lets pass.

`docs/kafka.md` shows this list; a test compares the two. An entry never lets a difference pass that
changes what later calls see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.kafka_clients.differential.calls import (
    AlterConfig,
    Call,
    CreatePartitions,
    CreateTopic,
    Fetch,
    ListOffsets,
    Produce,
    ReplaceConfigs,
)
from tests.kafka_clients.differential.side import Seen

MAX_TIMESTAMP = -3
OF_THE_REQUEST = (3, 100, 76, 10)
"""Errors of Produce that do not come of what is wrong with the batch: an unknown topic, zstd in an
old version, a topic that takes smaller batches alone."""


class Known(NamedTuple):
    """`applies` has the call, and what Kafka and the node answered."""

    what: str
    reason: str
    applies: Callable[[Call, Seen, Seen], bool]


def _same_but(kafka: Seen, node: Seen, *names: str) -> bool:
    """Whether the answers agree in all other fields."""
    return {**kafka, **dict.fromkeys(names)} == {**node, **dict.fromkeys(names)}


def _is_refused(kind: str, *, by_kafka: int, by_node: int) -> Callable[[Call, Seen, Seen], bool]:
    """A batch of that kind is refused by both, with these errors."""

    def applies(call: Call, kafka: Seen, node: Seen) -> bool:
        is_kind = isinstance(call, Produce) and call.kind == kind
        errors = (kafka.get("error"), node.get("error"))
        return (
            is_kind and errors == (by_kafka, by_node) and _same_but(kafka, node, "error", "start")
        )

    return applies


def _goes_on(call: Call, kafka: Seen, node: Seen) -> bool:
    if not isinstance(call, Fetch) or kafka.get("error") or node.get("error"):
        return False
    batches = kafka["batches"]
    return bool(batches) and {**node, "batches": node["batches"][: len(batches)]} == kafka


def _is_wrong_twice(call: Call, kafka: Seen, node: Seen) -> bool:
    if isinstance(call, Produce):
        errors = kafka.get("error"), node.get("error")
        return all(errors) and any(error in OF_THE_REQUEST for error in errors)
    is_other = isinstance(call, CreateTopic | AlterConfig | ReplaceConfigs | CreatePartitions)
    return is_other and bool(kafka.get("error")) and bool(node.get("error"))


KNOWN = [
    Known(
        "two things are wrong with one call: which of them the answer names",
        "checks run in another order; the call is refused by both",
        _is_wrong_twice,
    ),
    Known(
        "Fetch: an answer goes on over the end of a segment",
        "Kafka reads one segment file for an answer; a node's segments are no files",
        _goes_on,
    ),
    Known(
        "ListOffsets: the leader epoch of a partition without records is -1",
        "a node's epochs begin with the first append",
        lambda call, kafka, node: (
            isinstance(call, ListOffsets)
            and not node["has_epoch"]
            and _same_but(kafka, node, "has_epoch")
        ),
    ),
    Known(
        "ListOffsets -3: a record that was deleted is not found",
        "Kafka gives the offset of the largest timestamp even where it lies before the log's start",
        lambda call, kafka, node: (
            isinstance(call, ListOffsets)
            and call.timestamp == MAX_TIMESTAMP
            and not kafka.get("error")
            and kafka["offset"] < kafka["start"]
            and (node["offset"] == -1 or node["offset"] >= node["start"])
        ),
    ),
    Known(
        "ListOffsets by time: a record is found behind a segment whose late records are deleted",
        "Kafka looks into the first segment that was late enough, and into no other",
        lambda call, kafka, node: (
            isinstance(call, ListOffsets)
            and call.timestamp >= 0
            and kafka["offset"] == -1
            and node["offset"] >= node["start"] == kafka["start"] > 0
        ),
    ),
    Known(
        "Produce: a duplicate's append time is the original's where the topic has log-append time, "
        "and else -1",
        "Kafka puts the batch's largest timestamp there",
        lambda call, kafka, node: (
            isinstance(call, Produce)
            and kafka.get("error") == 0
            and kafka["has_append_time"]
            and _same_but(kafka, node, "has_append_time")
        ),
    ),
    Known(
        "IncrementalAlterConfigs: DELETE of a setting that does not exist is 40",
        "Kafka deletes nothing and says nothing; a misspelt name stays unnoticed",
        lambda call, kafka, node: (
            isinstance(call, AlterConfig)
            and call.operation == 1
            and (kafka.get("error"), node.get("error")) == (0, 40)
        ),
    ),
    Known(
        "Produce: the log start offset beside an error",
        "a node says -1; Kafka says the log's start where the partition itself refused the batch",
        lambda call, kafka, node: (
            isinstance(call, Produce)
            and bool(kafka.get("error"))
            and _same_but(kafka, node, "start")
        ),
    ),
    Known(
        "Produce: a batch of magic 3 is 87 (INVALID_RECORD), with Kafka 2 (CORRUPT_MESSAGE)",
        "every other format than 2 has one answer, which no client repeats",
        _is_refused("magic 3", by_kafka=2, by_node=87),
    ),
    Known(
        "Produce: an unknown codec is 76 (UNSUPPORTED_COMPRESSION_TYPE), with Kafka -1",
        "Kafka's validator does not expect it and fails; clients learn nothing from -1",
        _is_refused("codec 7", by_kafka=-1, by_node=76),
    ),
]

UNEVEN = {
    "a byte more": Known(
        "Produce: bytes behind the batch are refused; Kafka drops them",
        "a producer that lost count of its bytes is told so",
        lambda call, kafka, node: (kafka.get("error"), node.get("error")) == (0, 87),
    ),
    "log-append time": Known(
        "Produce: a batch that claims log-append time is 32 (INVALID_TIMESTAMP); Kafka takes it",
        "the flag is the server's: a reader would take the producer's clock for the server's",
        lambda call, kafka, node: (kafka.get("error"), node.get("error")) == (0, 32),
    ),
    "base offset 7": Known(
        "Produce: a batch with a base offset other than 0 is taken; Kafka says 87",
        "the offset is the server's to set, whatever the producer wrote there",
        lambda call, kafka, node: (kafka.get("error"), node.get("error")) == (87, 0),
    ),
    "cut block": Known(
        "Produce: compressed records that are damaged are stored; Kafka says 87 (INVALID_RECORD) "
        "or -1",
        "[a node does not decompress them](#damaged-compressed-records)",
        lambda call, kafka, node: kafka.get("error") in (87, -1) and node.get("error") == 0,
    ),
    "null": Known(
        "Produce: null in place of a batch is 87; Kafka does not answer at all",
        "a request without an answer holds up its connection",
        lambda call, kafka, node: (kafka, node.get("error")) == ({"silent": True}, 87),
    ),
    "gap behind a refusal": Known(
        "Produce: where an idempotent producer's batch found no partition (3), younger ones get "
        "the same error until it has come again, for 30 s at most; Kafka takes them",
        "its retry would be out of sequence then, and librdkafka takes it for stored",
        lambda call, kafka, node: (kafka.get("error"), node.get("error")) == (0, 3),
    ),
}
"""Kinds of batches of which one broker stores what the other one refuses, or which Kafka does not
answer: sequences leave them out, and each has a test of its own."""


def explained(call: Call, kafka: Seen, node: Seen) -> Known | None:
    """The entry that explains the difference."""
    return next((one for one in KNOWN if one.applies(call, kafka, node)), None)


def table() -> str:
    """The list as rows of Markdown."""
    rows = [f"| {one.what} | {one.reason} |" for one in [*KNOWN, *UNEVEN.values()]]
    return "\n".join(["| what differs | why |", "|---|---|", *rows])
