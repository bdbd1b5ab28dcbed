"""Validates a client's record batches before they are appended. Pure.

1. The header of each batch is checked without reading its records.
2. The structure of uncompressed records is checked, too (`log.record_check`): a batch that no
   consumer can decode would stop all of them at its offset.
3. Compressed records must begin as their codec's do, and not be cut short as far as the sizes of
   their blocks tell: a client may end by those. Decompressing them would cost more than the rest of
   the append, so a batch that its producer damaged otherwise is stored: a consumer gets an error
   for it, and has to seek behind it.

Source: Kafka's LogValidator.
"""

from __future__ import annotations

from streamlog.codec.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    NO_SEQUENCE,
    BatchHeader,
    Compression,
    ScannedBatch,
    scan,
)
from streamlog.codec.compressed_blocks import is_cut
from streamlog.codec.compression import DECOMPRESSED_BYTES_MAX, begins_as
from streamlog.codec.piecewise import iterate
from streamlog.codec.records import RECORD_BYTES_MIN, RECORD_OVERHEAD_BYTES_MAX, check_records
from streamlog.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
)
from streamlog.log.api.topic_config import LOG_APPEND_TIME, TopicConfig
from streamlog.runtime.buffers import Buffer

NO_TIMESTAMP = -1
SEARCHED_BYTES_MAX = 1 << 20


def validate_batches(
    buffer: Buffer, config: TopicConfig, now_ms: int, *, with_records: bool = True
) -> list[ScannedBatch]:
    """Splits the buffer into batches, all of them valid. Errors: those of AbstractLog.append."""
    batches = _valid(buffer, config, now_ms, with_records=with_records)
    for header, _ in batches:
        if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
            raise InvalidRecord(
                f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}; both are at least 0"
            )
    if len(batches) > 1 and any(batch.header.producer_id >= 0 for batch in batches):
        raise InvalidRecord(
            "an idempotent producer appends one record batch at a time to a partition; "
            f"{len(batches)} were sent"
        )
    return batches


def validate_staged(
    buffer: Buffer,
    config: TopicConfig,
    now_ms: int,
    producer: tuple[int, int] | None,
    *,
    with_records: bool = True,
) -> list[ScannedBatch]:
    """Batches whose order only their commit gives, so that none has a sequence.

    `producer`: id and epoch whose transaction all of them belong to; None: they belong to none.
    Errors: as of `validate_batches`.
    """
    batches = _valid(buffer, config, now_ms, with_records=with_records)
    for header, _ in batches:
        if producer is None and header.producer_id >= 0:
            raise InvalidRecord(
                "a staged batch has no producer id: the commit is what happens once; encode it "
                "without, or stage it for a transaction"
            )
        if producer is not None and (
            (header.producer_id, header.producer_epoch) != producer
            or not header.is_transactional
            or header.base_sequence != NO_SEQUENCE
        ):
            raise InvalidRecord(
                f"a batch staged for the transaction of producer {producer[0]} (epoch "
                f"{producer[1]}) has the producer id {header.producer_id}, epoch "
                f"{header.producer_epoch} and sequence {header.base_sequence}; encode it with that "
                f"producer, the transactional flag and the sequence {NO_SEQUENCE}"
            )
    return batches


def _valid(
    buffer: Buffer, config: TopicConfig, now_ms: int, *, with_records: bool
) -> list[ScannedBatch]:
    """What holds for every batch, whoever its producer is."""
    if not len(buffer):
        raise InvalidRecord("there is no record batch to append")
    batches = scan(buffer)
    for batch in batches:
        _validate(batch, config, now_ms)
        if with_records and not batch.header.attributes & CODEC_MASK:
            check_records(batch.view)
    return batches


def _validate(batch: ScannedBatch, config: TopicConfig, now_ms: int) -> None:
    header, view = batch
    size, count, attributes = len(view), header.record_count, header.attributes
    if size > config.max_message_bytes or size > config.segment_bytes:
        raise _too_large(size, config)
    if count <= 0 or header.last_offset_delta + 1 != count:
        raise InvalidRecord(
            f"the record batch says {count} records and last offset delta "
            f"{header.last_offset_delta}; a client's batch has delta + 1 records, at least one"
        )
    # A batch must not use up offsets for records that it cannot hold.
    room = DECOMPRESSED_BYTES_MAX if attributes & CODEC_MASK else size - HEADER_BYTES
    if count * RECORD_BYTES_MIN > room:
        raise InvalidRecord(
            f"the record batch says {count} records, which {room} bytes cannot hold"
        )
    # Most batches have no attribute at all.
    if attributes:
        _validate_attributes(header, view)
    _validate_timestamps(batch, config, now_ms)


