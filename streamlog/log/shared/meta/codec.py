"""Records of a partition's meta stream: bytes ↔ dataclasses, big-endian.

One entry of the meta stream (record count 1) holds records that take effect together:

    at  field     type  meaning
    0   magic     u16   0x534C
    2   version   u8    1; 2 where bit 1 or 2 of the flags is set; others are refused
    3   flags     u8    bit 0 snapshot: everything before this entry is void
                        bit 1 continued: its records take effect with those of the next entry
                        bit 2 continuing: this entry continues the one before it. A continued
                        entry that is not followed by a continuing one is void: a crash came
    4   count     u32   records
    8   length    u32   bytes of all records
    12  CRC-32C   u32   of bytes 0 to 12 and the records
    16  records         each: kind u8, length u32, fields

    kind  record             fields
    1     description        topic text, topic id 16 bytes, partition i32,
                             data, time, txn stream id u64, configs texts
    2     segment opened     base offset i64, created ms i64, data, time, txn slice
    3     segment sealed     base, end offset, size, first, largest timestamp, last append ms i64,
                             data, time, txn slice
    4     segment removed    base offset i64
    5     leader epoch       epoch i32, start offset i64
    6     checkpoint         offset, active base, size, first, largest timestamp, last append ms,
                             time stream end, last indexed timestamp, offset, bytes since i64,
                             count u32 of producers, each: id i64, epoch i16, last append ms i64,
                             count u16 of batches, each: base sequence i32, last sequence i32,
                             base offset i64, last offset i64
    7     log start          offset i64
    8     producers          count u32 of producers, each as in a checkpoint: they belong to the
                             checkpoint before them in the same group (version 2 only)
    9     transactions       txn stream end i64, count u32 of producers that were in transactions,
                             each: coordinator epoch i32 (-1: none), first offset of the open
                             transaction i64 (-1: none), then as in a checkpoint, where the count of
                             batches may be 0. They belong to the checkpoint before them in the same
                             entry or group, which has the producers without transactions. A log
                             that has not seen any has no such record
    16    fencing token      u8 length, bytes; empty: the log has none
    17    cleaned streams    data, time, txn stream id u64: of cleaned segments. All 0: they are
                             to be created, and a crash may leave some that no record names
    18    segments replaced  as of segment sealed. The sealed segments from its base to its end
                             offset, which are those of other records, are this one from here on
    19    clean end          offset i64: everything before it is cleaned

    slice: stream id u64, start i64, end i64 (-1 while open)
    text: u16 bytes, UTF-8. texts: u16 count, then key and value text of each, by key

An unknown kind below 128 is refused (UnsupportedVersion); an unknown kind from 128 on is skipped,
which does no harm. Fields are added with a new version only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from uuid import UUID

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.log.partition.producer_state_entry import PRODUCER_BATCH, ProducerStateEntry
from streamlog.model.batch import StreamSlice
from streamlog.runtime.buffers import Buffer

MAGIC = 0x534C
VERSION = 1
VERSION_GROUP = 2
"""The version of an entry that takes effect together with its neighbours."""
SNAPSHOT = 1
CONTINUED = 2
CONTINUING = 4
OPEN_END = -1
OPTIONAL_KINDS = 128
NO_TXN_ENTRIES = -1
"""The txn stream end of a checkpoint before which the log had no aborted transaction."""

_ENTRY = Struct(">HBBIII")
_CRC_AT = 12


@dataclass(frozen=True, slots=True)
class Description:
    """The first record of every meta stream: the partition it belongs to and its data streams."""

    topic: str
    topic_id: UUID
    partition: int
    data_stream_id: int
    time_stream_id: int
    txn_stream_id: int
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentOpened:
    base_offset: int
    created_ms: int
    data: StreamSlice
    time: StreamSlice
    txn: StreamSlice


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    """Replaces the segment opened at base_offset. Timestamps -1: no record has one."""

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp_ms: int
    largest_timestamp_ms: int
    last_append_ms: int
    data: StreamSlice
    time: StreamSlice
    txn: StreamSlice


@dataclass(frozen=True, slots=True)
class SegmentRemoved:
    base_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """Records from start_offset on were appended under `epoch`."""

    epoch: int
    start_offset: int


_PRODUCER = Struct(">qhqH")
_TRANSACTION = Struct(">iq")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The log's state when its data ended at `offset`; later attributes tell the rest.

    `txn_stream_end`: the txn stream's end once it has all entries of markers before the offset.
    """

    offset: int
    active_base_offset: int
    size_bytes: int
    first_timestamp_ms: int
    largest_timestamp_ms: int
    last_append_ms: int
    time_stream_end: int
    indexed_timestamp_ms: int
    indexed_offset: int
    bytes_since_indexed: int
    producers: tuple[ProducerStateEntry, ...] = ()
    txn_stream_end: int = NO_TXN_ENTRIES


