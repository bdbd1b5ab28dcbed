"""Decodes a record of either kind: a commit or a compaction."""

from __future__ import annotations

from streamlog.format.records import commit as commit_record
from streamlog.format.records import compaction as compaction_record
from streamlog.format.records.commit import COMPACTION, CommitRecord
from streamlog.format.records.compaction import CompactionRecord
from streamlog.runtime.buffers import Buffer

Record = CommitRecord | CompactionRecord


def decode(value: Buffer) -> Record:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(value) > 1 and value[1] == COMPACTION:
        return compaction_record.decode(value)
    return commit_record.decode(value)
