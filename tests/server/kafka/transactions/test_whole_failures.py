"""Requests that no handler saw, such as those above `limits.requests_max`: clients ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import Overloaded
from streamlog.kafka.messages.add_partitions_to_txn_request import AddPartitionsToTxnRequest
from streamlog.kafka.messages.describe_transactions_request import DescribeTransactionsRequest
from streamlog.kafka.messages.end_txn_request import EndTxnRequest
from streamlog.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.messages.list_transactions_request import ListTransactionsRequest
from streamlog.kafka.messages.write_txn_markers_request import WriteTxnMarkersRequest
from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response, response_codec
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import RequestContext
from streamlog.server.kafka.call import KafkaCall
from streamlog.server.kafka.handlers.table import handlers, join
from tests.kafka_clients.wire import error_codes
from tests.server.kafka.transactions.asked_markers import asked
from tests.server.kafka.transactions.asking import transaction
from tests.support.kafka_handlers import kafka_handlers

LOADING = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
NOT_AVAILABLE = KafkaError.COORDINATOR_NOT_AVAILABLE
STORAGE = KafkaError.KAFKA_STORAGE_ERROR
ONE = transaction("tx", ProducerIdAndEpoch(1, 0), {"a": [0, 1]})
REQUESTS: dict[ApiKey, tuple[Any, KafkaError]] = {
    ApiKey.FIND_COORDINATOR: (
        FindCoordinatorRequest(key="tx", coordinator_keys=["tx", "ty"], key_type=1),
        NOT_AVAILABLE,
    ),
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest(transactional_id="tx"), LOADING),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        AddPartitionsToTxnRequest(
            transactions=[ONE], v3_and_below_transactional_id="tx", v3_and_below_topics=ONE.topics
        ),
        LOADING,
    ),
    ApiKey.END_TXN: (EndTxnRequest(transactional_id="tx"), LOADING),
    # Its senders are nodes and tools, which know the codes of logs.
    ApiKey.WRITE_TXN_MARKERS: (WriteTxnMarkersRequest(markers=[asked(7, {"a": [0]})]), STORAGE),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        DescribeTransactionsRequest(transactional_ids=["tx", "ty"]),
        LOADING,
    ),
    ApiKey.LIST_TRANSACTIONS: (ListTransactionsRequest(), LOADING),
}


def codes_in(message: Any) -> Iterator[int]:
    """The codes of an answer that has any; the parts of AddPartitionsToTxn name theirs apart."""
    for topic in getattr(message, "results_by_topic_v3_and_below", ()):
        for part in topic.results_by_partition:
            yield part.partition_error_code
    yield from (code for code in error_codes(message) if code)


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.name)
def test_every_version_has_a_code_after_which_clients_ask_again(api: ApiKey) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            route = join(handlers(node.services))[api]
            request, expected = REQUESTS[api]
            assert route.error_response is not None
            for version in range(APIS[api].first, APIS[api].last + 1):
                call = KafkaCall(RequestContext(), api, version, 1, "kafka", ("h", 1), 100)
                answer = route.error_response(call, request, Overloaded("20000 requests"))
                data = b"".join(response_codec(api).encode(answer, version))
                told = decode_response(api, version, memoryview(data), 0)
                assert set(codes_in(told)) == {expected}, version

    asyncio.run(main())
