"""The recovery key (`r`): written when the metadata is rebuilt from the object store.

    off  size  field
    0    1     version = 1
    1    1     1: trims and deletions up to `from_revision` are known, 0: some were lost
    2    8     when, ms since 1970
    10   8     revision of the checkpoint or backup that the rebuild began with; 0: none
    18   4     highest node epoch used before the rebuild
    22   8     lowest object id used after it

Changes: never; a later rebuild begins with empty metadata.
Absent: the metadata was never rebuilt, or by a release before this key.
"""

from __future__ import annotations

import struct

from streamlog.metadata.interface import Recovery
from streamlog.metadata.keys.space import unpack

VERSION = 1
VALUE = struct.Struct("<BBQQIQ")


def key(prefix: bytes) -> bytes:
    return prefix + b"r"


def encode(recovery: Recovery) -> bytes:
    return VALUE.pack(
        VERSION,
        recovery.knows_deletions,
        recovery.at_ms,
        recovery.from_revision,
        recovery.node_epoch_max,
        recovery.object_id_min,
    )


def decode(value: bytes) -> Recovery:
    """Errors: Corrupt, UnsupportedVersion."""
    knows, *numbers = unpack(VALUE, VERSION, value, "the metadata's recovery")
    return Recovery(bool(knows), *numbers)
