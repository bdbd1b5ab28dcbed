"""Looking at a WAL folder: what it holds, where it is damaged, and nothing is changed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlog.format.rows import Tenure
from streamlog.runtime.disk.read_only_disk import ReadOnlyDisk
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.wal.inspection import WalContent, inspect
from tests.wal.wal_helpers import CLUSTER, begin, group

GROUPS = 20
PAYLOAD = 6000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of several files, left behind without a close."""

    async def fill() -> None:
        wal = await begin(SystemDisk(tmp_path / "wal"))
        for number in range(GROUPS):
            await wal.append(group(b"%02d" % number + bytes(PAYLOAD)))
        wal.release(2)
        # The release is in the frames from here on.
        await wal.append(group(b"last"))

    asyncio.run(fill())
    return tmp_path / "wal"


def look(folder: Path) -> WalContent:
    return inspect(ReadOnlyDisk(folder))


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    }


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def frame_of(content: WalContent, folder: Path, sequence: int) -> tuple[Path, int]:
    """A file that holds a group, and a place inside the group's payload."""
    for seen in content.files:
        first, last = seen.first_sequence, seen.last_sequence
        if first is not None and last is not None and first <= sequence <= last:
            path = folder / seen.name
            # Each payload begins with the group's number, counted from 0.
            return path, path.read_bytes().index(b"%02d" % (sequence - 1) + bytes(100)) + 50
    raise AssertionError(f"no file has group {sequence}")


def test_everything_that_is_not_released_is_listed_and_nothing_is_changed(folder: Path) -> None:
    before = fingerprint(folder)
    content = look(folder)
    assert fingerprint(folder) == before
    assert content.identity is not None
    assert content.identity.cluster_id == CLUSTER
    assert content.identity.tenures == {Tenure(1, 1)}
    assert content.node_ids == {1}
    assert content.released_through == 2
    assert [entry.sequence for entry in content.entries] == [
        sequence for sequence in range(3, GROUPS + 2) for _ in range(2)
    ]
    assert {entry.stream_id for entry in content.entries} == {1, 2}
    assert content.entries[0].size_bytes == PAYLOAD + 2
    assert (content.damage, content.torn) == ([], None)
    active = [file for file in content.files if file.state == "active"]
    assert len(active) > 2
    assert active[0].tenure == Tenure(1, 1)


def test_a_file_of_a_closed_log_is_read_too(tmp_path: Path) -> None:
    async def use() -> None:
        wal = await begin(SystemDisk(tmp_path))
        await wal.append(group(b"x"))
        wal.release(1)
        await wal.close()

    asyncio.run(use())
    content = look(tmp_path)
    assert (content.released_through, content.entries) == (1, [])
    assert content.node_ids == {1}


def test_a_folder_without_a_log_is_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a log")
    content = look(tmp_path)
    assert (content.identity, content.files, content.entries) == (None, [], [])
    assert content.node_ids == set()
    with pytest.raises(FileNotFoundError):
        look(tmp_path / "absent")


def test_damage_in_the_middle_is_named_and_the_rest_is_listed(folder: Path) -> None:
    whole = look(folder)
    path, position = frame_of(whole, folder, 8)
    flip(path, position)
    content = look(folder)
    (damage,) = content.damage
    assert damage.file == path.name
    assert damage.start <= position < damage.end
    assert "8" in damage.what
    left = {entry.sequence for entry in content.entries}
    assert left == {entry.sequence for entry in whole.entries} - {8}


def test_a_torn_end_is_no_damage(folder: Path) -> None:
    whole = look(folder)
    last = max(whole.entries, key=lambda entry: entry.sequence).sequence
    (file,) = (seen for seen in whole.files if seen.last_sequence == last)
    data = (folder / file.name).read_bytes()
    flip(folder / file.name, data.rindex(b"last"))
    content = look(folder)
    assert content.damage == []
    assert content.torn is not None
    assert content.torn.file == file.name
    assert {entry.sequence for entry in content.entries} == set(range(3, last))


def _superblock(folder: Path) -> str:
    flip(folder / "wal-00000002", 20)
    return "wal-00000002"


def _identity(folder: Path) -> str:
    flip(folder / "wal-identity", 30)
    return "wal-identity"


def _short(folder: Path) -> str:
    os.truncate(folder / "wal-00000002", 5000)
    return "wal-00000002"


@pytest.mark.parametrize("harm", [_superblock, _identity, _short])
def test_every_damaged_place_is_named(folder: Path, harm: Callable[[Path], str]) -> None:
    name = harm(folder)
    content = look(folder)
    assert name in {damage.file for damage in content.damage}
    assert content.entries, "what can be read is still listed"


def test_reading_only_refuses_to_write(tmp_path: Path) -> None:
    disk = ReadOnlyDisk(tmp_path)
    (tmp_path / "a").write_bytes(b"a")
    calls: list[Callable[[], object]] = [
        lambda: disk.create("b", 1),
        lambda: disk.rename("a", "b"),
        lambda: disk.remove("a"),
        lambda: disk.open("a").write_sync(0, [b"b"]),
    ]
    for call in calls:
        with pytest.raises(OSError):
            call()
    assert (tmp_path / "a").read_bytes() == b"a"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
