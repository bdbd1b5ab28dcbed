"""The checkpoint pointer (key `k`): the files in the store that replace all records up to R.

    off  size  field
    0    1     version = 1
    1    8     covered revision R
    9    4     number of tenures, then for each:
    -    32      node id u32, node epoch u32, seq u64, gen u64, id floor u64
    -    1     number of files: 0, 1 (delta alone) or 2 (delta, base), then for each:
    -    32      node id u32, node epoch u32, number u64 (its name), size u64, tail position u64
    -    4       CRC-32C of its tail
    end  4     CRC-32C of everything before

The files cover records of T up to seq and transfers away from T up to gen; later ones are in the KV
store.
Changes: replaced by compare-and-set, in one transaction with the deletion of the records it covers.
Absent: no checkpoint was written yet.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from streamlog.errors import Corrupt
from streamlog.format.sealed import seal, unseal
from streamlog.metadata.interface import Tenure

VERSION = 1
HEADER = struct.Struct("<BQI")
TENURE = struct.Struct("<IIQQQ")
FILE = struct.Struct("<IIQQQI")


class TenureMark(NamedTuple):
    """How far a tenure is folded; its ids below `floor` are all committed or swept."""

    seq: int
    gen: int
    floor: int


@dataclass(frozen=True, slots=True)
class FileRef:
    """A checkpoint file; opening reads it from `tail_position` to the end."""

    tenure: Tenure
    number: int
    size_bytes: int
    tail_position: int
    tail_crc32c: int

    @property
    def name(self) -> str:
        """Its key in the store."""
        return f"{folder(self.tenure)}{self.number}"


@dataclass(frozen=True, slots=True)
class CheckpointPointer:
    revision: int
    tenures: Mapping[Tenure, TenureMark]
    delta: FileRef | None = None
    base: FileRef | None = None

    @property
    def files(self) -> tuple[FileRef, ...]:
        return tuple(file for file in (self.delta, self.base) if file is not None)


FOLDER = "checkpoint/"
_U32_TEXT = re.compile("[0-9]{1,10}")


def folder(tenure: Tenure) -> str:
    return f"{FOLDER}{tenure}/"


def tenure_of_name(name: str) -> Tenure | None:
    """The tenure that wrote the file of that key; None for a foreign name."""
    parts = name.removeprefix(FOLDER).partition("/")[0].split(".")
    if not name.startswith(FOLDER) or len(parts) != 2 or not all(map(_U32_TEXT.fullmatch, parts)):
        return None
    return Tenure(int(parts[0]), int(parts[1]))


def key(prefix: bytes) -> bytes:
    return prefix + b"k"


def encode(checkpoint: CheckpointPointer) -> bytes:
    parts = [HEADER.pack(VERSION, checkpoint.revision, len(checkpoint.tenures))]
    for tenure, mark in sorted(checkpoint.tenures.items()):
        parts.append(TENURE.pack(*tenure, *mark))
    files = checkpoint.files
    parts.append(bytes([len(files)]))
    for f in files:
        parts.append(FILE.pack(*f.tenure, f.number, f.size_bytes, f.tail_position, f.tail_crc32c))
    return seal(b"".join(parts))


def decode(value: bytes) -> CheckpointPointer:
    """Errors: Corrupt, UnsupportedVersion."""
    body = unseal(value, VERSION, "the checkpoint key")
    end = len(body)
    if end < HEADER.size + 1:
        raise Corrupt(f"the checkpoint key has {end} bytes only")
    _, revision, count = HEADER.unpack_from(body)
    position = HEADER.size
    if position + count * TENURE.size >= end:
        raise Corrupt(f"the checkpoint key names {count} tenures in {end} bytes")
    tenures = {}
    for _ in range(count):
        node_id, node_epoch, seq, gen, floor = TENURE.unpack_from(body, position)
        tenures[Tenure(node_id, node_epoch)] = TenureMark(seq, gen, floor)
        position += TENURE.size
    file_count = body[position]
    position += 1
    if file_count > 2 or position + file_count * FILE.size != end:
        raise Corrupt(f"the checkpoint key names {file_count} files in {end} bytes")
    files: list[FileRef | None] = [None, None]
    for index in range(file_count):
        node_id, node_epoch, *rest = FILE.unpack_from(body, position)
        files[index] = FileRef(Tenure(node_id, node_epoch), *rest)
        position += FILE.size
    return CheckpointPointer(revision, tenures, *files)
