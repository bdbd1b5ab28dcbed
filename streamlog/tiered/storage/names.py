"""What the files of a remote segment are called. Pure.

    <topic>-<partition>-<topic id>/<base offset>.<segment id>.<kind>    in a file system
    <prefix>/<topic id>/<partition>/<base offset>.<segment id>.<kind>   in the object store
    <topic>-<partition>-<topic id>/<base offset>-<segment id>.<suffix>  as LocalTieredStorage

1. A base offset has 20 digits, so that names sort as offsets do.
2. A kind is `segment`, or IndexType's name in capitals. Ids are Kafka's Uuid texts: 22 characters
   of URL-safe base64.
3. Keys of an ObjectStore have no capitals (objectstore/keys.py), and two base64 texts may differ
   in nothing else. There an id is 32 hex digits, and the kind is in small letters: `.OFFSET` is
   `.offset`. The topic's name, which may have capitals, is left out: its id says more.
4. Every part of a name is a number, an id, or a topic's name by Kafka's rule, so no name leads out
   of its folder.

Source: KIP-405 (object names); Kafka 4.1.1's RemoteLogSegmentFileset, RemoteTopicPartitionDirectory
and LogFileUtils (LocalTieredStorage).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID

from streamlog.errors import Corrupt, InvalidName
from streamlog.format.kafka_files.properties import decode_id, encode_id
from streamlog.log.api.names import check_topic_name
from streamlog.objectstore.keys import check_key
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, TopicIdPartition
from streamlog.tiered.api.storage_manager import IndexType

OWN_PREFIX = "remote"
"""Of keys in the node's own object store."""

_KEY = re.compile(
    r"(?P<topic>[0-9a-f]{32})/(?P<partition>\d{1,10})/\d{20}\.(?P<segment>[0-9a-f]{32})\."
    rf"({'|'.join(['segment', *(one.value.lower() for one in IndexType)])})",
    re.ASCII,
)
_FOLDER = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})-(?P<id>[\w-]{22})", re.ASCII
)
_NAME = re.compile(
    r"\d{20}\.(?P<segment>[\w-]{22})\."
    rf"({'|'.join(['segment', *(one.value for one in IndexType)])})",
    re.ASCII,
)
FileKind = IndexType | None
"""Which file of a segment; None: its log."""

KINDS: tuple[FileKind, ...] = (*IndexType, None)
"""In the order in which they are stored: a log that is there has its indexes."""

SUFFIXES: Mapping[FileKind, str] = {
    None: "log",
    IndexType.OFFSET: "index",
    IndexType.TIMESTAMP: "timeindex",
    IndexType.PRODUCER_SNAPSHOT: "snapshot",
    IndexType.TRANSACTION: "txnindex",
    IndexType.LEADER_EPOCH: "leader_epoch_checkpoint",
}
"""Of LocalTieredStorage's files."""


def object_name(metadata: RemoteLogSegmentMetadata, kind: FileKind) -> str:
    """KIP-405's name of a file, in a file system."""
    segment_id = encode_id(metadata.remote_log_segment_id.id)
    return f"{_base(metadata)}.{segment_id}.{_kind(kind)}"


def segment_key(prefix: str, metadata: RemoteLogSegmentMetadata, kind: FileKind) -> str:
    """A file's key in an object store. Errors: InvalidName."""
    segment_id, partition = metadata.remote_log_segment_id.id, metadata.topic_id_partition
    folder = f"{prefix}/{partition.topic_id.hex}/{_number(partition)}"
    return check_key(f"{folder}/{_base(metadata)}.{segment_id.hex}.{_kind(kind).lower()}")


def parsed_key(prefix: str, key: str) -> tuple[UUID, int, UUID] | None:
    """Topic id, partition and segment id of a key that `segment_key` makes; None: of another."""
    found = _KEY.fullmatch(key.removeprefix(f"{prefix}/"))
    if found is None:
        return None
    return UUID(hex=found["topic"]), int(found["partition"]), UUID(hex=found["segment"])


def partition_folder(partition: TopicIdPartition) -> str:
    """A partition's folder in a file system. Errors: InvalidName."""
    check_topic_name(partition.topic)
    return f"{partition.topic}-{_number(partition)}-{encode_id(partition.topic_id)}"


def parsed_folder(name: str) -> TopicIdPartition | None:
    """The partition whose `partition_folder` it is; None: of none."""
    found = _FOLDER.fullmatch(name)
    topic_id = None if found is None else _id(found["id"])
    if found is None or topic_id is None:
        return None
    partition = TopicIdPartition(topic_id, found["topic"], int(found["partition"]))
    # One that starts with 00 or is named "." is no folder of this program's.
    is_own = partition.topic not in (".", "..") and partition_folder(partition) == name
    return partition if is_own else None


def parsed_object_name(name: str) -> UUID | None:
    """The segment's id in a name that `object_name` makes; None: in another."""
    found = _NAME.fullmatch(name)
    return None if found is None else _id(found["segment"])


def local_stem(metadata: RemoteLogSegmentMetadata) -> str:
    """With what the names of all files of a segment begin in LocalTieredStorage."""
    return f"{_base(metadata)}-{encode_id(metadata.remote_log_segment_id.id)}."


def local_name(metadata: RemoteLogSegmentMetadata, kind: FileKind) -> str:
    """LocalTieredStorage's name of a file."""
    return local_stem(metadata) + SUFFIXES[kind]


def _id(text: str) -> UUID | None:
    """None: there is no id of which this is the text."""
    try:
        found = decode_id("a name", text)
    except Corrupt:
        return None
    return found if encode_id(found) == text else None


def _base(metadata: RemoteLogSegmentMetadata) -> str:
    return f"{metadata.start_offset:020d}"


def _kind(kind: FileKind) -> str:
    return "segment" if kind is None else kind.value


def _number(partition: TopicIdPartition) -> int:
    if partition.partition < 0:
        raise InvalidName(f"{partition} has no partition number that a name can have")
    return partition.partition
