"""Produce (0): one record batch for each partition, in its place at once, answered when durable.

1. A batch is checked by the rules that the protocol alone has (`_refusal`); batches that pass go to
   ProduceService in the order of requests.
2. The reply waits until they are durable; meanwhile the connection's next requests are sequenced.
3. Errors are each partition's own, with a text that says what to do (version 8 and newer).

Sources: Kafka's ProduceRequest.validateRecords and KafkaApis.handleProduceRequest; KIP-467 (texts),
KIP-516 (topic ids), KIP-951 (the new leader in the answer).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from streamlog.codec.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
    Compression,
)
from streamlog.errors import NotLeader, StreamlogError
from streamlog.kafka.messages.produce_request import ProduceRequest, TopicProduceData
from streamlog.kafka.messages.produce_response import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError, code_of
from streamlog.kafka.protocol.topic_ids import id_text
from streamlog.runtime.buffers import Buffer
from streamlog.server.composition import Services
from streamlog.server.kafka.call import CloseConnection, KafkaCall, Reply, Route, unpinned
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.services.records.produce import SequencedProduce
from streamlog.server.services.records.requests import (
    ProduceCall,
    ProducePartition,
    ProducePartitionResult,
    ProduceTopic,
)
from streamlog.server.services.support.internal_topics import is_internal

NO_ACKS = 0
ACKS = (-1, NO_ACKS, 1)
"""-1 and 1 mean the same: a batch has one copy, and the answer says that it is durable."""
ZSTD_FROM = 7
TOPIC_IDS_FROM = 13

_START = Struct(">8xi4xb4xh")
"""Length, magic and attributes of a batch."""


class BatchRefusal(NamedTuple):
    """Why records do not go to the service: Kafka's code, and what to do about it."""

    code: KafkaError
    message: str


TRANSACTIONS = BatchRefusal(
    KafkaError.INVALID_TXN_STATE,
    "transactions are not supported yet: unset transactional.id; idempotent producers work",
)


class ProduceHandler:
    def __init__(self, services: Services) -> None:
        self._produce = services.produce
        self._cluster = ClusterView(services)

    def routes(self) -> Mapping[ApiKey, Route]:
        route = Route(
            self.produce,
            is_pipelined=True,
            handle_many=self.produce_many,
            may_wait=self.may_wait,
        )
        return {ApiKey.PRODUCE: route}

    def may_wait(self, call: KafkaCall, request: ProduceRequest) -> bool:
        """Whether a partition of the request has to be opened first."""
        by_id = call.version >= TOPIC_IDS_FROM
        return any(
            self._produce.has_to_open(
                topic.name,
                id_text(topic.topic_id) if by_id else "",
                [part.index for part in topic.partition_data],
            )
            for topic in request.topic_data
        )

    async def produce(self, call: KafkaCall, request: ProduceRequest) -> Reply:
        [reply] = await self.produce_many([(call, request)])
        return reply

    async def produce_many(
        self, requests: Sequence[tuple[KafkaCall, ProduceRequest]]
    ) -> Sequence[Reply]:
        """One reply for each request; their batches have their places, in the order of requests.

        Cancellation leaves the batches that have their places under way.
        """
        checked = [_Checked(call, request) for call, request in requests]
        calls = [(one.call.context, one.service_call()) for one in checked if one.topics]
        outcomes = iter(await self._produce.sequence_many(calls) if calls else ())
        return [
            _ProduceReply(one, next(outcomes) if one.topics else None, self._cluster)
            for one in checked
        ]


class _Checked:
    """A request, split into what goes to the service and what is refused before.

    `refusals`: by the positions of topic and partition in the request.
    """

    __slots__ = ("call", "refusals", "request", "topics")

    def __init__(self, call: KafkaCall, request: ProduceRequest) -> None:
        self.call = call
        self.request = request
        self.topics: list[ProduceTopic] = []
        self.refusals: dict[tuple[int, int], BatchRefusal] = {}
        whole = _refusal_of_all(request)
        version, frame_bytes = call.version, call.frame_bytes
        for position, topic in enumerate(request.topic_data):
            refusal = whole or _refusal_of_topic(topic)
            partitions = []
            for number, part in enumerate(topic.partition_data):
                records = part.records or b""
                found = refusal or _refusal(records, version)
                if found is not None:
                    self.refusals[position, number] = found
                    continue
                partitions.append(ProducePartition(part.index, unpinned(records, frame_bytes)))
            if not partitions:
                continue
            if version >= TOPIC_IDS_FROM:
                self.topics.append(ProduceTopic("", partitions, id_text(topic.topic_id)))
            else:
                self.topics.append(ProduceTopic(topic.name, partitions))

    def service_call(self) -> ProduceCall:
        """Topics are created by Metadata alone, which Kafka's producers ask first."""
        request = self.request
        wait_durable, may_create = request.acks != NO_ACKS, False
        timeout_ms, received_at = max(request.timeout_ms, 0), self.call.received_at
        return ProduceCall(self.topics, wait_durable, timeout_ms, "", may_create, received_at)


