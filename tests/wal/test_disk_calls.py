"""What SystemDisk asks of the kernel: each promise of `Disk` needs its flags and syncs, in order.

A disk that leaves one of them out passes every test that does not cut the power.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamlog.format.rows import Tenure
from streamlog.runtime import writer_threads
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wal.log import WriteAheadLog
from tests.support.kernel_calls import recorded
from tests.wal.wal_helpers import CLUSTER, SMALL, group


def test_a_write_asks_for_dsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SystemDisk(tmp_path).create("a", 20_000)
    with recorded(tmp_path, monkeypatch) as calls:
        disk = SystemDisk(tmp_path)
        file = disk.open("a")
        calls.take()
        file.write_sync(0, [b"one", b"two"])
        assert calls.take() == ["write a dsync"]
        file.write_sync(0, [b"%04d" % n for n in range(2000)])
        assert calls.take() == ["write a", "write a", "fdatasync a"]
        file.sync()
        assert calls.take() == ["fsync a"]


def test_without_dsync_a_write_is_followed_by_fdatasync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SystemDisk(tmp_path).create("a", 1000).close()
    original = os.pwritev

    def without_flags(descriptor: int, parts: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "no such flag")
        return original(descriptor, parts, position)

    monkeypatch.setattr(os, "pwritev", without_flags)
    with recorded(tmp_path, monkeypatch) as calls:
        file = SystemDisk(tmp_path).open("a")
        for _ in range(2):
            calls.take()
            file.write_sync(0, [b"one"])
            assert calls.take() == ["write a", "fdatasync a"]


def test_names_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making, renaming and removing a file end with the folder's sync."""
    with recorded(tmp_path, monkeypatch) as calls:
        disk = SystemDisk(tmp_path)
        calls.take()
        disk.create("a", (2 << 20) + 1).close()
        assert calls.take() == ["create a", *["write a dsync"] * 3, "fsync a", "fsync ."]
        disk.rename("a", "b")
        assert calls.take() == ["rename a b", "fsync ."]
        disk.remove("b")
        assert calls.take() == ["unlink b", "fsync ."]


def test_a_folder_is_synced_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have died between making the folder and syncing its parent."""
    root = tmp_path / "data" / "wal"
    with recorded(tmp_path, monkeypatch) as calls:
        SystemDisk(root)
        made = calls.take()
        assert made[:4] == ["mkdir data", "fsync .", "mkdir data/wal", "fsync data"]
        SystemDisk(root)
        again = calls.take()
    for synced in (made, again):
        assert {"fsync data/wal", "fsync data", "fsync ."} <= set(synced)


def test_a_group_is_one_durable_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole log on the system disk: an append is one dsync write, and a new identity gets its
    name when its content is durable. Files are made ready in a thread beside that. What the thread
    in C asks of the kernel is in tests/wal/test_durable_writes.py."""
    monkeypatch.setattr(writer_threads, "ARE_THERE", False)

    async def scenario() -> None:
        offload = ThreadOffload()
        with recorded(tmp_path, monkeypatch) as calls:
            disk = SystemDisk(tmp_path)
            wal = await WriteAheadLog.open(
                disk, offload, SMALL, CollectorRegistry(), SystemRandom()
            )
            await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
            await wal.append(group(b"first"))
            active = next(name for name in disk.list() if name.startswith("wal-0"))
            calls.take()
            await wal.append(group(b"second"))
            assert [line for line in calls.take() if active in line] == [f"write {active} dsync"]
            wal.release(2)
            calls.take()
            await wal.persist_release()
            stated = calls.take()
            await wal.close()
        await offload.close()
        new = "wal-identity.new"
        renamed = f"rename {new} wal-identity"
        assert [line for line in stated if new in line] == [
            f"write {new} dsync",
            renamed,
            # For the next change.
            f"create {new}",
            f"write {new} dsync",
            f"fsync {new}",
        ]
        # The thread that makes the next file ready may write between the two.
        named = [line for line in stated[stated.index(renamed) + 1 :] if "wal-0" not in line]
        assert named[0] == "fsync ."

    asyncio.run(scenario())
