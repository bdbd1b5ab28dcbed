"""SystemDisk on a real folder, and the log on it with real threads."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import Corrupt, StoreUnavailable
from streamlog.format.rows import Tenure
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wal.log import WriteAheadLog
from tests.wal.wal_helpers import CLUSTER, SMALL, group, payload_of


def test_a_folder_of_files(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path / "deep" / "folder")
    assert disk.list() == []
    file = disk.create("a", 3_000_001)
    assert file.size() == 3_000_001
    assert not any(file.read(0, 3_000_001))
    file.write_sync(10, [b"one", b"", memoryview(b"two")])
    file.sync()
    assert disk.open("a").read(8, 10) == b"\0\0onetwo\0\0"
    assert file.read(3_000_000, 10) == b"\0"
    assert file.read(4_000_000, 10) == b""
    with pytest.raises(FileExistsError):
        disk.create("a", 1)
    disk.create("b", 0).close()
    disk.rename("b", "a")
    assert disk.list() == ["a"]
    assert disk.open("a").size() == 0
    disk.remove("a")
    assert disk.list() == []
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    for name in ("", ".", "..", "a/b", "a\0"):
        with pytest.raises(ValueError):
            disk.create(name, 1)


def test_more_parts_than_one_call_takes(tmp_path: Path) -> None:
    file = SystemDisk(tmp_path).create("a", 20_000)
    parts = [b"%04d" % n for n in range(3000)]
    file.write_sync(100, parts)
    assert file.read(100, 12_000) == b"".join(parts)


@pytest.mark.parametrize("flags", ["dsync", "refused"])
def test_short_writes_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    file = SystemDisk(tmp_path).create("a", 1000)
    whole = os.pwritev
    calls: list[int] = []

    def short(descriptor: int, pieces: Sequence[bytes], position: int, flag: int = 0) -> int:
        if flag and flags == "refused":
            raise OSError(errno.EOPNOTSUPP, "no such flag")
        calls.append(flag)
        first = memoryview(pieces[0])
        return whole(descriptor, [first[: max(len(first) // 2, 1)]], position, flag)

    monkeypatch.setattr(os, "pwritev", short)
    file.write_sync(5, [b"abcdefgh", b"i", b"jklm"])
    assert file.read(5, 13) == b"abcdefghijklm"
    assert len(calls) > 3
    if flags == "refused":
        assert not any(calls)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SystemDisk(tmp_path).create("a", 20)
    file.write_sync(0, [b"abcdefghijklm"])
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: whole(arguments[0], 3, arguments[2]))
    assert file.read(2, 9) == b"cdefghijk"


def test_an_interrupted_creation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="no space left"):
        disk.create("a", 1000)
    assert disk.list() == []


def test_the_log_on_a_real_folder(tmp_path: Path) -> None:
    async def open_log(offload: ThreadOffload, epoch: int) -> WriteAheadLog:
        disk = SystemDisk(tmp_path / "wal")
        wal = await WriteAheadLog.open(disk, offload, SMALL, CollectorRegistry(), SystemRandom())
        await wal.begin(Tenure(1, epoch), cluster_id=CLUSTER)
        return wal

    async def scenario() -> None:
        offload = ThreadOffload()
        wal = await open_log(offload, 1)
        sent = [b"%d-" % n * (n * 50) for n in range(1, 61)]
        sequences = []
        for first in range(0, 60, 4):
            batch = [wal.append(group(payload)) for payload in sent[first : first + 4]]
            sequences += await asyncio.gather(*batch)
            wal.release(max(sequences[-1] - 10, 0))
        assert sequences == list(range(1, 61))
        await wal.close()
        wal = await open_log(offload, 2)
        assert [(g.sequence, payload_of(g.entries)) async for g in wal.recover()] == list(
            enumerate(sent, start=1)
        )[50:]
        assert await wal.append(group(b"more")) == 61
        await wal.close()
        await offload.close()

    asyncio.run(scenario())


def test_a_truncated_file_and_an_incomplete_folder_are_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        disk = SystemDisk(tmp_path)
        wal = await WriteAheadLog.open(disk, offload, SMALL, CollectorRegistry(), SystemRandom())
        await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
        await wal.append(group(b"x"))
        await wal.close()
        os.truncate(tmp_path / "wal-00000001", 20_000)
        with pytest.raises(Corrupt) as caught:
            await WriteAheadLog.open(disk, offload, SMALL, CollectorRegistry(), SystemRandom())
        assert (caught.value.object_key, caught.value.start) == ("wal-00000001", 20_000)
        gone = SystemDisk(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(StoreUnavailable):
            await WriteAheadLog.open(gone, offload, SMALL, CollectorRegistry(), SystemRandom())
        await offload.close()

    asyncio.run(scenario())
