"""DescribeTransactions (65) and ListTransactions (66): what is known of transactional ids.

Source: KafkaApis.handleDescribeTransactionsRequest, TransactionStateManager.listTransactionStates;
KIP-664, KIP-994 (duration), KIP-1152 (pattern).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlog.coordinator.api import (
    TransactionDescription,
    TransactionFilter,
    TransactionState,
)
from streamlog.errors import Invalid, StreamlogError
from streamlog.kafka.messages import describe_transactions_response as described
from streamlog.kafka.messages import list_transactions_response as listed
from streamlog.kafka.messages.describe_transactions_request import DescribeTransactionsRequest
from streamlog.kafka.messages.list_transactions_request import ListTransactionsRequest
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.kafka.handlers.transactions.codes import coordinator_code

STATE_NAMES = {
    state: "".join(word.capitalize() for word in state.name.split("_"))
    for state in TransactionState
}
"""Kafka's: `PrepareCommit` and so on."""
_STATES = {name: state for state, name in STATE_NAMES.items()}


class DescribeTransactionsHandler:
    def __init__(self, services: Services) -> None:
        self._transactions = services.transactions

    def routes(self) -> Mapping[ApiKey, Route]:
        return {
            ApiKey.DESCRIBE_TRANSACTIONS: Route(self.describe, error_response=_describe_failed),
            ApiKey.LIST_TRANSACTIONS: Route(self.list_, error_response=_list_failed),
        }

    async def describe(
        self, call: KafkaCall, request: DescribeTransactionsRequest
    ) -> described.DescribeTransactionsResponse:
        """An id that is named twice is answered once: its answer has all of its partitions.

        Errors: Invalid (too many ids).
        """
        ids = list(dict.fromkeys(request.transactional_ids))
        answers = await self._transactions.describe(call.context, ids)
        return described.DescribeTransactionsResponse(
            transaction_states=[
                _state(name, answer) for name, answer in zip(ids, answers, strict=True)
            ]
        )

    async def list_(
        self, call: KafkaCall, request: ListTransactionsRequest
    ) -> listed.ListTransactionsResponse:
        """States that do not exist come back as such; they match no transaction."""
        names = request.state_filters
        states = frozenset(_STATES[name] for name in names if name in _STATES)
        unknown = [name for name in dict.fromkeys(names) if name not in _STATES]
        found = await self._transactions.transactions(
            call.context,
            TransactionFilter(
                # No id is dead for long: where no state exists, nothing but the pattern is wrong.
                states if states or not names else frozenset({TransactionState.DEAD}),
                frozenset(request.producer_id_filters),
                max(request.duration_filter, -1),
                request.transactional_id_pattern or "",
            ),
        )
        return listed.ListTransactionsResponse(
            unknown_state_filters=unknown,
            transaction_states=[
                listed.TransactionState(
                    transactional_id=one.transactional_id,
                    producer_id=one.producer_id,
                    transaction_state=STATE_NAMES[one.state],
                )
                for one in found
                if one.state is not TransactionState.DEAD
            ],
        )


def _state(
    transactional_id: str, answer: TransactionDescription | StreamlogError
) -> described.TransactionState:
    if isinstance(answer, StreamlogError):
        return described.TransactionState(
            transactional_id=transactional_id, error_code=coordinator_code(answer)
        )
    return described.TransactionState(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[answer.state],
        transaction_timeout_ms=answer.timeout_ms,
        transaction_start_time_ms=answer.start_ms,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        topics=_topics(answer.partitions),
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[described.TopicData]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return [
        described.TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()
    ]


def _describe_failed(
    call: KafkaCall, request: DescribeTransactionsRequest, error: StreamlogError
) -> described.DescribeTransactionsResponse:
    return described.DescribeTransactionsResponse(
        transaction_states=[_state(name, error) for name in request.transactional_ids]
    )


def _list_failed(
    call: KafkaCall, request: ListTransactionsRequest, error: StreamlogError
) -> listed.ListTransactionsResponse:
    """Without a text: INVALID_REGULAR_EXPRESSION is all that a wrong pattern can be told."""
    code = coordinator_code(error)
    if isinstance(error, Invalid) and request.transactional_id_pattern:
        code = KafkaError.INVALID_REGULAR_EXPRESSION
    return listed.ListTransactionsResponse(error_code=code)
