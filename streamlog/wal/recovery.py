"""Decides which frames of a folder are valid, void or damaged. Pure.

Files are examined in the order of their generations. F is a file's first sequence, R the highest
"released through" in any file. Groups are written beside each other, so a later one may be on the
disk and an earlier one not; D is the last group that any frame or superblock proves to have been
durable before it.

1. A frame with a sequence ≥ the F of a later generation is void: its write failed, its callers got
   the error, and the log continued without it. Only so can a sequence occur twice.
2. Frames ≤ R are in the object store: they may be absent, damaged or present, and are left out.
3. Frames from R + 1 to D must follow one another. A missing or damaged one, or a file that begins
   past the next sequence, is damage: Corrupt.
4. Frames end before the first one past D that is missing or not whole: its write was torn. It is
   cut, with all that follow it. None was ever acknowledged, because a group is answered behind
   those before it.

Failed writes that were the last ones may be found whole: they are recovered like any other group,
although they were never acknowledged. The bytes may be in the page cache only, so the folder writes
the frames past D again before they are used.

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

    `torn`: (file name, start, end) of what was cut, if anything was seen; the end is that of a
    header where no more is known.
    `durable_through`: the last group that is proven to have been durable.
    `newest`: the file of the newest generation that is in use.
    `lost`: the damage whose loss was accepted; all of it lies before `next_sequence`.
    """

    live: list[tuple[ScannedFile, FrameRef]]
    released_through: int
    next_sequence: int
    next_generation: int
    torn: tuple[str, int, int] | None
    durable_through: int
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
    durable = max([released, *map(_proven_durable, active)])
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
        for frame in file.frames:
            if void_from is not None and frame.sequence >= void_from:
                break
            if frame.sequence <= released:
                continue
            if frame.sequence != expected and min(frame.sequence, expected) <= durable:
                missing_through = min(frame.sequence - 1, durable)
                damaged(
                    corrupt(
                        f"groups {expected} to {missing_through} are missing",
                        file.name,
                        frame.follows,
                        frame.position,
                    )
                )
                if frame.sequence < expected:
                    continue
                expected = missing_through + 1
            if frame.sequence > durable and (frame.sequence > expected or not frame.is_whole):
                torn = (file.name, frame.follows, file.end)
                break
            if not frame.is_whole:
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
    return RecoveryPlan(live, released, expected, next_generation, torn, durable, newest, lost)


def _proven_durable(file: ScannedFile) -> int:
    """The last group that a file in use proves to have been durable."""
    before = file.superblock.first_sequence - 1
    return max([before, *(frame.durable_through for frame in file.frames)])
