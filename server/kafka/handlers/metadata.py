"""Metadata (3) and DescribeTopicPartitions (75): topics, their partitions, and who leads them.

Names are sorted in every answer. A topic that the principal may not describe is left out of an
answer about all topics, and has an error where it was asked for, which does not tell whether it
exists. A topic that is made because a client asked for it is unknown in the first answer, as in
Kafka; the client asks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from streamlog.errors import Invalid, InvalidName
from streamlog.kafka.messages.describe_topic_partitions_request import (
    DescribeTopicPartitionsRequest,
)
from streamlog.kafka.messages.describe_topic_partitions_response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.kafka.protocol.primitives import ZERO_UUID
from streamlog.kafka.protocol.topic_ids import id_bytes, id_text
from streamlog.log.api.internal_topics import is_internal
from streamlog.log.api.names import check_topic_name
from streamlog.runtime.concurrency.steps import Steps, run_cooperatively
from streamlog.server.composition import Services
from streamlog.server.context import Operation
from streamlog.server.kafka.call import Encoded, Handle, KafkaCall
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.kafka.describing.encoded_topics import EncodedTopics
from streamlog.server.kafka.describing.operations import NOT_ASKED, bits
from streamlog.server.kafka.describing.partitions import PartitionStates
from streamlog.server.services.ports import KnownTopic

IDS_FROM = 12
"""Versions 10 and 11 have the field, but no broker ever answered to it."""
PARTITIONS_MAX = 1000
"""Of one DescribeTopicPartitions answer; a client asks on from the cursor. Kafka's default is 2000,
whose bytes would take the event loop longer than 2 ms."""
NAMES_PER_STEP = 200
PAGE = 1000
_Found: TypeAlias = bytes | KnownTopic
"""An encoded topic of the answer, or a topic that has to be encoded."""


class MetadataHandler:
    def __init__(self, services: Services) -> None:
        self._views = services.topic_views
        self._cluster = ClusterView(services)
        self._states = PartitionStates(self._views, self._cluster)
        self._encoded = EncodedTopics(self._views, self._states)

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
        }

    async def metadata(self, call: KafkaCall, request: MetadataRequest) -> Encoded:
        asked = request.topics
        if asked is None or (call.version == 0 and not asked):
            topics, count = await self._all_topics(call, request)
        else:
            ids, names = _ids_and_names(call.version, asked)
            identified = (self._identified(call, topic_id) for topic_id in ids)
            named = (self._named(call, request, name) for name in names)
            answers = await self._asked_topics(call, request, chain(identified, named))
            topics, count = b"".join(answers), len(answers)
        response = MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
                )
                for node in self._cluster.nodes(call)
            ],
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.node_id,
            cluster_authorized_operations=self._cluster_operations(call, request),
        )
        return Encoded(self._encoded.pieces(call.version).answer(response, topics, count))

    def _cluster_operations(self, call: KafkaCall, request: MetadataRequest) -> int:
        if not request.include_cluster_authorized_operations:
            return NOT_ASKED
        if not self._views.may_on_cluster(call.context, Operation.DESCRIBE):
            return 0
        return bits(self._views.cluster_operations(call.context))

    async def _all_topics(self, call: KafkaCall, request: MetadataRequest) -> tuple[bytes, int]:
        everything = await self._encoded.all_topics(call.version)

        def visible() -> Steps[list[bytes]]:
            topics = []
            for index, name in enumerate(everything.names):
                if index % NAMES_PER_STEP == NAMES_PER_STEP - 1:
                    yield
                if self._views.may(call.context, Operation.DESCRIBE, name):
                    encoded = everything.topics[index]
                    topics.append(self._with_operations(call, request, name, encoded))
            return topics

        topics = await run_cooperatively(visible())
        count = len(topics)
        if count == len(everything.names) and not request.include_topic_authorized_operations:
            return everything.joined, count
        return b"".join(topics), count

    async def _asked_topics(
        self, call: KafkaCall, request: MetadataRequest, found: Iterator[_Found]
    ) -> list[bytes]:
        def kept() -> Steps[list[_Found]]:
            """Topics whose bytes are kept do not wait for those that have to be encoded."""
            topics: list[_Found] = []
            for index, topic in enumerate(found):
                if index % NAMES_PER_STEP == NAMES_PER_STEP - 1:
                    yield
                encoded = None
                if not isinstance(topic, bytes):
                    encoded = self._encoded.kept(call.version, topic)
                    if encoded is not None:
                        encoded = self._with_operations(call, request, topic.name, encoded)
                topics.append(encoded or topic)
            return topics

        topics = []
        for topic in await run_cooperatively(kept()):
            if not isinstance(topic, bytes):
                encoded = await self._encoded.topic(call.version, topic)
                topic = self._with_operations(call, request, topic.name, encoded)
            topics.append(topic)
        return topics

    def _with_operations(
        self, call: KafkaCall, request: MetadataRequest, name: str, topic: bytes
    ) -> bytes:
        if not request.include_topic_authorized_operations:
            return topic
        operations = self._topic_operations(call, name)
        return self._encoded.pieces(call.version).with_operations(topic, operations)

    def _topic_operations(self, call: KafkaCall, name: str) -> int:
        return bits(self._views.topic_operations(call.context, name))

    def _named(self, call: KafkaCall, request: MetadataRequest, name: str) -> _Found:
        if not self._views.may(call.context, Operation.DESCRIBE, name):
            return self._refused(call, KafkaError.TOPIC_AUTHORIZATION_FAILED, name)
        topic = self._views.topic(name)
        if topic is not None:
            return topic
        error = _unknown_error(name)
        may_be_made = error is KafkaError.UNKNOWN_TOPIC_OR_PARTITION and not is_internal(name)
        if may_be_made and request.allow_auto_topic_creation and self._views.may_create:
            if self._may_create(call, name):
                self._views.begin_creation(name)
            else:
                error = KafkaError.TOPIC_AUTHORIZATION_FAILED
        return self._refused(call, error, name)

    def _may_create(self, call: KafkaCall, name: str) -> bool:
        return self._views.may_on_cluster(call.context, Operation.CREATE) or self._views.may(
            call.context, Operation.CREATE, name
        )

    def _identified(self, call: KafkaCall, topic_id: bytes) -> _Found:
        topic = self._views.topic_by_id(id_text(topic_id))
        if topic is None:
            return self._refused(call, KafkaError.UNKNOWN_TOPIC_ID, None, topic_id)
        if not self._views.may(call.context, Operation.DESCRIBE, topic.name):
            return self._refused(call, KafkaError.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
        return topic

    def _refused(
        self, call: KafkaCall, error: KafkaError, name: str | None, topic_id: bytes = ZERO_UUID
    ) -> bytes:
        topic = MetadataResponseTopic(
            error_code=error,
            name=name,
            topic_id=topic_id,
            is_internal=name is not None and is_internal(name),
        )
        return self._encoded.pieces(call.version).topic(topic, (), 0)

    async def describe_topic_partitions(
        self, call: KafkaCall, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """Topics from the cursor on, until the partitions are as many as one answer holds."""
        cursor = request.cursor
        if cursor is not None and cursor.partition_index < 0:
            raise Invalid("the cursor's partition is below 0; give the one to begin with")
        named = {topic.name for topic in request.topics}
        if cursor is not None and named and cursor.topic_name not in named:
            raise Invalid("the cursor's topic is none of those that are asked for")
        return await run_cooperatively(self._describe(call, request))

    def _describe(
        self, call: KafkaCall, request: DescribeTopicPartitionsRequest
    ) -> Steps[DescribeTopicPartitionsResponse]:
        cursor = request.cursor
        room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
        response = DescribeTopicPartitionsResponse()
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        response.topics = topics
        work = 0
        for name in self._named_from(request):
            work += 1
            if work >= NAMES_PER_STEP:
                work = 0
                yield
            if not self._views.may(call.context, Operation.DESCRIBE, name):
                if request.topics:
                    topics.append(_undescribed(KafkaError.TOPIC_AUTHORIZATION_FAILED, name))
                continue
            if room == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            topic = self._views.topic(name)
            if topic is None:
                if request.topics:
                    unknown = _undescribed(_unknown_error(name), name)
                    unknown.topic_authorized_operations = self._topic_operations(call, name)
                    topics.append(unknown)
                continue
            is_first = cursor is not None and cursor.topic_name == name
            start = cursor.partition_index if cursor is not None and is_first else 0
            end = min(topic.partitions, start + room)
            topics.append(self._described(call, topic, range(start, end)))
            if end < topic.partitions:
                response.next_cursor = Cursor(topic_name=name, partition_index=end)
                break
            room -= max(0, end - start)
            work += max(0, end - start)
        return response

    def _named_from(self, request: DescribeTopicPartitionsRequest) -> Iterator[str]:
        """The names that were asked for, all of them without any, from the cursor's on."""
        first = "" if request.cursor is None else request.cursor.topic_name
        if request.topics:
            asked = {topic.name for topic in request.topics if topic.name >= first}
            yield from sorted(asked)
            return
        if first and self._views.topic(first) is not None:
            yield first
        after = first
        while page := self._views.topics(after, PAGE):
            yield from (topic.name for topic in page)
            after = page[-1].name

    def _described(
        self, call: KafkaCall, topic: KnownTopic, numbers: range
    ) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            name=topic.name,
            topic_id=id_bytes(topic.topic_id),
            is_internal=is_internal(topic.name),
            partitions=[
                DescribeTopicPartitionsResponsePartition(
                    error_code=state.error_code,
                    partition_index=state.partition,
                    leader_id=state.leader,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=state.replicas,
                    isr_nodes=state.replicas,
                    eligible_leader_replicas=(),
                    last_known_elr=(),
                    offline_replicas=state.offline,
                )
                for state in self._states.of(topic.name, numbers)
            ],
            topic_authorized_operations=self._topic_operations(call, topic.name),
        )


def _ids_and_names(
    version: int, asked: Sequence[MetadataRequestTopic]
) -> tuple[list[bytes], list[str]]:
    """Names count only where no topic has an id, as in Kafka. Errors: Invalid."""
    ids = {topic.topic_id for topic in asked} - {ZERO_UUID}
    if version < IDS_FROM and (ids or any(topic.name is None for topic in asked)):
        raise Invalid(
            f"version {version} of Metadata asks for topics by name alone; by id from {IDS_FROM} on"
        )
    if any(topic.name is None and topic.topic_id == ZERO_UUID for topic in asked):
        raise Invalid("a topic of the request has neither name nor id; give one of them")
    names = set() if ids else {topic.name for topic in asked if topic.name is not None}
    return sorted(ids), sorted(names)


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidName:
        return False
    return True


def _unknown_error(name: str) -> KafkaError:
    if _is_valid(name):
        return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    return KafkaError.INVALID_TOPIC_EXCEPTION


def _undescribed(error: KafkaError, name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, is_internal=is_internal(name)
    )
