"""A producer snapshot: the idempotent producers of a partition at the offset in the file's name.

    at  field       type  meaning
    0   version     i16   1; others are refused
    2   CRC-32C     u32   of byte 6 to the end
    6   count       i32   entries that follow

    entry, 46 bytes          type
    producer id              i64
    producer epoch           i16
    last sequence            i32   -1: no batch of this epoch
    last offset              i64   of the last batch; -1 without one
    offset delta             i32   last offset less the first one of that batch
    timestamp                i64   milliseconds; by it the producer expires
    coordinator epoch        i32   of the last marker; -1 without one
    current txn first offset i64   of the open transaction; -1 without one

Kafka keeps five batches of a producer in memory and one here. Source: Kafka's
ProducerStateManager.writeSnapshot, ProducerSnapshot.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.runtime.buffers import Buffer

VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
ENTRY_BYTES = _ENTRY.size


class SnapshotEntry(NamedTuple):
    """The fields of the byte table."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_snapshot(entries: Sequence[SnapshotEntry]) -> bytes:
    body = _COUNT.pack(len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)
    return _HEAD.pack(VERSION, crc32c(body)) + body


def decode_snapshot(name: str, data: Buffer) -> list[SnapshotEntry]:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise Corrupt(f"the producer snapshot {name} is cut short at {len(data)} bytes")
    version, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersion(
            f"the producer snapshot {name} has version {version}, this program knows {VERSION}",
            found=version,
            supported=VERSION,
        )
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise Corrupt(f"the producer snapshot {name} fails its CRC")
    (count,) = _COUNT.unpack_from(body)
    entries = body[_COUNT.size :]
    if count < 0 or len(entries) != count * ENTRY_BYTES:
        raise Corrupt(f"the producer snapshot {name} says {count} entries and has other bytes")
    return [SnapshotEntry._make(fields) for fields in _ENTRY.iter_unpack(entries)]
