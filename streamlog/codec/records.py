"""Records ↔ record batches, on the twin that is in use.

The size of a decompressed batch is bounded. Decoding hostile bytes raises only CorruptMessage or
InvalidRecord.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from streamlog.codec import compression as codecs
from streamlog.codec.batch import (
    HEADER_BYTES,
    NO_PRODUCER,
    TRANSACTIONAL,
    BatchProducer,
    Compression,
    scan,
)
from streamlog.codec.choice import native
from streamlog.codec.finish import finish
from streamlog.codec.pure.records import RECORD_BYTES_MIN, Headers, Record, varint_bytes
from streamlog.errors import CorruptMessage
from streamlog.runtime.buffers import Buffer

if TYPE_CHECKING or not native:
    from streamlog.codec.pure.records import RecordReader, check_records
    from streamlog.codec.pure.writer import RecordWriter
else:
    RecordReader, RecordWriter = native.RecordReader, native.RecordWriter
    check_records = native.check_records

__all__ = [
    "RECORD_BYTES_MIN",
    "RECORD_OVERHEAD_BYTES_MAX",
    "BatchBuilder",
    "EncodedBatch",
    "Headers",
    "Record",
    "RecordReader",
    "check_records",
    "decode",
    "encode_values",
    "iterate",
    "record_bytes_max",
]

RECORD_OVERHEAD_BYTES_MAX = 21
"""Length, attributes, timestamp and offset of one record, without its key, value and headers."""

_Tuple = TypeVar("_Tuple", bound=tuple[object, ...])


class BatchBuilder(RecordWriter):
    """Builds one batch, of at most `size_limit_bytes` before compression.

    Only a first record may be larger.
    """

    __slots__ = ("_codec", "_level")

    def __init__(
        self,
        size_limit_bytes: int,
        *,
        compression: Compression = Compression.NONE,
        level: int | None = None,
    ) -> None:
        super().__init__(size_limit_bytes)
        self._codec = compression
        self._level = level

    def build(
        self, producer: BatchProducer = NO_PRODUCER, *, is_transactional: bool = False
    ) -> bytearray:
        """The finished batch, base offset 0; call it once."""
        attributes = TRANSACTIONAL if is_transactional else 0
        return finish(self.take(*producer, attributes), self._codec, self._level)


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    data: bytearray
    record_count: int


def encode_values(
    values: Sequence[Buffer | None],
    *,
    timestamp_ms: int,
    keys: Sequence[Buffer | None] | None = None,
    timestamps_ms: Sequence[int] | None = None,
    headers: Sequence[Headers] | None = None,
    start: int = 0,
    size_limit_bytes: int = 1 << 30,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    producer: BatchProducer = NO_PRODUCER,
) -> EncodedBatch:
    """Encodes values[start:] as one batch, or as many as `size_limit_bytes` (uncompressed) allows.

    The other columns are as long as `values`; `timestamps_ms` replaces `timestamp_ms`.
    """
    builder = BatchBuilder(size_limit_bytes, compression=compression, level=level)
    count = builder.extend(
        values,
        timestamp_ms=timestamp_ms,
        keys=keys,
        timestamps_ms=timestamps_ms,
        headers=headers,
        start=start,
    )
    return EncodedBatch(builder.build(producer), count)


def record_bytes_max(key: Buffer | None, value: Buffer | None, headers: Headers) -> int:
    """An upper bound of the size of a batch with this record alone."""
    size = HEADER_BYTES + RECORD_OVERHEAD_BYTES_MAX + _nullable_bytes(key) + _nullable_bytes(value)
    size += varint_bytes(len(headers))
    for name, data in headers:
        size += _nullable_bytes(name.encode()) + _nullable_bytes(data)
    return size


def _nullable_bytes(data: Buffer | None) -> int:
    if data is None:
        return 1
    return varint_bytes(len(data)) + len(data)


def decode(
    batch: Buffer,
    *,
    verify_crc: bool = True,
    limit_bytes: int = codecs.DECOMPRESSED_BYTES_MAX,
) -> list[Record]:
    """The records of exactly one batch, in order.

    Errors: CorruptMessage, InvalidRecord (with `record_index` where one record is at fault).
    """
    return iterate(batch, verify_crc=verify_crc, limit_bytes=limit_bytes).all()


def iterate(
    batch: Buffer,
    *,
    verify_crc: bool = True,
    limit_bytes: int = codecs.DECOMPRESSED_BYTES_MAX,
) -> RecordReader:
    """As `decode`, one record at a time, so that records before a fault are read."""
    batches = scan(batch, verify_crc=verify_crc)
    if len(batches) != 1:
        raise CorruptMessage(f"one record batch was expected, but {len(batches)} are there")
    header, view = batches[0]
    records = codecs.decompress(header.codec, view[HEADER_BYTES:], limit_bytes)
    return RecordReader(header, records, header.base_offset)
