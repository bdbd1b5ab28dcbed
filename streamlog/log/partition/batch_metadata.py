"""What the log keeps in the attributes of each data stream entry: 45 bytes, big-endian.

    at  field            type  meaning
    0   version          u8    1; others are refused
    1   attributes       i16   of the Kafka batch: codec, timestamp type, flags
    3   leader epoch     i32   under which the batch was appended; -1: it was staged
    7   size             i32   bytes of the Kafka batch
    11  max timestamp    i64   milliseconds; -1 where no record has one
    19  append time      i64   milliseconds; the server's clock at sequencing
    27  producer id      i64   -1: not idempotent
    35  producer epoch   i16
    37  base sequence    i32
    41  record count     i32   records in the batch; the offset span is the stream's own count

The engine stores attributes beside its index, under its checksum, so that producer state, epochs,
sizes and timestamps after a crash are read without reading data.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from streamlog.codec.batch import SEQUENCE_MAX, BatchHeader
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.runtime.buffers import Buffer

VERSION = 1
NO_LEADER_EPOCH = -1
"""The epoch of a staged batch; the meta stream has its epoch from the commit on."""
_FORM = Struct(">BhiiqqqhiI")


class LogBatchMetadata(NamedTuple):
    """What the log must know of a batch without reading it: the fields of the byte table."""

    attributes: int
    leader_epoch: int
    size_bytes: int
    max_timestamp_ms: int
    append_time_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def of(
        cls, header: BatchHeader, *, leader_epoch: int, append_time_ms: int, max_timestamp_ms: int
    ) -> LogBatchMetadata:
        return cls(
            header.attributes,
            leader_epoch,
            header.length + 12,
            max_timestamp_ms,
            append_time_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        )

    def last_sequence(self, span: int) -> int:
        """Sequence of the last of `span` records."""
        return (self.base_sequence + span - 1) & SEQUENCE_MAX


def encode_batch_metadata(metadata: LogBatchMetadata) -> bytes:
    return _FORM.pack(VERSION, *metadata)


def decode_batch_metadata(data: Buffer) -> LogBatchMetadata:
    """Errors: UnsupportedVersion, Corrupt."""
    if len(data) and data[0] != VERSION:
        raise UnsupportedVersion(
            f"a batch's attributes have version {data[0]}, this program knows {VERSION}; "
            "use the program that wrote them, or a newer one",
            found=data[0],
            supported=VERSION,
        )
    if len(data) != _FORM.size:
        raise Corrupt(f"a batch's attributes have {len(data)} bytes instead of {_FORM.size}")
    return LogBatchMetadata._make(_FORM.unpack(data)[1:])