class _ProduceReply(Reply):
    """`outcome` None: everything was refused before the service."""

    __slots__ = ("_checked", "_cluster", "_outcome")

    def __init__(
        self,
        checked: _Checked,
        outcome: SequencedProduce | StreamlogError | None,
        cluster: ClusterView,
    ) -> None:
        self._checked = checked
        self._outcome = outcome
        self._cluster = cluster

    async def wait(self) -> None:
        if isinstance(self._outcome, SequencedProduce):
            await self._outcome.settle()

    def response(self) -> ProduceResponse | None:
        checked, outcome = self._checked, self._outcome
        results: Iterator[ProducePartitionResult] = iter(())
        if isinstance(outcome, SequencedProduce):
            stored = outcome.results()
            results = (part for topic in stored for part in topic.partitions)
        elif outcome is not None:
            results = _same_error(checked.topics, outcome)
        if checked.request.acks == NO_ACKS:
            _end_on_error(checked, results)
            return None
        leaders: set[int] = set()
        response = _response(checked, results, leaders)
        if leaders:
            response.node_endpoints = [
                NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
                for node in self._cluster.nodes(checked.call)
                if node.node_id in leaders
            ]
        return response

    def is_ready(self) -> bool:
        return not isinstance(self._outcome, SequencedProduce) or self._outcome.is_done()

    def abandon(self) -> None:
        if isinstance(self._outcome, SequencedProduce):
            self._outcome.abandon()


def _refusal_of_all(request: ProduceRequest) -> BatchRefusal | None:
    if request.acks not in ACKS:
        return BatchRefusal(
            KafkaError.INVALID_REQUIRED_ACKS, f"acks is {request.acks}, but must be -1, 0 or 1"
        )
    return None if request.transactional_id is None else TRANSACTIONS


def _refusal_of_topic(topic: TopicProduceData) -> BatchRefusal | None:
    if is_internal(topic.name):
        return BatchRefusal(
            KafkaError.INVALID_TOPIC_EXCEPTION,
            f"{topic.name} is an internal topic: the node alone writes it",
        )
    return None


def _refusal(records: Buffer, version: int) -> BatchRefusal | None:
    """The rules of a request, which has exactly one batch for a partition, in format 2.

    The log itself would take several batches in a row.
    """
    if len(records) < _START.size:
        return BatchRefusal(
            KafkaError.INVALID_RECORD, "there is no whole record batch for the partition; send one"
        )
    length, magic, attributes = _START.unpack_from(records)
    if magic != MAGIC:
        return BatchRefusal(
            KafkaError.INVALID_RECORD,
            f"the records have format {magic}; format {MAGIC} alone is taken (message.format of "
            "old clients): use a newer client",
        )
    size = length + LENGTH_END
    if size > len(records):
        return BatchRefusal(
            KafkaError.INVALID_RECORD,
            f"the record batch says {size} bytes, but {len(records)} were sent for the partition",
        )
    if HEADER_BYTES <= size < len(records):
        return BatchRefusal(
            KafkaError.INVALID_RECORD,
            f"{len(records) - size} bytes follow the record batch; a request has exactly one batch "
            "for each partition: send the others in requests of their own",
        )
    codec = attributes & CODEC_MASK
    if codec > Compression.ZSTD:
        return BatchRefusal(
            KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec {codec} is not known; use none, gzip, snappy, lz4 or zstd",
        )
    if codec == Compression.ZSTD and version < ZSTD_FROM:
        return BatchRefusal(
            KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce {ZSTD_FROM} or newer, the request has version {version}: use "
            "another compression.type, or a newer client",
        )
    return TRANSACTIONS if attributes & TRANSACTIONAL else None


def _same_error(
    topics: Sequence[ProduceTopic], error: StreamlogError
) -> Iterator[ProducePartitionResult]:
    """A request that failed as a whole: Kafka's answer has no place for that."""
    for topic in topics:
        for part in topic.partitions:
            yield ProducePartitionResult(part.partition, error)


def _end_on_error(checked: _Checked, results: Iterator[ProducePartitionResult]) -> None:
    """Without an answer, an end is the only way to say that records were not stored."""
    for refusal in checked.refusals.values():
        raise CloseConnection(f"a produce request without acks was refused: {refusal.message}")
    for result in results:
        if result.error is not None:
            raise CloseConnection(f"a produce request without acks failed: {result.error}")


def _response(
    checked: _Checked, results: Iterator[ProducePartitionResult], leaders: set[int]
) -> ProduceResponse:
    """`leaders` gets the nodes that the client is sent to."""
    refusals = checked.refusals
    topics = []
    for position, topic in enumerate(checked.request.topic_data):
        partitions = []
        for number, part in enumerate(topic.partition_data):
            refusal = refusals.get((position, number)) if refusals else None
            if refusal is not None:
                partitions.append(_refused(part.index, refusal.code, refusal.message))
                continue
            result = next(results)
            if result.error is not None:
                partitions.append(_failed(part.index, result.error, leaders))
                continue
            partitions.append(
                PartitionProduceResponse(
                    index=part.index,
                    base_offset=result.base_offset,
                    log_append_time_ms=result.log_append_time_ms,
                    log_start_offset=result.log_start_offset,
                )
            )
        topics.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
            )
        )
    return ProduceResponse(responses=topics)


def _refused(index: int, code: KafkaError, message: str) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=message
    )


def _failed(index: int, error: StreamlogError, leaders: set[int]) -> PartitionProduceResponse:
    response = _refused(index, code_of(error), error.message)
    at_fault = error.fields.get("record_index", -1)
    if isinstance(at_fault, int) and at_fault >= 0:
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=at_fault, batch_index_error_message=error.message)
        ]
    if isinstance(error, NotLeader):
        # Where it knows no epoch, a client looks the leader up again, as it did before KIP-951.
        response.current_leader = LeaderIdAndEpoch(
            leader_id=int(error.fields.get("leader_node", -1)),
            leader_epoch=int(error.fields.get("leader_epoch", -1)),
        )
        leaders.add(response.current_leader.leader_id)
    return response
