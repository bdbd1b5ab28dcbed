"""The produce envelope written by hand, so that batch bytes are copied once.

Ordinary protobuf, as `log.proto` says:

    ProduceStreamRequest  1 varint correlation_id   2 len request
    ProduceRequest        1 len transactional_id    2 varint acks   3 varint timeout_ms
                          4* len topics
    ProduceTopic          1 len topic               2 len partitions   3 len topic_id
    ProducePartition      1 varint partition        2 len record_batches
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.runtime.buffers import Buffer

ACKS_ALL = 1
ACKS_NONE = 2


def varint(value: int) -> bytes:
    """Protobuf's base-128 form of a number ≥ 0."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def topic_head(topic: str, topic_id: str) -> bytes:
    """The fields of a ProduceTopic beside its partitions."""
    name, identity = topic.encode(), topic_id.encode()
    head = b"\x0a" + varint(len(name)) + name
    return head + b"\x1a" + varint(len(identity)) + identity if identity else head


def encode_produce(
    correlation_id: int,
    acks: int,
    timeout_ms: int,
    parts: Sequence[tuple[bytes, int, Buffer]],
    transactional_id: bytes = b"",
) -> bytes:
    """A ProduceStreamRequest of (`topic_head`, partition, record batches), in that order.

    `transactional_id` empty: none.
    """
    pieces: list[Buffer] = []
    size = 0
    for topic_fields, partition, data in parts:
        head = b"\x12" + varint(len(data))
        if partition:
            head = b"\x08" + varint(partition) + head
        named = topic_fields + b"\x12" + varint(len(head) + len(data))
        whole = len(named) + len(head) + len(data)
        front = b"\x22" + varint(whole) + named + head
        pieces += (front, data)
        size += len(front) + len(data)
    fields = b"\x10" + varint(acks) + b"\x18" + varint(timeout_ms)
    if transactional_id:
        fields = b"\x0a" + varint(len(transactional_id)) + transactional_id + fields
    envelope = b"\x08" + varint(correlation_id) + b"\x12" + varint(len(fields) + size) + fields
    return b"".join((envelope, *pieces))
