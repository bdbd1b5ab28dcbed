"""`x`: how many compactions there were.

    off  size  field
    0    1     version = 1
    1    8     compactions so far

Changes: +1 with every compaction record, in its transaction, which compares it.
Absent: 0.
"""

from __future__ import annotations

import struct

from streamlog.kvstore.interface import Compare, RevisionIs, ValueIs
from streamlog.metadata.keys.space import unpack

VERSION = 1
LAYOUT = struct.Struct("<BQ")


def key(prefix: bytes) -> bytes:
    return prefix + b"x"


def encode(compactions: int) -> bytes:
    return LAYOUT.pack(VERSION, compactions)


def decode(value: bytes) -> int:
    return unpack(LAYOUT, VERSION, value, "the compaction counter")[0]


def compare(prefix: bytes, compactions: int) -> Compare:
    """Holds while there were so many."""
    if not compactions:
        return RevisionIs(key(prefix), 0)
    return ValueIs(key(prefix), encode(compactions))
