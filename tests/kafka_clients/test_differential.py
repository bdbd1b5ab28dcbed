"""The same seeded calls to a real Kafka and to a node; `make differential-kafka` runs many more."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from streamlog.codec.batch import BatchProducer
from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.conftest import ALL
from tests.kafka_clients.differential import known
from tests.kafka_clients.differential.batches import BAD, batch
from tests.kafka_clients.differential.calls import Call, CreateTopic, Produce
from tests.kafka_clients.differential.known import UNEVEN, explained
from tests.kafka_clients.differential.sequence import UNKNOWN_TOPIC_OR_PARTITION, run
from tests.kafka_clients.differential.side import Seen, Side
from tests.kafka_clients.known_exchanges import table as exchanges_table
from tests.support.command import ROOT

pytestmark = pytest.mark.xdist_group("kafka_clients")

CALLS = 200
SEEDS = range(1, 11)


@pytest.fixture
def sides(kafka: Broker, node: Broker) -> Iterator[tuple[Side, Side]]:
    both = Side("kafka", kafka.server), Side("streamlog", node.server)
    yield both
    for side in both:
        side.close()


def test_both_brokers_answer_the_same(sides: tuple[Side, Side]) -> None:
    differences = [found for seed in SEEDS if (found := run(seed, CALLS, *sides, Counter()))]
    assert not differences, "\n".join(map(str, differences))


def test_a_bad_batch_has_the_same_answer(sides: tuple[Side, Side]) -> None:
    """Also those whose answers are known to differ: in just that way."""
    # For the answer that Kafka does not give, a test waits until the client's time is out.
    kinds = [*BAD, *(["null"] if os.environ.get(ALL) else [])]
    answers = {kind: _answers(sides, kind) for kind in kinds}
    wrong = {kind: found for kind, found in answers.items() if not _is_known(kind, *found)}
    assert wrong == {}


def test_a_batch_behind_one_that_found_no_partition_has_a_known_answer(
    sides: tuple[Side, Side],
) -> None:
    rng, topic = random.Random(5), "gap-behind-a-refusal"
    first, younger = (
        Produce(9, topic, 0, "gap", batch(rng, BatchProducer(9_000_001, 0, sequence)))
        for sequence in (0, 7)
    )
    make = CreateTopic(7, topic, 1, ())
    assert [first.on(side)["error"] for side in sides] == [UNKNOWN_TOPIC_OR_PARTITION] * 2
    for side in sides:
        make.wait_until_seen(side, make.on(side))
    kafka, node = (younger.on(side) for side in sides)
    assert UNEVEN["gap behind a refusal"].applies(younger, kafka, node), (kafka, node)


def _answers(sides: tuple[Side, Side], kind: str) -> tuple[Call, Seen, Seen]:
    rng = random.Random(kind)
    make = CreateTopic(7, f"bad-{kind.replace(' ', '-')}", 1, ())
    data = None if kind == "null" else BAD[kind](rng, batch(rng))
    call = Produce(9, make.topic, 0, kind, data)
    for side in sides:
        make.wait_until_seen(side, make.on(side))
    first, second = (call.on(side) for side in sides)
    return call, first, second


def _is_known(kind: str, call: Call, kafka: Seen, node: Seen) -> bool:
    if kind in UNEVEN:
        return UNEVEN[kind].applies(call, kafka, node)
    return kafka == node or explained(call, kafka, node) is not None


def test_the_page_lists_every_known_difference() -> None:
    page = (ROOT / "docs" / "kafka.md").read_text()
    assert known.table() in page
    assert exchanges_table() in page
