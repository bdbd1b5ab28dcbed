"""The hand-written wire format agrees with the generated code on everything it accepts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.errors import Invalid, StreamlogError
from streamlog.server.grpc.conversion import fetch_partition_to_proto, produce_call
from streamlog.server.grpc.envelope import parse_request, parse_stream_request
from streamlog.server.grpc.fetch_encoding import encode_fetch_response
from streamlog.server.services.records.requests import (
    FetchPartitionResult,
    FetchTopicResult,
    ProduceCall,
)
from streamlog.v1 import log_pb2

names = st.text(max_size=20)
ids = st.sampled_from(["", "0af76519"])
batches = st.binary(max_size=300)
ACKS = [log_pb2.ACKS_UNSPECIFIED, log_pb2.ACKS_ALL, log_pb2.ACKS_NONE]
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def requests(draw: st.DrawFn) -> log_pb2.ProduceRequest:
    request = log_pb2.ProduceRequest(
        acks=draw(st.sampled_from(ACKS)),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        transactional_id=draw(st.one_of(st.none(), names)),
    )
    for _ in range(draw(st.integers(0, 3))):
        topic = request.topics.add(topic=draw(names), topic_id=draw(ids))
        for _ in range(draw(st.integers(0, 3))):
            topic.partitions.add(
                partition=draw(int32),
                record_batches=draw(batches),
                expected_next_offset=draw(st.none() | st.just(0) | int64),
                fencing_token=draw(st.none() | st.binary(max_size=70)),
            )
    return request


def plain(call: ProduceCall) -> object:
    topics = [
        (
            t.topic,
            t.topic_id,
            [(p.partition, bytes(p.batches or b""), p.condition) for p in t.partitions],
        )
        for t in call.topics
    ]
    return topics, call.wait_durable, call.timeout_ms, call.transactional_id


@settings(deadline=None)
@given(requests(), st.integers(0, 2**64 - 1))
def test_produce_is_read_as_the_generated_parser_reads_it(
    request: log_pb2.ProduceRequest, correlation_id: int
) -> None:
    expected = plain(produce_call(request))
    fast = parse_request(request.SerializeToString())
    has_negative = any(
        p.partition < 0 or p.expected_next_offset < 0 for t in request.topics for p in t.partitions
    )
    assert (fast is None) == has_negative
    assert fast is None or plain(fast) == expected
    message = log_pb2.ProduceStreamRequest(correlation_id=correlation_id, request=request)
    parsed = parse_stream_request(message.SerializeToString())
    if parsed is not None:
        assert parsed[0] == correlation_id
        assert plain(parsed[1]) == expected


def test_batches_are_not_copied() -> None:
    request = log_pb2.ProduceRequest(
        topics=[
            log_pb2.ProduceTopic(
                topic="t", partitions=[log_pb2.ProducePartition(record_batches=b"abc")]
            )
        ]
    )
    message = request.SerializeToString()
    call = parse_request(message)
    assert call is not None
    view = call.topics[0].partitions[0].batches
    assert isinstance(view, memoryview)
    assert view.obj is message


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_alike_or_left_to_the_generated_parser(data: bytes) -> None:
    fast = parse_request(data)
    if fast is not None:
        assert plain(fast) == plain(produce_call(log_pb2.ProduceRequest.FromString(data)))


@settings(deadline=None)
@given(requests(), st.integers(0, 400), st.integers(0, 255))
def test_damaged_requests_are_parsed_alike(
    request: log_pb2.ProduceRequest, position: int, byte: int
) -> None:
    data = bytearray(request.SerializeToString())
    if data:
        data[position % len(data)] = byte
    fast = parse_request(bytes(data))
    if fast is not None:
        assert plain(fast) == plain(produce_call(log_pb2.ProduceRequest.FromString(bytes(data))))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            names,
            st.lists(st.tuples(int32, int64, int64, int64, int64, batches, st.booleans())),
        ),
        max_size=3,
    )
)
def test_fetch_answers_are_what_the_generated_code_would_write(
    topics: list[tuple[str, list[tuple[int, int, int, int, int, bytes, bool]]]],
) -> None:
    results = []
    expected = log_pb2.FetchResponse()
    for name, partitions in topics:
        out = expected.topics.add(topic=name)
        made = []
        for number, hw, lso, start, next_offset, data, is_bad in partitions:
            error: StreamlogError | None = Invalid("why") if is_bad else None
            cut = len(data) // 2
            result = FetchPartitionResult(
                number, next_offset, error, hw, lso, start, (), (data[:cut], data[cut:]), len(data)
            )
            made.append(result)
            out.partitions.append(fetch_partition_to_proto(result))
        results.append(FetchTopicResult(name, made))
    assert log_pb2.FetchResponse.FromString(encode_fetch_response(results)) == expected
