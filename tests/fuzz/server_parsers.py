"""What arrives over gRPC: the produce envelope, the batches in it, plain records."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from streamlog.client.produce.wire import ACKS_ALL, encode_produce, topic_head
from streamlog.errors import Invalid
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.log_validator import validate_batches
from streamlog.server.grpc.conversion import produce_call
from streamlog.server.grpc.envelope import parse_request, parse_stream_request
from streamlog.server.services.records.requests import ProduceCall
from streamlog.server.services.support.plain_records import (
    decode_plain_records,
    encode_plain_records,
)
from streamlog.v1 import log_pb2
from tests.fuzz.codec_parsers import BATCHES, mend_batch
from tests.fuzz.parser import Parser

NOW_MS = 1_700_000_000_100


def _plain(call: ProduceCall | None) -> object:
    if call is None:
        return None
    topics = [
        (t.topic, t.topic_id, [(p.partition, bytes(p.batches or b"")) for p in t.partitions])
        for t in call.topics
    ]
    return topics, call.wait_durable, call.timeout_ms


def _stream_request(data: bytes) -> object:
    """None: for the generated parser; a value must be what that one gives."""
    found = parse_stream_request(data)
    if found is None:
        return None
    expected = log_pb2.ProduceStreamRequest.FromString(data)
    assert found[0] == expected.correlation_id
    assert _plain(found[1]) == _plain(produce_call(expected.request))
    return found[0], _plain(found[1])


def _request(data: bytes) -> object:
    found = parse_request(data)
    if found is None:
        return None
    expected = log_pb2.ProduceRequest.FromString(data)
    assert _plain(found) == _plain(produce_call(expected))
    return _plain(found)


def _checked(data: bytes) -> object:
    return [batch.header for batch in validate_batches(data, TopicConfig(), NOW_MS)]


def _as_records(data: bytes) -> object:
    return decode_plain_records([data], 2, 1 << 16, 12, 1 << 20)


def _records(data: bytes) -> object:
    """Plain records of a request, encoded as the server does."""
    try:
        partition = log_pb2.ProducePartition.FromString(data)
    except DecodeError:
        return None
    message = log_pb2.ProduceRequest(
        topics=[log_pb2.ProduceTopic(topic="t", partitions=[partition])]
    )
    records = produce_call(message).topics[0].partitions[0].records
    return bytes(encode_plain_records(records, NOW_MS))


_PARTS = [(topic_head("t.x", ""), 3, BATCHES[0]), (topic_head("größe", "id"), 0, b"abc")]
_ENVELOPE = encode_produce(7, ACKS_ALL, 3000, _PARTS)
_RECORD_LIST = log_pb2.ProducePartition(
    partition=2,
    records=log_pb2.RecordList(
        records=[
            log_pb2.Record(key=b"k", value=b"v" * 20, timestamp_ms=NOW_MS),
            log_pb2.Record(value=b"w"),
        ]
    ),
).SerializeToString()

PARSERS = (
    Parser("envelope_stream", _stream_request, (_ENVELOPE, encode_produce(1, 2, 0, []))),
    Parser(
        "envelope",
        _request,
        (log_pb2.ProduceStreamRequest.FromString(_ENVELOPE).request.SerializeToString(),),
    ),
    Parser("grpc_batches", _checked, BATCHES, (Invalid,), mend_batch, memory_bytes=300 << 20),
    Parser("fetched_records", _as_records, BATCHES, (Invalid,), mend_batch, memory_bytes=300 << 20),
    Parser("plain_records", _records, (_RECORD_LIST,), (Invalid,), memory_bytes=8 << 20),
)
