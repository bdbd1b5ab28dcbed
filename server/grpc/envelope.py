"""The produce messages' wire format, read by hand so that record batches stay in place.

upb copies a bytes field at each access; here `record_batches` becomes a memoryview into the
message. Only the plain form is parsed: no singular field twice, batches as bytes, no field that
would be refused anyway. `None`: the generated parser has to read the message.

    ProduceStreamRequest  1 varint correlation_id   2 len request
    ProduceRequest        1 len transactional_id    2 varint acks   3 varint timeout_ms
                          4* len topics
    ProduceTopic          1 len topic               2* len partitions        3 len topic_id
    ProducePartition      1 varint partition        2 len record_batches   3 len records
                          4 varint expected_next_offset                    5 len fencing_token
"""

from __future__ import annotations

from streamlog.model.append_condition import AppendCondition
from streamlog.server.services.records.requests import ProduceCall, ProducePartition, ProduceTopic

_ACKS_NONE = 2
_ACKS_LAST = 2


class _Unusual(Exception):
    """Not the plain form; the generated parser decides whether the message is valid."""


def parse_stream_request(message: bytes) -> tuple[int, ProduceCall] | None:
    """Correlation id and request of a ProduceStreamRequest in the plain form."""
    try:
        position, end = 0, len(message)
        correlation_id, request = 0, None
        while position < end:
            tag = message[position]
            if tag == 0x08:
                correlation_id, position = _varint(message, position + 1, end)
            elif tag == 0x12 and request is None:
                size, start = _varint(message, position + 1, end)
                position = start + size
                if position > end:
                    return None
                request = _request(message, start, position)
            else:
                return None
        return None if request is None else (correlation_id, request)
    except (_Unusual, IndexError, UnicodeDecodeError):
        return None


def parse_request(message: bytes) -> ProduceCall | None:
    """A ProduceRequest in the plain form."""
    try:
        return _request(message, 0, len(message))
    except (_Unusual, IndexError, UnicodeDecodeError):
        return None


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, position
        shift += 7
        if shift > 63:
            break
    raise _Unusual


def _span(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Start and end of a length-delimited field whose length is at `position`."""
    size, start = _varint(data, position, end)
    if start + size > end:
        raise _Unusual
    return start, start + size


def _int32(value: int) -> int:
    """Negative numbers take ten bytes and are rare: the generated parser reads them."""
    if value >= 1 << 31:
        raise _Unusual
    return value


def _int63(value: int) -> None:
    """A negative offset is refused, by whoever reads it as such."""
    if value >= 1 << 63:
        raise _Unusual


def _request(data: bytes, position: int, end: int) -> ProduceCall:
    acks = timeout_ms = 0
    transactional_id = ""
    topics: list[ProduceTopic] = []
    while position < end:
        tag = data[position]
        if tag == 0x22:
            start, position = _span(data, position + 1, end)
            topics.append(_topic(data, start, position))
        elif tag == 0x10:
            acks, position = _varint(data, position + 1, end)
        elif tag == 0x18:
            timeout_ms, position = _varint(data, position + 1, end)
            _int32(timeout_ms)
        elif tag == 0x0A and not transactional_id:
            start, position = _span(data, position + 1, end)
            transactional_id = data[start:position].decode()
        else:
            raise _Unusual
    if acks > _ACKS_LAST:
        raise _Unusual
    return ProduceCall(topics, acks != _ACKS_NONE, timeout_ms, transactional_id)


def _topic(data: bytes, position: int, end: int) -> ProduceTopic:
    name: str | None = None
    topic_id = ""
    partitions: list[ProducePartition] = []
    while position < end:
        tag = data[position]
        start, position = _span(data, position + 1, end)
        if tag == 0x12:
            partitions.append(_partition(data, start, position))
        elif tag == 0x0A and name is None:
            name = data[start:position].decode()
        elif tag == 0x1A and not topic_id:
            topic_id = data[start:position].decode()
        else:
            raise _Unusual
    return ProduceTopic(name or "", partitions, topic_id)


def _partition(data: bytes, position: int, end: int) -> ProducePartition:
    partition = 0
    batches: memoryview | None = None
    offset: int | None = None
    token: bytes | None = None
    while position < end:
        tag = data[position]
        if tag == 0x08:
            partition, position = _varint(data, position + 1, end)
            _int32(partition)
        elif tag == 0x12 and batches is None:
            start, position = _span(data, position + 1, end)
            batches = memoryview(data)[start:position]
        elif tag == 0x20 and offset is None:
            offset, position = _varint(data, position + 1, end)
            _int63(offset)
        elif tag == 0x2A and token is None:
            start, position = _span(data, position + 1, end)
            token = data[start:position]
        else:
            raise _Unusual
    if batches is None:
        raise _Unusual
    if offset is None and token is None:
        return ProducePartition(partition, batches)
    return ProducePartition(partition, batches, (), AppendCondition(offset, token))
