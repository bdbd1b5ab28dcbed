"""What the log keeps in the attributes of each data stream entry, big-endian.

    at  field              type  meaning
    0   version            u8    1: 45 bytes. 2: 50 bytes, of a control batch. Others are refused
    1   attributes         i16   of the Kafka batch: codec, timestamp type, flags
    3   leader epoch       i32   under which the batch was appended; -1: it was staged
    7   size               i32   bytes of the Kafka batch
    11  max timestamp      i64   milliseconds; -1 where no record has one
    19  append time        i64   milliseconds; the server's clock at sequencing
    27  producer id        i64   -1: not idempotent
    35  producer epoch     i16
    37  base sequence      i32
    41  record count       i32   records in the batch; the offset span is the stream's own count
    45  control type       u8    version 2 only: 0 ABORT, 1 COMMIT
    46  coordinator epoch  i32   version 2 only

The engine stores attributes beside its index, under its checksum, so that producer state, open and
aborted transactions, epochs, sizes and timestamps after a crash are read without reading data.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from streamlog.codec.batch import CONTROL, LENGTH_END, TRANSACTIONAL, BatchHeader
from streamlog.codec.control import ControlType, EndMarker
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.log.api.topic_config import INT32_MAX, TopicConfig
from streamlog.runtime.buffers import Buffer

VERSION = 1
VERSION_MARKER = 2
NO_LEADER_EPOCH = -1
"""The epoch of a staged batch; the meta stream has its epoch from the commit on."""
TRANSACTION_BITS = TRANSACTIONAL | CONTROL
_FORM = Struct(">BhiiqqqhiI")
_MARKER = Struct(">Bi")
_MARKER_BYTES = _FORM.size + _MARKER.size


class LogBatchMetadata(NamedTuple):
    """What the log must know of a batch without reading it: the fields of the byte table.

    `marker`: of a control batch, None for any other.
    """

    attributes: int
    leader_epoch: int
    size_bytes: int
    max_timestamp_ms: int
    append_time_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    marker: EndMarker | None = None

    @classmethod
    def of(
        cls,
        header: BatchHeader,
        *,
        leader_epoch: int,
        append_time_ms: int,
        max_timestamp_ms: int,
        marker: EndMarker | None = None,
    ) -> LogBatchMetadata:
        # `_make` of a tuple that is there: half of what ten arguments cost.
        return cls._make(
            (
                header.attributes,
                leader_epoch,
                header.length + LENGTH_END,
                max_timestamp_ms,
                append_time_ms,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
                marker,
            )
        )

    def needs_new_segment(
        self,
        active_bytes: int,
        first_timestamp_ms: int,
        relative_offset: int,
        config: TopicConfig,
        jitter: float,
    ) -> bool:
        """Whether the batch begins a segment: by size, event time, or 31 bits of offset.

        Of the active segment: its bytes, the largest timestamp of its first batch that has one
        (-1: none), and the offset of this batch's last record relative to its first. `jitter`, 0 to
        1, takes its share of `segment.jitter.ms` from `segment.ms`. Source: Kafka's
        LogSegment.shouldRoll.
        """
        if active_bytes == 0:
            return False
        if active_bytes + self.size_bytes > config.segment_bytes or relative_offset > INT32_MAX:
            return True
        first, newest = first_timestamp_ms, self.max_timestamp_ms
        age_ms = newest - first
        # Nearly every batch comes before the earliest time at which jitter might let it roll.
        if first < 0 or newest < 0 or age_ms <= config.segment_ms - config.segment_jitter_ms:
            return False
        jitter_ms = int(jitter * min(config.segment_jitter_ms, config.segment_ms - 1))
        return age_ms > config.segment_ms - jitter_ms


def encode_batch_metadata(metadata: LogBatchMetadata) -> bytes:
    if metadata.marker is None:
        return _FORM.pack(VERSION, *metadata[:-1])
    return _FORM.pack(VERSION_MARKER, *metadata[:-1]) + _MARKER.pack(*metadata.marker)


def decode_batch_metadata(data: Buffer) -> LogBatchMetadata:
    """Errors: UnsupportedVersion, Corrupt."""
    if len(data) == _FORM.size and data[0] == VERSION:
        return LogBatchMetadata(*_FORM.unpack(data)[1:])
    return _decode_marker(data)


def _decode_marker(data: Buffer) -> LogBatchMetadata:
    if len(data) and data[0] not in (VERSION, VERSION_MARKER):
        raise UnsupportedVersion(
            f"a batch's attributes have version {data[0]}, this program knows {VERSION_MARKER}; "
            "use the program that wrote them, or a newer one",
            found=data[0],
            supported=VERSION_MARKER,
        )
    if len(data) != _MARKER_BYTES or data[0] != VERSION_MARKER:
        raise Corrupt(
            f"a batch's attributes have {len(data)} bytes instead of {_FORM.size}, or "
            f"{_MARKER_BYTES} of a control batch"
        )
    control_type, coordinator_epoch = _MARKER.unpack_from(data, _FORM.size)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise Corrupt(f"the attributes of a control batch have type {control_type}, not 0 or 1")
    marker = EndMarker(ControlType(control_type), coordinator_epoch)
    return LogBatchMetadata(*_FORM.unpack_from(data)[1:])._replace(marker=marker)
