"""Entries for object file tests."""

from __future__ import annotations

from streamlog.codec.crc import crc32c_parts
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.entry import StreamEntry
from streamlog.format.object.footer import ObjectIdentity
from streamlog.model.batch import StoredBatch
from streamlog.runtime.buffers import Buffer

IDENTITY = ObjectIdentity("cluster-ä", 7, 3, 0x1234_5678_9ABC)
DAMAGE = (Corrupt, UnsupportedVersion)


def entry(
    stream_id: int,
    base_offset: int,
    payload: bytes | tuple[bytes, ...],
    *,
    record_count: int = 1,
    epoch: int = 1,
    timestamp_ms: int = 0,
    attributes: bytes = b"",
) -> StreamEntry:
    parts: tuple[Buffer, ...] = (payload,) if isinstance(payload, bytes) else payload
    return StreamEntry(
        stream_id,
        epoch,
        base_offset,
        record_count,
        timestamp_ms,
        parts,
        attributes,
        crc32c_parts(parts),
    )


def as_tuple(batch: StoredBatch | StreamEntry) -> tuple[int, int, int, bytes, bytes]:
    return (
        batch.base_offset,
        batch.record_count,
        batch.base_timestamp_ms,
        b"".join(batch.parts),
        batch.attributes,
    )


GOLDEN_ENTRIES = [
    entry(1, 0, b"first", attributes=b"attr-1", timestamp_ms=1_700_000_000_000),
    entry(1, 1, (b"in ", b"pieces"), record_count=9, timestamp_ms=-1),
    entry(1, 10, b"", epoch=2),
    entry(5, 1 << 40, b"x" * 300, record_count=1000, epoch=4, attributes=bytes(range(64))),
    entry(5, (1 << 40) + 1000, b"y" * 300),
    entry((1 << 63) - 1, 3, b"after a gap", epoch=1 << 33),
]