@dataclass(frozen=True, slots=True)
class Producers:
    """More producers of the checkpoint before."""

    producers: tuple[ProducerStateEntry, ...]


@dataclass(frozen=True, slots=True)
class TransactionalProducers:
    """What the checkpoint before has of transactions: `producers` are the rest of its own."""

    txn_stream_end: int
    producers: tuple[ProducerStateEntry, ...]


@dataclass(frozen=True, slots=True)
class LogStart:
    offset: int


@dataclass(frozen=True, slots=True)
class FencingToken:
    """The log's token from here on; b"": none. The log's end tells which appends came before."""

    token: bytes


@dataclass(frozen=True, slots=True)
class CleanedStreams:
    """The streams that hold what a cleaning has left of segments."""

    data_stream_id: int
    time_stream_id: int
    txn_stream_id: int

    @property
    def ids(self) -> tuple[int, ...]:
        """None while they are being created."""
        return tuple(filter(None, (self.data_stream_id, self.time_stream_id, self.txn_stream_id)))


BEING_CREATED = CleanedStreams(0, 0, 0)


@dataclass(frozen=True, slots=True)
class SegmentsReplaced:
    """`segment` takes the place of those from its base offset to its end offset."""

    segment: SegmentSealed


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """End (exclusive) of what the cleaner has cleaned."""

    offset: int


MetaRecord = (
    Description
    | SegmentOpened
    | SegmentSealed
    | SegmentRemoved
    | LeaderEpoch
    | Checkpoint
    | LogStart
    | Producers
    | TransactionalProducers
    | FencingToken
    | CleanedStreams
    | SegmentsReplaced
    | CleanEnd
)


@dataclass(frozen=True, slots=True)
class MetaEntry:
    """`is_continued`: its records wait for those of the next entry, which is `is_continuing`."""

    records: tuple[MetaRecord, ...]
    is_snapshot: bool = False
    is_continuing: bool = False
    is_continued: bool = False


ENTRY_HEAD_BYTES = _ENTRY.size
_RECORD_HEAD_BYTES = 5
PRODUCERS_HEAD_BYTES = _RECORD_HEAD_BYTES + 4
TRANSACTIONS_HEAD_BYTES = PRODUCERS_HEAD_BYTES + 8


def encoded_bytes(record: MetaRecord) -> int:
    """Bytes that the record takes in an entry."""
    if isinstance(record, Checkpoint):
        numbers = 10 * 8
        own = PRODUCERS_HEAD_BYTES + numbers
        return own + sum(map(producer_bytes, record.producers))
    if isinstance(record, Producers):
        return PRODUCERS_HEAD_BYTES + sum(map(producer_bytes, record.producers))
    if isinstance(record, TransactionalProducers):
        return TRANSACTIONS_HEAD_BYTES + sum(map(transaction_bytes, record.producers))
    fields = FieldWriter()
    _WRITERS[type(record)][1](fields, record)
    return _RECORD_HEAD_BYTES + len(fields.data)


def producer_bytes(producer: ProducerStateEntry) -> int:
    """Bytes that the producer takes in a checkpoint."""
    return _PRODUCER.size + len(producer.packed)


def transaction_bytes(producer: ProducerStateEntry) -> int:
    """Bytes that the producer takes in a record of transactions."""
    return _TRANSACTION.size + producer_bytes(producer)


def encode_entry(
    records: Sequence[MetaRecord],
    *,
    is_snapshot: bool = False,
    is_continuing: bool = False,
    is_continued: bool = False,
) -> bytes:
    body = FieldWriter()
    for record in records:
        kind, write = _WRITERS[type(record)]
        fields = FieldWriter()
        write(fields, record)
        body.u8(kind)
        body.u32(len(fields.data))
        body.raw(fields.data)
    flags = SNAPSHOT * is_snapshot | CONTINUING * is_continuing | CONTINUED * is_continued
    version = VERSION_GROUP if is_continuing or is_continued else VERSION
    head = _ENTRY.pack(MAGIC, version, flags, len(records), len(body.data), 0)
    crc = crc32c(body.data, crc32c(head[:_CRC_AT]))
    return head[:_CRC_AT] + crc.to_bytes(4, "big") + bytes(body.data)


def is_entry(data: Buffer) -> bool:
    """Whether magic, length and CRC are those of an entry, of whatever version."""
    if len(data) < _ENTRY.size:
        return False
    magic, _, _, _, length, crc = _ENTRY.unpack_from(data)
    body = memoryview(data)[_ENTRY.size :]
    if (magic, length) != (MAGIC, len(body)):
        return False
    return bool(crc32c(body, crc32c(memoryview(data)[:_CRC_AT])) == crc)


