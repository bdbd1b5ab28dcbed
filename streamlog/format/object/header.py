"""An object file: header, data blocks, index region, footer, trailer, without gaps.

    position            what                                                checked by
    0                   header, 16 bytes (this module)                      its own CRC
    16                  data blocks (block.py)                              a CRC each, in the index
    index_position      index block and attributes (index.py)               its own CRC
    footer_position     footer (footer.py)                                  a CRC in the trailer
    size - 56           trailer (footer.py)                                 its own CRC

Header (little endian, as every integer in the file)

    offset  field     bytes  meaning
    0       magic     8      "SLOBJECT"
    8       version   u16    1; 2: staged
    10      reserved  u16    0
    12      crc       u32    CRC-32C of bytes 0 to 12

Version policy: the version in header, index region and trailer is one number, raised by any change
that an older reader would misread. Magic, version and CRC of the three stay where they are in
every version, so that a newer file is told from a damaged one. Every version once released stays
readable. Version 2 differs from 1 in one thing: the object was staged, so that in each stream its
offsets count from 0, and Kafka record batches in it have neither base offset nor leader epoch. The
fold says where it was attached.
"""

from __future__ import annotations

from struct import Struct

from streamlog.codec.crc import crc32c
from streamlog.format.corrupt import corrupt, unsupported
from streamlog.runtime.buffers import Buffer

VERSION = 1
STAGED_VERSION = 2
MAGIC = b"SLOBJECT"
_HEADER = Struct("<8sHHI")
HEADER_BYTES = _HEADER.size
_CRC_POSITION = 12


def is_known(version: int) -> bool:
    return version in (VERSION, STAGED_VERSION)


def encode_header(version: int = VERSION) -> bytes:
    """The first bytes of every object."""
    unchecked = _HEADER.pack(MAGIC, version, 0, 0)[:_CRC_POSITION]
    return unchecked + crc32c(unchecked).to_bytes(4, "little")


def decode_header(data: Buffer, *, object_key: str) -> int:
    """The format version. Errors: Corrupt, UnsupportedVersion."""
    if len(data) < HEADER_BYTES:
        raise corrupt("the header is cut short", object_key, 0, HEADER_BYTES)
    magic, version, _, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc != crc32c(memoryview(data)[:_CRC_POSITION]):
        raise corrupt("not the header of an object", object_key, 0, HEADER_BYTES)
    if not is_known(version):
        raise unsupported(object_key, version, STAGED_VERSION)
    return int(version)
