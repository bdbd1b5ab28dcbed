"""The header of a Kafka record batch, version 2: 61 bytes, big-endian.

    at  field                 type  meaning
    0   base offset           i64   offset of the first record; the server's to set
    8   length                i32   bytes after byte 12
    12  leader epoch          i32   the server's to set
    16  magic                 i8    2
    17  CRC-32C               u32   of byte 21 to the end
    21  attributes            i16   bits 0-2 codec, 3 log-append time, 4 transactional, 5 control,
                                    6 delete horizon
    23  last offset delta     i32   the batch spans last offset delta + 1 offsets
    27  base timestamp        i64   milliseconds; of the first record
    35  max timestamp         i64   milliseconds; -1 where no record has one
    43  producer id           i64   -1: not idempotent
    51  producer epoch        i16
    53  base sequence         i32   wraps to 0 after 2^31 - 1
    57  record count          i32
    61  records                     compressed as one block

The CRC does not cover base offset and leader epoch, so a server places a batch by a new header and
does not copy the records. Kafka has frozen this format; other magics are refused.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from streamlog.codec.choice import native
from streamlog.codec.crc import crc32c, crc32c_combine
from streamlog.errors import CorruptMessage, InvalidRecord
from streamlog.runtime.buffers import Buffer, Parts, parts_size

MAGIC = 2
HEADER_BYTES = 61
LENGTH_END = 12
CRC_START = 21
"""First byte that the CRC covers."""
SEQUENCE_MAX = (1 << 31) - 1
NO_SEQUENCE = -1
"""Of a batch that no sequence orders: one without a producer, a marker, one that was staged."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_HEADER = Struct(">qiibIhiqqqhii")
_PLACE = Struct(">qii")
_CRC_AND_ATTRIBUTES = Struct(">Ih")
_LENGTH = Struct(">i")
_MAX_TIMESTAMP_AT = 35
_PRODUCER_AT = 43
_PRODUCER = Struct(">qhi")


class Compression(IntEnum):
    """How the records of a batch are compressed; the number is what the header holds."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchProducer(NamedTuple):
    """Who wrote a batch, and the sequence number of its first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_PRODUCER = BatchProducer(-1, -1, -1)


class BatchHeader(NamedTuple):
    """The fields of the byte table, as they are in the bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A `Compression`, or 5 to 7, which have no meaning."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """-1 where the batch has no sequence."""
        if self.base_sequence < 0:
            return -1
        return sequence_after(self.base_sequence, self.last_offset_delta)


class ScannedBatch(NamedTuple):
    """One whole batch inside a larger buffer; `view` is not a copy."""

    header: BatchHeader
    view: memoryview


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number `count` records later; 2^31 - 1 is followed by 0."""
    return (sequence + count) & SEQUENCE_MAX


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; only its length is checked. Errors: CorruptMessage."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptMessage(
            f"a record batch header needs {HEADER_BYTES} bytes, but {len(buffer) - position} are "
            f"left at byte {position}; the message was cut short"
        )
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def pack_header(header: BatchHeader) -> bytes:
    """The 61 bytes of the header; the CRC is not computed."""
    return _HEADER.pack(*header)


def scan(buffer: Buffer, *, verify_crc: bool = True) -> list[ScannedBatch]:
    """The batches that fill `buffer`, in order, without a copy; each CRC in one pass.

    Errors: CorruptMessage (cut short, impossible length, wrong CRC), InvalidRecord (another magic).
    """
    if native:
        return native.scan(as_bytes(buffer), verify_crc, BatchHeader, ScannedBatch)
    return plain_scan(as_bytes(buffer), verify_crc)


def plain_scan(view: memoryview, verify_crc: bool) -> list[ScannedBatch]:
    """As `scan`, in Python."""
    batches: list[ScannedBatch] = []
    position, end = 0, len(view)
    while position < end:
        batch = batch_at(view, position)
        if verify_crc:
            check_crc(batch, position)
        batches.append(batch)
        position += len(batch.view)
    return batches


def as_bytes(buffer: Buffer) -> memoryview:
    """A view whose items are bytes."""
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def batch_at(view: memoryview, position: int) -> ScannedBatch:
    """The batch that begins at `position`; its CRC is not checked. Errors: as of `scan`."""
    batch = view[position : position + _batch_size(view, position)]
    return ScannedBatch(BatchHeader._make(_HEADER.unpack_from(batch)), batch)


def has_right_crc(batch: Buffer) -> bool:
    """Of one whole batch. Costs no header, where many are asked about."""
    view = memoryview(batch)
    return crc32c(view[CRC_START:]) == int.from_bytes(view[CRC_START - 4 : CRC_START], "big")


