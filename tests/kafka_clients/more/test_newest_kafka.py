"""A Kafka with the features of its release: what Java's client does with version 2 of transactions.

`../test_newest_transactions.py` asks the same of a node.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.kafka_clients.brokers import running_kafka
from tests.kafka_clients.newest_transactions import check_java
from tests.support.kafka_server import NEWEST_FEATURES


def test_java_does_its_cases_of_transactions_with_version_2(tmp_path: Path) -> None:
    with running_kafka(tmp_path, NEWEST_FEATURES) as broker:
        asyncio.run(check_java(broker.tap))
