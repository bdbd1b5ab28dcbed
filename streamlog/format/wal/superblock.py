"""First page of a WAL file, and the folder's identity file.

Superblock (little endian), in the first sector of a file; the rest of the first 4096 bytes is zero

    offset  field             bytes  meaning
    0       magic             8      "SLWALSUP"
    8       version           u16    1
    10      state             u8     1 active (holds frames), 2 free (frames in it mean nothing)
    11      reserved          u8     0
    12      generation        u64    of this life; higher than every earlier one's in the folder
    20      salt              u64    random, of this life
    28      node id           u64    the tenure that writes this life
    36      node epoch        u64
    44      first sequence    u64    of this life's first frame
    52      released through  u64    groups up to this one are stored elsewhere
    60      file bytes        u64    size of the file
    68      crc               u32    CRC-32C of bytes 0 to 68

It fits a 512-byte sector, which a disk writes whole or not at all: after a crash the old or the new
one is there.

Identity file `wal-identity`, replaced by renaming `wal-identity.new`

    0       magic             8      "SLWALIDY"
    8       version           u16    1
    10      cluster bytes     u16    c
    12      tenure count      u32    n
    16      released through  u64    groups up to this one are stored elsewhere
    24      crc               u32    CRC-32C of bytes 0 to 24 and of all that follows
    28      cluster id        c      UTF-8
    28+c    tenures           n × 16: node id u64, node epoch u64

Version policy as in frame.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from streamlog.codec.crc import crc32c
from streamlog.format.corrupt import corrupt, unsupported
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import ALIGNMENT, FileLife
from streamlog.runtime.buffers import Buffer

VERSION = 1
SUPERBLOCK_BYTES = ALIGNMENT
SECTOR_BYTES = 512

_MAGIC = b"SLWALSUP"
_SUPERBLOCK = Struct("<8sHBBQQQQQQQI")
_SUPERBLOCK_CRC_POSITION = 68

_IDENTITY_MAGIC = b"SLWALIDY"
_IDENTITY = Struct("<8sHHIQI")
_IDENTITY_CRC_POSITION = 24
_TENURE = Struct("<QQ")


class FileState(IntEnum):
    ACTIVE = 1
    FREE = 2


@dataclass(frozen=True, slots=True)
class Superblock:
    state: FileState
    life: FileLife
    tenure: Tenure
    first_sequence: int
    released_through: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class WalIdentity:
    """`tenures`: those whose whole log lies in this folder, whether it has entries left or not."""

    cluster_id: str
    tenures: frozenset[Tenure]
    released_through: int = 0


def encode_superblock(block: Superblock) -> bytes:
    """The file's first SUPERBLOCK_BYTES."""
    checked = _SUPERBLOCK.pack(
        _MAGIC,
        VERSION,
        block.state,
        0,
        block.life.generation,
        block.life.salt,
        block.tenure.node_id,
        block.tenure.node_epoch,
        block.first_sequence,
        block.released_through,
        block.file_bytes,
        0,
    )[:_SUPERBLOCK_CRC_POSITION]
    return (checked + crc32c(checked).to_bytes(4, "little")).ljust(SUPERBLOCK_BYTES, b"\0")


def decode_superblock(data: Buffer, *, file_name: str) -> Superblock:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(data) < _SUPERBLOCK.size:
        raise corrupt("the superblock is cut short", file_name, 0, SECTOR_BYTES)
    (
        magic,
        version,
        state,
        _,
        generation,
        salt,
        node_id,
        node_epoch,
        first_sequence,
        released_through,
        file_bytes,
        crc,
    ) = _SUPERBLOCK.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(memoryview(data)[:_SUPERBLOCK_CRC_POSITION]):
        raise corrupt("the superblock's CRC does not match", file_name, 0, SECTOR_BYTES)
    if version != VERSION:
        raise unsupported(file_name, version, VERSION)
    if state not in (FileState.ACTIVE, FileState.FREE):
        raise corrupt("the superblock's state is unknown", file_name, 0, SECTOR_BYTES)
    return Superblock(
        FileState(state),
        FileLife(generation, salt),
        Tenure(node_id, node_epoch),
        first_sequence,
        released_through,
        file_bytes,
    )


def encode_identity(identity: WalIdentity) -> bytes:
    cluster = identity.cluster_id.encode()
    tenures = b"".join(_TENURE.pack(*tenure) for tenure in sorted(identity.tenures))
    body = cluster + tenures
    head = _IDENTITY.pack(
        _IDENTITY_MAGIC,
        VERSION,
        len(cluster),
        len(identity.tenures),
        identity.released_through,
        0,
    )[:_IDENTITY_CRC_POSITION]
    return head + crc32c(body, crc32c(head)).to_bytes(4, "little") + body


def decode_identity(data: Buffer, *, file_name: str) -> WalIdentity:
    """Errors: Corrupt, UnsupportedVersion."""
    view = memoryview(data)
    if len(view) < _IDENTITY.size:
        raise corrupt("the identity file is cut short", file_name, 0, _IDENTITY.size)
    magic, version, cluster_bytes, count, released_through, crc = _IDENTITY.unpack_from(view)
    expected = crc32c(view[_IDENTITY.size :], crc32c(view[:_IDENTITY_CRC_POSITION]))
    if magic != _IDENTITY_MAGIC or crc != expected:
        raise corrupt("the identity file's CRC does not match", file_name, 0, len(view))
    if version != VERSION:
        raise unsupported(file_name, version, VERSION)
    tenures_at = _IDENTITY.size + cluster_bytes
    if tenures_at + count * _TENURE.size != len(view):
        raise corrupt("the identity file's sizes do not add up", file_name, 0, len(view))
    try:
        cluster_id = str(view[_IDENTITY.size : tenures_at], "utf-8")
    except UnicodeDecodeError as error:
        raise corrupt("the cluster id is not UTF-8", file_name, 0, len(view)) from error
    return WalIdentity(
        cluster_id,
        frozenset(Tenure._make(row) for row in _TENURE.iter_unpack(view[tenures_at:])),
        released_through,
    )
