"""The answer to a fetch, in Kafka's shape; record batches stay the pieces that the log handed out.

A partition with an error has no records and -1 for all offsets, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from streamlog.errors import InvalidName, StreamlogError
from streamlog.kafka.messages.fetch_response import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from streamlog.kafka.protocol.errors import KafkaError, code_of
from streamlog.kafka.protocol.topic_ids import id_bytes
from streamlog.log.api.abstract_log import Isolation
from streamlog.model.partition import TopicPartition
from streamlog.server.kafka.call import KafkaCall
from streamlog.server.kafka.sessions.session import FetchSession, SessionPartition
from streamlog.server.services.records.partition_read import PartitionRead

STORAGE_ERROR_FROM = 6
LEADERS_FROM = 16

CONSUMERS_KNOW = frozenset(
    (
        KafkaError.UNKNOWN_SERVER_ERROR,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.CORRUPT_MESSAGE,
        KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError.NOT_LEADER_OR_FOLLOWER,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
    )
)
"""A Java consumer stops for good at any other code in a partition's answer."""
_LEADER_HAS_MOVED = (KafkaError.NOT_LEADER_OR_FOLLOWER, KafkaError.FENCED_LEADER_EPOCH)


class ClusterNode(Protocol):
    """A node, with the address of the listener that the client is connected to."""

    @property
    def node_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def rack(self) -> str | None: ...


class Leaders(Protocol):
    """What a client is told in place of a look at the metadata (KIP-951)."""

    def leader_of(self, partition: TopicPartition) -> int | None: ...

    def nodes(self, call: KafkaCall) -> Iterable[ClusterNode]: ...


def fetch_code(error: StreamlogError, version: int) -> KafkaError:
    """The code of a partition's error, among those that consumers can go on from."""
    code = code_of(error)
    if isinstance(error, InvalidName):
        code = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    elif code not in CONSUMERS_KNOW:
        is_passing = error.is_retryable
        code = KafkaError.KAFKA_STORAGE_ERROR if is_passing else KafkaError.UNKNOWN_SERVER_ERROR
    if code is KafkaError.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_FROM:
        return KafkaError.NOT_LEADER_OR_FOLLOWER
    return code


class FetchAnswer:
    """`reads`: what the client is handed."""

    def __init__(
        self, call: KafkaCall, session: FetchSession, isolation: Isolation, leaders: Leaders
    ) -> None:
        self.reads: list[PartitionRead] = []
        self._call = call
        self._session = session
        self._isolation = isolation
        self._leaders = leaders
        self._topics: dict[str, list[PartitionData]] = {}
        self._leader_ids: set[int] = set()

    def add(self, position: SessionPartition, read: PartitionRead) -> None:
        self.reads.append(read)
        topic = position.topic_id if self._session.uses_topic_ids else position.key.topic
        partitions = self._topics.get(topic)
        if partitions is None:
            partitions = self._topics[topic] = []
        partitions.append(self._partition(position.key, read))
        position.tell(read)

    def response(self) -> FetchResponse:
        by_id = self._session.uses_topic_ids
        return FetchResponse(
            session_id=self._session.session_id,
            responses=[
                FetchableTopicResponse(topic_id=id_bytes(topic), partitions=partitions)
                if by_id
                else FetchableTopicResponse(topic=topic, partitions=partitions)
                for topic, partitions in self._topics.items()
            ],
            node_endpoints=self._endpoints() if self._leader_ids else (),
        )

    def _partition(self, key: TopicPartition, read: PartitionRead) -> PartitionData:
        result = read.result
        if result.error is not None:
            data = self._failed(key, result.error)
            # Kafka has the one shape for what it does not find, and the other for what it reads.
            data.aborted_transactions = () if read.is_absent else None
            return data
        data = PartitionData(
            partition_index=key.partition,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted_transactions=None,
            records=read.parts or b"",
        )
        if self._isolation is Isolation.READ_COMMITTED:
            data.aborted_transactions = [
                AbortedTransaction(
                    producer_id=transaction.producer_id, first_offset=transaction.first_offset
                )
                for transaction in result.aborted
            ]
        if result.diverging is not None:
            epoch, end_offset = result.diverging.leader_epoch, result.diverging.end_offset
            data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return data

    def _failed(self, key: TopicPartition, error: StreamlogError) -> PartitionData:
        code = fetch_code(error, self._call.version)
        data = empty_partition(key.partition, code)
        if code in _LEADER_HAS_MOVED and self._call.version >= LEADERS_FROM:
            leader = self._leaders.leader_of(key)
            if leader is not None:
                self._leader_ids.add(leader)
                data.current_leader = LeaderIdAndEpoch(
                    leader_id=leader, leader_epoch=int(error.fields.get("leader_epoch", -1))
                )
        return data

    def _endpoints(self) -> list[NodeEndpoint]:
        return [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in self._leaders.nodes(self._call)
            if node.node_id in self._leader_ids
        ]


def empty_partition(partition: int, code: KafkaError) -> PartitionData:
    """What a partition is answered with that has this error."""
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=-1,
        records=b"",
    )
