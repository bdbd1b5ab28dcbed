"""The compaction counter (key `x`): how many compactions, attaches and unstages there were.

    off  size  field
    0    1     version = 1
    1    8     the counter

Changes: +1 with every record of a compaction, attach or unstage, in its transaction, which compares
it.
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
    """Compares true while the counter has that value."""
    if not compactions:
        return RevisionIs(key(prefix), 0)
    return ValueIs(key(prefix), encode(compactions))