def check_crc(batch: ScannedBatch, position: int) -> None:
    """Checks the CRC; `position` of the batch is for the message. Errors: CorruptMessage."""
    if crc32c(batch.view[CRC_START:]) != batch.header.crc:
        raise CorruptMessage(
            f"the record batch at byte {position} ({len(batch.view)} bytes) fails its CRC; it was "
            "damaged on the way: send it again",
            position=position,
        )


def _batch_size(view: memoryview, position: int) -> int:
    """Size of the batch at `position`: it has a header, and ends inside the view.

    Errors: CorruptMessage, InvalidRecord (another magic).
    """
    left = len(view) - position
    if left < CRC_START:
        raise CorruptMessage(
            f"{left} bytes at byte {position} are too few for a record batch; the message was cut "
            "short",
            position=position,
        )
    magic = view[position + 16]
    if magic != MAGIC:
        raise InvalidRecord(
            f"the record batch at byte {position} has magic {magic}; only format version {MAGIC} "
            "is accepted",
            position=position,
        )
    size = int(_LENGTH.unpack_from(view, position + 8)[0]) + LENGTH_END
    if size < HEADER_BYTES or size > left:
        raise CorruptMessage(
            f"the record batch at byte {position} says {size} bytes, but {left} are there and "
            f"{HEADER_BYTES} is the least",
            position=position,
        )
    return size


def placed(batch: memoryview, base_offset: int, leader_epoch: int) -> Parts:
    """The batch at its offset: a new header, and the caller's own bytes for the rest."""
    header = bytearray(batch[:HEADER_BYTES])
    _PLACE.pack_into(header, 0, base_offset, len(batch) - LENGTH_END, leader_epoch)
    return bytes(header), batch[HEADER_BYTES:]


def placed_with_crc32c(
    batch: ScannedBatch, base_offset: int, leader_epoch: int
) -> tuple[Parts, int]:
    """As `placed` and `placed_crc32c` of it."""
    header, view = batch
    size = len(view)
    head = (
        _PLACE.pack(base_offset, size - LENGTH_END, leader_epoch) + view[_PLACE.size : HEADER_BYTES]
    )
    crc = crc32c_combine(crc32c(head[:CRC_START]), header.crc, size - CRC_START)
    return (head, view[HEADER_BYTES:]), crc


def place_into(
    buffer: bytearray, position: int, size_bytes: int, base_offset: int, leader_epoch: int
) -> None:
    """As `placed`, in place, for the batch at `position`."""
    _PLACE.pack_into(buffer, position, base_offset, size_bytes - LENGTH_END, leader_epoch)


def placed_at_append_time(
    batch: memoryview, base_offset: int, leader_epoch: int, append_time_ms: int
) -> Parts:
    """As `placed`, with log-append time: max timestamp, attribute and so the CRC are new."""
    header = bytearray(batch[:HEADER_BYTES])
    _PLACE.pack_into(header, 0, base_offset, len(batch) - LENGTH_END, leader_epoch)
    attributes = int.from_bytes(header[21:23], "big") | LOG_APPEND_TIME
    header[21:23] = attributes.to_bytes(2, "big")
    header[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8] = append_time_ms.to_bytes(
        8, "big", signed=True
    )
    crc = crc32c(batch[HEADER_BYTES:], crc32c(header[CRC_START:]))
    header[17:21] = crc.to_bytes(4, "big")
    return bytes(header), batch[HEADER_BYTES:]


def placed_crc32c(parts: Parts) -> int:
    """CRC-32C of all bytes of a placed batch, combined from its own CRC without reading records."""
    header = parts[0]
    checked_bytes = parts_size(parts) - CRC_START
    crc = int.from_bytes(header[17:CRC_START], "big")
    return crc32c_combine(crc32c(header[:CRC_START]), crc, checked_bytes)


def with_producer(batch: Buffer, producer: BatchProducer) -> bytearray:
    """A copy of the batch with another producer id, epoch and base sequence, and its CRC."""
    copy = bytearray(batch)
    _PRODUCER.pack_into(copy, _PRODUCER_AT, *producer)
    return resealed(copy)


def with_transaction(batch: Buffer, producer_id: int, producer_epoch: int) -> bytearray:
    """A copy of the batch as one of the producer's transaction, without a sequence, and its CRC."""
    copy = bytearray(batch)
    _PRODUCER.pack_into(copy, _PRODUCER_AT, producer_id, producer_epoch, NO_SEQUENCE)
    copy[CRC_START + 1] |= TRANSACTIONAL
    return resealed(copy)


def resealed(batch: bytearray) -> bytearray:
    """Computes the CRC again, in place; returns the same object."""
    crc = crc32c(memoryview(batch)[CRC_START:])
    batch[17:21] = crc.to_bytes(4, "big")
    return batch
