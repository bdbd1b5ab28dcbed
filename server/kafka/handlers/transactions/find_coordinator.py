"""FindCoordinator (10): the node that coordinates a transactional id.

There are no consumer groups yet. A group's coordinator is INVALID_REQUEST, with a text that says
so: a client fails at once, in place of asking for ever. But in version 2, librdkafka's, it is
COORDINATOR_NOT_AVAILABLE: its consumers ask also where they only assign partitions, and would hand
any other code to their user, in place of the first record.
Source: KafkaApis.getCoordinator; KIP-699 (several keys).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from streamlog.errors import CoordinatorNotAvailable, Invalid, StreamlogError, Unauthorized
from streamlog.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from streamlog.kafka.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError, code_of
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.kafka.cluster_view import ClusterView, KafkaNode

SEVERAL_FROM = 4
LIBRDKAFKA = 2


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class _Found(NamedTuple):
    node_id: int = -1
    host: str = ""
    port: int = -1
    code: int = KafkaError.NONE
    message: str | None = None


class FindCoordinatorHandler:
    def __init__(self, services: Services) -> None:
        self._transactions = services.transactions
        self._cluster = ClusterView(services)
        self._limits = services.resources.limits

    def routes(self) -> Mapping[ApiKey, Route]:
        route = Route(self.find_coordinator, error_response=_failed)
        return {ApiKey.FIND_COORDINATOR: route}

    async def find_coordinator(
        self, call: KafkaCall, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Errors: Invalid (too many keys)."""
        keys = _keys(call, request)
        most = self._limits.partitions_per_request_max
        if len(keys) > most:
            raise Invalid(
                f"the request names {len(keys)} keys; at most {most} are allowed "
                "(limits.partitions_per_request_max): split it"
            )
        known: dict[str, _Found] = {}
        for key in keys:
            if key not in known:
                known[key] = await self._find(call, request.key_type, key)
        return _response(call, [(key, known[key]) for key in keys])

    async def _find(self, call: KafkaCall, key_type: int, key: str) -> _Found:
        try:
            if key_type != KeyType.TRANSACTION:
                raise _no_coordinator(key_type, call.version)
            node = self._node(call, await self._transactions.coordinator_of(call.context, key), key)
        except StreamlogError as error:
            return _not_found(error)
        return _Found(node.node_id, node.host, node.port)

    def _node(self, call: KafkaCall, node_id: int, key: str) -> KafkaNode:
        for node in self._cluster.nodes(call):
            if node.node_id == node_id:
                return node
        raise CoordinatorNotAvailable(
            f"node {node_id}, which coordinates {key[:80]!r}, is not there now; retry with back-off"
        )


def _keys(call: KafkaCall, request: FindCoordinatorRequest) -> list[str]:
    return list(request.coordinator_keys) if call.version >= SEVERAL_FROM else [request.key]


def _no_coordinator(key_type: int, version: int) -> StreamlogError:
    if key_type != KeyType.GROUP:
        return Invalid(f"coordinators of type {key_type} do not exist; ask for 1 (transactions)")
    text = (
        "consumer groups and committed offsets are not supported yet: assign partitions, and name "
        "the offsets to begin at"
    )
    return CoordinatorNotAvailable(text) if version == LIBRDKAFKA else Invalid(text)


def _not_found(error: StreamlogError) -> _Found:
    """COORDINATOR_NOT_AVAILABLE where asking again helps: it is what clients repeat."""
    code = code_of(error)
    if isinstance(error, Unauthorized):
        code = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif error.is_retryable:
        code = KafkaError.COORDINATOR_NOT_AVAILABLE
    return _Found(code=code, message=error.message)


def _failed(
    call: KafkaCall, request: FindCoordinatorRequest, error: StreamlogError
) -> FindCoordinatorResponse:
    found = _not_found(error)
    return _response(call, [(key, found) for key in _keys(call, request)])


def _response(call: KafkaCall, found: list[tuple[str, _Found]]) -> FindCoordinatorResponse:
    if call.version < SEVERAL_FROM:
        [(_, one)] = found
        return FindCoordinatorResponse(
            error_code=one.code,
            error_message=one.message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key,
                node_id=one.node_id,
                host=one.host,
                port=one.port,
                error_code=one.code,
                error_message=one.message,
            )
            for key, one in found
        ]
    )
