"""EndTxn (26): a transaction is committed or aborted; the answer says that the decision is durable.

From version 5 on the producer's next transaction has the next epoch, which the answer tells
(KIP-890). Clients use it only where the feature `transaction.version` is 2; nodes do not have it.
Source: KafkaApis.handleEndTxnRequest.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import StreamlogError
from streamlog.kafka.messages.end_txn_request import EndTxnRequest
from streamlog.kafka.messages.end_txn_response import EndTxnResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.kafka.handlers.transactions.codes import fenced_code

FENCED_FROM = 2
BUMPS_EPOCH_FROM = 5


class EndTxnHandler:
    def __init__(self, services: Services) -> None:
        self._transactions = services.transactions

    def routes(self) -> Mapping[ApiKey, Route]:
        return {ApiKey.END_TXN: Route(self.end_txn, error_response=_failed)}

    async def end_txn(self, call: KafkaCall, request: EndTxnRequest) -> EndTxnResponse:
        """Errors: those of the service."""
        producer_id, epoch = await self._transactions.end(
            call.context,
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            bumps_epoch=call.version >= BUMPS_EPOCH_FROM,
        )
        return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)


def _failed(call: KafkaCall, request: EndTxnRequest, error: StreamlogError) -> EndTxnResponse:
    return EndTxnResponse(error_code=fenced_code(error, call.version, FENCED_FROM))
