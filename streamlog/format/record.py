"""A record under `c/`, of either kind."""

from __future__ import annotations

from streamlog.format import commit_record, compaction_record
from streamlog.format.commit_record import COMPACTION, CommitRecord
from streamlog.format.compaction_record import CompactionRecord
from streamlog.runtime.buffers import Buffer

Record = CommitRecord | CompactionRecord


def decode(value: Buffer) -> Record:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(value) > 1 and value[1] == COMPACTION:
        return compaction_record.decode(value)
    return commit_record.decode(value)
