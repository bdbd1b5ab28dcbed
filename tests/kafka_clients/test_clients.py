"""Clients as their users run them: each case of each client, against a real Kafka and a node.

That a case passes against Kafka shows that the case is right.
"""

from __future__ import annotations

import pytest

from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.checks import check_client
from tests.kafka_clients.runs import Runs

pytestmark = pytest.mark.xdist_group("kafka_clients")

CLIENTS = ("librdkafka", "aiokafka", "java", "franz-go")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_does_all_cases_and_hears_the_same_of_both_brokers(
    runs: Runs, kafka: Broker, node: Broker, client: str
) -> None:
    check_client(client, runs, kafka, node)
