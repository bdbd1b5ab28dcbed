"""Clients beside those that each change is tested with: the same cases, the same tap."""

from __future__ import annotations

import pytest

from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.checks import check_client
from tests.kafka_clients.runs import Runs

CLIENTS = ("kafka-python", "sarama")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_does_all_cases_and_hears_the_same_of_both_brokers(
    runs: Runs, kafka: Broker, node: Broker, client: str
) -> None:
    check_client(client, runs, kafka, node)
