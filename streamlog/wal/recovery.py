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
    released = max([released_through, *(file.released_through for file in files)])
    active = sorted(
        (file for file in files if file.superblock.state is FileState.ACTIVE),
        key=lambda file: file.superblock.life.generation,
    )
    durable = max([released, *map(_proven_durable, active)])
    frames = _Frames(released, durable, accept_data_loss)
    for number, file in enumerate(active):
        frames.begin(file, active[number - 1] if number else None)
        is_last = number == len(active) - 1
        void_from = None if is_last else active[number + 1].superblock.first_sequence
        if void_from is not None and void_from < file.superblock.first_sequence:
            frames.damaged(corrupt("generations are out of order", file.name, 0, file.end))
        for frame in file.frames:
            if void_from is not None and frame.sequence >= void_from:
                break
            if frame.sequence > released and not frames.take(file, frame):
                break
        if is_last and frames.torn is None and file.is_header_torn:
            frames.torn = (file.name, file.end, file.end + HEADER_BYTES)
    if frames.lost and not frames.live:
        # Nothing is left to be released, which would state that the groups are gone.
        released = frames.expected - 1
    return RecoveryPlan(
        frames.live,
        released,
        frames.expected,
        max((file.superblock.life.generation for file in files), default=0) + 1,
        frames.torn,
        durable,
        active[-1] if active else None,
        frames.lost,
    )


class _Frames:
    """Those that are kept, in order, and what is missing between them. `expected`: the sequence of
    the next one."""

    def __init__(self, released: int, durable: int, accept_data_loss: bool) -> None:
        self._durable = durable
        self._accept_data_loss = accept_data_loss
        self.expected = released + 1
        self.live: list[tuple[ScannedFile, FrameRef]] = []
        self.torn: tuple[str, int, int] | None = None
        self.lost: list[Corrupt] = []

    def damaged(self, error: Corrupt) -> None:
        """Errors: Corrupt, unless the loss is accepted."""
        if not self._accept_data_loss:
            raise error
        self.lost.append(error)

    def begin(self, file: ScannedFile, before: ScannedFile | None) -> None:
        """The next file. Errors: Corrupt, where it begins past the next sequence."""
        first = file.superblock.first_sequence
        if first <= self.expected:
            return
        place, live = before or file, self.live
        self.damaged(
            corrupt(
                f"groups {self.expected} to {first - 1} are missing before {file.name}",
                place.name,
                live[-1][1].end if before and live and live[-1][0] is before else 0,
                place.superblock.file_bytes,
            )
        )
        self.expected = first

    def take(self, file: ScannedFile, frame: FrameRef) -> bool:
        """False: the frames end before this one. Errors: Corrupt."""
        if frame.sequence != self.expected and min(frame.sequence, self.expected) <= self._durable:
            missing_through = min(frame.sequence - 1, self._durable)
            self.damaged(
                corrupt(
                    f"groups {self.expected} to {missing_through} are missing",
                    file.name,
                    frame.follows,
                    frame.position,
                )
            )
            if frame.sequence < self.expected:
                return True
            self.expected = missing_through + 1
        is_next = frame.sequence == self.expected
        if frame.sequence > self._durable and not (is_next and frame.is_whole):
            self.torn = (file.name, frame.follows, file.end)
            return False
        if frame.is_whole:
            self.live.append((file, frame))
        else:
            self.damaged(
                corrupt(f"group {frame.sequence} is damaged", file.name, frame.position, frame.end)
            )
        self.expected += 1
        return True


def _proven_durable(file: ScannedFile) -> int:
    """The last group that a file in use proves to have been durable."""
    before = file.superblock.first_sequence - 1
    return max([before, *(frame.durable_through for frame in file.frames)])
