"""The lease key (`l/T`): only a version byte, on a KV lease of 10 s that T keeps alive.

Changes: deleted with its lease.
Absent: T may be dead. This is about liveness only, never about safety: a tenure without a lease may
still commit until its fence is sealed.
"""

from __future__ import annotations

from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import tenure_key

VALUE = b"\x01"


def key(prefix: bytes, tenure: Tenure) -> bytes:
    return tenure_key(prefix, b"l", tenure)
