"""Decides which frames of a folder are valid, void or damaged. Pure.

Files are examined in the order of their generations. F is a file's first sequence, R the highest
"released through" in any file.

1. A frame with a sequence ≥ the F of a later generation is void: its write failed, its callers got
   the error, and the log continued without it. Only so can a sequence occur twice.
2. Frames ≤ R are in the object store: they may be absent, damaged or present, and are left out.
3. Frames from R + 1 on must follow one another. A missing frame before a valid header, or a file
   that begins past the next sequence, is damage: Corrupt. The log writes a frame, or a superblock
   with a higher F, only after everything before it is durable; so a later one proves the loss.
4. If frames end and nothing valid follows, the last write was torn, and is cut. It was never
   acknowledged.

A failed write that was the last one may be found whole: it is recovered like any other group,
although it was never acknowledged. The bytes may be in the page cache only, so the folder writes
them again before they are used.

If the operator accepts the loss, damage by rule 3 is listed, and the log continues behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.errors import Corrupt
from streamlog.format.corrupt import corrupt
from streamlog.format.wal.frame import HEADER_BYTES
from streamlog.format.wal.superblock import FileState
from streamlog.wal.scan import FrameRef, ScannedFile


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """`live`: frames past `released_through`, in order of sequence, each with its file.

    `torn`: (file name, start, end) of a torn write that was cut, if one was seen; the end is that
    of its header where no more is known.
    `newest`: the file of the newest generation that is in use.
    `lost`: the damage whose loss was accepted; all of it lies before `next_sequence`.
    """

    live: list[tuple[ScannedFile, FrameRef]]
    released_through: int
    next_sequence: int
    next_generation: int
    torn: tuple[str, int, int] | None
    newest: ScannedFile | None
    lost: list[Corrupt]


def plan_recovery(
    files: Sequence[ScannedFile], *, released_through: int = 0, accept_data_loss: bool = False
) -> RecoveryPlan:
    """`released_through`: what the identity file states.

    Errors: Corrupt, unless the loss is accepted.
    """
    lost: list[Corrupt] = []

    def damaged(error: Corrupt) -> None:
        if not accept_data_loss:
            raise error
        lost.append(error)

    released = max([released_through, *(file.released_through for file in files)])
    generations = [file.superblock.life.generation for file in files]
    active = sorted(
        (file for file in files if file.superblock.state is FileState.ACTIVE),
        key=lambda file: file.superblock.life.generation,
    )
    live: list[tuple[ScannedFile, FrameRef]] = []
    torn: tuple[str, int, int] | None = None
    expected = released + 1
    before: ScannedFile | None = None
    for number, file in enumerate(active):
        first = file.superblock.first_sequence
        if first > expected:
            place = before or file
            damaged(
                corrupt(
                    f"groups {expected} to {first - 1} are missing before {file.name}",
                    place.name,
                    live[-1][1].end if before and live and live[-1][0] is before else 0,
                    place.superblock.file_bytes,
                )
            )
            expected = first
        is_last = number == len(active) - 1
        void_from = None if is_last else active[number + 1].superblock.first_sequence
        if void_from is not None and void_from < first:
            damaged(corrupt("generations are out of order", file.name, 0, file.end))
        for index, frame in enumerate(file.frames):
            if void_from is not None and frame.sequence >= void_from:
                break
            if frame.sequence <= released:
                continue
            if frame.sequence != expected:
                damaged(
                    corrupt(
                        f"groups {expected} to {frame.sequence - 1} are missing",
                        file.name,
                        frame.follows,
                        frame.position,
                    )
                )
                if frame.sequence < expected:
                    continue
                expected = frame.sequence
            if not frame.is_whole:
                if is_last and index == len(file.frames) - 1:
                    torn = (file.name, frame.position, frame.end)
                    break
                damaged(
                    corrupt(
                        f"group {frame.sequence} is damaged", file.name, frame.position, frame.end
                    )
                )
                expected += 1
                continue
            live.append((file, frame))
            expected += 1
        if is_last and torn is None and file.is_header_torn:
            torn = (file.name, file.end, file.end + HEADER_BYTES)
        before = file
    if lost and not live:
        # Nothing is left to be released, which would state that the groups are gone.
        released = expected - 1
    newest = active[-1] if active else None
    next_generation = max(generations, default=0) + 1
    return RecoveryPlan(live, released, expected, next_generation, torn, newest, lost)
