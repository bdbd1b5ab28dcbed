"""A record (key `c/T/seq`): the seq-th commit of tenure T, from 1; bytes in `format/records`.

Changes: immutable; deleted once a checkpoint covers it.
Absent: not written yet (seq above the head), or covered by a checkpoint (any other seq).
"""

from __future__ import annotations

from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import U64, tenure_key


def key(prefix: bytes, tenure: Tenure, seq: int) -> bytes:
    return tenure_key(prefix, b"c", tenure) + b"/" + U64.pack(seq)
