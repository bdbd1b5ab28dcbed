"""`c/T/seq`, a record: what T committed as its seq-th (from 1); bytes in `format.commit_record`.

Changes: immutable; deleted once a checkpoint covers it.
Absent: above the head: not written; else a checkpoint has it.
"""

from __future__ import annotations

from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import U64, tenure_key


def key(prefix: bytes, tenure: Tenure, seq: int) -> bytes:
    return tenure_key(prefix, b"c", tenure) + b"/" + U64.pack(seq)
