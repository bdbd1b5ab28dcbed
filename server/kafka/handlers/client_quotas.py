"""Quotas of clients: DescribeClientQuotas (48), AlterClientQuotas (49).

An entity is a list of types with names; a name of null is the default. Kafka has quotas of users,
client ids, both together, and addresses. A node knows client ids alone: nothing is found for the
others, and nothing may be set for them.

Sources: Kafka's ClientQuotasImage.describe and ClientQuotaControlManager; KIP-546.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

from streamlog.errors import Invalid, StreamlogError, Unauthorized
from streamlog.kafka.messages import (
    alter_client_quotas_request,
    alter_client_quotas_response,
    describe_client_quotas_request,
    describe_client_quotas_response,
)
from streamlog.kafka.messages.alter_client_quotas_request import AlterClientQuotasRequest
from streamlog.kafka.messages.alter_client_quotas_response import AlterClientQuotasResponse
from streamlog.kafka.messages.describe_client_quotas_request import DescribeClientQuotasRequest
from streamlog.kafka.messages.describe_client_quotas_response import DescribeClientQuotasResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import ErrorAnswer, KafkaError, answer_to
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Encoded, Handle, KafkaCall
from streamlog.server.kafka.describing.large_answers import encoded

CLIENT_ID, USER, IP = "client-id", "user", "ip"
TYPES = (CLIENT_ID, USER, IP)

Entity = Sequence[alter_client_quotas_request.EntityData]


class Match(IntEnum):
    """How a component of a filter names entities; Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2
    """Any name, and the default."""


class ClientQuotasHandler:
    def __init__(self, services: Services) -> None:
        self._quotas = services.quotas
        self._offload = services.resources.offload
        self._entries_max = services.resources.limits.partitions_per_request_max

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe,
            ApiKey.ALTER_CLIENT_QUOTAS: self.alter,
        }

    async def describe(
        self, call: KafkaCall, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse | Encoded:
        try:
            wanted = _Filter(request)
            found = self._quotas.describe_all(call.context)
        except StreamlogError as error:
            answer = _answer(error)
            return DescribeClientQuotasResponse(
                error_code=answer.code, error_message=answer.message, entries=None
            )
        message = describe_client_quotas_response
        entries = [
            message.EntryData(
                entity=[message.EntityData(entity_type=CLIENT_ID, entity_name=client_id)],
                values=[message.ValueData(key=key, value=value) for key, value in values.items()],
            )
            for client_id, values in found
            if wanted.takes(client_id)
        ]
        response = DescribeClientQuotasResponse(error_message=None, entries=entries)
        return await encoded(call, response, len(entries), self._offload)

    async def alter(
        self, call: KafkaCall, request: AlterClientQuotasRequest
    ) -> AlterClientQuotasResponse:
        """Each entity by itself: all of its changes are made, or none."""
        if len(request.entries) > self._entries_max:
            raise Invalid(
                f"the request names {len(request.entries)} entities; at most {self._entries_max} "
                "are allowed (limits.partitions_per_request_max): split it"
            )
        message = alter_client_quotas_response
        entries, seen = [], set()
        for entry in request.entries:
            named = tuple((one.entity_type, one.entity_name) for one in entry.entity)
            answer = await self._altered(call, entry, request.validate_only, is_again=named in seen)
            seen.add(named)
            entity = [
                message.EntityData(entity_type=kind, entity_name=name) for kind, name in named
            ]
            entries.append(
                message.EntryData(
                    error_code=answer.code, error_message=answer.message or None, entity=entity
                )
            )
        return AlterClientQuotasResponse(entries=entries)

    async def _altered(
        self,
        call: KafkaCall,
        entry: alter_client_quotas_request.EntryData,
        validate_only: bool,
        *,
        is_again: bool,
    ) -> ErrorAnswer:
        try:
            client_id = _client_id_of(entry.entity)
            if is_again:
                raise Invalid("the request changes the entity more than once")
            for name, count in Counter(op.key for op in entry.ops).items():
                if count > 1:
                    raise Invalid(f"{name[:80]} is changed more than once for the entity")
            await self._quotas.alter(
                call.context,
                client_id,
                set={op.key: op.value for op in entry.ops if not op.remove},
                delete=[op.key for op in entry.ops if op.remove],
                validate_only=validate_only,
            )
        except StreamlogError as error:
            return _answer(error)
        return ErrorAnswer(KafkaError.NONE, "")


class _Filter:
    """Which entities a request asks for. Errors: Invalid."""

    def __init__(self, request: DescribeClientQuotasRequest) -> None:
        self._components: dict[str, describe_client_quotas_request.ComponentData] = {}
        for component in request.components:
            if component.entity_type in self._components:
                raise Invalid(f"{component.entity_type} appears more than once in the filter")
            self._components[component.entity_type] = _checked(component)
        if IP in self._components and len(self._components) > 1:
            raise Invalid("ip cannot be combined with user or client-id")
        self._is_strict = request.strict

    def takes(self, client_id: str | None) -> bool:
        """Whether the entity that is a client id, and nothing else, is asked for."""
        component = self._components.get(CLIENT_ID)
        if component is None:
            return not self._components and not self._is_strict
        if len(self._components) > 1:
            return False
        return component.match_type == Match.ANY or component.match == client_id


def _checked(
    component: describe_client_quotas_request.ComponentData,
) -> describe_client_quotas_request.ComponentData:
    """Errors: Invalid."""
    if component.entity_type not in TYPES:
        raise _unknown_type(component.entity_type)
    if component.match_type not in tuple(Match):
        raise Invalid(f"unknown match type {component.match_type}; there are 0, 1 and 2")
    if (component.match is None) is (component.match_type == Match.EXACT):
        raise Invalid("a name to match belongs to match type 0, exact, and to no other")
    return component


def _client_id_of(entity: Entity) -> str | None:
    """None: the default. Errors: Invalid for an entity that is no client id."""
    if not entity:
        raise Invalid("the entity is empty; name a client-id")
    types = [one.entity_type for one in entity]
    for kind in types:
        if kind not in TYPES:
            raise _unknown_type(kind)
        if types.count(kind) > 1:
            raise Invalid(f"the entity names {kind} more than once")
    if USER in types:
        raise Invalid(
            "quotas of users are not there, since there are no users yet; set them for a client-id"
        )
    if IP in types:
        raise Invalid("quotas of addresses are not there; set them for a client-id")
    [component] = entity
    return component.entity_name


def _unknown_type(kind: str) -> Invalid:
    return Invalid(f"unknown type of entity {kind[:80]!r}; quotas are kept for {CLIENT_ID}")


def _answer(error: StreamlogError) -> ErrorAnswer:
    answer = answer_to(error)
    if isinstance(error, Unauthorized):
        return ErrorAnswer(KafkaError.CLUSTER_AUTHORIZATION_FAILED, answer.message)
    return answer
