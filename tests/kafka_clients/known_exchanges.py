"""Where a client's exchanges with a node differ from those with Kafka, and why.

`docs/kafka.md` shows this list; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.kafka_clients.tap import Exchange
from tests.kafka_clients.wire import APIS

TRANSIENT = {
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    16: "NOT_COORDINATOR",
    19: "NOT_ENOUGH_REPLICAS",
    51: "CONCURRENT_TRANSACTIONS",
    100: "UNKNOWN_TOPIC_ID",
}
"""Errors of the moment after a topic's creation, when Kafka's broker has not heard of it yet, and
after Kafka's start, when it has no producer ids and loads its coordinators. A node answers a
creation when the topic is there. 19 and 51 come while the markers of a producer's last transaction
are being written. Whether a client meets these errors depends on the moment.
"""


class Difference(NamedTuple):
    """`error` None: whatever the answer; `only`: which broker's clients see it."""

    client: str
    api: int
    error: int | None
    only: str
    reason: str


KNOWN = [
    Difference(
        "librdkafka",
        10,
        15,
        "streamlog",
        "a consumer looks for its group's coordinator even if it only assigns partitions; it keeps "
        "COORDINATOR_NOT_AVAILABLE to itself, and asks again",
    ),
]


def unexplained(client: str, only: Mapping[Exchange, str]) -> dict[str, str]:
    """Exchanges that one broker alone had, and no entry explains."""
    return {
        str(exchange): broker
        for exchange, broker in only.items()
        if exchange.error not in TRANSIENT
        and not any(
            known.client in (client, "all")
            and known.api == exchange.api
            and known.error in (None, exchange.error)
            and known.only == broker
            for known in KNOWN
        )
    }


def table() -> str:
    """The list as rows of Markdown."""
    rows = [
        f"| {one.client} | {APIS.get(one.api, one.api)} | "
        f"{'any' if one.error is None else one.error} | {one.only} | {one.reason} |"
        for one in KNOWN
    ]
    return "\n".join(["| client | API | error | seen with | why |", "|---|---|---|---|---|", *rows])
