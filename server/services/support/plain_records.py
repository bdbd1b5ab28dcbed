"""Plain records ↔ record batches, for clients without a codec; 1 MiB in a request or answer."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.batch import scan
from streamlog.codec.committed import committed
from streamlog.codec.piecewise import iterate
from streamlog.codec.records import BatchBuilder
from streamlog.errors import CorruptMessage, Invalid, InvalidRecord, MessageTooLarge
from streamlog.log.api.abstract_log import AbortedTransaction
from streamlog.runtime.buffers import Buffer, join
from streamlog.server.services.records.requests import PlainRecord
from streamlog.settings.limits import RECORDS_FORM_BYTES_MAX


def encode_plain_records(records: Sequence[PlainRecord], now_ms: int) -> Buffer:
    """One batch, uncompressed, without a producer id. Errors: Invalid, MessageTooLarge."""
    if not records:
        raise Invalid("the partition has neither record_batches nor records; give one of them")
    builder = BatchBuilder(1 << 30)
    for record in records:
        builder.append(
            now_ms if record.timestamp_ms is None else record.timestamp_ms,
            record.key,
            record.value,
            list(record.headers),
        )
        if builder.size_bytes > RECORDS_FORM_BYTES_MAX:
            raise MessageTooLarge(
                f"plain records make a batch of more than {RECORDS_FORM_BYTES_MAX} bytes; send "
                "fewer a request, or record batches",
                size_bytes=builder.size_bytes,
                max_bytes=RECORDS_FORM_BYTES_MAX,
            )
    return builder.build()


def decode_plain_records(
    parts: Sequence[Buffer],
    start_offset: int,
    room_bytes: int,
    end_offset: int,
    record_bytes_max: int,
    aborted: Sequence[AbortedTransaction] = (),
) -> tuple[list[PlainRecord], int, int]:
    """Records from start_offset on that fit, the offset of the next fetch, and the bytes used.

    Unless room_bytes is 0, the first record is returned even if it is larger (at most
    `record_bytes_max`). Batches without room are not decompressed. Control batches and those of
    the aborted transactions are skipped.
    A batch that cannot be decoded raises if it is the first, and else ends the records.
    Errors: CorruptMessage, InvalidRecord.
    """
    out: list[PlainRecord] = []
    used = 0
    dropped = [(one.first_offset, one.producer_id) for one in aborted]
    for batch in committed(scan(join(parts), verify_crc=False), dropped):
        next_offset = max(batch.header.base_offset, start_offset)
        try:
            for offset, stamp, key, value, headers in iterate(batch.view, record_bytes_max):
                if offset < start_offset:
                    continue
                size = 32 + len(key or b"") + len(value or b"")
                size += sum(len(name) + len(data or b"") + 8 for name, data in headers)
                if used + size > room_bytes and (out or not room_bytes):
                    return out, offset, used
                used += size
                out.append(PlainRecord(key, value, headers, stamp, offset))
                next_offset = offset + 1
        except (CorruptMessage, InvalidRecord):
            if not out:
                raise
            return out, next_offset, used
    return out, end_offset, used
