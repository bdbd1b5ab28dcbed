"""Produce (0): one record batch for each partition, in its place at once, answered when durable.

1. A batch is checked by the rules that the protocol alone has (`_refusal`); batches that pass go to
   ProduceService in the order of requests.
2. The reply waits until they are durable; meanwhile the connection's next requests are sequenced.
3. Errors are each partition's own, with a text that says what to do (version 8 and newer).
4. A request with a transactional batch needs a transactional id that its principal may write with;
   from version 12 on, its partitions become part of the transaction by it.

Sources: Kafka's ProduceRequest.validateRecords and KafkaApis.handleProduceRequest; KIP-467 (texts),
KIP-516 (topic ids), KIP-890 (transactions), KIP-951 (the new leader in the answer).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotLeader,
    PolicyViolation,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
    Unauthorized,
)
from streamlog.kafka.messages.produce_request import ProduceRequest
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
from streamlog.server.kafka.call import (
    CloseConnection,
    Encoded,
    KafkaCall,
    Reply,
    Route,
    unpinned,
)
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.kafka.stored_answer import StoredAnswers
from streamlog.server.services.records.produce import SequencedProduce
from streamlog.server.services.records.requests import (
    ProduceCall,
    ProducePartition,
    ProducePartitionResult,
    ProduceTopic,
)

NO_ACKS = 0
ACKS = (-1, NO_ACKS, 1)
"""-1 and 1 mean the same: a batch has one copy, and the answer says that it is durable."""
ZSTD_FROM = 7
ABORTABLE_FROM = 11
ADDS_PARTITIONS_FROM = 12
TOPIC_IDS_FROM = 13

COORDINATOR_ERRORS = (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
)
_START = Struct(">8xi4xb4xh")
"""Length, magic and attributes of a batch."""


class BatchRefusal(NamedTuple):
    """Why records do not go to the service: Kafka's code, and what to do about it."""

    code: KafkaError
    message: str


TRANSACTIONAL_BATCH = BatchRefusal(KafkaError.NONE, "")
"""No refusal: the batch is a transaction's, and the request has to have its id."""


class ProduceHandler:
    def __init__(self, services: Services) -> None:
        self._produce = services.produce
        self._cluster = ClusterView(services)
        self._stored = StoredAnswers()

    def routes(self) -> Mapping[ApiKey, Route]:
        route = Route(
            self.produce,
            is_pipelined=True,
            handle_many=self.produce_many,
            may_wait=self.may_wait,
            refused=self.refused,
        )
        return {ApiKey.PRODUCE: route}

    def may_wait(self, call: KafkaCall, request: ProduceRequest) -> bool:
        """Whether a partition of the request has to be opened first, or a coordinator asked."""
        by_id = call.version >= TOPIC_IDS_FROM
        is_transactional = request.transactional_id is not None
        for topic in request.topic_data:
            topic_id = id_text(topic.topic_id) if by_id else ""
            parts = topic.partition_data
            if self._produce.has_to_open(topic.name, topic_id, [part.index for part in parts]):
                return True
            if is_transactional and self._produce.has_to_verify(
                topic.name, topic_id, [(part.index, part.records or b"") for part in parts]
            ):
                return True
        return False

    def refused(self, call: KafkaCall, request: ProduceRequest, error: StreamlogError) -> None:
        """Its batches have to come again before younger ones of their producers."""
        if request.acks == NO_ACKS:
            return
        for topic in request.topic_data:
            topic_id = id_text(topic.topic_id) if call.version >= TOPIC_IDS_FROM else ""
            for part in topic.partition_data:
                self._produce.refused(topic.name, topic_id, part.index, part.records or b"", error)

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
        for one in checked:
            if one.is_transactional:
                self._check_transaction(one)
        calls = [(one.call.context, one.service_call()) for one in checked if one.topics]
        outcomes = iter(await self._produce.sequence_many(calls) if calls else ())
        return [
            _ProduceReply(one, next(outcomes) if one.topics else None, self._cluster, self._stored)
            for one in checked
        ]

    def _check_transaction(self, checked: _Checked) -> None:
        """Refuses all of a request whose transactional id is missing or forbidden, as Kafka."""
        transactional_id = checked.request.transactional_id
        if transactional_id is None:
            refusal = BatchRefusal(
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "the request has transactional batches and no transactional id; send them with it",
            )
        elif transactional_id == "":
            refusal = BatchRefusal(KafkaError.INVALID_REQUEST, "the transactional id is empty")
        else:
            try:
                self._produce.check_transactional(checked.call.context, transactional_id)
                return
            except Unauthorized as error:
                code = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                refusal = BatchRefusal(code, error.message)
        checked.refuse_all(refusal)


