"""Protobuf's wire format of FetchResponse, written by hand: record bytes are copied once.

    FetchResponse         1 throttle_time_ms   4* len topics
    FetchTopicResult      1 len topic   2* len partitions
    FetchPartitionResult  1 partition  3 high_watermark  4 last_stable_offset  5 log_start_offset
                          8 len record_batches  10 next_offset (varints)

The generated code encodes a partition with an error, aborted transactions or plain records: it has
no large field.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.server.grpc.conversion import fetch_partition_to_proto
from streamlog.server.services.records.requests import FetchPartitionResult, FetchTopicResult


def encode_fetch_response(topics: Sequence[FetchTopicResult]) -> bytes:
    """The FetchResponse, without a throttle; zero fields are left out, as proto3 does."""
    pieces: list[Buffer] = []
    for topic in topics:
        body: list[Buffer] = []
        if topic.topic:
            name = topic.topic.encode()
            body.append(b"\x0a" + varint(len(name)) + name)
        for partition in topic.partitions:
            inner = _partition(partition)
            body.append(b"\x12" + varint(parts_size(inner)))
            body.extend(inner)
        pieces.append(b"\x22" + varint(parts_size(body)))
        pieces.extend(body)
    return b"".join(pieces)


def with_throttle(response: bytes, throttle_ms: int) -> bytes:
    """An encoded FetchResponse that tells a throttle; a field may come behind others."""
    return response + _field(0x08, throttle_ms)


def _partition(result: FetchPartitionResult) -> list[Buffer]:
    if result.error is not None or result.aborted or result.records:
        return [fetch_partition_to_proto(result).SerializeToString()]
    head = (
        _field(0x08, result.partition)
        + _field(0x18, result.high_watermark)
        + _field(0x20, result.last_stable_offset)
        + _field(0x28, result.log_start_offset)
    )
    tail = _field(0x50, result.next_offset)
    if not result.size_bytes:
        return [head + tail]
    return [head + b"\x42" + varint(result.size_bytes), *result.parts, tail]


def _field(tag: int, value: int) -> bytes:
    return bytes((tag,)) + varint(value) if value else b""


def varint(value: int) -> bytes:
    """Base-128; negative numbers as 64-bit two's complement."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
