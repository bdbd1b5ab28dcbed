"""Settings: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44),
ListConfigResources (74).

Each resource of a request has its own answer. Resources are topics and brokers; a broker's name is
its node id, and the empty name stands for all brokers. Levels of single loggers do not exist here:
a broker's `node.log_level` is a setting as others are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from streamlog.errors import Invalid, StreamlogError, Unauthorized
from streamlog.kafka.messages import (
    alter_configs_request,
    alter_configs_response,
    describe_configs_request,
    describe_configs_response,
    incremental_alter_configs_request,
    incremental_alter_configs_response,
    list_config_resources_request,
    list_config_resources_response,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import ErrorAnswer, KafkaError, answer_to
from streamlog.log.api.names import check_topic_name
from streamlog.log.api.topic_config import ConfigType
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Encoded, Handle, KafkaCall
from streamlog.server.kafka.describing.large_answers import encoded
from streamlog.server.kafka.describing.shared_entries import SharedEntries
from streamlog.server.services.config_entries import ConfigEntry
from streamlog.server.services.configs import ConfigChange, ConfigOperation, ResourceKind

Described = describe_configs_response.DescribeConfigsResourceResult
_DONE = ErrorAnswer(KafkaError.NONE, "")
_OPERATIONS = {
    0: ConfigOperation.SET,
    1: ConfigOperation.DELETE,
    2: ConfigOperation.APPEND,
    3: ConfigOperation.SUBTRACT,
}
TOPICS_PAGE = 1000
RESOURCES_PER_STEP = 20
"""Described before other work gets its turn; about 1 ms."""


class ConfigResourceType(IntEnum):
    """Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigsHandler:
    def __init__(self, services: Services) -> None:
        self._configs = services.configs
        self._admin = services.admin
        self._offload = services.resources.offload
        self._resources_max = services.resources.limits.partitions_per_request_max

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe,
            ApiKey.ALTER_CONFIGS: self.alter,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_resources,
        }

    async def describe(
        self, call: KafkaCall, request: describe_configs_request.DescribeConfigsRequest
    ) -> describe_configs_response.DescribeConfigsResponse | Encoded:
        """A tool that describes all topics asks for the settings of all in one request.

        What is asked for twice is answered once: the settings of a broker are ten thousand times
        larger than the question.
        """
        self._check_count(request.resources)
        distinct = {_asked(resource): resource for resource in request.resources}.values()
        results, described = [], SharedEntries(lambda entry: _described(entry, request))
        for number, resource in enumerate(distinct):
            if number % RESOURCES_PER_STEP == RESOURCES_PER_STEP - 1:
                await asyncio.sleep(0)
            try:
                entries = await self._entries(call, resource.resource_type, resource.resource_name)
                answer = _DONE
            except StreamlogError as error:
                entries, answer = [], _answer(resource.resource_type, error)
            keys = resource.configuration_keys
            wanted = frozenset(keys) if keys else None
            results.append(
                describe_configs_response.DescribeConfigsResult(
                    error_code=answer.code,
                    error_message=answer.message or None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[
                        described.of(entry)
                        for entry in entries
                        if entry.kafka_name and (wanted is None or entry.kafka_name in wanted)
                    ],
                )
            )
        response = describe_configs_response.DescribeConfigsResponse(results=results)
        count = sum(len(result.configs) for result in results)
        return await encoded(call, response, count, self._offload)

    def _check_count(self, resources: Sequence[object]) -> None:
        """Errors: Invalid, since an answer is a hundred times larger than its request."""
        if len(resources) > self._resources_max:
            raise Invalid(
                f"the request names {len(resources)} resources; at most {self._resources_max} are "
                "allowed (limits.partitions_per_request_max): split it"
            )

    async def _entries(self, call: KafkaCall, kind: int, name: str) -> list[ConfigEntry]:
        """Of all brokers, as in Kafka, only what was set for them. Errors: StreamlogError."""
        resource = _kind(kind, name)
        entries = await self._configs.describe(call.context, resource, name)
        if resource is ResourceKind.BROKER_DEFAULT:
            return self._configs.set_at_run_time(resource)
        return entries

    async def alter(
        self, call: KafkaCall, request: alter_configs_request.AlterConfigsRequest
    ) -> alter_configs_response.AlterConfigsResponse:
        """What the request does not name goes back to its default."""
        self._check_count(request.resources)
        twice = _named_twice(request.resources)
        responses = []
        for resource in request.resources:
            changes = [
                (config.name, ConfigOperation.SET, config.value) for config in resource.configs
            ]
            answer = await self._alter_one(
                call, resource, twice, changes, request.validate_only, is_replacing=True
            )
            responses.append(
                alter_configs_response.AlterConfigsResourceResponse(
                    error_code=answer.code,
                    error_message=answer.message or None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return alter_configs_response.AlterConfigsResponse(responses=responses)

    async def incremental_alter(
        self,
        call: KafkaCall,
        request: incremental_alter_configs_request.IncrementalAlterConfigsRequest,
    ) -> incremental_alter_configs_response.IncrementalAlterConfigsResponse:
        self._check_count(request.resources)
        twice = _named_twice(request.resources)
        responses = []
        for resource in request.resources:
            changes = [
                (config.name, _OPERATIONS.get(config.config_operation), config.value)
                for config in resource.configs
            ]
            answer = await self._alter_one(call, resource, twice, changes, request.validate_only)
            responses.append(
                incremental_alter_configs_response.AlterConfigsResourceResponse(
                    error_code=answer.code,
                    error_message=answer.message or None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return incremental_alter_configs_response.IncrementalAlterConfigsResponse(
            responses=responses
        )

    async def _alter_one(
        self,
        call: KafkaCall,
        resource: AlteredResource,
        twice: frozenset[tuple[int, str]],
        changes: Sequence[tuple[str, ConfigOperation | None, str | None]],
        validate_only: bool,
        *,
        is_replacing: bool = False,
    ) -> ErrorAnswer:
        """Of a resource that the request names twice, nothing is changed."""
        try:
            if (resource.resource_type, resource.resource_name) in twice:
                raise Invalid("the request names the resource more than once")
            await self._configs.alter(
                call.context,
                _kind(resource.resource_type, resource.resource_name),
                resource.resource_name,
                list(_checked(changes)),
                validate_only=validate_only,
                is_replacing=is_replacing,
            )
        except StreamlogError as error:
            return _answer(resource.resource_type, error)
        return _DONE

    async def list_resources(
        self, call: KafkaCall, request: list_config_resources_request.ListConfigResourcesRequest
    ) -> list_config_resources_response.ListConfigResourcesResponse:
        """Version 0 asks for client metrics alone, which no node has, nor groups' settings."""
        response = list_config_resources_response.ListConfigResourcesResponse
        asked = frozenset(request.resource_types)
        if not asked:
            asked = frozenset(ConfigResourceType) if call.version else frozenset()
        if asked - frozenset(ConfigResourceType):
            return response(error_code=KafkaError.UNSUPPORTED_VERSION)
        resource = list_config_resources_response.ConfigResource
        listed = []
        try:
            if ConfigResourceType.BROKER in asked:
                name = str(self._configs.node_id)
                listed.append(resource(resource_name=name, resource_type=ConfigResourceType.BROKER))
            if ConfigResourceType.TOPIC in asked:
                listed += [
                    resource(resource_name=name, resource_type=ConfigResourceType.TOPIC)
                    for name in self._topics(call)
                ]
        except Unauthorized:
            return response(error_code=KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        return response(config_resources=listed)

    def _topics(self, call: KafkaCall) -> Iterator[str]:
        last = ""
        while True:
            page = self._admin.list_topics(call.context, last, TOPICS_PAGE)
            for topic in page:
                last = topic.name
                yield last
            if len(page) < TOPICS_PAGE:
                return


AlteredResource = (
    alter_configs_request.AlterConfigsResource
    | incremental_alter_configs_request.AlterConfigsResource
)


def _asked(
    resource: describe_configs_request.DescribeConfigsResource,
) -> tuple[int, str, frozenset[str]]:
    keys = frozenset(resource.configuration_keys or ())
    return resource.resource_type, resource.resource_name, keys


def _named_twice(resources: Sequence[AlteredResource]) -> frozenset[tuple[int, str]]:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    return frozenset(named for named, count in counts.items() if count > 1)


def _checked(
    changes: Sequence[tuple[str, ConfigOperation | None, str | None]],
) -> Iterator[ConfigChange]:
    """Errors: Invalid."""
    for name, operation, value in changes:
        if operation is None:
            raise Invalid(f"{name[:80]}: give an operation: SET 0, DELETE 1, APPEND 2, SUBTRACT 3")
        if value is None and operation is not ConfigOperation.DELETE:
            raise Invalid(f"{name[:80]} has no value; delete it to go back to its default")
        yield ConfigChange(name, operation, value or "")


def _kind(number: int, name: str) -> ResourceKind:
    """Errors: Invalid, InvalidName."""
    if number == ConfigResourceType.TOPIC:
        check_topic_name(name)
        return ResourceKind.TOPIC
    if number == ConfigResourceType.BROKER:
        return ResourceKind.BROKER if name else ResourceKind.BROKER_DEFAULT
    if number == ConfigResourceType.BROKER_LOGGER:
        raise Invalid(
            "loggers have no levels of their own here: set the broker's node.log_level instead"
        )
    raise Invalid(
        f"settings of resource type {number} are not kept here: ask for topics (2) or brokers (4)"
    )


def _answer(resource_type: int, error: StreamlogError) -> ErrorAnswer:
    answer = answer_to(error)
    if isinstance(error, Unauthorized) and resource_type != ConfigResourceType.TOPIC:
        return ErrorAnswer(KafkaError.CLUSTER_AUTHORIZATION_FAILED, answer.message)
    return answer


def _described(
    entry: ConfigEntry, request: describe_configs_request.DescribeConfigsRequest
) -> Described:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return Described(
        name=entry.kafka_name,
        value=_value(entry, entry.value),
        read_only=entry.is_read_only,
        config_source=entry.kafka_source.value,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            describe_configs_response.DescribeConfigsSynonym(
                name=synonym.name,
                value=_value(entry, synonym.value),
                source=synonym.source.value,
            )
            for synonym in synonyms
        ],
        config_type=entry.type.value,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _value(entry: ConfigEntry, value: str) -> str | None:
    """None for what must not be shown, and for what is not set."""
    if entry.is_sensitive or (value == "" and entry.type is not ConfigType.LIST):
        return None
    return value
