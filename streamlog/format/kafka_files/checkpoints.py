"""Kafka's checkpoint files: text, a version (0), the number of lines that follow, the lines.

    leader-epoch-checkpoint, in a partition's folder       EPOCH OFFSET
    recovery-point-offset-checkpoint and others, at the    TOPIC PARTITION OFFSET
    top of the log folder

A file ends with a newline. Source: Kafka's CheckpointFile, OffsetCheckpointFile,
LeaderEpochCheckpointFile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer

VERSION = 0
INT64_MAX = (1 << 63) - 1


def encode_epochs(entries: Sequence[tuple[int, int]]) -> bytes:
    """(leader epoch, first offset)."""
    return _encode(f"{epoch} {offset}" for epoch, offset in entries)


def decode_epochs(name: str, data: Buffer) -> list[tuple[int, int]]:
    """Errors: Corrupt, UnsupportedVersion."""
    entries: list[tuple[int, int]] = []
    for line in _decode(name, data):
        epoch, offset = (_number(name, text) for text in _fields(name, line, 2))
        if entries and (epoch <= entries[-1][0] or offset < entries[-1][1]):
            raise Corrupt(f"{name}: epoch {epoch} does not come behind epoch {entries[-1][0]}")
        entries.append((epoch, offset))
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """In the order of the partitions, which Kafka does not ask for."""
    return _encode(
        f"{partition.topic} {partition.partition} {offsets[partition]}"
        for partition in sorted(offsets)
    )


def decode_offsets(name: str, data: Buffer) -> dict[TopicPartition, int]:
    """Errors: Corrupt, UnsupportedVersion."""
    offsets: dict[TopicPartition, int] = {}
    for line in _decode(name, data):
        topic, partition, offset = _fields(name, line, 3)
        offsets[TopicPartition(topic, _number(name, partition))] = _number(name, offset)
    return offsets


def _encode(lines: Iterable[str]) -> bytes:
    listed = list(lines)
    return "".join(f"{line}\n" for line in (VERSION, len(listed), *listed)).encode()


def _decode(name: str, data: Buffer) -> list[str]:
    if not len(data):
        return []  # Kafka makes the file before it has something to write.
    try:
        text = bytes(data).decode("ascii")
    except UnicodeDecodeError:
        raise Corrupt(f"{name} holds what is no text") from None
    lines = text.split("\n")
    if len(lines) < 3 or lines[-1]:
        raise Corrupt(f"{name} is cut short: it ends without a whole line")
    version = _number(name, lines[0])
    if version != VERSION:
        raise UnsupportedVersion(
            f"{name} has version {version}, this program knows {VERSION}",
            found=version,
            supported=VERSION,
        )
    count, entries = _number(name, lines[1]), lines[2:-1]
    if count != len(entries):
        raise Corrupt(f"{name} says {count} lines and has {len(entries)}")
    return entries


def _fields(name: str, line: str, count: int) -> list[str]:
    fields = line.split(" ")
    if len(fields) != count:
        raise Corrupt(f"{name}: the line {line[:300]!r} has not {count} fields")
    return fields


def _number(name: str, text: str) -> int:
    """Kafka writes no sign, no zero in front; numbers are of 64 bits."""
    if not text.isdecimal() or str(int(text)) != text or int(text) > INT64_MAX:
        raise Corrupt(f"{name}: {text[:40]!r} is no number")
    return int(text)
