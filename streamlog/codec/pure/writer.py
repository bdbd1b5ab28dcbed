"""Builds one batch of records, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.batch import HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, pack_header
from streamlog.codec.pure.records import Headers, put_record
from streamlog.errors import InvalidTimestamp, MessageTooLarge
from streamlog.runtime.buffers import Buffer

BATCH_BYTES_MAX = (1 << 31) - 1


def negative(timestamp_ms: int) -> InvalidTimestamp:
    """-1 means "no timestamp" inside a batch; since magic 1 it may not be written."""
    return InvalidTimestamp(f"timestamp {timestamp_ms} is negative; give milliseconds since 1970")


class RecordWriter:
    """At most `size_limit_bytes`; only a first record may be larger."""

    __slots__ = (
        "_base_timestamp_ms",
        "_data",
        "_max_timestamp_ms",
        "_size_limit_bytes",
        "record_count",
    )

    def __init__(self, size_limit_bytes: int) -> None:
        self._size_limit_bytes = size_limit_bytes
        self._data = bytearray(HEADER_BYTES)
        self._base_timestamp_ms = -1
        self._max_timestamp_ms = -1
        self.record_count = 0

    @property
    def size_bytes(self) -> int:
        """Size of the batch so far, uncompressed."""
        return len(self._data)

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers | None = None,
    ) -> bool:
        """Adds the record; False, and nothing is added, if the batch is full.

        Errors: InvalidTimestamp below 0, TypeError for a value that is neither bytes nor None.
        """
        if timestamp_ms < 0:
            raise negative(timestamp_ms)
        count = self.record_count
        base = timestamp_ms if count == 0 else self._base_timestamp_ms
        record = bytearray()
        put_record(
            record,
            timestamp_delta=timestamp_ms - base,
            offset_delta=count,
            key=key,
            value=value,
            headers=headers or [],
        )
        if count and len(self._data) + len(record) > self._size_limit_bytes:
            return False
        if len(self._data) + len(record) > BATCH_BYTES_MAX:
            raise MessageTooLarge(f"a record of {len(record)} bytes does not fit into a batch")
        self._data += record
        self._base_timestamp_ms = base
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms)
        self.record_count = count + 1
        return True

    def extend(
        self,
        values: Sequence[Buffer | None],
        *,
        timestamp_ms: int,
        keys: Sequence[Buffer | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        start: int = 0,
    ) -> int:
        """Adds values[start:] until the batch is full; returns how many. Errors as of `append`."""
        earliest = timestamp_ms if timestamps_ms is None else min(timestamps_ms, default=0)
        if earliest < 0:
            raise negative(earliest)
        for index in range(start, len(values)):
            if not self.append(
                timestamp_ms if timestamps_ms is None else timestamps_ms[index],
                None if keys is None else keys[index],
                values[index],
                None if headers is None else headers[index],
            ):
                return index - start
        return max(0, len(values) - start)

    def take(
        self, producer_id: int, producer_epoch: int, base_sequence: int, attributes: int
    ) -> bytearray:
        """The batch, uncompressed, base offset 0, without a CRC; call it once."""
        data = self._data
        data[:HEADER_BYTES] = pack_header(
            BatchHeader(
                base_offset=0,
                length=len(data) - LENGTH_END,
                leader_epoch=-1,
                magic=MAGIC,
                crc=0,
                attributes=attributes,
                last_offset_delta=self.record_count - 1,
                base_timestamp_ms=self._base_timestamp_ms,
                max_timestamp_ms=self._max_timestamp_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=self.record_count,
            )
        )
        return data
