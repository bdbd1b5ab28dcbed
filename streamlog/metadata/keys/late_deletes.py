"""Late deletes (key `o/T`): ids that a live tenure gave up and deleted once, and deletes once more.

    off  size  field
    0    1     version = 1
    1    8·n   object ids

A PUT of such an object may still arrive after the first delete.
Changes: its tenure replaces it, comparing its node's key, before its floor passes the ids; deleted
when the tenure is retired. The sweep of a sealed tenure deletes these objects too.
Absent: the tenure has no late deletes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import tenure_key

VERSION = 1


def key(prefix: bytes, tenure: Tenure) -> bytes:
    return tenure_key(prefix, b"o", tenure)


def encode(object_ids: Collection[int]) -> bytes:
    return struct.pack(f"<B{len(object_ids)}Q", VERSION, *object_ids)


def decode(value: bytes) -> tuple[int, ...]:
    """Errors: Corrupt, UnsupportedVersion."""
    if value and value[0] > VERSION:
        raise UnsupportedVersion(
            "a list of late deletes was written by a newer version of streamlog; upgrade this node",
            found=value[0],
            supported=VERSION,
        )
    count, rest = divmod(len(value) - 1, 8)
    if not value or value[0] != VERSION or rest:
        raise Corrupt(f"the metadata value of late deletes is unreadable: {len(value)} bytes")
    return struct.unpack_from(f"<{count}Q", value, 1)
