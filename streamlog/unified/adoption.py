"""Finds topics that can be taken over: in a stopped Kafka's log folder, or put aside (-stray) in a
node's own. It blocks: call it through Offload."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from streamlog.errors import Corrupt, Invalid, StreamlogError
from streamlog.format.kafka_files.checkpoints import decode_epochs, decode_offsets
from streamlog.format.kafka_files.names import (
    CLEANED_OFFSETS,
    LEADER_EPOCHS,
    LOCK,
    LOG,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    STRAY_FOLDER,
    file_name,
    parse_file_name,
    parse_folder_name,
)
from streamlog.format.kafka_files.properties import decode_partition_metadata
from streamlog.model.partition import TopicPartition
from streamlog.runtime.disk.lockfile import check_free
from streamlog.runtime.disk.system_folder import SystemFolder
from streamlog.unified.folder_record import STAMP
from streamlog.unified.recovery.scan import batches
from streamlog.unified.token_file import TOKEN

log = logging.getLogger(__name__)

_STRAY = re.compile(rf"(.+)\.[0-9a-f]{{32}}{STRAY_FOLDER}\Z")


class FoundPartition(NamedTuple):
    """A partition's folder, and where its log and its oldest segment there begin."""

    partition: TopicPartition
    path: Path
    log_start_offset: int
    local_log_start_offset: int
    recovery_point: int
    """All before it was durable, unless it is another topic's of the name. 0: not known."""
    was_cleaned: bool
    """Whether a cleaning may have removed offsets."""
    has_log: bool
    """False: other files of a log are there, and no segment."""
    others: tuple[Path, ...]
    """More folders of the partition and topic id that were put aside, such as sources of earlier
    adoptions: this one is in use, or their logs end before it, or with it."""

    @property
    def is_aside(self) -> bool:
        return _STRAY.match(self.path.name) is not None

    @property
    def has_remote(self) -> bool:
        """Whether the log begins before its files: what is missing is in a remote tier. It may
        also be lost, or the log start unknown."""
        return self.log_start_offset < self.local_log_start_offset


class FoundTopic(NamedTuple):
    """The partitions that are there, in order."""

    name: str
    topic_id: UUID
    partitions: tuple[FoundPartition, ...]

    @property
    def folders(self) -> list[str]:
        """Names, also of those that are not the newest."""
        return [path.name for one in self.partitions for path in (one.path, *one.others)]

    @property
    def aside(self) -> list[str]:
        return [name for name in self.folders if _STRAY.match(name)]

    @property
    def is_in_use(self) -> bool:
        """Whether a folder of it was not put aside."""
        return len(self.aside) < len(self.folders)


def find_topics(source: Path, names: Sequence[str], *, is_own: bool) -> list[FoundTopic]:
    """The topics of a log folder: those named, or all but internal ones where none is.

    `is_own`: this process has the folder. Errors: Invalid (none there), DataInUse (a Kafka or a
    node has it), Corrupt, OSError.
    """
    if not is_own:
        check_free(str(source / LOCK))
    starts = _offsets(source, LOG_STARTS)
    recovery_points = _offsets(source, RECOVERY_POINTS)
    cleaned = _offsets(source, CLEANED_OFFSETS)
    # This program writes each start down but 0, a Kafka none of a log that begins with its files.
    is_streamlogs = (source / STAMP).is_file()
    found: dict[tuple[str, UUID], dict[TopicPartition, list[Path]]] = {}
    nameless: list[str] = []
    for path in sorted(source.iterdir()):
        stray = _STRAY.match(path.name)
        partition = parse_folder_name(path.name if stray is None else stray[1])
        if partition is None:
            continue
        metadata = path / PARTITION_METADATA
        is_wanted = partition.topic in names if names else not partition.topic.startswith("__")
        if is_wanted and not metadata.is_file():
            nameless += [path.name] if _segments(path) else []
        elif is_wanted:
            topic_id = decode_partition_metadata(str(metadata), metadata.read_bytes())
            partitions = found.setdefault((partition.topic, topic_id), {})
            partitions.setdefault(partition, []).append(path)
    if nameless:
        raise Invalid(
            f"{', '.join(nameless)} in {source}: there is no {PARTITION_METADATA}, so that the "
            "topic id is not known. Put the file back, move the folder elsewhere, or name the "
            "topics to take. A Kafka before 2.8 writes none: start a newer one on the folder once"
        )
    missing = sorted(set(names) - {name for name, _ in found})
    if missing or not found:
        what = ", ".join(missing) if missing else "any topic"
        raise Invalid(f"{source} does not hold {what}: give the folder that has TOPIC-N folders")

    def newest(partition: TopicPartition, paths: Sequence[Path]) -> FoundPartition:
        path, *others = _newest_first(paths)
        local_start = min(_segments(path), default=0)
        start = starts.get(partition)
        if start is None:
            start = 0 if is_streamlogs else _start_of_epochs(path, local_start)
        return FoundPartition(
            partition,
            path,
            start,
            local_start,
            recovery_points.get(partition, 0),
            partition in cleaned,
            _has_log(path),
            tuple(others),
        )

    return [
        FoundTopic(*key, tuple(newest(one, paths) for one, paths in sorted(partitions.items())))
        for key, partitions in sorted(found.items(), key=str)
    ]


