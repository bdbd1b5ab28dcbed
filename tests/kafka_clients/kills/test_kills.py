"""`kill -9` of a node under Kafka's idempotent producers, a few times with each change.

`make kill-kafka` does the same more often.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_clients.kills.rounds import Report, kill_under_writers
from tests.kafka_clients.kills.victims import KilledNode
from tests.kafka_clients.kills.writers import CLIENTS
from tests.support.s3 import S3Tests

ROUNDS = 3
SEED = 20261123

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _assert_well(report: Report) -> None:
    assert report.findings == []
    assert report.rounds == ROUNDS
    assert report.under_way.total() > 0, "kills must meet records under way"
    for history in report.histories:
        assert history.unanswered == 0
        assert len(history.acknowledged) == history.sent * history.partitions > 0


def test_what_a_node_on_its_disk_acknowledged_is_there_once(tmp_path: Path) -> None:
    node = KilledNode(tmp_path, "disk")
    _assert_well(kill_under_writers(node, list(CLIENTS), ROUNDS, SEED, tmp_path))


def test_what_a_node_without_a_disk_acknowledged_is_there_once(s3: S3Tests, tmp_path: Path) -> None:
    places = ("--store", s3.new_url(), "--meta", f"rocksdb://{tmp_path}/meta")
    node = KilledNode(tmp_path, "object", places)
    _assert_well(kill_under_writers(node, list(CLIENTS), ROUNDS, SEED, tmp_path))
