"""What a replacement does to the files of its partition, step by step. It blocks."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.format.kafka_files.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from streamlog.format.kafka_files.transaction_index import AbortedTxn, encode_aborted
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.unified.disk.files import remove_if_there, write_new


def begin(folder: GrowingFolder, name: str) -> GrowingFile:
    """An empty file; one that a given-up cleaning left is gone. Errors: OSError."""
    remove_if_there(folder, name)
    return folder.create(name)


def finish(
    folder: GrowingFolder,
    file: GrowingFile,
    base_offset: int,
    offsets: Buffer,
    times: Buffer,
    aborted: Sequence[AbortedTxn],
) -> None:
    """All files of the new segment are there and durable on return. Errors: OSError."""
    file.sync()
    file.close()
    write_new(folder, file_name(base_offset, INDEX) + CLEANED, offsets)
    write_new(folder, file_name(base_offset, TIME_INDEX) + CLEANED, times)
    if aborted:
        write_new(folder, file_name(base_offset, TXN_INDEX) + CLEANED, encode_aborted(aborted))
    folder.sync()


def swap(folder: GrowingFolder, base_offset: int, old: Sequence[int]) -> list[str]:
    """Durable on return; the names of the old files, to be removed later. Errors: OSError.

    The .log is renamed last, so that a .swap of it means that all of the segment is there; that of
    an old one, too, so that none of its other files is taken for the new one's.
    """
    there = set(folder.list())
    mine = [
        name
        for suffix in (TXN_INDEX, TIME_INDEX, INDEX, LOG)
        if (name := file_name(base_offset, suffix)) + CLEANED in there
    ]
    for name in mine:
        folder.rename(name + CLEANED, name + SWAP)
    folder.sync()
    renamed: list[str] = []
    for base in old:
        # The snapshot of the producers at the new segment's first offset is its own.
        snapshots = () if base == base_offset else (SNAPSHOT,)
        for suffix in (*snapshots, *reversed(SEGMENT_SUFFIXES)):
            name = file_name(base, suffix)
            if name in there:
                folder.rename(name, name + DELETED)
                renamed.append(name + DELETED)
    for name in mine:
        folder.rename(name + SWAP, name)
    folder.sync()
    return renamed


def give_up(folder: GrowingFolder, file: GrowingFile, base_offset: int) -> None:
    """Errors: OSError."""
    file.close()
    for suffix in SEGMENT_SUFFIXES:
        remove_if_there(folder, file_name(base_offset, suffix) + CLEANED)
