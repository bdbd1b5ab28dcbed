"""A node over real sockets whose partitions are lists in memory, and which fails on command.

It keeps Kafka's rules for idempotent producers: sequences, the last 32 batches, epochs. Faults are
put on `faults` and taken one per produce message, in order.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

import grpc

from streamlog.codec.batch import BatchHeader, parse_header, placed, scan, sequence_after
from streamlog.codec.records import decode
from streamlog.errors import (
    InconsistentTopicId,
    Invalid,
    MessageTooLarge,
    ObjectNotFound,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    RecordListTooLarge,
    StoreUnavailable,
    StreamlogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from streamlog.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    transaction_pb2_grpc,
)
from streamlog.v1support.errors import to_proto, to_status
from tests.client.fake_transactions import FakeTransactions

REMEMBERED = 32
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
]


class Fault(Enum):
    LOSE_ANSWER = "stores, then breaks the connection"
    BREAK = "breaks the connection before storing"
    REFUSE = "answers with a retryable error for every partition"
    REFUSE_WHOLE = "answers with a retryable error for the request"
    HANG = "never answers this stream again; nothing is stored"
    STORE_AND_HANG = "stores, and never answers this stream again"


@dataclass
class Partition:
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    next_offset: int = 0
    start_offset: int = 0
    producers: dict[int, deque[tuple[int, int, int, int]]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    open_transactions: dict[int, int] = field(default_factory=dict)
    """Producer id → first offset; kept by tests that store transactions."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, offset of the marker)."""

    @property
    def last_stable_offset(self) -> int:
        return min(self.open_transactions.values(), default=self.next_offset)

    def append(
        self, data: bytes, batch_bytes_max: int, segment_bytes: int = 1 << 30
    ) -> tuple[int, bool]:
        """Base offset, and whether it is a repetition."""
        if len(data) > batch_bytes_max:
            raise MessageTooLarge("too large", size_bytes=len(data), max_bytes=batch_bytes_max)
        if len(data) > segment_bytes:
            raise RecordListTooLarge("too large", size_bytes=len(data), max_bytes=segment_bytes)
        (batch,) = scan(data)
        header = batch.header
        if header.producer_id >= 0:
            base = self._check_sequence(header)
            if base is not None:
                return base, True
        parts = placed(batch.view, self.next_offset, 0)
        base = self.next_offset
        self.next_offset += header.record_count
        self.batches.append((header._replace(base_offset=base), b"".join(parts)))
        if header.producer_id >= 0:
            batches = self.producers.setdefault(header.producer_id, deque(maxlen=REMEMBERED))
            batches.append((header.base_sequence, header.last_sequence, base, header.record_count))
        return base, False

    def _check_sequence(self, header: BatchHeader) -> int | None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        current = self.epochs.get(producer_id)
        if current is not None and epoch < current:
            raise ProducerFenced(f"epoch {epoch} is older than {current}")
        batches = self.producers.get(producer_id)
        if current is not None and epoch > current:
            batches = None
            self.producers.pop(producer_id)
            if header.base_sequence != 0:
                raise OutOfOrderSequence(
                    "a new epoch starts at 0", expected=0, actual=header.base_sequence
                )
        self.epochs[producer_id] = epoch
        if not batches:
            return None
        for first, last, base, _ in batches:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return base
        expected = sequence_after(batches[-1][1], 1)
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"{expected} was expected", expected=expected, actual=header.base_sequence
            )
        return None


@dataclass
class Topic:
    partitions: list[Partition]
    batch_bytes_max: int = (1 << 20) + 12
    segment_bytes: int = 1 << 30
    topic_id: str = field(default_factory=lambda: uuid.uuid4().hex)


