"""The trailer of a delta file: a copy of the checkpoint pointer, to recover from the store alone.

    off  size  field                                    (integers little-endian)
    0    n     the value of keys/checkpoint.py: revision, tenures, this delta, its base, a CRC
    n    m     cluster id, ASCII
    -    4     n
    -    4     m
    -    4     CRC-32C of the cluster id, n and m
    -    8     magic "SLCKKEY2"

The version before, "SLCKKEY1", has the value, n and the magic; without a cluster id it is accepted
for any cluster. The trailer lies behind the bytes that the checkpoint pointer covers: a reader that
has the pointer never reads the trailer.

A base has none. Whether a file without a trailer is a base, or a delta whose end is damaged or cut,
its tail tells (format/checkpoint/tail.py): a base has no state, so it ends with the place at which
the object blocks end and the tail begins, and a CRC.
"""

from __future__ import annotations

import struct

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, ForeignCluster
from streamlog.format.checkpoint.tail import decode_tail
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.checkpoint import CheckpointPointer
from streamlog.objectstore.interface import ObjectInfo, ObjectStore

MAGIC = b"SLCKKEY2"
MAGIC_1 = b"SLCKKEY1"
SIZES = struct.Struct("<II")
U32 = struct.Struct("<I")
END_BYTES = SIZES.size + U32.size + len(MAGIC)
END_1_BYTES = U32.size + len(MAGIC_1)
BASE_END = struct.Struct("<QI")
GUESS_BYTES = 4 << 10


def encode_trailer(named: CheckpointPointer, cluster_id: str) -> bytes:
    value, name = checkpoint.encode(named), cluster_id.encode()
    owner = name + SIZES.pack(len(value), len(name))
    return value + owner + U32.pack(crc32c(owner)) + MAGIC


async def read_trailer(
    store: ObjectStore, info: ObjectInfo, cluster_id: str
) -> CheckpointPointer | None:
    """The checkpoint that the delta's trailer holds; None: the file is a base.

    Errors: Corrupt, UnsupportedVersion, ForeignCluster, ObjectNotFound, StoreUnavailable.
    """
    length = min(info.size_bytes, GUESS_BYTES)
    data = bytes(await store.get(info.key, info.size_bytes - length, length))
    if len(data) >= END_BYTES and data.endswith(MAGIC):
        size, name_size = SIZES.unpack_from(data, len(data) - END_BYTES)
        behind = END_BYTES + name_size
    elif len(data) >= END_1_BYTES and data.endswith(MAGIC_1):
        (size,) = U32.unpack_from(data, len(data) - END_1_BYTES)
        behind, name_size = END_1_BYTES, 0
    else:
        await _check_base(store, info, data)
        return None
    start = info.size_bytes - behind - size
    if start < 0:
        raise _damaged(info)
    if size + behind > len(data):
        data = bytes(await store.get(info.key, start, size + behind))
    data = data[len(data) - behind - size :]
    if data.endswith(MAGIC):
        _check_owner(info, data[size : -len(MAGIC)], name_size, cluster_id)
    named = checkpoint.decode(data[:size])
    if named.delta is None or named.delta.name != info.key:
        raise Corrupt(
            f"the checkpoint file {info.key} names another file as its own", object_key=info.key
        )
    return named


async def _check_base(store: ObjectStore, info: ObjectInfo, end: bytes) -> None:
    if len(end) < BASE_END.size:
        raise _damaged(info)
    position, _ = BASE_END.unpack_from(end, len(end) - BASE_END.size)
    if position >= info.size_bytes:
        raise _damaged(info)
    tail = await store.get(info.key, position, info.size_bytes - position)
    if decode_tail(tail, info.key, position).state:
        raise _damaged(info)


def _check_owner(info: ObjectInfo, owner: bytes, name_size: int, cluster_id: str) -> None:
    (crc,) = U32.unpack(owner[-U32.size :])
    if crc != crc32c(owner[: -U32.size]):
        raise _damaged(info)
    name = owner[:name_size].decode("ascii", "replace")
    if name != cluster_id:
        raise ForeignCluster(
            f"the checkpoint file {info.key} belongs to the cluster {name}",
            store_cluster=name,
            meta_cluster=cluster_id,
        )


def _damaged(info: ObjectInfo) -> Corrupt:
    return Corrupt(f"the end of the checkpoint file {info.key} is damaged", object_key=info.key)
