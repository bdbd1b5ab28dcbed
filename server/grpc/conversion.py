"""Generated messages ↔ the plain values of the services, for produce and fetch."""

from __future__ import annotations

from typing import Literal

from streamlog.errors import Invalid, StreamlogError
from streamlog.log.api.abstract_log import Isolation
from streamlog.model.append_condition import AppendCondition
from streamlog.server.services.records.requests import (
    FetchCall,
    FetchPartition,
    FetchPartitionResult,
    FetchTopic,
    PlainRecord,
    ProduceCall,
    ProducePartition,
    ProduceTopic,
    ProduceTopicResult,
)
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import to_proto


def not_yet(field: str, version: str) -> StreamlogError:
    """The refusal of a field that is in the proto and has no effect yet."""
    return Invalid(
        f"{field} is not acted on by this version (it comes with {version}); leave it unset",
        field=field,
    )


def produce_call(request: log_pb2.ProduceRequest) -> ProduceCall:
    """Errors: Invalid."""
    if request.timeout_ms < 0:
        raise Invalid(f"timeout_ms is {request.timeout_ms}; give 0 (the default) or more")
    if request.acks not in (log_pb2.ACKS_UNSPECIFIED, log_pb2.ACKS_ALL, log_pb2.ACKS_NONE):
        raise Invalid(f"acks {request.acks} is unknown; give ACKS_ALL or ACKS_NONE")
    topics = [
        ProduceTopic(
            topic.topic, [_produce_partition(part) for part in topic.partitions], topic.topic_id
        )
        for topic in request.topics
    ]
    return ProduceCall(
        topics,
        request.acks != log_pb2.ACKS_NONE,
        request.timeout_ms,
        request.transactional_id,
    )


def _produce_partition(part: log_pb2.ProducePartition) -> ProducePartition:
    kind = part.WhichOneof("data")
    condition = append_condition(part, "fencing_token")
    if kind == "records":
        records = tuple(plain_record(record) for record in part.records.records)
        return ProducePartition(part.partition, None, records, condition)
    return ProducePartition(part.partition, part.record_batches, (), condition)


def append_condition(
    request: log_pb2.ProducePartition | log_pb2.LogServiceSetFencingTokenRequest,
    token_field: Literal["fencing_token", "expected_fencing_token"],
) -> AppendCondition | None:
    """None where the request has none."""
    has_offset = request.HasField("expected_next_offset")
    has_token = request.HasField(token_field)
    if not has_offset and not has_token:
        return None
    return AppendCondition(
        request.expected_next_offset if has_offset else None,
        getattr(request, token_field) if has_token else None,
    )


def plain_record(record: log_pb2.Record) -> PlainRecord:
    return PlainRecord(
        record.key if record.HasField("key") else None,
        record.value if record.HasField("value") else None,
        tuple(
            (header.key, header.value if header.HasField("value") else None)
            for header in record.headers
        ),
        record.timestamp_ms if record.HasField("timestamp_ms") else None,
    )


def produce_response(
    topics: list[ProduceTopicResult], throttle_ms: int = 0
) -> log_pb2.ProduceResponse:
    response = log_pb2.ProduceResponse(throttle_time_ms=throttle_ms)
    for topic in topics:
        out = response.topics.add(topic=topic.topic)
        for result in topic.partitions:
            part = out.partitions.add(
                partition=result.partition,
                base_offset=result.base_offset,
                log_start_offset=result.log_start_offset,
                duplicate=result.is_duplicate,
            )
            if result.error is not None:
                part.error.CopyFrom(to_proto(result.error))
            if result.log_append_time_ms >= 0:
                part.log_append_time_ms = result.log_append_time_ms
    return response


def isolation(level: log_pb2.IsolationLevel) -> Isolation:
    """Errors: Invalid."""
    if level == log_pb2.ISOLATION_LEVEL_READ_COMMITTED:
        return Isolation.READ_COMMITTED
    if level in (
        log_pb2.ISOLATION_LEVEL_UNSPECIFIED,
        log_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
    ):
        return Isolation.READ_UNCOMMITTED
    raise Invalid(f"isolation_level {level} is unknown")


def fetch_call(request: log_pb2.FetchRequest) -> FetchCall:
    """Errors: Invalid."""
    _refuse_replica_fields(request)
    for name in ("max_wait_ms", "min_bytes", "max_bytes"):
        if getattr(request, name) < 0:
            raise Invalid(f"{name} is {getattr(request, name)}; give 0 or more")
    if request.format not in (
        log_pb2.FETCH_FORMAT_UNSPECIFIED,
        log_pb2.FETCH_FORMAT_BATCHES,
        log_pb2.FETCH_FORMAT_RECORDS,
    ):
        raise Invalid(f"format {request.format} is unknown")
    topics = [
        FetchTopic(
            topic.topic, [_fetch_partition(part) for part in topic.partitions], topic.topic_id
        )
        for topic in request.topics
    ]
    return FetchCall(
        topics,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        isolation(request.isolation_level),
        request.format == log_pb2.FETCH_FORMAT_RECORDS,
    )


def refuse_replica_id(request: object) -> None:
    """-1 is a consumer in Kafka's protocol; other numbers are replicas. Errors: Invalid."""
    if request.HasField("replica_id") and request.replica_id != -1:  # type: ignore[attr-defined]
        raise not_yet("replica_id", "replicas")


def _refuse_replica_fields(request: log_pb2.FetchRequest) -> None:
    refuse_replica_id(request)
    if request.session_id:
        raise not_yet("session_id", "replicas")
    if request.HasField("session_epoch") and request.session_epoch != -1:
        raise not_yet("session_epoch", "replicas")
    if request.forgotten_topics:
        raise not_yet("forgotten_topics", "replicas")
    if request.rack_id:
        raise not_yet("rack_id", "replicas")


def _fetch_partition(part: log_pb2.FetchPartition) -> FetchPartition:
    if part.HasField("log_start_offset") and part.log_start_offset != -1:
        raise not_yet("log_start_offset", "replicas")
    if part.HasField("last_fetched_epoch") and part.last_fetched_epoch != -1:
        raise not_yet("last_fetched_epoch", "replicas")
    if part.HasField("high_watermark") and part.high_watermark != -1:
        raise not_yet("high_watermark", "replicas")
    if part.partition_max_bytes < 0:
        raise Invalid(f"partition_max_bytes is {part.partition_max_bytes}; give 0 or more")
    epoch = part.current_leader_epoch if part.HasField("current_leader_epoch") else -1
    return FetchPartition(
        part.partition,
        part.fetch_offset,
        part.partition_max_bytes,
        epoch if epoch >= 0 else None,
    )


def fetch_partition_to_proto(result: FetchPartitionResult) -> log_pb2.FetchPartitionResult:
    """For partitions of an answer with few or no record batches."""
    proto = log_pb2.FetchPartitionResult(
        partition=result.partition,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        next_offset=result.next_offset,
        record_batches=b"".join(result.parts),
    )
    if result.error is not None:
        proto.error.CopyFrom(to_proto(result.error))
    for aborted in result.aborted:
        proto.aborted_transactions.add(
            producer_id=aborted.producer_id, first_offset=aborted.first_offset
        )
    for record in result.records:
        out = proto.records.add(offset=record.offset)
        if record.timestamp_ms is not None:
            out.timestamp_ms = record.timestamp_ms
        if record.key is not None:
            out.key = record.key
        if record.value is not None:
            out.value = record.value
        for name, value in record.headers:
            header = out.headers.add(key=name)
            if value is not None:
                header.value = value
    return proto