class FakeNode(log_pb2_grpc.LogServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """Use it in `with`; `server` is its address."""

    def __init__(self, port: int = 0, *, keep: bool = True, message_bytes_max: int = -1) -> None:
        self._options = [("grpc.max_receive_message_length", message_bytes_max), *OPTIONS]
        self.topics: dict[str, Topic] = {}
        self.faults: deque[Fault | None] = deque()
        self.refusal: Callable[[str, int], StreamlogError | None] = lambda _topic, _partition: None
        self.hold = threading.Event()
        self.hold.set()
        """Cleared: produce answers wait."""
        self.hold_ids = threading.Event()
        self.hold_ids.set()
        """Cleared: answers to InitProducerId wait."""
        self.produce_messages = 0
        self.id_requests: list[tuple[int | None, int | None]] = []
        self.id_error: StreamlogError | None = None
        self.calls: list[str] = []
        """Names of the calls of AdminService and ListOffsets."""
        self.partitions_per_request_max = 1 << 30
        self.fetch_errors: deque[StreamlogError] = deque()
        self.list_topics_error: StreamlogError | None = None
        self.auto_create = False
        self.transactions = FakeTransactions()
        self.changed = threading.Condition()
        self._keep = keep
        self._next_producer_id = 1000
        self._stopping = threading.Event()
        self._port = port
        self._server: grpc.Server | None = None
        self.start()

    def start(self) -> None:
        self._stopping.clear()
        self.transactions.stopping.clear()
        self._server = grpc.server(ThreadPoolExecutor(32), options=self._options)
        log_pb2_grpc.add_LogServiceServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(
            self.transactions, self._server
        )
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self._server.start()

    def stop(self) -> None:
        """Breaks all connections; `start` brings the node back with what it stored."""
        self._stopping.set()
        self.transactions.stopping.set()
        self.hold.set()
        self.hold_ids.set()
        with self.changed:
            self.changed.notify_all()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- what tests look at

    def create(self, topic: str, partitions: int = 1, **settings: Any) -> None:
        self.topics[topic] = Topic([Partition() for _ in range(partitions)], **settings)

    def records(self, topic: str, partition: int = 0) -> list[Any]:
        with self.changed:
            stored = [data for _, data in self.topics[topic].partitions[partition].batches]
        return [record for data in stored for record in decode(data)]

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        return [record[3] for record in self.records(topic, partition)]

    def committed_values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Those of committed transactions, and those outside of any."""
        with self.changed:
            stored = list(self.topics[topic].partitions[partition].batches)
        committed = self.transactions.committed
        return [
            record[3]
            for header, data in stored
            if not header.is_transactional
            or (header.producer_id, header.producer_epoch) in committed
            for record in decode(data)
        ]

    # -- AdminService

    def DescribeTopics(self, request: Any, context: Any) -> Any:
        self.calls.append("DescribeTopics")
        response = admin_pb2.DescribeTopicsResponse()
        for name in request.names:
            out = response.topics.add(name=name)
            if name not in self.topics and self.auto_create and request.allow_auto_create:
                self.create(name)
            if name not in self.topics:
                out.error.CopyFrom(
                    to_proto(UnknownTopicOrPartition(f"no topic {name}", topic=name))
                )
                continue
            out.topic_id = self.topics[name].topic_id
            for number, partition in enumerate(self.topics[name].partitions):
                out.partitions.add(partition=number, log_end_offset=partition.next_offset)
        return response

    def ListTopics(self, request: Any, context: Any) -> Any:
        self.calls.append("ListTopics")
        if self.list_topics_error is not None:
            _abort(context, self.list_topics_error)
        response = admin_pb2.ListTopicsResponse()
        for name in sorted(name for name in self.topics if name > request.after)[: request.limit]:
            topic = self.topics[name]
            response.topics.add(
                name=name, topic_id=topic.topic_id, partitions=len(topic.partitions)
            )
        return response

    def DescribeConfigs(self, request: Any, context: Any) -> Any:
        self.calls.append("DescribeConfigs")
        topic = self.topics[request.resource.name]
        limits = {"max.message.bytes": topic.batch_bytes_max, "segment.bytes": topic.segment_bytes}
        entries = [admin_pb2.ConfigEntry(name=name, value=str(limits[name])) for name in limits]
        return admin_pb2.DescribeConfigsResponse(entries=entries)

    def GetStatus(self, request: Any, context: Any) -> Any:
        return admin_pb2.GetStatusResponse(version="fake", topics=len(self.topics))

    def DescribeObject(self, request: Any, context: Any) -> Any:
        _abort(context, ObjectNotFound("no such object", object_key=request.key))

    # -- LogService

    def InitProducerId(self, request: Any, context: Any) -> Any:
        if request.HasField("transactional_id"):
            return self.transactions.init_producer_id(request, context)
        producer_id = request.producer_id if request.HasField("producer_id") else None
        epoch = request.producer_epoch if request.HasField("producer_epoch") else None
        self.id_requests.append((producer_id, epoch))
        self.hold_ids.wait(30)
        if self.id_error is not None:
            _abort(context, self.id_error)
        if producer_id is not None and epoch is not None:
            return log_pb2.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch + 1)
        self._next_producer_id += 1
        return log_pb2.InitProducerIdResponse(producer_id=self._next_producer_id, producer_epoch=0)

    def ProduceStream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            self.produce_messages += 1
            fault = self.faults.popleft() if self.faults else None
            if fault is Fault.BREAK:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken on command")
            if fault is Fault.REFUSE_WHOLE:
                refused = log_pb2.ProduceStreamAnswer(
                    correlation_id=request.correlation_id,
                    error=to_proto(StoreUnavailable("refused on command")),
                )
                yield log_pb2.ProduceStreamResponse(answers=[refused])
                continue
            if fault is Fault.HANG:
                self._hang(context)
                return
            response = self.produce(request.request, fault is Fault.REFUSE)
            if fault is Fault.LOSE_ANSWER:
                context.abort(grpc.StatusCode.UNAVAILABLE, "lost on command")
            if fault is Fault.STORE_AND_HANG:
                self._hang(context)
                return
            self.hold.wait(30)
            answer = log_pb2.ProduceStreamAnswer(
                correlation_id=request.correlation_id, response=response
            )
            yield log_pb2.ProduceStreamResponse(answers=[answer])

    def _hang(self, context: Any) -> None:
        while context.is_active() and not self._stopping.wait(0.02):
            pass

    def produce(self, request: Any, refuse: bool) -> Any:
        response = log_pb2.ProduceResponse()
        for topic in request.topics:
            out = response.topics.add(topic=topic.topic)
            for part in topic.partitions:
                result = out.partitions.add(partition=part.partition)
                try:
                    if refuse:
                        raise StoreUnavailable("refused on command")
                    error = self.refusal(topic.topic, part.partition)
                    if error is not None:
                        raise error
                    if request.transactional_id:
                        header = parse_header(memoryview(part.record_batches))
                        self.transactions.check_batch(
                            request.transactional_id,
                            (topic.topic, part.partition),
                            (header.producer_id, header.producer_epoch),
                            is_transactional=header.is_transactional,
                        )
                    result.base_offset, result.duplicate = self.store_part(
                        topic.topic, topic.topic_id, part
                    )
                    if request.acks == log_pb2.ACKS_NONE:
                        result.base_offset = -1
                except StreamlogError as refused:
                    result.error.CopyFrom(to_proto(refused))
        return response

    def store_part(self, topic: str, topic_id: str, part: Any) -> tuple[int, bool]:
        stored_topic = self.topics.get(topic)
        if stored_topic is None:
            raise UnknownTopicOrPartition(f"no topic {topic}", topic=topic)
        self._check_id(topic, topic_id)
        if part.partition >= len(stored_topic.partitions):
            raise UnknownTopicOrPartition(f"no partition {part.partition}", topic=topic)
        with self.changed:
            stored: tuple[int, bool] = stored_topic.partitions[part.partition].append(
                part.record_batches, stored_topic.batch_bytes_max, stored_topic.segment_bytes
            )
            if not self._keep:
                stored_topic.partitions[part.partition].batches.clear()
            self.changed.notify_all()
            return stored

    def Fetch(self, request: Any, context: Any) -> Any:
        if self.fetch_errors:
            _abort(context, self.fetch_errors.popleft())
        self._check_count(request, context)
        ends_at = time.monotonic() + request.max_wait_ms / 1000
        while True:
            with self.changed:
                response, has_records = self._fetch(request)
                left = ends_at - time.monotonic()
                if has_records or left <= 0 or self._stopping.is_set() or not context.is_active():
                    return response
                self.changed.wait(left)

    def _check_id(self, topic: str, topic_id: str) -> None:
        current = self.topics.get(topic)
        if not topic_id:
            return
        if current is None:
            raise UnknownTopicId("deleted", topic=topic, topic_id=topic_id)
        if current.topic_id != topic_id:
            raise InconsistentTopicId(
                "made anew", topic=topic, topic_id=topic_id, current_topic_id=current.topic_id
            )

    def _check_count(self, request: Any, context: Any) -> None:
        count, most = sum(len(topic.partitions) for topic in request.topics), 0
        most = self.partitions_per_request_max
        if count > most:
            _abort(context, Invalid("too many", partitions=count, max_partitions=most))

    def _fetch(self, request: Any) -> tuple[Any, bool]:
        response, room, has_records = log_pb2.FetchResponse(), request.max_bytes or 1 << 24, False
        for topic in request.topics:
            out = response.topics.add(topic=topic.topic)
            for part in topic.partitions:
                result = out.partitions.add(partition=part.partition, next_offset=part.fetch_offset)
                try:
                    self._check_id(topic.topic, topic.topic_id)
                    stored = self.topics[topic.topic].partitions[part.partition]
                except StreamlogError as refused:
                    result.error.CopyFrom(to_proto(refused))
                    has_records = True
                    continue
                except (KeyError, IndexError):
                    result.error.CopyFrom(to_proto(UnknownTopicOrPartition("no such partition")))
                    has_records = True
                    continue
                is_committed = request.isolation_level == log_pb2.ISOLATION_LEVEL_READ_COMMITTED
                end = stored.last_stable_offset if is_committed else stored.next_offset
                result.high_watermark = stored.next_offset
                result.last_stable_offset = stored.last_stable_offset
                result.log_start_offset = stored.start_offset
                if not stored.start_offset <= part.fetch_offset <= stored.next_offset:
                    error = OffsetOutOfRange(
                        f"offset {part.fetch_offset}",
                        offset=part.fetch_offset,
                        start_offset=stored.start_offset,
                        end_offset=stored.next_offset,
                    )
                    result.error.CopyFrom(to_proto(error))
                    has_records = True
                    continue
                limit = min(room, part.partition_max_bytes or room)
                pieces: list[Any] = []
                size = 0
                for header, data in stored.batches:
                    if header.next_offset <= part.fetch_offset or header.next_offset > end:
                        continue
                    if pieces and size + len(data) > limit:
                        break
                    pieces.append(data)
                    size += len(data)
                    result.next_offset = header.next_offset
                    if size >= limit:
                        break
                room -= size
                result.record_batches = b"".join(pieces)
                for producer_id, first, last in stored.aborted if is_committed else ():
                    if last >= part.fetch_offset and first < result.next_offset:
                        result.aborted_transactions.add(producer_id=producer_id, first_offset=first)
                has_records = has_records or bool(pieces)
        return response, has_records

    def ListOffsets(self, request: Any, context: Any) -> Any:
        self.calls.append("ListOffsets")
        self._check_count(request, context)
        response = log_pb2.ListOffsetsResponse()
        for topic in request.topics:
            out = response.topics.add(topic=topic.topic)
            for part in topic.partitions:
                result = out.partitions.add(partition=part.partition)
                if topic.topic not in self.topics:
                    error = UnknownTopicOrPartition(f"no topic {topic.topic}", topic=topic.topic)
                    result.error.CopyFrom(to_proto(error))
                    continue
                stored = self.topics[topic.topic].partitions[part.partition]
                if part.timestamp_ms == -2:
                    result.offset = stored.start_offset
                elif part.timestamp_ms == -1:
                    is_committed = request.isolation_level == log_pb2.ISOLATION_LEVEL_READ_COMMITTED
                    result.offset = (
                        stored.last_stable_offset if is_committed else stored.next_offset
                    )
                elif part.timestamp_ms >= 0:
                    for record in self.records(topic.topic, part.partition):
                        if record[1] >= part.timestamp_ms:
                            result.offset, result.timestamp_ms = record[0], record[1]
                            break
                else:
                    result.error.CopyFrom(to_proto(Invalid("not in this node")))
        return response


async def until(condition: Callable[[], bool]) -> None:
    """Returns once the node, whose threads tell the test's event loop nothing, has come so far."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def _abort(context: Any, error: StreamlogError) -> None:
    status = to_status(error)
    context.set_trailing_metadata(status.trailers)
    context.abort(status.code, status.message)
