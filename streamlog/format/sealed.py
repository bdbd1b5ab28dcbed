"""Values that start with a version byte and end with a CRC-32C over everything before it.

Every version of every such value keeps both, so that a reader can tell damage from a newer version.
"""

from __future__ import annotations

import struct

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.runtime.buffers import Buffer

CRC = struct.Struct("<I")


def seal(body: bytes) -> bytes:
    return body + CRC.pack(crc32c(body))


def unseal(value: Buffer, version: int, what: str) -> memoryview:
    """The bytes before the CRC, version byte included. Errors: Corrupt, UnsupportedVersion."""
    end = len(value) - CRC.size
    body = memoryview(value)[: max(end, 0)]
    if end < 1 or CRC.unpack_from(value, end)[0] != crc32c(body):
        raise Corrupt(f"{what} of {len(value)} bytes fails its CRC")
    if body[0] > version:
        raise UnsupportedVersion(
            f"{what} was written by a newer version of streamlog; upgrade this node",
            found=body[0],
            supported=version,
        )
    if body[0] != version:
        raise Corrupt(f"{what} has the version {body[0]}, which never was")
    return body
