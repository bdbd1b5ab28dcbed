"""The same seeded transactions on a real Kafka and on a node.

`make differential-kafka-transactions` runs many more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.differential.transactions import known
from tests.kafka_clients.differential.transactions.sequence import run
from tests.kafka_clients.differential.transactions.side import TransactionalSide
from tests.support.command import ROOT

pytestmark = pytest.mark.xdist_group("kafka_clients")

CALLS = 50
SEEDS = range(1, 9)


@pytest.fixture
def sides(kafka: Broker, node: Broker) -> Iterator[tuple[TransactionalSide, TransactionalSide]]:
    both = TransactionalSide("kafka", kafka.server), TransactionalSide("streamlog", node.server)
    yield both
    for side in both:
        side.close()


def test_both_brokers_answer_the_same(sides: tuple[TransactionalSide, TransactionalSide]) -> None:
    differences = [found for seed in SEEDS if (found := run(seed, CALLS, *sides, Counter()))]
    assert not differences, "\n".join(map(str, differences))


def test_the_page_lists_every_known_difference() -> None:
    assert known.table() in (ROOT / "docs" / "kafka.md").read_text()