def decode_entry(data: Buffer) -> MetaEntry:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(data) < _ENTRY.size:
        raise Corrupt(f"a meta stream entry of {len(data)} bytes is shorter than its header")
    magic, version, flags, count, length, crc = _ENTRY.unpack_from(data)
    if magic != MAGIC:
        raise Corrupt(f"a meta stream entry starts with {magic:#06x} instead of {MAGIC:#06x}")
    if version not in (VERSION, VERSION_GROUP):
        raise UnsupportedVersion(
            f"a meta stream entry has version {version}, this program knows {VERSION_GROUP}; "
            "use the program that wrote it, or a newer one",
            found=version,
            supported=VERSION_GROUP,
        )
    body = memoryview(data)[_ENTRY.size :]
    if len(body) != length:
        raise Corrupt(f"a meta stream entry says {length} bytes and has {len(body)}")
    if crc32c(body, crc32c(memoryview(data)[:_CRC_AT])) != crc:
        raise Corrupt("a meta stream entry fails its CRC")
    reader = FieldReader(body, "a meta stream entry")
    records = [record for _ in range(count) if (record := _decode_record(reader)) is not None]
    reader.end()
    if version == VERSION:
        return MetaEntry(tuple(records), bool(flags & SNAPSHOT))
    return MetaEntry(
        tuple(records),
        bool(flags & SNAPSHOT),
        is_continuing=bool(flags & CONTINUING),
        is_continued=bool(flags & CONTINUED),
    )


def _decode_record(reader: FieldReader) -> MetaRecord | None:
    kind = reader.u8()
    fields = FieldReader(reader.raw(reader.u32()), f"a meta record of kind {kind}")
    read = _READERS.get(kind)
    if read is None:
        if kind >= OPTIONAL_KINDS:
            return None
        raise UnsupportedVersion(
            f"a meta record has kind {kind}, which this program does not know; "
            "use the program that wrote it, or a newer one",
            found=kind,
            supported=max(_READERS),
        )
    record = read(fields)
    fields.end()
    return record


def _write_slice(w: FieldWriter, part: StreamSlice) -> None:
    w.u64(part.stream_id)
    w.i64(part.start_offset)
    w.i64(part.end_offset)


def _read_slice(r: FieldReader) -> StreamSlice:
    return StreamSlice(r.u64(), r.i64(), r.i64())


def _write_description(w: FieldWriter, record: Description) -> None:
    w.text(record.topic)
    w.raw(record.topic_id.bytes)
    w.i32(record.partition)
    w.u64(record.data_stream_id)
    w.u64(record.time_stream_id)
    w.u64(record.txn_stream_id)
    w.texts(record.configs)


def _read_description(r: FieldReader) -> Description:
    return Description(
        r.text(), UUID(bytes=r.raw(16)), r.i32(), r.u64(), r.u64(), r.u64(), r.texts()
    )


def _write_opened(w: FieldWriter, record: SegmentOpened) -> None:
    w.i64(record.base_offset)
    w.i64(record.created_ms)
    for part in (record.data, record.time, record.txn):
        _write_slice(w, part)


def _read_opened(r: FieldReader) -> SegmentOpened:
    return SegmentOpened(r.i64(), r.i64(), _read_slice(r), _read_slice(r), _read_slice(r))


def _write_sealed(w: FieldWriter, record: SegmentSealed) -> None:
    w.i64(record.base_offset)
    w.i64(record.end_offset)
    w.i64(record.size_bytes)
    w.i64(record.first_timestamp_ms)
    w.i64(record.largest_timestamp_ms)
    w.i64(record.last_append_ms)
    for part in (record.data, record.time, record.txn):
        _write_slice(w, part)


def _read_sealed(r: FieldReader) -> SegmentSealed:
    base, end, size = r.i64(), r.i64(), r.i64()
    first, largest, last_append = r.i64(), r.i64(), r.i64()
    data, time, txn = _read_slice(r), _read_slice(r), _read_slice(r)
    return SegmentSealed(base, end, size, first, largest, last_append, data, time, txn)


def _write_removed(w: FieldWriter, record: SegmentRemoved) -> None:
    w.i64(record.base_offset)


def _write_epoch(w: FieldWriter, record: LeaderEpoch) -> None:
    w.i32(record.epoch)
    w.i64(record.start_offset)


def _write_log_start(w: FieldWriter, record: LogStart) -> None:
    w.i64(record.offset)


def _write_token(w: FieldWriter, record: FencingToken) -> None:
    w.u8(len(record.token))
    w.raw(record.token)


def _write_cleaned(w: FieldWriter, record: CleanedStreams) -> None:
    w.u64(record.data_stream_id)
    w.u64(record.time_stream_id)
    w.u64(record.txn_stream_id)


