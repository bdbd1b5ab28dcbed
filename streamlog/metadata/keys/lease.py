"""`l/T`: empty but for the version byte, on a KV lease of 10 s that T keeps alive.

Changes: goes with its lease.
Absent: T may be dead. It says something about liveness only, never about safety: a tenure without
it may still commit until its fence is sealed.
"""

from __future__ import annotations

from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import tenure_key

VALUE = b"\x01"


def key(prefix: bytes, tenure: Tenure) -> bytes:
    return tenure_key(prefix, b"l", tenure)
