"""Measures how long the WAL's disk takes to make a write durable, and how much room it has.

Only a power cut shows whether a device keeps the data that it reports as synced.
"""

from __future__ import annotations

import os
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
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import Random

MIB = 1 << 20
WRITE_BYTES = 4096
WRITES = 200
BUDGET_S = 10.0
P99_S_WARN = 0.1
P50_S_DOUBTFUL = 0.000_02
_UNKNOWABLE = "only a power cut shows whether the device keeps what it reports as synced"


@dataclass(frozen=True, slots=True)
class DiskSubject:
    """If `folder` is missing, the nearest existing folder above it is checked."""

    folder: Path
    wal_bytes_max: int
    clock: Clock
    offload: Offload
    random: Random

    @property
    def existing(self) -> Path:
        folder = self.folder.absolute()
        return next(place for place in (folder, *folder.parents) if place.is_dir())


async def sync_latency(disk: DiskSubject) -> Good:
    """Measures writes as a group of small appends makes them."""
    folder = disk.existing
    name = f"doctor-{disk.random.bytes(8).hex()}"
    try:
        seconds = await disk.offload.run(Lane.WAL, _measure, folder, name, disk.clock)
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
        raise Doubtful(
            summary, "acknowledgements of wal=disk wait for it: use a local SSD", figures
        )
    return Good(summary, figures)


def _measure(folder: Path, name: str, clock: Clock) -> list[float]:
    """Seconds of each write, sorted. The file is always removed."""
    disk = SystemDisk(folder)
    seconds: list[float] = []
    file = disk.create(name, WRITES * WRITE_BYTES)
    try:
        body = b"d" * WRITE_BYTES
        ends_at = clock.monotonic() + BUDGET_S
        for number in range(WRITES):
            began = clock.monotonic()
            if number and began > ends_at:
                break
            file.write_sync(number * WRITE_BYTES, [body])
            seconds.append(clock.monotonic() - began)
    finally:
        file.close()
        disk.remove(name)
    return sorted(seconds)


async def room(disk: DiskSubject) -> Good:
    """Compares free bytes with the size that the log may have."""
    status = os.statvfs(disk.existing)
    free = status.f_bavail * status.f_frsize
    figures = {"free_bytes": float(free)}
    summary = f"{free / MIB:.0f} MiB free, the log takes up to {disk.wal_bytes_max / MIB:.0f} MiB"
    if free < disk.wal_bytes_max // 4:
        raise CheckFailed(summary)
    if free < 2 * disk.wal_bytes_max:
        raise Doubtful(summary, _ROOM_ADVICE, figures)
    return Good(summary, figures)


_ROOM_ADVICE = "free some space, use another disk, or lower engine.wal.wal_bytes_max"

CHECKS: tuple[Check[DiskSubject], ...] = (
    Check("disk.sync", sync_latency, "give this user the right to write there"),
    Check("disk.room", room, _ROOM_ADVICE),
)
