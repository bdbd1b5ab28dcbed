"""The disk that tears: what it may lose, and what it may not."""

from __future__ import annotations

from functools import partial

import pytest

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import SECTOR_BYTES, DiskFault

SIZE = 8 * SECTOR_BYTES


def sectors(data: bytes) -> list[int]:
    pieces = [data[start : start + SECTOR_BYTES] for start in range(0, len(data), SECTOR_BYTES)]
    assert all(len(set(sector)) == 1 for sector in pieces)
    return [sector[0] for sector in pieces]


def cut_power(seed: int) -> list[int]:
    disk = TornDisk(SeededRandom(seed))
    file = disk.create("a", SIZE)
    file.write_sync(0, [b"\1" * SIZE])
    disk.plan_faults = lambda operation, name: DiskFault.POWER
    with pytest.raises(OSError, match="injected"):
        file.write_sync(SECTOR_BYTES, [b"\2" * SECTOR_BYTES * 6])
    with pytest.raises(OSError, match="injected"):
        disk.open("a")
    disk.plan_faults = None
    disk.crash()
    with pytest.raises(OSError, match="injected"):
        file.read(0, 1)
    return sectors(disk.open("a").read(0, SIZE))


def test_a_power_cut_tears_the_write_under_way_by_sectors() -> None:
    outcomes = [cut_power(seed) for seed in range(60)]
    assert outcomes == [cut_power(seed) for seed in range(60)]
    assert all(outcome[0] == outcome[-1] == 1 for outcome in outcomes)
    assert [1] * 8 in outcomes
    assert [1, 2, 2, 2, 2, 2, 2, 1] in outcomes
    assert any(0 < outcome.count(2) < 6 and outcome[6] == 2 for outcome in outcomes)


def test_acknowledged_appends_stay() -> None:
    for seed in range(20):
        disk = TornDisk(SeededRandom(seed))
        disk.create("a", SIZE).write_sync(3, [b"abc", b"def"])
        disk.crash()
        assert disk.open("a").read(0, 10) == b"\0\0\0abcdef\0"
        disk.open("a").write_sync(4, [b"X"])
        disk.rename("a", "b")
        disk.crash()
        assert disk.list() == ["b"]
        assert disk.open("b").read(3, 6) == b"aXcdef"


def test_writes_may_be_torn_until_they_are_acknowledged() -> None:
    lost = 0
    for seed in range(30):
        disk = TornDisk(SeededRandom(seed))
        file = disk.create("a", SIZE)
        disk.hold_writes = True
        file.write_sync(0, [b"\1" * SIZE])
        disk.acknowledge()
        file.write_sync(0, [b"\2" * SIZE])
        assert sectors(file.read(0, SIZE)) == [2] * 8
        if seed % 2:
            disk.restart()
            assert sectors(disk.open("a").read(0, SIZE)) == [2] * 8
            if seed % 4 == 1:
                disk.open("a").sync()
        disk.crash()
        values = sectors(disk.open("a").read(0, SIZE))
        assert set(values) <= {1, 2}
        if seed % 4 == 1:
            assert values == [2] * 8
        lost += values.count(1)
    assert lost


def test_faults_of_creation_rename_and_removal() -> None:
    outcomes = set()
    for seed in range(40):
        disk = TornDisk(SeededRandom(seed))
        disk.create("a", SIZE)
        disk.plan_faults = lambda operation, name: DiskFault.POWER
        call = (partial(disk.create, "b", SIZE), partial(disk.rename, "a", "b"))[seed % 2]
        with pytest.raises(OSError, match="injected"):
            call()
        disk.plan_faults = None
        disk.crash()
        outcomes.add((seed % 2, tuple(disk.list())))
    assert outcomes == {(0, ("a",)), (0, ("a", "b")), (1, ("a",)), (1, ("b",))}
    disk.plan_faults = lambda operation, name: DiskFault.FULL
    with pytest.raises(OSError, match="injected"):
        disk.create("c", SIZE)
    with pytest.raises(FileNotFoundError):
        disk.open("c")
