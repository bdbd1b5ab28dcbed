"""Reads a WAL folder when the log is opened. Blocking.

1. Read every superblock; scan the files that are in use; plan the recovery.
2. Only when that holds together: remove files whose making was interrupted, and sync every file
   that has something to yield, since what was read may so far be in the page cache alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamlog.format.corrupt import corrupt
from streamlog.format.wal_frame import HEADER_BYTES
from streamlog.format.wal_superblock import (
    SUPERBLOCK_BYTES,
    FileState,
    Superblock,
    WalIdentity,
    decode_superblock,
)
from streamlog.runtime.disk import Disk, DiskFile
from streamlog.wal.identity import load_identity
from streamlog.wal.recovery import RecoveryPlan, plan_recovery
from streamlog.wal.scan import ScannedFile, scan_file

WAL_FILE_NAME = re.compile(r"wal-([0-9a-f]{8})")


def file_name(number: int) -> str:
    return f"wal-{number:08x}"


@dataclass(frozen=True, slots=True)
class Folder:
    """`next_number` is above that of every file in the folder."""

    identity: WalIdentity | None
    files: list[ScannedFile]
    plan: RecoveryPlan
    next_number: int


def load_folder(disk: Disk) -> Folder:
    """Everything that `plan.live` names is durable on return.

    Errors: OSError, Corrupt, UnsupportedVersion.
    """
    identity = load_identity(disk)
    files: list[ScannedFile] = []
    unfinished: list[str] = []
    numbers = [0]
    opened: list[DiskFile] = []
    try:
        for name in disk.list():
            match = WAL_FILE_NAME.fullmatch(name)
            if match is None:
                continue
            numbers.append(int(match[1], 16))
            file = disk.open(name)
            opened.append(file)
            superblock = read_superblock(name, file)
            if superblock is None:
                unfinished.append(name)
                file.close()
                opened.remove(file)
            else:
                files.append(scan_file(name, file, superblock))
        plan = plan_recovery(files, released_through=identity.released_through if identity else 0)
        for name in unfinished:
            disk.remove(name)
        for scanned in {id(scanned): scanned for scanned, _ in plan.live}.values():
            scanned.file.sync()
    except BaseException:
        for file in opened:
            file.close()
        raise
    return Folder(identity, files, plan, max(numbers) + 1)


def read_superblock(name: str, file: DiskFile) -> Superblock | None:
    """None for a file whose making was interrupted: nothing was ever written to it.

    Errors: OSError, Corrupt, UnsupportedVersion.
    """
    page = file.read(0, SUPERBLOCK_BYTES)
    if not any(page) and not any(file.read(SUPERBLOCK_BYTES, HEADER_BYTES)):
        return None
    superblock = decode_superblock(page, file_name=name)
    if superblock.state is FileState.ACTIVE and file.size() < superblock.file_bytes:
        raise corrupt("the file is cut short", name, file.size(), superblock.file_bytes)
    return superblock
