"""The lineage (key `g`) that the metadata belongs to, written by `recover` and `restore`.

    off  size  field
    0    1     version = 1
    1    8     number, as in cluster.json
    9    16    id, as in cluster.json

Changes: never; a later recovery begins with empty metadata.
Absent: the metadata was never rebuilt, or by a release before this key: lineage 0.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from streamlog.kvstore.interface import KVStore
from streamlog.metadata.keys import recovery
from streamlog.metadata.keys.space import unpack
from streamlog.objectstore.cluster.guard import FIRST, Lineage

VERSION = 1
VALUE = struct.Struct("<BQ16s")


def key(prefix: bytes) -> bytes:
    return prefix + b"g"


def encode(lineage: Lineage) -> bytes:
    return VALUE.pack(VERSION, lineage.number, bytes.fromhex(lineage.id))


def decode(value: bytes) -> Lineage:
    """Errors: Corrupt, UnsupportedVersion."""
    unpack(VALUE, VERSION, value, "the metadata's lineage")
    _, number, lineage_id = VALUE.unpack(value)
    return Lineage(number, lineage_id.hex())


async def read(kv: KVStore, prefix: bytes) -> Lineage:
    """Errors: Corrupt, UnsupportedVersion, MetadataUnavailable."""
    entry = await kv.get(key(prefix))
    if entry is None:
        return FIRST
    rebuilt = await kv.get(recovery.key(prefix))
    knows_deletions = rebuilt is None or recovery.decode(rebuilt.value).knows_deletions
    return replace(decode(entry.value), knows_deletions=knows_deletions)