def _too_large(size: int, config: TopicConfig) -> MessageTooLarge | RecordListTooLarge:
    # Batches that a client splits by this bound pass both checks.
    most_bytes = min(config.max_message_bytes, config.segment_bytes)
    if size > config.max_message_bytes:
        return MessageTooLarge(
            f"the record batch has {size} bytes; the topic takes {config.max_message_bytes} "
            "(max.message.bytes)",
            size_bytes=size,
            max_bytes=most_bytes,
        )
    return RecordListTooLarge(
        f"the record batch has {size} bytes; a segment holds {config.segment_bytes} "
        "(segment.bytes)",
        size_bytes=size,
        max_bytes=most_bytes,
    )


def _validate_attributes(header: BatchHeader, view: memoryview) -> None:
    if header.is_control:
        raise InvalidRecord("control batches are written by the server only")
    if header.attributes & DELETE_HORIZON:
        raise InvalidRecord("the delete horizon is set by compaction only")
    if header.codec > Compression.ZSTD:
        raise InvalidRecord(
            f"compression codec {header.codec} is not known; use none, gzip, snappy, lz4 or zstd"
        )
    compressed = view[HEADER_BYTES:]
    if not begins_as(header.codec, compressed):
        raise InvalidRecord(
            "the records of the batch do not begin as those of "
            f"{Compression(header.codec).name.lower()} do: its attributes name another codec"
        )
    if is_cut(header.codec, compressed):
        raise InvalidRecord(
            f"the records of the batch are {Compression(header.codec).name.lower()} that was cut "
            "short: no consumer could read them"
        )
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch has no producer id; initialise the producer")
    if header.is_log_append_time:
        raise InvalidTimestamp(
            "a producer's batch must not have log-append time; the server sets it"
        )


def _validate_timestamps(batch: ScannedBatch, config: TopicConfig, now_ms: int) -> None:
    header = batch.header
    if config.message_timestamp_type == LOG_APPEND_TIME:
        return
    base, largest = header.base_timestamp_ms, header.max_timestamp_ms
    if largest < NO_TIMESTAMP or base < NO_TIMESTAMP:
        raise InvalidTimestamp("a timestamp is negative; give milliseconds since 1970")
    if base > largest:
        raise InvalidTimestamp(
            f"the batch's base timestamp {base} is above its max timestamp "
            f"{largest}; base is the first record's, max the largest one's"
        )
    after, before = config.message_timestamp_after_max_ms, config.message_timestamp_before_max_ms
    if largest - now_ms > after:
        raise _outside(batch, config, now_ms, largest)
    for stamp in (base, largest):
        if stamp != NO_TIMESTAMP and now_ms - stamp > before:
            raise _outside(batch, config, now_ms, stamp)


def _outside(
    batch: ScannedBatch, config: TopicConfig, now_ms: int, timestamp_ms: int
) -> InvalidTimestamp:
    """Names the first record at fault, if it is near the batch's beginning."""
    record = _record_outside(batch, config, now_ms)
    index, stamp = record or (-1, timestamp_ms)
    place = "the header of the batch" if record is None else f"record {index} of the batch"
    return InvalidTimestamp(
        f"{place} has timestamp {stamp}, the server's clock says "
        f"{now_ms}; the topic allows {config.message_timestamp_before_max_ms} ms before and "
        f"{config.message_timestamp_after_max_ms} ms after "
        "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
        record_index=index,
    )


def _record_outside(
    batch: ScannedBatch, config: TopicConfig, now_ms: int
) -> tuple[int, int] | None:
    """Index and timestamp of the first record outside the bounds, if it is found soon.

    Only SEARCHED_BYTES_MAX are searched: this runs on the event loop, and compressed records may
    expand to any size.
    """
    seen_bytes = 0
    try:
        for index, (_, stamp, key, value, _) in enumerate(iterate(batch.view, SEARCHED_BYTES_MAX)):
            if stamp != NO_TIMESTAMP and (
                stamp - now_ms > config.message_timestamp_after_max_ms
                or now_ms - stamp > config.message_timestamp_before_max_ms
            ):
                return index, stamp
            seen_bytes += RECORD_OVERHEAD_BYTES_MAX + len(key or b"") + len(value or b"")
            if seen_bytes > SEARCHED_BYTES_MAX:
                return None
    except (InvalidRecord, CorruptMessage) as error:
        if "max_bytes" in error.fields:
            return None
        raise InvalidRecord(f"the records of the batch cannot be read: {error}") from error
    return None
