"""Splitting a batch that the server refuses for its size.

The parts hold the batch's records in their order and take over its sequence numbers, so the server
sees an unbroken sequence without a new epoch. Only a batch that is certainly not stored may be
split.
"""

from __future__ import annotations

from streamlog.client.produce.batches import PendingBatch
from streamlog.codec.batch import NO_PRODUCER, BatchProducer, Compression, sequence_after
from streamlog.codec.records import iterate
from streamlog.errors import MessageTooLarge, RecordListTooLarge, StreamlogError

DECODED_BYTES_MAX = (1 << 31) - 1
"""No bound: this producer made the batch, so that it is no decompression bomb."""


def is_too_large(error: StreamlogError) -> bool:
    """The batch is larger than the topic, a segment or a message allows."""
    return isinstance(error, MessageTooLarge | RecordListTooLarge)


def bytes_max_of(error: StreamlogError) -> int | None:
    """The largest batch that the server takes, where the error says it."""
    limit = error.fields.get("max_bytes")
    return limit if isinstance(limit, int) and limit > 0 else None


def split(
    batch: PendingBatch, bytes_max: int | None, compression: Compression
) -> list[PendingBatch]:
    """At least two batches instead of one, each of `bytes_max` (uncompressed) or half its size at
    most.

    A larger record is alone in its part. For a batch of more than one record.
    """
    if batch.data is None:
        raise AssertionError("a batch that was sent has bytes")
    reader = iterate(batch.data, verify_crc=False, limit_bytes=DECODED_BYTES_MAX)
    records = reader.all()
    size = sum(len(key or b"") + len(value or b"") for _, _, key, value, _ in records)
    limit = max(1, min(bytes_max or size, size // 2))
    parts: list[PendingBatch] = []
    index = 0
    producer = batch.producer
    while index < len(records):
        part = PendingBatch(
            batch.topic,
            batch.partition,
            size_limit_bytes=limit,
            compression=compression,
            opened_at=batch.opened_at,
            deadline=batch.deadline,
            is_transactional=batch.is_transactional,
        )
        first = index
        while index < len(records):
            _, timestamp_ms, key, value, headers = records[index]
            if not part.append(timestamp_ms, key, value, headers):
                break
            index += 1
        part.record_count = index - first
        part.encode(producer)
        part.charged_bytes = len(part.data or b"")
        if producer != NO_PRODUCER:
            next_sequence = sequence_after(producer.base_sequence, part.record_count)
            producer = BatchProducer(producer.producer_id, producer.producer_epoch, next_sequence)
        parts.append(part)
    return parts
