"""Records ↔ record batches, on aiokafka's compiled builder and parser.

Nothing of aiokafka shows: an own codec can take its place. Compression is ours, because levels and
what a batch may expand to are.

Decoding hostile bytes raises CorruptMessage or InvalidRecord and nothing else. The compiled parser
checks lengths against its buffer, but reads a variable-length integer before it checks the next
one, which takes it at most 20 bytes past the end; so it gets a copy with a margin of zeros behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from aiokafka.errors import CorruptRecordException
from aiokafka.record._crecords.default_records import (
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)

from streamlog.codec import compression as codecs
from streamlog.codec.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
    Compression,
    Producer,
    pack_header,
    parse_header,
    resealed,
    scan,
)
from streamlog.errors import CorruptMessage, InvalidRecord, InvalidTimestamp
from streamlog.runtime.buffers import Buffer

RECORD_OVERHEAD_BYTES_MAX = 21
"""Length, attributes, timestamp and offset of one record, without its key, value and headers."""
RECORD_BYTES_MIN = 7
"""A record without key, value and headers."""
_MARGIN = bytes(32)

Headers = list[tuple[str, bytes | None]]
Record = tuple[int, int, bytes | None, bytes | None, Headers]
"""(offset, timestamp in milliseconds or -1, key, value, headers)."""


class BatchBuilder:
    """Records on their way into one batch.

    Never larger than `size_limit_bytes` before compression, but for a first record that is.
    """

    __slots__ = ("_append", "_builder", "_codec", "_level", "record_count")

    def __init__(
        self,
        size_limit_bytes: int,
        *,
        compression: Compression = Compression.NONE,
        level: int | None = None,
    ) -> None:
        self._builder = DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, size_limit_bytes)
        self._append = self._builder.append
        self._codec = compression
        self._level = level
        self.record_count = 0

    @property
    def size_bytes(self) -> int:
        """Of the batch so far, before compression."""
        return int(self._builder.size())

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers | None = None,
    ) -> bool:
        """True when the record went in; False when the batch is full, and then it did not.

        Errors: InvalidTimestamp below 0, TypeError for what is neither bytes nor None.
        """
        if timestamp_ms < 0:
            raise _negative(timestamp_ms)
        stored = self._append(self.record_count, timestamp_ms, key, value, headers or [])
        if stored is None:
            return False
        self.record_count += 1
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
        """Takes values[start:] until the batch is full; how many went in. Errors as of `append`."""
        earliest = timestamp_ms if timestamps_ms is None else min(timestamps_ms, default=0)
        if earliest < 0:
            raise _negative(earliest)
        count = len(values) - start
        first = self.record_count
        no_headers: Headers = []
        columns: Any = (
            range(first, first + count),
            repeat(timestamp_ms) if timestamps_ms is None else timestamps_ms[start:],
            repeat(None) if keys is None else keys[start:],
            values[start:] if start else values,
            repeat(no_headers) if headers is None else headers[start:],
        )
        for stored in map(self._append, *columns):
            if stored is None:
                break
            self.record_count += 1
        return self.record_count - first

    def build(
        self, producer: Producer = NO_PRODUCER, *, is_transactional: bool = False
    ) -> bytearray:
        """The finished batch, base offset 0; call it once."""
        self._builder.set_producer_state(*producer)
        built: bytearray = self._builder.build()
        attributes = 0x10 if is_transactional else 0
        if self._codec is Compression.NONE:
            if not attributes:
                return built
            packed: Buffer = b""
        else:
            packed = codecs.compress(self._codec, memoryview(built)[HEADER_BYTES:], self._level)
            if len(packed) < len(built) - HEADER_BYTES:
                attributes |= self._codec
                built[HEADER_BYTES:] = packed
                built[8:LENGTH_END] = (len(built) - LENGTH_END).to_bytes(4, "big")
        built[21:23] = attributes.to_bytes(2, "big")
        return resealed(built)


def _negative(timestamp_ms: int) -> InvalidTimestamp:
    """-1 means "no timestamp" inside a batch; nobody may write it since magic 1."""
    return InvalidTimestamp(f"timestamp {timestamp_ms} is negative; give milliseconds since 1970")


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
    producer: Producer = NO_PRODUCER,
) -> EncodedBatch:
    """One batch of values[start:], or of as many as `size_limit_bytes` (uncompressed) allows.

    The other columns are as long as `values`; `timestamps_ms` wins over `timestamp_ms`.
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
    """An upper bound of what one record takes in a batch, the batch's header included."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers))


def decode(
    batch: Buffer,
    *,
    verify_crc: bool = True,
    limit_bytes: int = codecs.DECOMPRESSED_BYTES_MAX,
) -> list[Record]:
    """The records of exactly one batch, in order.

    Errors: CorruptMessage, InvalidRecord (with `record_index` where one record is at fault).
    """
    header = _one_header(batch, verify_crc)
    parser = iter(_parser(header, batch, limit_bytes))
    records: list[Record] = []
    try:
        for record in parser:
            records.append(
                (record.offset, record.timestamp, record.key, record.value, record.headers)
            )
    except (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise _bad_record(len(records), error) from error
    _check_offsets(header, records)
    return records


def iterate(
    batch: Buffer,
    *,
    verify_crc: bool = True,
    limit_bytes: int = codecs.DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """As `decode`, one record at a time; offsets are not compared with the header's span."""
    header = _one_header(batch, verify_crc)
    parser = iter(_parser(header, batch, limit_bytes))
    index = 0
    while True:
        try:
            record = next(parser)
        except StopIteration:
            return
        except (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError) as error:
            raise _bad_record(index, error) from error
        index += 1
        yield (record.offset, record.timestamp, record.key, record.value, record.headers)


