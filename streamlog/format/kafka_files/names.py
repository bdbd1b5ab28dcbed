"""Names in a log folder: `<topic>-<partition>/` with files `<offset, 20 digits><suffix>`.

    suffix       what it is
    .log         record batches from the offset on
    .index       offset → position, sparse
    .timeindex   timestamp → offset, sparse
    .txnindex    aborted transactions; there if the segment has one
    .snapshot    the producers as they are at the offset
    .deleted     behind any of them: no longer part of the log, about to be removed
    .cleaned     behind a segment's: a cleaning that was not finished
    .swap        behind a segment's: takes the place of the segments that it covers

Folders of partitions that are no longer served are called `<topic>-<partition>.<32 hex>-delete`, or
`-stray` where the folder belongs to another topic id. Source: Kafka's LogFileUtils, UnifiedLog.
"""

from __future__ import annotations

import re

from streamlog.model.partition import TopicPartition

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

DELETE_FOLDER = "-delete"
STRAY_FOLDER = "-stray"
FOLDER_LENGTH_MAX = 255
_DIGITS = 20
_FILE = re.compile(r"(\d{20})(\.[a-z]+)((?:\.deleted|\.cleaned|\.swap)?)\Z", re.ASCII)
_FOLDER = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})\Z", re.ASCII)


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:0{_DIGITS}d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str, str] | None:
    """Offset, suffix, and what stands behind it ("" for a file of the log); None for others."""
    found = _FILE.match(name)
    return None if found is None else (int(found[1]), found[2], found[3])


def folder_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def parse_folder_name(name: str) -> TopicPartition | None:
    """None for a folder that is no partition's, among them those about to be deleted."""
    found = _FOLDER.match(name)
    return None if found is None else TopicPartition(found[1], int(found[2]))


def renamed_folder(partition: TopicPartition, unique: str, suffix: str) -> str:
    """Kafka cuts the topic where the name would be longer than file systems take."""
    tail = f"-{partition.partition}.{unique}{suffix}"
    return partition.topic[: FOLDER_LENGTH_MAX - len(tail)] + tail
