"""Runs plug-ins that were written against the interfaces of KIP-405's first draft.

`api` is what such a plug-in implements (docs/seed-names.md); `storage_adapter` makes a
RemoteStorageManager of it. It imports tiered/api, format, codec, log/api and the ground. Used by
the wiring and by such plug-ins.
"""

from streamlog.tiered.draft.api import (
    DraftLogSegment,
    DraftRemoteStorageManager,
    RemoteLogIndexEntry,
    RemoteLogSegmentInfo,
)

__all__ = [
    "DraftLogSegment",
    "DraftRemoteStorageManager",
    "RemoteLogIndexEntry",
    "RemoteLogSegmentInfo",
]
