"""Reads the groups of planned frames, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamlog.format.corrupt import corrupt
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import decode_entries, decode_frame_header
from streamlog.wal.scan import FrameRef, ScannedFile

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RecoveredGroup:
    """One group of appends, and the tenure that wrote it."""

    sequence: int
    tenure: Tenure
    entries: list[StreamEntry]


def reading_order(
    live: Sequence[tuple[ScannedFile, FrameRef]],
) -> Iterator[tuple[ScannedFile, list[FrameRef]]]:
    """Batches of neighbouring frames of a file, up to a few MiB each."""
    begin = 0
    while begin < len(live):
        file, first = live[begin]
        end = begin + 1
        while (
            end < len(live)
            and live[end][0] is file
            and live[end][1].end - first.position <= _PIECE_BYTES
        ):
            end += 1
        yield file, [frame for _, frame in live[begin:end]]
        begin = end


def read_groups(scanned: ScannedFile, frames: Sequence[FrameRef]) -> list[RecoveredGroup]:
    """The groups of neighbouring frames. Blocking. Errors: OSError, Corrupt."""
    start = frames[0].position
    data = memoryview(scanned.file.read(start, frames[-1].end - start))
    groups: list[RecoveredGroup] = []
    for frame in frames:
        piece = data[frame.position - start : frame.end - start]
        header = decode_frame_header(
            piece, scanned.superblock.life, frame.position, file_name=scanned.name
        )
        entries = None if header is None else decode_entries(header, piece)
        if entries is None:
            raise corrupt(
                f"group {frame.sequence} changed since the log was opened",
                scanned.name,
                frame.position,
                frame.end,
            )
        groups.append(RecoveredGroup(frame.sequence, scanned.superblock.tenure, entries))
    return groups
