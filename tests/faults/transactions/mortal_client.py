"""A transaction by raw requests, one after the other, in a process that can be killed between them.

`python -m tests.faults.transactions.mortal_client SERVER TOPIC commit|abort POINT` prints the point
once it has come there, such as "before EndTxn" or "after EndTxn", and stays there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from streamlog.codec.records import encode_values
from tests.kafka_clients.differential.batches import BASE_MS
from tests.kafka_clients.differential.transactions.calls import (
    Adding,
    AddPartitions,
    Call,
    EndTxn,
    InitProducerId,
    Pair,
    Place,
    Produce,
)
from tests.kafka_clients.differential.transactions.sequence import transactional
from tests.kafka_clients.differential.transactions.side import TransactionalSide

PARTITIONS = 2
REQUESTS = ("InitProducerId", "AddPartitionsToTxn", "Produce 0", "Produce 1", "EndTxn")
"""Each partition has a Produce of its own, so that one of them has records and the other none."""
MOMENTS = ("before", "after")
STRUCK = b"struck"
TIMEOUT_MS = 600_000
"""Of the transactions: none ends because of its time limit."""


def transaction(
    side: TransactionalSide,
    topic: str,
    value: bytes,
    *,
    is_commit: bool,
    come: Callable[[str], None] = lambda point: None,
) -> None:
    """A new instance of the id, which is called as the topic; `come` hears of each point."""
    names = iter(REQUESTS)

    def ask(call: Call) -> Pair:
        """The producer that its answer names, or nobody."""
        name = next(names)
        come(f"before {name}")
        seen = call.ask(side)
        errors = [seen.get("error", 0), *(error for _, _, error in seen.get("errors", ()))]
        assert not any(errors), f"{name}: {seen}"
        come(f"after {name}")
        return Pair(seen.get("producer", -1), seen.get("epoch", -1))

    producer = ask(InitProducerId(topic, 4, topic, TIMEOUT_MS))
    places = tuple(Place(topic, number) for number in range(PARTITIONS))
    ask(AddPartitions(topic, 3, (Adding(topic, producer, places),)))
    data = transactional(bytes(encode_values([value], timestamp_ms=BASE_MS).data))
    for number in range(PARTITIONS):
        ask(Produce(topic, 11, number, "good", topic, producer, 0, data))
    ask(EndTxn(topic, 3, topic, producer, is_commit))


def main(arguments: Sequence[str]) -> None:
    server, topic, end, last = arguments

    def come(point: str) -> None:
        if point == last:
            print(point, flush=True)
            sys.stdin.read()

    side = TransactionalSide("mortal", server)
    transaction(side, topic, STRUCK, is_commit=end == "commit", come=come)


if __name__ == "__main__":
    main(sys.argv[1:])
