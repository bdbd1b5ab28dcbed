"""Control batches: one record that ends a producer's transaction (Kafka's EndTransactionMarker).

The header is that of any batch, with the bits transactional and control, base sequence -1 and one
record. Key and value of the record, big-endian:

    key    version i16 (0), type i16 (0 ABORT, 1 COMMIT)
    value  version i16 (0), coordinator epoch i32

A reader takes later versions whose fields begin like these, as Kafka does. Source: KIP-98; Kafka's
MemoryRecords.withEndTransactionMarker, ControlRecordType, EndTransactionMarker.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from streamlog.codec.batch import (
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    pack_header,
    parse_header,
)
from streamlog.codec.crc import crc32c
from streamlog.codec.piecewise import iterate
from streamlog.errors import InvalidRecord
from streamlog.runtime.buffers import Buffer

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_MARKER_BYTES_MAX = 1 << 10
"""Of the records of a control batch: those of later versions may be longer than this program's."""


class ControlType(IntEnum):
    """The types that end a transaction; Kafka has others for its own metadata."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """What a control record says; producer id and epoch are in the header of its batch."""

    control_type: ControlType
    coordinator_epoch: int


def encode_end_marker(
    producer_id: int, producer_epoch: int, marker: EndMarker, timestamp_ms: int
) -> bytes:
    """A whole control batch of 78 bytes, with base offset 0 and leader epoch -1."""
    records = _record(
        _KEY.pack(_VERSION, marker.control_type), _VALUE.pack(_VERSION, marker.coordinator_epoch)
    )
    header = BatchHeader(
        base_offset=0,
        length=HEADER_BYTES + len(records) - LENGTH_END,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL | CONTROL,
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    checked = pack_header(header)[CRC_START:] + records
    return pack_header(header._replace(crc=crc32c(checked))) + records


def _record(key: bytes, value: bytes) -> bytes:
    """Attributes, timestamp delta, offset delta: 0; no headers. All lengths fit into one byte."""
    body = bytes((0, 0, 0, 2 * len(key))) + key + bytes((2 * len(value),)) + value + b"\x00"
    return bytes((2 * len(body),)) + body


def decode_end_marker(batch: Buffer) -> EndMarker | None:
    """What a control batch says; None for a type of control record that ends no transaction.

    The CRC is not checked. Errors: InvalidRecord (not a control batch, or a damaged one),
    CorruptMessage.
    """
    if not parse_header(batch).is_control:
        raise InvalidRecord("the record batch is not a control batch")
    records = list(iterate(memoryview(batch), _MARKER_BYTES_MAX))
    if len(records) != 1:
        raise InvalidRecord(f"a control batch has {len(records)} records instead of one")
    _, _, key, value, _ = records[0]
    if key is None or len(key) < _KEY.size:
        raise InvalidRecord("the key of a control record is too short for its version and type")
    control_type = _KEY.unpack_from(key)[1]
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise InvalidRecord("the value of an end marker is too short for a coordinator epoch")
    return EndMarker(ControlType(control_type), int(_VALUE.unpack_from(value)[1]))
