"""The records inside a batch, in plain Python: bytes ↔ fields, the definition of both twins.

    record   length of what follows (varint), attributes (1 byte), timestamp delta (varint),
             offset delta (varint), key, value, number of headers (varint), headers
    key, value, header value   length (varint, below zero: null), bytes
    header   length of the name (varint), name (UTF-8), value

A varint is a zigzag number in groups of seven bits, lowest first, at most ten bytes, taken modulo
2^64. Attributes above 127 are refused: some parsers read them as a varint. Timestamps are added
modulo 2^64, as everywhere. Offsets rise and lie within the span of the header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from streamlog.codec.batch import HEADER_BYTES, BatchHeader, parse_header
from streamlog.errors import InvalidRecord
from streamlog.runtime.buffers import Buffer

Headers = list[tuple[str, bytes | None]]
Record = tuple[int, int, bytes | None, bytes | None, Headers]
"""(offset, timestamp in milliseconds or -1, key, value, headers)."""

_Tuple = TypeVar("_Tuple", bound=tuple[object, ...])

RECORD_BYTES_MIN = 7
"""A record without key, value and headers."""
OFFSET_MAX = (1 << 63) - 1
_WORD = 1 << 64
_SIGN = 1 << 63


def varint(data: Buffer, position: int) -> tuple[int, int]:
    """The number at `position`, and where it ends. Errors: IndexError, ValueError."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _WORD - 1
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise ValueError("a variable-length integer of more than ten bytes")


def put_varint(out: bytearray, number: int) -> None:
    """`number` is an int64."""
    value = (number << 1) ^ (number >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint_bytes(number: int) -> int:
    """How many bytes the number takes."""
    zigzag = 2 * abs(number) - (number < 0)
    return (zigzag.bit_length() + 6) // 7 or 1


def wrapped(number: int) -> int:
    """Modulo 2^64, as an int64."""
    return (number + _SIGN) % _WORD - _SIGN


def parse(
    header: BatchHeader, records: Buffer, base_offset: int, *, with_headers: bool = True
) -> Iterator[Record]:
    """The records of one decompressed batch. `with_headers` False: names are not decoded.

    Errors: InvalidRecord (with `record_index` where one record is at fault); an impossible count or
    span is refused before the first record.
    """
    data = bytes(records)
    check_span(header, base_offset)
    check_room(header, len(data))
    return _parsed(header, data, base_offset, with_headers)


def _parsed(
    header: BatchHeader, data: bytes, base_offset: int, with_headers: bool
) -> Iterator[Record]:
    position, last_delta = 0, -1
    for index in range(header.record_count):
        try:
            record, delta, position = _record(data, position, header, base_offset, with_headers)
        except (IndexError, ValueError) as error:
            raise bad_record(index, error) from error
        if not last_delta < delta <= header.last_offset_delta:
            raise InvalidRecord(
                f"the batch spans {header.last_offset_delta + 1} offsets, but its records do not "
                f"fit into them in order: record {index} is at {delta} after {last_delta}",
                record_index=index,
            )
        last_delta = delta
        yield record
    if position != len(data):
        raise InvalidRecord(
            f"{len(data) - position} bytes follow the last of the batch's {header.record_count} "
            "records"
        )


def check_records(batch: Buffer) -> None:
    """Whether the records of a whole, uncompressed batch can be read, whatever its base offset.

    Errors: those of `parse`.
    """
    for _ in parse(parse_header(batch), memoryview(batch)[HEADER_BYTES:], 0):
        pass


class RecordReader:
    """The records of one batch: one by one, or all the rest. Errors: InvalidRecord."""

    __slots__ = ("_records",)

    def __init__(self, header: BatchHeader, records: Buffer, base_offset: int) -> None:
        self._records = parse(header, records, base_offset)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        return next(self._records)

    def list_as(self, kind: type[_Tuple], topic: str, partition: int) -> list[_Tuple]:
        """`kind` is a NamedTuple of topic, partition and the fields of a record."""
        new: Callable[..., _Tuple] = tuple.__new__
        place = (topic, partition)
        return [new(kind, place + record) for record in self._records]

    def values(self) -> list[bytes | None]:
        return [record[3] for record in self._records]

    def all(self) -> list[Record]:
        return [*self._records]


def check_span(header: BatchHeader, base_offset: int) -> None:
    """Errors: InvalidRecord where so many records do not fit the offsets."""
    count, span = header.record_count, header.last_offset_delta + 1
    if not 0 <= count <= span or base_offset > OFFSET_MAX - span:
        raise InvalidRecord(
            f"the record batch says {count} records in {span} offsets from {base_offset}, which "
            "cannot be"
        )


def check_room(header: BatchHeader, size_bytes: int) -> None:
    """Errors: InvalidRecord where so many records do not fit the bytes."""
    if header.record_count * RECORD_BYTES_MIN > size_bytes:
        raise InvalidRecord(
            f"the record batch says {header.record_count} records, which {size_bytes} bytes cannot "
            "hold"
        )


def bad_record(index: int, error: BaseException) -> InvalidRecord:
    return InvalidRecord(
        f"record {index} of the batch cannot be parsed: {error}", record_index=index
    )


def _record(
    data: bytes, position: int, header: BatchHeader, base_offset: int, with_headers: bool
) -> tuple[Record, int, int]:
    size, position = varint(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise ValueError(f"a record of {size} bytes, but {len(data) - position} are left")
    if data[position] > 0x7F:
        raise ValueError(f"attributes {data[position]}")
    delta, position = varint(data, position + 1)
    stamp = (
        header.max_timestamp_ms
        if header.is_log_append_time
        else wrapped(header.base_timestamp_ms + delta)
    )
    offset_delta, position = varint(data, position)
    key, position = _nullable(data, position, end)
    value, position = _nullable(data, position, end)
    count, position = varint(data, position)
    if count < 0:
        raise ValueError(f"{count} headers")
    headers: Headers = []
    for _ in range(count):
        length, position = varint(data, position)
        if length < 0 or length > end - position:
            raise ValueError(f"a header's name of {length} bytes")
        name = data[position : position + length].decode() if with_headers else ""
        header_value, position = _nullable(data, position + length, end)
        headers.append((name, header_value))
    if position != end:
        raise ValueError(f"a record of {size} bytes has {size + position - end}")
    return (base_offset + offset_delta, stamp, key, value, headers), offset_delta, end


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = varint(data, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise ValueError(f"{length} bytes at byte {position}, but {end - position} are left")
    return data[position : position + length], position + length


def put_record(
    out: bytearray,
    *,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Headers,
) -> None:
    """Appends one record. Errors: TypeError for a value that is neither bytes nor None."""
    body = bytearray(1)
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    _put_nullable(body, key)
    _put_nullable(body, value)
    put_varint(body, len(headers))
    for name, header_value in headers:
        encoded = name.encode()
        put_varint(body, len(encoded))
        body += encoded
        _put_nullable(body, header_value)
    put_varint(out, len(body))
    out += body


def _put_nullable(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        out.append(1)
        return
    view = memoryview(data)
    put_varint(out, view.nbytes)
    out += view
