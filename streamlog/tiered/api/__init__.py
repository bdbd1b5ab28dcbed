"""What a plug-in of tiered storage implements and is given (docs/tiered-storage.md). Pure.

It imports errors, the model and the ground alone. Used by the other parts and by plug-ins.
"""

from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentFile,
    StoredFile,
)

__all__ = [
    "IndexType",
    "LogSegmentData",
    "RemoteLogMetadataManager",
    "RemoteLogSegmentId",
    "RemoteLogSegmentMetadata",
    "RemoteLogSegmentMetadataUpdate",
    "RemoteLogSegmentState",
    "RemotePartitionDeleteMetadata",
    "RemotePartitionDeleteState",
    "RemoteStorageManager",
    "SegmentFile",
    "StoredFile",
    "TopicIdPartition",
]
