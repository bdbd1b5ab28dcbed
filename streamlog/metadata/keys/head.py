"""The head (key `h/T`): the sequence number of T's last record.

    off  size  field
    0    1     version = 1
    1    8     seq: 0 before the first record

Changes: +1 with every record, in the record's transaction, which compares it.
Absent: as for `f/T`.
"""

from __future__ import annotations

import struct

from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import tenure_key, unpack

VERSION = 1
LAYOUT = struct.Struct("<BQ")


def key(prefix: bytes, tenure: Tenure) -> bytes:
    return tenure_key(prefix, b"h", tenure)


def encode(seq: int) -> bytes:
    return LAYOUT.pack(VERSION, seq)


def decode(value: bytes) -> int:
    return unpack(LAYOUT, VERSION, value, "a head")[0]
