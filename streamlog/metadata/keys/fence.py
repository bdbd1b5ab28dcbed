"""The fence (key `f/T`): whether tenure T may still commit, and how many transfers left it.

    off  size  field
    0    1     version = 1
    1    1     state: 1 LIVE, 2 SEALED
    2    1     WAL mode: 1 object, 2 disk
    3    1     drained: 1 when the seal says that T's disk WAL was empty
    4    4     window W: ids from its floor on that T may have stored uncommitted
    8    8     gen: +1 with every transfer of streams away from T
    16   8     when it was sealed, ms since the Unix epoch; 0 while LIVE

Changes: gen +1 per transfer; LIVE → SEALED once, by any tenure; `drained` only with the seal, by T.
Absent: T never registered, or is retired (sealed, holds nothing, all checkpointed, swept).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from streamlog.errors import Corrupt
from streamlog.kvstore.interface import ValueBelow
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import tenure_key, unpack

VERSION = 1
LAYOUT = struct.Struct("<BBBBIQQ")
LIVE, SEALED = 1, 2
OBJECT, DISK = 1, 2


@dataclass(frozen=True, slots=True)
class Fence:
    is_live: bool
    gen: int
    has_disk_wal: bool
    is_drained: bool
    window: int
    sealed_ms: int = 0

    @property
    def holds_wal(self) -> bool:
        """Acknowledged records may exist on the tenure's disk alone."""
        return self.has_disk_wal and not self.is_drained

    def with_next_gen(self) -> Fence:
        return replace(self, gen=self.gen + 1)

    def sealed(self, now_ms: int, *, drained: bool = False) -> Fence:
        return replace(self, is_live=False, is_drained=drained, sealed_ms=now_ms)


def is_live(key: bytes) -> ValueBelow:
    """True for a LIVE fence of any gen: the state byte comes before all fields that may change."""
    return ValueBelow(key, bytes((VERSION, SEALED)))


def key(prefix: bytes, tenure: Tenure) -> bytes:
    return tenure_key(prefix, b"f", tenure)


def encode(fence: Fence) -> bytes:
    return LAYOUT.pack(
        VERSION,
        LIVE if fence.is_live else SEALED,
        DISK if fence.has_disk_wal else OBJECT,
        fence.is_drained,
        fence.window,
        fence.gen,
        fence.sealed_ms,
    )


def decode(value: bytes) -> Fence:
    state, wal, drained, window, gen, sealed_ms = unpack(LAYOUT, VERSION, value, "a fence")
    if state not in (LIVE, SEALED) or wal not in (OBJECT, DISK) or drained > 1:
        raise Corrupt(f"a fence holds impossible values: state {state}, wal {wal}")
    return Fence(state == LIVE, gen, wal == DISK, bool(drained), window, sealed_ms)
