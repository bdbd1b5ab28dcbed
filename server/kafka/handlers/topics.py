"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): each topic has its own result.

A store replicates, so any replication factor is taken, and described as 1. Work that is not done in
the request's time goes on, and its topic gets REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from streamlog.errors import (
    DeadlinePassed,
    Invalid,
    InvalidName,
    StreamlogError,
    TopicAlreadyExists,
    Unauthorized,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from streamlog.kafka.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from streamlog.kafka.messages.create_partitions_response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from streamlog.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from streamlog.kafka.messages.create_topics_response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from streamlog.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from streamlog.kafka.messages.delete_topics_response import (
    DeletableTopicResult,
    DeleteTopicsResponse,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.primitives import ZERO_UUID
from streamlog.kafka.protocol.topic_ids import id_bytes, id_text
from streamlog.log.api.internal_topics import is_internal
from streamlog.server.composition import Services
from streamlog.server.context import Operation
from streamlog.server.kafka.call import Encoded, KafkaCall, Message, Route
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.kafka.describing.large_answers import encoded
from streamlog.server.kafka.describing.shared_entries import SharedEntries
from streamlog.server.kafka.describing.topic_requests import (
    check_creations,
    check_growth,
    configs_of,
    partitions_of,
    refusal,
)
from streamlog.server.kafka.error_answers import error_response
from streamlog.server.services.config_entries import ConfigEntry
from streamlog.server.services.ports import KnownTopic
from streamlog.server.services.support.in_order import in_order

T = TypeVar("T")

REPLICATION_FACTOR = 1
BY_ID_FROM = 6
"""DeleteTopics names topics by name or id from this version on."""
_TWICE = "the topic stands in the request more than once; name it once"


class TopicsHandler:
    def __init__(self, services: Services) -> None:
        self._admin = services.admin
        self._configs = services.configs
        self._views = services.topic_views
        self._cluster = ClusterView(services)
        self._clock = services.resources.clock
        self._offload = services.resources.offload
        self._creations_max = services.resources.limits.partitions_per_request_max

    def routes(self) -> Mapping[ApiKey, Route]:
        return {
            ApiKey.CREATE_TOPICS: Route(self.create_topics, error_response=_failed),
            ApiKey.DELETE_TOPICS: Route(self.delete_topics, error_response=_failed),
            ApiKey.CREATE_PARTITIONS: Route(self.create_partitions, error_response=_failed),
        }

    async def create_topics(
        self, call: KafkaCall, request: CreateTopicsRequest
    ) -> CreateTopicsResponse | Encoded:
        """Errors: Refused (too many topics)."""
        check_creations(request.topics, self._creations_max)
        deadline = self._deadline(request.timeout_ms)
        times = Counter(topic.name for topic in request.topics)
        distinct = {topic.name: topic for topic in request.topics}.values()
        shared = SharedEntries(_shown)
        results = await in_order(
            [
                self._create(
                    call, topic, times[topic.name], deadline, shared, request.validate_only
                )
                for topic in distinct
            ]
        )
        settings = sum(len(result.configs or ()) for result in results)
        response = CreateTopicsResponse(topics=results)
        return await encoded(call, response, settings, self._offload)

    def _deadline(self, timeout_ms: int) -> float:
        """On the clock, for all topics of a request together."""
        return self._clock.monotonic() + max(0, timeout_ms) / 1000

    async def _create(
        self,
        call: KafkaCall,
        topic: CreatableTopic,
        times: int,
        deadline: float,
        shared: SharedEntries[CreatableTopicConfigs],
        validate_only: bool,
    ) -> CreatableTopicResult:
        try:
            if times > 1:
                raise Invalid(_TWICE)
            if is_internal(topic.name):
                if self._views.topic(topic.name) is not None:
                    raise TopicAlreadyExists(f"{topic.name} is there, as the node made it")
                raise InvalidName(f"{topic.name} is Kafka's own, and the node's to make")
            work = self._admin.create_topic(
                call.context,
                topic.name,
                partitions_of(topic, self._cluster),
                configs_of(topic),
                validate_only,
            )
            created = await self._until(deadline, work, "the topic's creation")
        except StreamlogError as error:
            code, message = refusal(error)
            return CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
        result = CreatableTopicResult(
            name=topic.name,
            topic_id=id_bytes(created.topic_id) if created.topic_id else ZERO_UUID,
            error_message=None,
        )
        self._describe(call, result, created, shared)
        return result

    def _describe(
        self,
        call: KafkaCall,
        result: CreatableTopicResult,
        topic: KnownTopic,
        shared: SharedEntries[CreatableTopicConfigs],
    ) -> None:
        """What the topic has got, for a principal that may know."""
        try:
            self._views.check(call.context, Operation.DESCRIBE_CONFIGS, topic.name)
        except Unauthorized as error:
            result.topic_config_error_code, _ = refusal(error)
            result.configs = None
            return
        result.num_partitions = topic.partitions
        result.replication_factor = REPLICATION_FACTOR
        entries = self._configs.topic_entries(topic.configs)
        result.configs = [shared.of(entry) for entry in entries]

    async def delete_topics(
        self, call: KafkaCall, request: DeleteTopicsRequest
    ) -> DeleteTopicsResponse:
        if call.version < BY_ID_FROM:
            topics = [DeleteTopicState(name=name) for name in request.topic_names]
        else:
            topics = list(request.topics)
        deadline = self._deadline(request.timeout_ms)
        times = Counter(map(self._identity_of, topics))
        distinct = {(topic.name, topic.topic_id): topic for topic in topics}.values()
        return DeleteTopicsResponse(
            responses=await in_order(
                [
                    self._delete(call, topic, deadline, times[self._identity_of(topic)])
                    for topic in distinct
                ]
            )
        )

    def _identity_of(self, topic: DeleteTopicState) -> bytes | str:
        """By which a topic that is named and identified in one request is found to be one.

        Its id or, where there is no such topic, its name.
        """
        if topic.name is None or topic.topic_id != ZERO_UUID:
            return topic.topic_id
        present = self._views.topic(topic.name)
        return topic.name if present is None else id_bytes(present.topic_id)

    async def _delete(
        self, call: KafkaCall, topic: DeleteTopicState, deadline: float, times: int
    ) -> DeletableTopicResult:
        result = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
        try:
            if (topic.name is None) == (topic.topic_id == ZERO_UUID):
                raise Invalid("give each topic's name or its id, and not both")
            if times > 1:
                raise Invalid(_TWICE)
            present = self._known(call, topic)
            result.name, result.topic_id = present.name, id_bytes(present.topic_id)
            work = self._admin.delete_topic(call.context, present.name, present.topic_id)
            await self._until(deadline, work, "the topic's deletion")
        except StreamlogError as error:
            result.error_code, result.error_message = refusal(error)
        return result

    def _known(self, call: KafkaCall, topic: DeleteTopicState) -> KnownTopic:
        """Errors: UnknownTopicOrPartition, UnknownTopicId, Unauthorized."""
        present: KnownTopic | None
        if topic.name is not None:
            present = self._views.topic(topic.name)
            self._views.check(call.context, Operation.DESCRIBE, topic.name)
            if present is None:
                raise UnknownTopicOrPartition(f"there is no topic {topic.name[:80]!r}")
            return present
        topic_id = id_text(topic.topic_id)
        present = self._views.topic_by_id(topic_id)
        if present is None:
            raise UnknownTopicId(f"there is no topic with the id {topic_id}", topic_id=topic_id)
        # Before the answer has the name of a topic that the principal may not know.
        self._views.check(call.context, Operation.DESCRIBE, present.name)
        return present

    async def create_partitions(
        self, call: KafkaCall, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        deadline = self._deadline(request.timeout_ms)
        times = Counter(topic.name for topic in request.topics)
        distinct = {topic.name: topic for topic in request.topics}.values()
        return CreatePartitionsResponse(
            results=await in_order(
                [
                    self._grow(call, topic, times[topic.name], deadline, request.validate_only)
                    for topic in distinct
                ]
            )
        )

    async def _grow(
        self,
        call: KafkaCall,
        topic: CreatePartitionsTopic,
        times: int,
        deadline: float,
        validate_only: bool,
    ) -> CreatePartitionsTopicResult:
        try:
            if times > 1:
                raise Invalid(_TWICE)
            self._views.check(call.context, Operation.ALTER, topic.name)
            present = self._views.topic(topic.name)
            if present is None:
                raise UnknownTopicOrPartition(
                    f"there is no topic {topic.name[:80]!r}; create it first"
                )
            check_growth(present.partitions, topic, self._cluster)
            work = self._admin.create_partitions(
                call.context, topic.name, topic.count, validate_only
            )
            await self._until(deadline, work, "the creation of partitions")
        except StreamlogError as error:
            code, message = refusal(error)
            return CreatePartitionsTopicResult(
                name=topic.name, error_code=code, error_message=message
            )
        return CreatePartitionsTopicResult(name=topic.name)

    async def _until(self, deadline: float, work: Awaitable[T], what: str) -> T:
        """What `work` returns; when the time is up, it goes on without the caller.

        Errors: those of `work`; DeadlinePassed.
        """
        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()):
                return await work
        except TimeoutError:
            raise DeadlinePassed(
                f"{what} was under way when the request's time was up, and goes on: look again, "
                "and ask with a longer timeout next time"
            ) from None


def _shown(entry: ConfigEntry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        read_only=entry.is_read_only,
        config_source=entry.kafka_source.value,
        is_sensitive=entry.is_sensitive,
    )


def _failed(call: KafkaCall, request: Message, error: StreamlogError) -> Message:
    """Each topic has the code that it would have if it had been refused alone."""
    return error_response(call, request, error, refusal)
