"""Reads a WAL folder when the log is opened. Blocking.

1. Read every superblock; scan the files in use; plan the recovery.
2. Only if the plan succeeds: remove files whose making was interrupted, and make durable what the
   log continues from.

The bytes read may be in the page cache only. A sync of a new descriptor writes the pages of a
process that died, but not those of a failed write-back: the kernel keeps such pages and takes them
for clean. A failed write can only have left the groups that nothing proves to have been durable and
the superblock of the newest file (log, rule 3), or a free one behind it, so these are written once
more.

If the operator accepts the loss, a file with an unreadable superblock is renamed to `lost-…`, and
missing groups are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from streamlog.errors import Corrupt
from streamlog.format.corrupt import corrupt
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import ALIGNMENT, HEADER_BYTES
from streamlog.format.wal.superblock import (
    SUPERBLOCK_BYTES,
    FileState,
    Superblock,
    WalIdentity,
    decode_superblock,
)
from streamlog.runtime.disk.interface import Disk, DiskFile
from streamlog.wal.identity import load_identity
from streamlog.wal.recovery import RecoveryPlan, plan_recovery
from streamlog.wal.scan import ScannedFile, scan_file

WAL_FILE_NAME = re.compile(r"wal-([0-9a-f]{8})")
LOST_PREFIX = "lost-"
"""Prefix of unreadable files after an accepted loss; nothing uses them."""


def file_name(number: int) -> str:
    return f"wal-{number:08x}"


@dataclass(frozen=True, slots=True)
class Folder:
    """`next_number`: above the number of every file in the folder.

    `tenures`: the tenures that the files name, if the identity was lost.
    `lost`: the damage whose loss was accepted.
    """

    identity: WalIdentity | None
    files: list[ScannedFile]
    plan: RecoveryPlan
    next_number: int
    tenures: frozenset[Tenure] = frozenset()
    lost: list[Corrupt] = field(default_factory=list)


def load_folder(disk: Disk, *, accept_data_loss: bool = False) -> Folder:
    """On return all frames in `plan.live` are durable.

    Errors: OSError, UnsupportedVersion; Corrupt, unless the loss is accepted.
    """
    reading = _Reading(disk, accept_data_loss)
    identity = reading.identity()
    try:
        for name in disk.list():
            if WAL_FILE_NAME.fullmatch(name) is not None:
                reading.read(name)
        plan = plan_recovery(
            reading.files,
            released_through=identity.released_through if identity else 0,
            accept_data_loss=accept_data_loss,
        )
        for name in reading.unfinished:
            disk.remove(name)
        for name in reading.unreadable:
            disk.rename(name, LOST_PREFIX + name)
        _make_durable(plan)
        _make_free_durable(reading.files, plan)
    except BaseException:
        for file in reading.opened.values():
            file.close()
        raise
    is_named = identity is not None or not accept_data_loss
    return Folder(
        identity,
        reading.files,
        plan,
        max(reading.numbers) + 1,
        frozenset() if is_named else _tenures(reading.files),
        [*reading.lost, *plan.lost],
    )


class _Reading:
    """Collects what is read of a folder."""

    def __init__(self, disk: Disk, accept_data_loss: bool) -> None:
        self._disk = disk
        self._accept_data_loss = accept_data_loss
        self.files: list[ScannedFile] = []
        self.unfinished: list[str] = []
        self.unreadable: list[str] = []
        self.numbers = [0]
        self.opened: dict[str, DiskFile] = {}
        self.lost: list[Corrupt] = []

    def identity(self) -> WalIdentity | None:
        try:
            return load_identity(self._disk)
        except Corrupt as error:
            self._give_up(error)
            return None

    def read(self, name: str) -> None:
        self.numbers.append(int(name.removeprefix("wal-"), 16))
        file = self.opened[name] = self._disk.open(name)
        try:
            superblock = read_superblock(name, file, may_be_short=self._accept_data_loss)
        except Corrupt as error:
            self._give_up(error)
            self.unreadable.append(name)
            superblock = None
        else:
            if superblock is None:
                self.unfinished.append(name)
        if superblock is None:
            file.close()
            del self.opened[name]
            return
        self.files.append(scan_file(name, file, shortened(superblock, file)))

    def _give_up(self, error: Corrupt) -> None:
        if not self._accept_data_loss:
            raise error
        self.lost.append(error)


def _make_durable(plan: RecoveryPlan) -> None:
    """Syncs everything that the log continues from. Errors: OSError."""
    for scanned in {id(scanned): scanned for scanned, _ in plan.live}.values():
        scanned.file.sync()
    if plan.newest is not None:
        _write_again(plan.newest.file, 0, SUPERBLOCK_BYTES)
    for scanned, frame in plan.live:
        if frame.sequence > plan.durable_through:
            _write_again(scanned.file, frame.position, frame.end - frame.position)


def _make_free_durable(files: list[ScannedFile], plan: RecoveryPlan) -> None:
    """A file that could not be freed may read as free and be in use on the medium: its groups,
    which are left out now, would come back after a power cut. In a file older than the newest one
    in use they are void or released. Errors: OSError."""
    newest = 0 if plan.newest is None else plan.newest.superblock.life.generation
    for scanned in files:
        if scanned.superblock.life.generation > newest:
            _write_again(scanned.file, 0, SUPERBLOCK_BYTES)


def _write_again(file: DiskFile, position: int, length: int) -> None:
    file.write_sync(position, [file.read(position, length)])


def _tenures(files: list[ScannedFile]) -> frozenset[Tenure]:
    return frozenset(
        file.superblock.tenure
        for file in files
        if file.superblock.state is FileState.ACTIVE and file.frames
    )


def read_superblock(name: str, file: DiskFile, *, may_be_short: bool = False) -> Superblock | None:
    """None for a file whose making was interrupted: nothing was ever written to it.

    Errors: OSError, Corrupt, UnsupportedVersion.
    """
    page = file.read(0, SUPERBLOCK_BYTES)
    if not any(page) and not any(file.read(SUPERBLOCK_BYTES, HEADER_BYTES)):
        return None
    superblock = decode_superblock(page, file_name=name)
    is_short = file.size() < superblock.file_bytes
    if superblock.state is FileState.ACTIVE and is_short and not may_be_short:
        raise corrupt("the file is cut short", name, file.size(), superblock.file_bytes)
    return superblock


def shortened(superblock: Superblock, file: DiskFile) -> Superblock:
    """The superblock, with the file's real size if the file was truncated."""
    if superblock.file_bytes <= file.size():
        return superblock
    return replace(superblock, file_bytes=file.size() // ALIGNMENT * ALIGNMENT)