def _one_header(batch: Buffer, verify_crc: bool) -> BatchHeader:
    found = scan(batch, verify_crc=verify_crc)
    if len(found) != 1:
        raise CorruptMessage(f"one record batch was expected, but {len(found)} are there")
    return found[0].header


def _parser(header: BatchHeader, batch: Buffer, limit_bytes: int) -> DefaultRecordBatch:
    """The compiled parser on a plain, padded copy of the batch."""
    records = codecs.decompress(header.codec, memoryview(batch)[HEADER_BYTES:], limit_bytes)
    count = header.record_count
    if count < 0 or count * RECORD_BYTES_MIN > len(records):
        raise InvalidRecord(
            f"the record batch says {count} records, which {len(records)} bytes cannot hold"
        )
    plain = header._replace(attributes=header.attributes & ~CODEC_MASK)
    padded = b"".join((pack_header(plain), records, _MARGIN))
    return DefaultRecordBatch(memoryview(padded)[: -len(_MARGIN)])


def _bad_record(index: int, error: BaseException) -> InvalidRecord:
    return InvalidRecord(
        f"record {index} of the batch cannot be parsed: {error}", record_index=index
    )


def _check_offsets(header: BatchHeader, records: list[Record]) -> None:
    """Offsets rise; without holes unless compaction, which leaves fewer records than the span."""
    offsets = [record[0] for record in records]
    span = header.last_offset_delta + 1
    base = header.base_offset
    if len(records) == span:
        in_order = offsets == list(range(base, base + span))
    else:
        in_order = (
            len(records) < span
            and offsets == sorted(set(offsets))
            and (not offsets or (offsets[0] >= base and offsets[-1] < base + span))
        )
    if not in_order:
        raise InvalidRecord(
            f"the batch spans {span} offsets from {base}, but its {len(records)} records do not fit"
            " into them in order"
        )


def first_at_or_after(
    batch: Buffer, timestamp_ms: int, start_offset: int = 0
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record from start_offset on with that timestamp or a later.

    Errors: CorruptMessage, InvalidRecord.
    """
    header = parse_header(batch)
    if header.is_log_append_time:
        stamp, offset = header.max_timestamp_ms, max(header.base_offset, start_offset)
        is_in = stamp >= timestamp_ms and offset <= header.last_offset
        return (offset, stamp) if is_in else None
    for offset, stamp, _key, _value, _headers in iterate(batch, verify_crc=False):
        if stamp >= timestamp_ms and offset >= start_offset:
            return offset, stamp
    return None
