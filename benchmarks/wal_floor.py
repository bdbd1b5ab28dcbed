"""Library-level WAL appends against a plain preallocated file, in one run.

    python benchmarks/wal_floor.py [FOLDER]

For each group size rounds of raw pwrite + fdatasync, of `append` one at a time, and of `append` two
at a time (one fills while one syncs) alternate, so that variations of the disk affect all.
Groups are made of 64 KiB batches; small ones of one batch. Ratios are raw time over append time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from streamlog.codec.crc import crc32c
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import Tenure
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wal.config import WalConfig
from streamlog.wal.log import WriteAheadLog

MIB = 1 << 20
RAW_BYTES = 64 * MIB
SIZES = {100: 1500, 4096: 1500, 64 * 1024: 1500, MIB: 400, 4 * MIB: 150}
ROUNDS = 5


class RawFile:
    """A program without a log."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        for position in range(0, RAW_BYTES, MIB):
            os.pwrite(self._file, bytes(MIB), position)
        os.fsync(self._file)
        self._position = 0

    def append(self, data: bytes) -> None:
        if self._position + len(data) > RAW_BYTES:
            self._position = 0
        os.pwrite(self._file, data, self._position)
        os.fdatasync(self._file)
        self._position += -(-len(data) // 4096) * 4096


def group_of(data: bytes) -> list[StreamEntry]:
    pieces = [data[at : at + 65536] for at in range(0, len(data), 65536)]
    return [
        StreamEntry(1, 1, n, 1, 0, (piece,), bytes(30), crc32c(piece))
        for n, piece in enumerate(pieces)
    ]


async def measure(folder: Path) -> None:
    raw = RawFile(folder / "raw")
    offload = ThreadOffload()
    wal = await WriteAheadLog.open(
        SystemDisk(folder / "wal"), offload, WalConfig(), CollectorRegistry(), SystemRandom()
    )
    await wal.begin(Tenure(1, 1), cluster_id="bench")
    await wal.append(group_of(b"warm"))
    print(
        f"{'bytes':>9} {'raw p50':>9} {'p99':>8} {'wal p50':>9} {'p99':>8} "
        f"{'raw MB/s':>9} {'wal MB/s':>9} {'two MB/s':>9} {'wal ratio':>9} {'two ratio':>9}"
    )
    for size, count in SIZES.items():
        data = os.urandom(size)
        group = group_of(data)
        raw_times: list[float] = []
        wal_times: list[float] = []
        two_seconds = 0.0
        per_round = count // ROUNDS

        async def one_of_two(group: list[StreamEntry] = group, per_round: int = per_round) -> None:
            for _ in range(per_round // 2):
                wal.release(await wal.append(group))

        for _ in range(ROUNDS):
            for _ in range(per_round):
                start = time.perf_counter()
                raw.append(data)
                raw_times.append(time.perf_counter() - start)
            for _ in range(per_round):
                start = time.perf_counter()
                sequence = await wal.append(group)
                wal_times.append(time.perf_counter() - start)
                wal.release(sequence)
            start = time.perf_counter()
            await asyncio.gather(one_of_two(), one_of_two())
            two_seconds += time.perf_counter() - start
        two_rate = size * ROUNDS * (per_round // 2 * 2) / two_seconds / 1e6
        report(size, sorted(raw_times), sorted(wal_times), two_rate)
    await wal.close()
    await offload.close()


def report(size: int, raw: list[float], wal: list[float], two_rate: float) -> None:
    def quantile(times: list[float], share: float) -> float:
        return times[int(len(times) * share)]

    raw_rate, wal_rate = (size * len(times) / sum(times) / 1e6 for times in (raw, wal))
    print(
        f"{size:>9} {quantile(raw, 0.5) * 1e3:>6.3f} ms {quantile(raw, 0.99) * 1e3:>5.2f} ms "
        f"{quantile(wal, 0.5) * 1e3:>6.3f} ms {quantile(wal, 0.99) * 1e3:>5.2f} ms "
        f"{raw_rate:>9.1f} {wal_rate:>9.1f} {two_rate:>9.1f} "
        f"{wal_rate / raw_rate:>9.2f} {two_rate / raw_rate:>9.2f}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        asyncio.run(measure(Path(name)))
