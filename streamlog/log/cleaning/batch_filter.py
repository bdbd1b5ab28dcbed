"""What of each batch survives a cleaning (Kafka's Cleaner.cleanInto, MemoryRecords.filterTo).

1. Records of aborted transactions go. A record goes where the map knows a later one of its key, and
   where it has no key.
2. A tombstone (no value) and a marker of an empty transaction stay for `delete_retention_ms` from
   the first cleaning that meets them: the batch gets a delete horizon, that is its base timestamp
   and attribute bit 6. A later cleaning past the horizon removes them.
3. A batch that changes keeps base offset, last offset delta, producer, sequence and codec. Its
   records keep their bytes, unless the base timestamp changes.
4. A batch of which nothing is left goes, unless it is the last of an active producer, whose next
   sequence is in its header, or ends at the upper bound: then its header stays, without records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.codec import compression
from streamlog.codec.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    Compression,
    ScannedBatch,
    pack_header,
    resealed,
    scan,
)
from streamlog.codec.control import EndMarker, decode_end_marker
from streamlog.codec.finish import finish
from streamlog.codec.pure.records import put_record, varint, wrapped
from streamlog.codec.records import Record, RecordReader
from streamlog.log.api.cleaning import LastRecordOfProducer
from streamlog.log.cleaning.cleaned_transactions import CleanedTransactions
from streamlog.log.cleaning.offset_map import KeyOffsetMap
from streamlog.runtime.buffers import Buffer


@dataclass(slots=True)
class CleaningStats:
    """Counts of one cleaning; bytes as stored."""

    batches_read: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    records_without_key: int = 0


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """One cleaning's rules; `keep` is called for all batches of the cleaned range, in order.

    `upper_bound_offset`: the end (exclusive) of the cleaned range. A batch that ends there stays.
    """

    offsets: KeyOffsetMap
    transactions: CleanedTransactions
    last_records: Mapping[int, LastRecordOfProducer]
    now_ms: int
    delete_retention_ms: int
    upper_bound_offset: int
    stats: CleaningStats = field(default_factory=CleaningStats)

    def keep(self, batches: Buffer) -> bytes:
        """The batches as they are to be written. Takes long: to be called through `Offload`.

        Errors: CorruptMessage, InvalidRecord; the cleaning cannot go on then.
        """
        out = bytearray()
        for batch in scan(batches):
            self.stats.batches_read += 1
            kept = self._kept(batch)
            out += kept
        self.stats.bytes_read += len(batches)
        self.stats.bytes_written += len(out)
        return bytes(out)

    def _kept(self, batch: ScannedBatch) -> Buffer:
        header = batch.header
        self.stats.records_read += header.record_count
        is_empty_marker = False
        if header.is_control:
            is_empty_marker = self.transactions.is_marker_empty(header, _marker(batch))
            is_discarded = is_empty_marker and self._is_past_horizon(header)
        else:
            is_discarded = self.transactions.is_aborted(header)
        if is_discarded or header.record_count == 0:
            return self._empty(header)
        if header.is_control:
            return self._kept_marker(batch, is_empty_marker)
        return self._kept_data(batch)

    def _kept_marker(self, batch: ScannedBatch, is_empty: bool) -> Buffer:
        self.stats.records_written += batch.header.record_count
        if not is_empty or batch.header.attributes & DELETE_HORIZON:
            return batch.view
        block = _records(batch)
        return _with_horizon(
            batch.header,
            RecordReader(batch.header, block, batch.header.base_offset).all(),
            self.now_ms + self.delete_retention_ms,
        )

    def _kept_data(self, batch: ScannedBatch) -> Buffer:
        header, block = batch.header, _records(batch)
        records = RecordReader(header, block, header.base_offset).all()
        keeps_tombstones = not self._is_past_horizon(header)
        flags = [self.keeps_record(record, keeps_tombstones) for record in records]
        count = sum(flags)
        self.stats.records_written += count
        if not count:
            return self._empty(header)
        kept = [record for record, is_kept in zip(records, flags, strict=True) if is_kept]
        if not header.attributes & DELETE_HORIZON and any(one[3] is None for one in kept):
            return _with_horizon(header, kept, self.now_ms + self.delete_retention_ms)
        if count == len(records):
            return batch.view
        largest = header.max_timestamp_ms
        if not header.is_log_append_time:
            largest = max(record[1] for record in kept)
        changed = header._replace(record_count=count, max_timestamp_ms=largest)
        return _rewritten(changed, _sliced(block, flags))

    def keeps_record(self, record: Record, keeps_tombstones: bool) -> bool:
        offset, _, key, value, _ = record
        if offset > self.offsets.latest_offset:
            return True
        if key is None:
            self.stats.records_without_key += 1
            return False
        return offset >= self.offsets.get(key) and (value is not None or keeps_tombstones)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return bool(header.attributes & DELETE_HORIZON) and header.base_timestamp_ms <= self.now_ms

    def _empty(self, header: BatchHeader) -> bytes:
        if header.next_offset != self.upper_bound_offset and not self.is_last_of_producer(header):
            return b""
        attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
        changed = header._replace(
            attributes=attributes,
            base_timestamp_ms=-1,
            record_count=0,
            length=HEADER_BYTES - LENGTH_END,
        )
        return bytes(resealed(bytearray(pack_header(changed))))

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch


def add_keys(
    batches: Buffer,
    start_offset: int,
    end_offset: int,
    offsets: KeyOffsetMap,
    transactions: CleanedTransactions,
) -> bool:
    """Puts keys in [start, end) of what was not aborted into the map; False: full, or at the end.

    Then `offsets.latest_offset` is where this round ends. Takes long: to be called through
    `Offload`. Errors: CorruptMessage, InvalidRecord.
    """
    for batch in scan(batches):
        header = batch.header
        if header.base_offset >= end_offset:
            # An open transaction may begin here: nobody knows yet how it ends.
            return False
        if header.is_control:
            transactions.is_marker_empty(header, _marker(batch))
        elif not transactions.is_aborted(header) and header.record_count:
            for offset, _, key, _, _ in RecordReader(header, _records(batch), header.base_offset):
                if key is not None and offset >= start_offset and not offsets.put(key, offset):
                    return False
        if header.last_offset >= start_offset:
            offsets.latest_offset = header.last_offset
    return True


def check(batches: Buffer) -> None:
    """Decodes all that `keep` would. Takes long: to be called through `Offload`.

    Errors: CorruptMessage, InvalidRecord.
    """
    for batch in scan(batches):
        header = batch.header
        if header.is_control:
            _marker(batch)
        elif header.record_count:
            RecordReader(header, _records(batch), header.base_offset).all()


def _marker(batch: ScannedBatch) -> EndMarker | None:
    return decode_end_marker(batch.view) if batch.header.record_count else None


def _records(batch: ScannedBatch) -> Buffer:
    return compression.decompress(batch.header.codec, batch.view[HEADER_BYTES:])


def _sliced(block: Buffer, flags: list[bool]) -> bytearray:
    """The bytes of the flagged records; neighbours are copied at once."""
    data, kept = bytes(block), bytearray()
    position = run_start = 0
    for is_kept in flags:
        size, body = varint(data, position)
        if not is_kept:
            kept += data[run_start:position]
            run_start = body + size
        position = body + size
    kept += data[run_start:position]
    return kept


def _with_horizon(header: BatchHeader, records: list[Record], horizon_ms: int) -> bytearray:
    block = bytearray()
    for offset, timestamp_ms, key, value, headers in records:
        put_record(
            block,
            timestamp_delta=wrapped(timestamp_ms - horizon_ms),
            offset_delta=offset - header.base_offset,
            key=key,
            value=value,
            headers=headers,
        )
    largest = header.max_timestamp_ms
    if not header.is_log_append_time:
        largest = max(record[1] for record in records)
    changed = header._replace(
        attributes=header.attributes | DELETE_HORIZON,
        base_timestamp_ms=horizon_ms,
        max_timestamp_ms=largest,
        record_count=len(records),
    )
    return _rewritten(changed, block)


def _rewritten(header: BatchHeader, block: bytearray) -> bytearray:
    codec = Compression(header.codec)
    plain = header._replace(
        attributes=header.attributes & ~CODEC_MASK,
        length=HEADER_BYTES - LENGTH_END + len(block),
    )
    return finish(bytearray(pack_header(plain)) + block, codec, None)