def one_of_each_name(topics: Sequence[FoundTopic]) -> list[FoundTopic]:
    """Of topics of one name the one in use: others were put aside when it was created.

    Errors: Invalid (none of them is in use, or several are).
    """
    found: list[FoundTopic] = []
    for name in sorted({topic.name for topic in topics}):
        same = [topic for topic in topics if topic.name == name]
        used = same if len(same) == 1 else [topic for topic in same if topic.is_in_use]
        if len(used) != 1:
            where = "; ".join(f"{one.topic_id}: {', '.join(one.folders)}" for one in same)
            raise Invalid(
                f"topic {name} is there under several topic ids: move the folders of all but one "
                f"of them elsewhere ({where})"
            )
        for topic in same:
            if topic is not used[0]:
                folders = ", ".join(topic.folders)
                log.warning("%s is left out: another topic %s is in use", folders, name)
        found += used
    return found


def check_whole(topic: FoundTopic) -> None:
    """Errors: Invalid, Corrupt."""
    numbers = [one.partition.partition for one in topic.partitions]
    if numbers != list(range(len(numbers))):
        raise Invalid(
            f"of topic {topic.name} only the partitions {numbers} are there: bring all of them "
            "together in one folder first"
        )
    for one in topic.partitions:
        if not one.has_log:
            raise Corrupt(f"{one.path} holds no segment of a log")


def topic_names(folder: Path) -> list[str]:
    """Topics that have a partition in the folder, or put aside there. Errors: OSError."""
    names = set()
    for path in folder.iterdir():
        stray = _STRAY.match(path.name)
        partition = parse_folder_name(path.name if stray is None else stray[1])
        if partition is not None and (path / PARTITION_METADATA).is_file():
            names.add(partition.topic)
    return sorted(names)


def _offsets(source: Path, checkpoint: str) -> dict[TopicPartition, int]:
    """Errors: Corrupt, UnsupportedVersion."""
    path = source / checkpoint
    return decode_offsets(str(path), path.read_bytes()) if path.is_file() else {}


def _segments(path: Path) -> dict[int, int]:
    """First offset of each segment → its bytes, in order."""
    found = ((parse_file_name(one.name), one) for one in sorted(path.iterdir()))
    return {
        name[0]: one.stat().st_size
        for name, one in found
        if name is not None and name[1:] == (LOG, "")
    }


def _newest_first(paths: Sequence[Path]) -> list[Path]:
    """What was put aside is older than what is in use; of others the one is taken whose log ends
    last."""
    if len(paths) == 1:
        return list(paths)
    return sorted(paths, key=lambda path: (not _STRAY.match(path.name), _end(path)), reverse=True)


def _end(path: Path) -> int:
    """Where a recovery ends the log: before the first byte that belongs to no sound batch. The file
    may have more, which a crash or a preallocation left. It reads every batch."""
    folder, end = SystemFolder(path, is_made=True), -1
    for base in _segments(path):
        file = folder.open(file_name(base, LOG))
        try:
            position, end = 0, base
            for batch in batches(file, 0, base, verify=True):
                position += batch.header.size_bytes
                end = batch.header.next_offset
            if position < file.size():
                break
        finally:
            file.close()
    return end


def _start_of_epochs(path: Path, local_start: int) -> int:
    """Where a log begins of which no checkpoint tells: its leader epochs begin there, in a remote
    tier or here. 0: they are not known."""
    file = path / LEADER_EPOCHS
    try:
        epochs = decode_epochs(str(file), file.read_bytes()) if file.is_file() else []
    except StreamlogError as error:
        log.warning("where %s begins is not known: %s", path, error)
        return 0
    return min(epochs[0][1], local_start) if epochs else 0


def log_files(path: Path) -> list[str]:
    """Names of the files that are part of a log."""
    names = sorted(one.name for one in path.iterdir() if one.is_file())
    known = (PARTITION_METADATA, LEADER_EPOCHS, TOKEN)
    return [name for name in names if name in known or parse_file_name(name) is not None]


def _has_log(path: Path) -> bool:
    """Also where there is none because the partition was never opened."""
    return bool(_segments(path)) or log_files(path) == [PARTITION_METADATA]
