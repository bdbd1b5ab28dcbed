"""InitProducerId (22): a producer id, and the newest epoch of a transactional id.

Source: KafkaApis.handleInitProducerIdRequest and TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import StreamlogError, Unauthorized
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.messages.init_producer_id_response import InitProducerIdResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.kafka.handlers.transactions.codes import fenced_code

NONE = -1
FENCED_FROM = 4


class ProducerIdHandler:
    def __init__(self, services: Services) -> None:
        self._logs = services.log
        self._transactions = services.transactions

    def routes(self) -> Mapping[ApiKey, Route]:
        route = Route(self.init_producer_id, error_response=_failed)
        return {ApiKey.INIT_PRODUCER_ID: route}

    async def init_producer_id(
        self, call: KafkaCall, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """Without a transactional id always a new id, with epoch 0, as in Kafka.

        Such a producer raises its epoch itself. The id that it names here is one that it gives up.
        """
        producer_id, epoch = request.producer_id, request.producer_epoch
        if (producer_id == NONE) != (epoch == NONE):
            return _refused(KafkaError.INVALID_REQUEST)
        try:
            if request.transactional_id is None:
                producer_id, epoch = await self._logs.init_producer_id(call.context, None, None)
            else:
                known = None if producer_id == NONE else ProducerIdAndEpoch(producer_id, epoch)
                producer_id, epoch = await self._transactions.init_producer_id(
                    call.context, request.transactional_id, request.transaction_timeout_ms, known
                )
        except StreamlogError as error:
            return _failed(call, request, error)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _failed(
    call: KafkaCall, request: InitProducerIdRequest, error: StreamlogError
) -> InitProducerIdResponse:
    """COORDINATOR_LOAD_IN_PROGRESS where asking again helps, as in Kafka without a block of ids.

    Clients wait and ask again then. After KAFKA_STORAGE_ERROR aiokafka's `start` gives up,
    and franz-go asks without a pause, hundreds of times a second. An id that nobody gets to know
    does no harm, so an unknown outcome is no other case.
    """
    if isinstance(error, Unauthorized) and request.transactional_id is None:
        return _refused(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    return _refused(fenced_code(error, call.version, FENCED_FROM))


def _refused(code: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