def _write_replaced(w: FieldWriter, record: SegmentsReplaced) -> None:
    _write_sealed(w, record.segment)


def _write_clean_end(w: FieldWriter, record: CleanEnd) -> None:
    w.i64(record.offset)


def _write_checkpoint(w: FieldWriter, record: Checkpoint) -> None:
    w.i64(record.offset)
    w.i64(record.active_base_offset)
    w.i64(record.size_bytes)
    w.i64(record.first_timestamp_ms)
    w.i64(record.largest_timestamp_ms)
    w.i64(record.last_append_ms)
    w.i64(record.time_stream_end)
    w.i64(record.indexed_timestamp_ms)
    w.i64(record.indexed_offset)
    w.i64(record.bytes_since_indexed)
    _write_producers(w, record)


def _write_producers(w: FieldWriter, record: Checkpoint | Producers) -> None:
    w.u32(len(record.producers))
    for producer in record.producers:
        _write_producer(w, producer)


def _write_producer(w: FieldWriter, producer: ProducerStateEntry) -> None:
    producer_id, epoch, append_ms, packed, _, _ = producer
    w.raw(_PRODUCER.pack(producer_id, epoch, append_ms, len(packed) // PRODUCER_BATCH.size))
    w.raw(packed)


def _write_transactions(w: FieldWriter, record: TransactionalProducers) -> None:
    w.i64(record.txn_stream_end)
    w.u32(len(record.producers))
    for producer in record.producers:
        w.raw(_TRANSACTION.pack(producer.coordinator_epoch, producer.txn_first_offset))
        _write_producer(w, producer)


def _read_checkpoint(r: FieldReader) -> Checkpoint:
    offset, base, size = r.i64(), r.i64(), r.i64()
    first, largest, last_append = r.i64(), r.i64(), r.i64()
    time_end, indexed_ms, indexed, since = r.i64(), r.i64(), r.i64(), r.i64()
    producers = _read_producers(r)
    return Checkpoint(
        offset,
        base,
        size,
        first,
        largest,
        last_append,
        time_end,
        indexed_ms,
        indexed,
        since,
        producers,
    )


def _read_producers(r: FieldReader) -> tuple[ProducerStateEntry, ...]:
    return tuple(_read_producer(r) for _ in range(r.u32()))


def _read_producer(r: FieldReader) -> ProducerStateEntry:
    producer = _read_any_producer(r)
    if not producer.packed:
        raise r.corrupt(f"has producer {producer.producer_id} without a batch")
    return producer


def _read_any_producer(r: FieldReader) -> ProducerStateEntry:
    producer_id, epoch, append_ms, batches = _PRODUCER.unpack(r.raw(_PRODUCER.size))
    packed = r.raw(batches * PRODUCER_BATCH.size)
    return ProducerStateEntry(producer_id, epoch, append_ms, packed)


def _read_transactions(r: FieldReader) -> TransactionalProducers:
    return TransactionalProducers(r.i64(), tuple(_read_transaction(r) for _ in range(r.u32())))


def _read_transaction(r: FieldReader) -> ProducerStateEntry:
    coordinator_epoch, first_offset = _TRANSACTION.unpack(r.raw(_TRANSACTION.size))
    return _read_any_producer(r)._replace(
        coordinator_epoch=coordinator_epoch, txn_first_offset=first_offset
    )


_WRITERS: dict[type, tuple[int, Callable[..., None]]] = {
    Description: (1, _write_description),
    SegmentOpened: (2, _write_opened),
    SegmentSealed: (3, _write_sealed),
    SegmentRemoved: (4, _write_removed),
    LeaderEpoch: (5, _write_epoch),
    Checkpoint: (6, _write_checkpoint),
    LogStart: (7, _write_log_start),
    Producers: (8, _write_producers),
    TransactionalProducers: (9, _write_transactions),
    FencingToken: (16, _write_token),
    CleanedStreams: (17, _write_cleaned),
    SegmentsReplaced: (18, _write_replaced),
    CleanEnd: (19, _write_clean_end),
}
_READERS: dict[int, Callable[[FieldReader], MetaRecord]] = {
    1: _read_description,
    2: _read_opened,
    3: _read_sealed,
    4: lambda r: SegmentRemoved(r.i64()),
    5: lambda r: LeaderEpoch(r.i32(), r.i64()),
    6: _read_checkpoint,
    7: lambda r: LogStart(r.i64()),
    8: lambda r: Producers(_read_producers(r)),
    9: _read_transactions,
    16: lambda r: FencingToken(r.raw(r.u8())),
    17: lambda r: CleanedStreams(r.u64(), r.u64(), r.u64()),
    18: lambda r: SegmentsReplaced(_read_sealed(r)),
    19: lambda r: CleanEnd(r.i64()),
}
