"""`kill -9` of a node and of copiers in transactions, a few times with each change.

`make kill-kafka-transactions` does the same more often, with Java's client, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_clients.kills.transactions.rounds import Report, kill_under_copiers
from tests.kafka_clients.kills.victims import KilledNode

ROUNDS = 3
SEED = 20261125

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _assert_well(report: Report) -> None:
    assert report.findings == []
    assert report.rounds == ROUNDS
    assert report.under_way > 0, "kills must meet open transactions"
    assert report.commits.total() > 0 < report.aborts.total()


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_a_transaction_is_whole_or_not_there(wal: str, tmp_path: Path) -> None:
    node = KilledNode(tmp_path, wal)
    _assert_well(kill_under_copiers(node, ["librdkafka"], ROUNDS, SEED, tmp_path))
