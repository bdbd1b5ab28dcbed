"""InitProducerId (22): a producer id for idempotent producers; transactional ones come later.

Source: KafkaApis.handleInitProducerIdRequest and TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.errors import OutcomeUnknown, StreamlogError, Unauthorized
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.messages.init_producer_id_response import InitProducerIdResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError, code_of
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall, Route

NONE = -1


class ProducerIdHandler:
    def __init__(self, services: Services) -> None:
        self._logs = services.log

    def routes(self) -> Mapping[ApiKey, Route]:
        route = Route(self.init_producer_id, error_response=_failed)
        return {ApiKey.INIT_PRODUCER_ID: route}

    async def init_producer_id(
        self, call: KafkaCall, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """Always a new id, with epoch 0, as in Kafka for a producer without transactions.

        Such a producer raises its epoch itself. The id that it names here is one that it gives up.
        """
        if request.transactional_id == "":
            return _refused(KafkaError.INVALID_REQUEST)
        if request.transactional_id is not None:
            # There are no transactions yet. Every client ends at once by this code alone; after
            # others librdkafka asks again until its time is up. The answer has no room for a text.
            return _refused(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if (request.producer_id == NONE) != (request.producer_epoch == NONE):
            return _refused(KafkaError.INVALID_REQUEST)
        try:
            producer_id, epoch = await self._logs.init_producer_id(call.context, None, None)
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
    if isinstance(error, Unauthorized):
        return _refused(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    if error.is_retryable or isinstance(error, OutcomeUnknown):
        return _refused(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    return _refused(code_of(error))


def _refused(code: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
