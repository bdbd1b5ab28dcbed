"""Measures how long the disks of the WAL and of local logs take to make a write durable, and how
much room they have.

Only a power cut shows whether a device keeps the data that it reports as synced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamlog.doctor.findings import (
    Check,
    CheckFailed,
    Doubtful,
    Good,
    milliseconds,
    percentile,
)
from streamlog.errors import StoreUnavailable
from streamlog.runtime.clock import Clock
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.runtime.disk.system_folder import SystemFolder
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import Random
from streamlog.wal.folder import WAL_FILE_NAME

MIB = 1 << 20
WRITE_BYTES = 4096
WRITES = 200
BUDGET_S = 10.0
P99_S_WARN = 0.1
P50_S_DOUBTFUL = 0.000_02
_UNKNOWABLE = "only a power cut shows whether the device keeps what it reports as synced"


@dataclass(frozen=True, slots=True)
class DiskSubject:
    """If `folder` is missing, the nearest existing folder above it is checked.

    `bytes_max`: of the WAL, or of a segment.
    """

    folder: Path
    bytes_max: int
    clock: Clock
    offload: Offload
    random: Random

    @property
    def existing(self) -> Path:
        """Errors: CheckFailed (a file stands where the folder has to be)."""
        folder = self.folder.absolute()
        for place in (folder, *folder.parents):
            if place.is_dir():
                return place
            if os.path.lexists(place):
                raise CheckFailed(f"{place} is no folder: no node can have its log in {folder}")
        raise CheckFailed(f"nothing exists above {folder}")


async def overwrite_latency(disk: DiskSubject) -> Good:
    """Measures writes as a group of small appends makes them in the WAL."""
    return await _latency(
        disk, _overwritten, "acknowledgements of wal=disk wait for it: use a local SSD"
    )


async def append_latency(disk: DiskSubject) -> Good:
    """Measures writes as a group of small appends makes them in a segment, which grows."""
    return await _latency(
        disk, _appended, "acknowledgements of topics with log.type=unified wait for it: use an SSD"
    )


async def _latency(
    disk: DiskSubject, measure: Callable[[Path, str, Clock], list[float]], slow: str
) -> Good:
    folder = disk.existing
    name = f"doctor-{disk.random.bytes(8).hex()}"
    try:
        seconds = await disk.offload.run(Lane.WAL, measure, folder, name, disk.clock)
    except OSError as error:
        raise typed_os_error(error, str(folder), "writing a file", StoreUnavailable) from error
    p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
    figures = {"sync_p50_ms": p50 * 1000, "sync_p99_ms": p99 * 1000}
    summary = (
        f"{WRITE_BYTES} bytes written and synced: p50 {milliseconds(p50)}, p99 {milliseconds(p99)} "
        f"({len(seconds)} writes in {folder}); {_UNKNOWABLE}"
    )
    if p50 < P50_S_DOUBTFUL:
        raise Doubtful(summary, "no device is that fast: is this a RAM disk?", figures)
    if p99 > P99_S_WARN:
        raise Doubtful(summary, slow, figures)
    return Good(summary, figures)


def _overwritten(folder: Path, name: str, clock: Clock) -> list[float]:
    """Seconds of each write, sorted. The file is always removed."""
    disk = SystemDisk(folder)
    file = disk.create(name, WRITES * WRITE_BYTES)
    try:
        body = [b"d" * WRITE_BYTES]
        return _timed(lambda number: file.write_sync(number * WRITE_BYTES, body), clock)
    finally:
        file.close()
        disk.remove(name)


def _appended(folder: Path, name: str, clock: Clock) -> list[float]:
    """As `_overwritten`."""
    place = SystemFolder(folder, is_made=True)
    file = place.create(name)
    try:
        body = [b"d" * WRITE_BYTES]

        def write(_: int) -> None:
            file.append(body)
            file.sync()

        return _timed(write, clock)
    finally:
        file.close()
        place.remove(name)


def _timed(write: Callable[[int], object], clock: Clock) -> list[float]:
    seconds: list[float] = []
    ends_at = clock.monotonic() + BUDGET_S
    for number in range(WRITES):
        began = clock.monotonic()
        if number and began > ends_at:
            break
        write(number)
        seconds.append(clock.monotonic() - began)
    return sorted(seconds)


def _free_bytes(disk: DiskSubject) -> int:
    status = os.statvfs(disk.existing)
    return status.f_bavail * status.f_frsize


def _wal_bytes(folder: Path) -> int:
    there = 0
    for file in folder.iterdir() if folder.is_dir() else ():
        if WAL_FILE_NAME.fullmatch(file.name):
            # A running node removes some.
            with contextlib.suppress(FileNotFoundError):
                there += file.stat().st_size
    return there


async def room(disk: DiskSubject) -> Good:
    """Compares free bytes, and those of the WAL that is there, with the size that it may have."""
    free, there = _free_bytes(disk), _wal_bytes(disk.folder)
    figures = {"free_bytes": float(free)}
    has = f"has {there / MIB:.0f} MiB and " if there else ""
    summary = f"{free / MIB:.0f} MiB free, the log {has}takes up to {disk.bytes_max / MIB:.0f} MiB"
    if free + there < disk.bytes_max // 4:
        raise CheckFailed(summary)
    if free + there < 2 * disk.bytes_max:
        raise Doubtful(summary, _ROOM_ADVICE, figures)
    return Good(summary, figures)


async def segment_room(disk: DiskSubject) -> Good:
    """Compares free bytes with a segment: what a partition keeps at least."""
    free = _free_bytes(disk)
    figures = {"free_bytes": float(free)}
    summary = (
        f"{free / MIB:.0f} MiB free; a partition with log.type=unified keeps what its retention "
        f"allows, and a segment of {disk.bytes_max / MIB:.0f} MiB at least"
    )
    if free < disk.bytes_max:
        raise Doubtful(summary, _SEGMENT_ROOM_ADVICE, figures)
    return Good(summary, figures)


_ROOM_ADVICE = "free some space, use another disk, or lower engine.wal.wal_bytes_max"
_SEGMENT_ROOM_ADVICE = "free some space, use another disk, or lower retention.* of the topics"

CHECKS: tuple[Check[DiskSubject], ...] = (
    Check(
        "disk.sync",
        overwrite_latency,
        "give this user the right to write there, or name another folder",
    ),
    Check("disk.room", room, _ROOM_ADVICE),
)
LOG_CHECKS: tuple[Check[DiskSubject], ...] = (
    Check(
        "logs.sync",
        append_latency,
        "give this user the right to write there, or name another folder",
    ),
    Check("logs.room", segment_room, _SEGMENT_ROOM_ADVICE),
)
"""Of the folder of topics with log.type=unified."""
