"""`r`, written when the metadata was rebuilt from the object store: what came before, in numbers.

    off  size  field
    0    1     version = 1
    1    1     1: trims and deletions up to `from_revision` are known, 0: some were lost
    2    8     when, ms since 1970
    10   8     revision of the checkpoint or backup that it began with; 0: there was none
    18   4     highest node epoch from before
    22   8     lowest object id from after

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
