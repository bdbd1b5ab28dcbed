"""Kafka's client with version 2 of transactions, which nodes serve and do not advertise.

Clients send it only where the feature `transaction.version` is finalized, which a node does not do
before it has groups. So the feature is invented. A Kafka that has it: `more/test_newest_kafka.py`.
"""

from __future__ import annotations

import asyncio

import pytest

from streamlog.kafka.messages.api_versions_request import ApiVersionsRequest
from streamlog.kafka.messages.api_versions_response import (
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from streamlog.server.kafka.call import KafkaCall
from streamlog.server.kafka.handlers.api_versions import ApiVersionsHandler
from tests.kafka_clients.newest_transactions import check_java
from tests.kafka_clients.tap import Tap
from tests.support.running_node import running_node

pytestmark = pytest.mark.xdist_group("kafka_clients")

FEATURE = "transaction.version"
LOOKS_FOR_OLD_ONES = "broker.transaction.abort.timed.out.transaction.cleanup.interval.ms"


def _finalize_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ApiVersionsHandler.api_versions

    async def api_versions(
        self: ApiVersionsHandler, call: KafkaCall, request: ApiVersionsRequest
    ) -> ApiVersionsResponse:
        answer = await real(self, call, request)
        answer.supported_features = [
            SupportedFeatureKey(name=FEATURE, min_version=0, max_version=2)
        ]
        answer.finalized_features = [
            FinalizedFeatureKey(name=FEATURE, min_version_level=2, max_version_level=2)
        ]
        return answer

    monkeypatch.setattr(ApiVersionsHandler, "api_versions", api_versions)


def test_java_does_its_cases_of_transactions_with_version_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _finalize_version_2(monkeypatch)

    async def body() -> None:
        with Tap() as tap:
            listening = {"kafka_listen": "127.0.0.1:0", "kafka_advertised": tap.address}
            async with running_node(**listening, **{LOOKS_FOR_OLD_ONES: "200"}) as node:
                (tap.target,) = (
                    endpoint.address
                    for endpoint in node.banner.listeners
                    if endpoint.protocol.startswith("kafka")
                )
                await check_java(tap)

    asyncio.run(body())