class _Checked:
    """A request, split into what goes to the service and what is refused before.

    `refusals`: by the positions of topic and partition in the request. `is_transactional`: one of
    its batches is, at least.
    """

    __slots__ = ("call", "is_transactional", "refusals", "request", "topics")

    def __init__(self, call: KafkaCall, request: ProduceRequest) -> None:
        self.call = call
        self.request = request
        self.topics: list[ProduceTopic] = []
        self.refusals: dict[tuple[int, int], BatchRefusal] = {}
        self.is_transactional = False
        whole = _refusal_of_all(request)
        version, frame_bytes = call.version, call.frame_bytes
        for position, topic in enumerate(request.topic_data):
            partitions = []
            for number, part in enumerate(topic.partition_data):
                records = part.records or b""
                found = whole or _refusal(records, version)
                if found is TRANSACTIONAL_BATCH:
                    self.is_transactional = True
                elif found is not None:
                    self.refusals[position, number] = found
                    continue
                partitions.append(ProducePartition(part.index, unpinned(records, frame_bytes)))
            if not partitions:
                continue
            if version >= TOPIC_IDS_FROM:
                self.topics.append(ProduceTopic("", partitions, id_text(topic.topic_id)))
            else:
                self.topics.append(ProduceTopic(topic.name, partitions))

    def refuse_all(self, refusal: BatchRefusal) -> None:
        self.topics = []
        for position, topic in enumerate(self.request.topic_data):
            for number in range(len(topic.partition_data)):
                self.refusals[position, number] = refusal

    def service_call(self) -> ProduceCall:
        """Topics are created by Metadata alone, which Kafka's producers ask first."""
        request = self.request
        wait_durable, may_create = request.acks != NO_ACKS, False
        timeout_ms, received_at = max(request.timeout_ms, 0), self.call.received_at
        transactional_id, adds_partitions = "", False
        if self.is_transactional:
            transactional_id = request.transactional_id or ""
            adds_partitions = self.call.version >= ADDS_PARTITIONS_FROM
        return ProduceCall(
            self.topics,
            wait_durable,
            timeout_ms,
            transactional_id,
            may_create,
            received_at,
            adds_partitions,
        )


class _ProduceReply(Reply):
    """`outcome` None: everything was refused before the service."""

    __slots__ = ("_checked", "_cluster", "_outcome", "_stored")

    def __init__(
        self,
        checked: _Checked,
        outcome: SequencedProduce | StreamlogError | None,
        cluster: ClusterView,
        stored: StoredAnswers,
    ) -> None:
        self._checked = checked
        self._outcome = outcome
        self._cluster = cluster
        self._stored = stored

    async def wait(self) -> None:
        if isinstance(self._outcome, SequencedProduce):
            await self._outcome.settle()

    def response(self) -> ProduceResponse | None:
        checked, outcome = self._checked, self._outcome
        if isinstance(outcome, SequencedProduce):
            return self._response(outcome.partition_results())
        if outcome is not None:
            return self._response(_same_error(checked.topics, outcome))
        return self._response(())

    def final_response(self) -> ProduceResponse | Encoded | None:
        checked, outcome = self._checked, self._outcome
        request = checked.request
        if (
            not isinstance(outcome, SequencedProduce)
            or checked.refusals
            or request.acks == NO_ACKS
            or len(request.topic_data) != 1
        ):
            return self.response()
        results, topic = outcome.partition_results(), request.topic_data[0]
        if len(results) != 1 or results[0].error is not None:
            return self._response(results)
        index, version = topic.partition_data[0].index, checked.call.version
        answer = self._stored.encode(version, topic.name, topic.topic_id, index, results[0])
        return Encoded((answer,))

    def _response(self, partitions: Iterable[ProducePartitionResult]) -> ProduceResponse | None:
        checked, results = self._checked, iter(partitions)
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
    return TRANSACTIONAL_BATCH if attributes & TRANSACTIONAL else None


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
                code = _code(result.error, checked.call.version)
                partitions.append(_failed(part.index, code, result.error, leaders))
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


def _code(error: StreamlogError, version: int) -> KafkaError:
    """What producers of this version know. Coordinators' errors were none of theirs at first.

    NOT_ENOUGH_REPLICAS makes them send again without a look at the metadata (Kafka's
    ReplicaManager.handleProduceAppend, and AddPartitionsToTxnManager for the others).
    """
    if isinstance(error, ConcurrentTransactions) and version >= ADDS_PARTITIONS_FROM:
        return KafkaError.CONCURRENT_TRANSACTIONS
    if isinstance(error, COORDINATOR_ERRORS):
        return KafkaError.NOT_ENOUGH_REPLICAS
    if isinstance(error, TransactionalIdFenced):
        return KafkaError.INVALID_PRODUCER_EPOCH
    if isinstance(error, PolicyViolation):
        return KafkaError.INVALID_TOPIC_EXCEPTION  # An internal topic.
    if isinstance(error, TransactionAbortable) and version < ABORTABLE_FROM:
        return KafkaError.INVALID_TXN_STATE
    return code_of(error)


def _failed(
    index: int, code: KafkaError, error: StreamlogError, leaders: set[int]
) -> PartitionProduceResponse:
    response = _refused(index, code, error.message)
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
