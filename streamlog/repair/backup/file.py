"""A backup of the metadata: every key of a cluster at one revision. Bytes ↔ dataclass, no I/O.

    off  size  field                                    (integers little-endian)
    0    8     magic "SLBACKUP"
    8    2     version = 1
    10   2     0
    12   4     CRC-32C of bytes 0 to 12
    16   -     chunks, then the last chunk, of length 0

Chunk

    0    4     length n of what follows the CRC; 0: the last one
    4    4     CRC-32C of the length and the n bytes
    8    n     a zstd frame of at most 4 MiB: the first chunk's is JSON (cluster_id, revision,
               created_ms), every other's is a row of keys

Key

    0    4     bytes of the key k
    4    4     bytes of the value v
    8    8     revision of its creation
    16   8     revision of its last change
    24   k     key, without the cluster's prefix
    -    v     value

A file that was cut short lacks the last chunk and is refused. A newer version is refused. Keys on
leases (liveness, pins) are not in it, because they mean nothing later.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import zstandard

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.kvstore.interface import StoredKeyValue

MAGIC = b"SLBACKUP"
VERSION = 1
HEADER = struct.Struct("<8sHH")
CHUNK = struct.Struct("<II")
KEY = struct.Struct("<IIQQ")
U32 = struct.Struct("<I")
CHUNK_BYTES_TARGET = 1 << 20
CHUNK_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class BackupHead:
    """`created_ms`: ms since the Unix epoch."""

    cluster_id: str
    revision: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Backup:
    """`kvs` by key, without the cluster's prefix."""

    head: BackupHead
    kvs: Sequence[StoredKeyValue]


def encode_head(head: BackupHead) -> bytes:
    """The beginning of a file."""
    start = HEADER.pack(MAGIC, VERSION, 0)
    fields = {
        "cluster_id": head.cluster_id,
        "revision": head.revision,
        "created_ms": head.created_ms,
    }
    return start + U32.pack(crc32c(start)) + _chunk(json.dumps(fields).encode())


def encode_keys(kvs: Iterable[StoredKeyValue]) -> bytes:
    """A chunk; about CHUNK_BYTES_TARGET of keys go into one."""
    parts: list[bytes] = []
    for kv in kvs:
        parts += (
            KEY.pack(len(kv.key), len(kv.value), kv.create_revision, kv.mod_revision),
            kv.key,
            kv.value,
        )
    return _chunk(b"".join(parts))


def encode_end() -> bytes:
    """The end of a file."""
    length = U32.pack(0)
    return length + U32.pack(crc32c(length))


def decode(data: bytes, name: str) -> Backup:
    """`name` stands in error texts. Errors: Corrupt, UnsupportedVersion."""
    if len(data) < HEADER.size + U32.size:
        raise _corrupt(name, "it is too short for a backup", 0, len(data))
    magic, version, _ = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _corrupt(name, "it is no backup", 0, HEADER.size)
    (crc,) = U32.unpack_from(data, HEADER.size)
    if crc != crc32c(memoryview(data)[: HEADER.size]):
        raise _corrupt(name, "its beginning is damaged", 0, HEADER.size)
    if version != VERSION:
        raise UnsupportedVersion(
            f"the backup {name} has version {version}, this release reads {VERSION}; restore it "
            "with a newer release",
            found=version,
            supported=VERSION,
        )
    chunks = _chunks(data, name)
    try:
        fields = json.loads(next(chunks))
        head = BackupHead(fields["cluster_id"], fields["revision"], fields["created_ms"])
        return Backup(head, [kv for chunk in chunks for kv in _keys(chunk)])
    except (StopIteration, ValueError, KeyError, TypeError, struct.error) as error:
        raise _corrupt(name, f"it makes no sense: {error!r}", 0, len(data)) from error


def _chunk(content: bytes) -> bytes:
    packed = zstandard.compress(content, 3)
    length = U32.pack(len(packed))
    return length + U32.pack(crc32c(packed, crc32c(length))) + packed


def _chunks(data: bytes, name: str) -> Iterator[bytes]:
    view, position = memoryview(data), HEADER.size + U32.size
    while True:
        if position + CHUNK.size > len(data):
            raise _corrupt(name, "it was cut short", position, len(data))
        length, crc = CHUNK.unpack_from(data, position)
        packed = view[position + CHUNK.size : position + CHUNK.size + length]
        if len(packed) != length:
            raise _corrupt(name, "it was cut short", position, len(data))
        if crc != crc32c(packed, crc32c(view[position : position + U32.size])):
            raise _corrupt(name, "a chunk is damaged", position, position + CHUNK.size + length)
        position += CHUNK.size + length
        if not length:
            if position != len(data):
                raise _corrupt(name, "something follows its end", position, len(data))
            return
        try:
            # The bound below applies only to frames that do not state their size.
            if zstandard.frame_content_size(packed) > CHUNK_BYTES_MAX:
                raise _corrupt(name, "a chunk is too large", position - length, position)
            yield zstandard.decompress(packed, max_output_size=CHUNK_BYTES_MAX)
        except zstandard.ZstdError as error:
            raise _corrupt(
                name, "a chunk cannot be decompressed", position, position + length
            ) from error


def _keys(chunk: bytes) -> Iterator[StoredKeyValue]:
    position = 0
    while position < len(chunk):
        key_bytes, value_bytes, created, changed = KEY.unpack_from(chunk, position)
        position += KEY.size
        end = position + key_bytes + value_bytes
        if end > len(chunk):
            raise ValueError("a key passes the end of its chunk")
        yield StoredKeyValue(
            chunk[position : position + key_bytes],
            chunk[position + key_bytes : end],
            created,
            changed,
        )
        position = end


def _corrupt(name: str, what: str, start: int, end: int) -> Corrupt:
    return Corrupt(
        f"the backup {name} cannot be used: {what}; take another one",
        object_key=name,
        start=start,
        end=end,
    )
