"""`o/T`: object ids that a living tenure gave up and deleted once; a PUT of one may still land.

    off  size  field
    0    1     version = 1
    1    8·n   object ids

Changes: by its tenure, which compares its node's key, before the floor passes the ids; goes when
the tenure is settled. Whoever sweeps the sealed tenure deletes these ids too.
Absent: the tenure gave up nothing.
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
            "a list of late objects was written by a newer version of streamlog; upgrade this node",
            found=value[0],
            supported=VERSION,
        )
    count, rest = divmod(len(value) - 1, 8)
    if not value or value[0] != VERSION or rest:
        raise Corrupt(f"the metadata value of late objects is unreadable: {len(value)} bytes")
    return struct.unpack_from(f"<{count}Q", value, 1)
