"""Clients as their users run them: each case of each client, against a real Kafka and a node.

That a case passes against Kafka shows that the case is right.
"""

from __future__ import annotations

import pytest

from tests.kafka_clients.brokers import BROKERS, Broker
from tests.kafka_clients.cases import CASES, CODECS
from tests.kafka_clients.checks import check_case, check_codec, check_exchanges
from tests.kafka_clients.runs import Runs

CLIENTS = ("librdkafka", "aiokafka", "java", "franz-go")


@pytest.mark.parametrize("broker", BROKERS, indirect=True)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", CASES)
def test_a_client_does(runs: Runs, broker: Broker, client: str, case: str) -> None:
    check_case(runs.of(client, broker), case)


@pytest.mark.parametrize("broker", BROKERS, indirect=True)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("codec", CODECS)
def test_a_clients_codec_is_what_is_stored(
    runs: Runs, broker: Broker, client: str, codec: str
) -> None:
    runs.of(client, broker)
    check_codec(broker, client, codec)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_asks_and_hears_the_same(
    runs: Runs, kafka: Broker, node: Broker, client: str
) -> None:
    check_exchanges(client, runs, kafka, node)
