"""Folders of files that grow: the contract over the system's folder and the one that tears."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.disk.system_folder import SystemFolder
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.folder_conformance import GrowingFolderConformance
from streamlog.testing.torn_folder import TornFolder
from streamlog.testing.torn_media import DiskFault, FaultPlan
from tests.support.kernel_calls import recorded

SEEDS = range(60)


def failing_once(operation: str, name: str) -> FaultPlan:
    """The first such call fails."""
    left = [DiskFault.IO_ERROR]

    def plan(call: str, called: str) -> DiskFault | None:
        return left.pop() if left and (call, called) == (operation, name) else None

    return plan


class TestSystemFolder(GrowingFolderConformance):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path / "data" / "log"

    def folder(self) -> GrowingFolder:
        return SystemFolder(self.root)


class TestTornFolder(GrowingFolderConformance):
    def folder(self) -> GrowingFolder:
        return TornFolder(SeededRandom(1))


@pytest.mark.parametrize("call", ["open", "create"])
def test_a_file_whose_size_is_not_told_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder = SystemFolder(tmp_path)
    if call == "open":
        folder.create("a").close()

    def stale(descriptor: int) -> os.stat_result:
        raise OSError(errno.ESTALE, "stale")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)
        with pytest.raises(OSError, match="stale"):
            getattr(folder, call)("a")
    assert os.listdir("/proc/self/fd") == before


def test_each_sync_is_one_call_and_nothing_else_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(tmp_path, monkeypatch) as calls:
        folder = SystemFolder(tmp_path)
        calls.take()
        file = folder.create("a")
        file.append([b"one", b"two"])
        assert calls.take() == ["create a", "write a"]
        file.sync()
        assert calls.take() == ["fsync a"]
        folder.rename("a", "b")
        assert calls.take() == ["rename a b"]
        folder.sync()
        assert calls.take() == ["fsync ."]
        file.close()


def test_a_write_that_the_kernel_takes_in_pieces_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.pwritev

    def short(descriptor: int, parts: Any, position: int, flags: int = 0) -> int:
        return original(descriptor, [memoryview(parts[0])[:2]], position, flags)

    monkeypatch.setattr(os, "pwritev", short)
    file = SystemFolder(tmp_path).create("a")
    assert file.append([b"abc", b"defgh", b"i"]) == 0
    assert file.read(0, 100) == b"abcdefghi"
    file.close()


def test_a_failed_append_leaves_the_size_and_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SystemFolder(tmp_path)
    file = folder.create("a")
    file.append([b"good"])
    original = os.pwritev
    calls = 0

    def full(descriptor: int, parts: Any, position: int, flags: int = 0) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, [memoryview(parts[0])[:2]], position, flags)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(OSError, match="No space"):
            file.append([b"bad!"])
    assert (file.size(), file.read(0, 100)) == (4, b"good")
    for size in (6, 4):
        other = folder.open("a")
        assert other.size() == size
        other.close()
        file.truncate(4)
    file.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_synced_survives_a_power_cut(seed: int) -> None:
    random = Random(seed)
    folder = TornFolder(SeededRandom(seed))
    file = folder.create("a")
    folder.sync()
    synced = b""
    for _ in range(random.randrange(1, 8)):
        file.append([random.randbytes(random.randrange(2000))])
        if random.random() < 0.5:
            file.sync()
            synced = file.read(0, file.size())
    folder.crash()
    assert folder.open("a").read(0, len(synced)) == synced


def test_what_was_not_synced_may_be_lost_or_torn() -> None:
    """Each of the ways in which a machine can leave it is met by some seed."""
    met = set()
    new = bytes([7]) * 3000
    for seed in SEEDS:
        folder = TornFolder(SeededRandom(seed))
        file = folder.create("a")
        folder.sync()
        file.append([new])
        folder.crash()
        left = folder.open("a").read(0, 4000)
        if not left:
            met.add("nothing")
        elif left == new:
            met.add("all")
        elif set(left) == {7}:
            met.add("a prefix")
        else:
            met.add("zeros between")
    assert met == {"nothing", "all", "a prefix", "zeros between"}


def test_a_sync_after_a_failed_one_makes_nothing_durable_but_an_append_again_does() -> None:
    lost = 0
    for seed in SEEDS:
        folder = TornFolder(SeededRandom(seed), failing_once("sync", "a"))
        file = folder.create("a")
        folder.sync()
        file.append([b"x" * 600])
        with pytest.raises(OSError, match="injected"):
            file.sync()
        assert file.read(0, 600) == b"x" * 600
        if seed % 2:
            file.truncate(0)
            file.append([b"x" * 600])
        file.sync()
        folder.crash()
        left = folder.open("a").read(0, 600)
        if seed % 2:
            assert left == b"x" * 600
        else:
            lost += left != b"x" * 600
    assert lost > 5


def test_names_are_durable_with_the_folders_sync() -> None:
    seen = set()
    for seed in SEEDS:
        folder = TornFolder(SeededRandom(seed))
        folder.create("a")
        folder.sync()
        folder.rename("a", "b")
        folder.create("c")
        folder.crash()
        seen.add(tuple(folder.list()))
        folder.remove(folder.list()[0])
        folder.sync()
        kept = folder.list()
        folder.crash()
        assert folder.list() == kept
    assert seen == {("a",), ("b",), ("b", "c")}


def test_after_a_power_cut_calls_fail_until_the_machine_is_back() -> None:
    plan = iter([DiskFault.POWER])
    folder = TornFolder(SeededRandom(1), lambda call, name: next(plan, None))
    with pytest.raises(OSError, match="injected"):
        folder.create("a")
    with pytest.raises(OSError, match="injected"):
        folder.list()
    folder.crash()
    file = folder.create("b")
    folder.sync()
    folder.crash()
    with pytest.raises(OSError, match="injected"):
        file.read(0, 1)
    assert "b" in folder.list()


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("is_let", [True, False])
def test_what_is_written_again_or_cut_off_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_let: bool, is_cut: bool
) -> None:
    """A file of another user may be written, and its time not be set."""

    def refused(*_args: object, **_named: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    file = SystemFolder(tmp_path).create("a")
    file.append([b"one"])
    os.utime(tmp_path / "a", (1, 1))
    if not is_let:
        monkeypatch.setattr(os, "utime", refused)
    if is_cut:
        file.truncate(2)
    else:
        file.write_again(0)
    assert file.read(0, 9) == b"one"[: 3 - is_cut]
    assert ((tmp_path / "a").stat().st_mtime_ns == 10**9) is is_let
    file.close()
