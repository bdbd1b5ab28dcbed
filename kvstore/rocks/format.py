"""RocksDB's keys and values ↔ dataclasses.

    key                         value
    00 "state"                  version u8, revision u64, next lease id u64, writes u64
    01 lease id u64             version u8, ttl_ms u64
    02 lease id u64, user key   version u8
    03 user key                 version u8, create u64, mod u64, lease id u64, the user's value

Integers are big-endian. `writes` counts the write batches, so that after a failed write the store
knows whether it took effect. RocksDB checksums all of it. The version is 1; any other raises
UnsupportedVersion.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.kvstore.interface import StoredKeyValue

VERSION = 1
STATE_KEY = b"\x00state"
LEASE_PREFIX = b"\x01"
LEASED_PREFIX = b"\x02"
DATA_PREFIX = b"\x03"
LEASED_MARK = bytes([VERSION])

_STATE = struct.Struct(">BQQQ")
_LEASE = struct.Struct(">BQ")
_DATA = struct.Struct(">BQQQ")
_ID = struct.Struct(">Q")


class StoreState(NamedTuple):
    revision: int
    next_lease_id: int
    writes: int


def encode_state(state: StoreState) -> bytes:
    return _STATE.pack(VERSION, *state)


def decode_state(value: bytes) -> StoreState:
    return StoreState(*_unpack(_STATE, value, STATE_KEY, exact=True))


def lease_key(lease_id: int) -> bytes:
    return LEASE_PREFIX + _ID.pack(lease_id)


def encode_lease(ttl_ms: int) -> bytes:
    return _LEASE.pack(VERSION, ttl_ms)


def decode_lease(key: bytes, value: bytes) -> tuple[int, int]:
    """lease id, ttl_ms"""
    (ttl_ms,) = _unpack(_LEASE, value, key, exact=True)
    return _lease_id(key), ttl_ms


def leased_key(lease_id: int, key: bytes) -> bytes:
    return LEASED_PREFIX + _ID.pack(lease_id) + key


def decode_leased_key(key: bytes) -> tuple[int, bytes]:
    """lease id, user key"""
    return _lease_id(key), key[9:]


def encode_kv(kv: StoredKeyValue) -> bytes:
    return _DATA.pack(VERSION, kv.create_revision, kv.mod_revision, kv.lease_id) + kv.value


def decode_kv(key: bytes, value: bytes) -> StoredKeyValue:
    """`key` is the user's."""
    created, modified, lease_id = _unpack(_DATA, value, key, exact=False)
    return StoredKeyValue(key, value[_DATA.size :], created, modified, lease_id)


def _lease_id(key: bytes) -> int:
    if len(key) < 9:
        raise Corrupt(f"the lease key {key!r} in RocksDB is cut short")
    return int(_ID.unpack_from(key, 1)[0])


def _unpack(layout: struct.Struct, value: bytes, key: bytes, *, exact: bool) -> tuple[int, ...]:
    if value and value[0] != VERSION:
        raise UnsupportedVersion(
            f"the metadata in RocksDB has version {value[0]}, this release reads {VERSION}; "
            "use the release that wrote it, or a newer one",
            found=value[0],
            supported=VERSION,
        )
    if len(value) < layout.size or (exact and len(value) != layout.size):
        raise Corrupt(
            f"the value of {key!r} in RocksDB has {len(value)} bytes: too few or too many"
        )
    _, *fields = layout.unpack_from(value)
    return tuple(fields)
