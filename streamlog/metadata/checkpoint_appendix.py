"""The end of a delta file: the very value of `k` that names it, so that the store alone suffices.

    off  size  field                                    (integers little-endian)
    0    n     `k` as in keys.checkpoint: revision, tenures, this delta, its base; with its own CRC
    n    4     n
    n+4  8     magic "SLCKKEY1"

It lies behind what the file's reference covers: who has `k` never reads it.
"""

from __future__ import annotations

import struct

from streamlog.errors import Corrupt
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.checkpoint import Checkpoint
from streamlog.objectstore.interface import ObjectInfo, ObjectStore

MAGIC = b"SLCKKEY1"
END = struct.Struct("<I8s")
GUESS_BYTES = 4 << 10


def encode_appendix(named: Checkpoint) -> bytes:
    value = checkpoint.encode(named)
    return value + END.pack(len(value), MAGIC)


async def read_appendix(store: ObjectStore, info: ObjectInfo) -> Checkpoint | None:
    """None: the file has none, as a base. Errors: Corrupt, UnsupportedVersion, ObjectNotFound,
    StoreUnavailable.
    """
    length = min(info.size_bytes, GUESS_BYTES)
    data = bytes(await store.get(info.key, info.size_bytes - length, length))
    if len(data) < END.size or data[-len(MAGIC) :] != MAGIC:
        return None
    size, _ = END.unpack(data[-END.size :])
    start = info.size_bytes - END.size - size
    if start < 0:
        raise Corrupt(f"the end of the checkpoint file {info.key} is damaged", object_key=info.key)
    if size + END.size > len(data):
        data = bytes(await store.get(info.key, start, size + END.size))
    found = checkpoint.decode(data[-END.size - size : -END.size])
    if found.delta is None or found.delta.name != info.key:
        raise Corrupt(
            f"the checkpoint file {info.key} has another's name in it", object_key=info.key
        )
    return found
