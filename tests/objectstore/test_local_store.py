"""LocalObjectStore: crashes, leftovers, full disks, folders that cannot be used."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.errors import (
    DiskFull,
    InvalidName,
    OutcomeUnknown,
    StoreUnavailable,
    ValueConflict,
)
from streamlog.objectstore.local import files as local_files
from streamlog.objectstore.local.direct_write import FileWriter
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.store_conformance import list_all, read

CHILD = """
import asyncio, sys
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload

async def write(store, writer):
    for n in range(1_000_000):
        await store.put(f"w{writer}/{n:06d}", [b"%06d" % n] * 20_000)
        print(writer, n, flush=True)

async def main():
    store = await LocalObjectStore.open(sys.argv[1], ThreadOffload(), SystemClock())
    await asyncio.gather(*(write(store, writer) for writer in range(3)))

asyncio.run(main())
"""

FULL_DISK_CHILD = """
import asyncio, resource, signal, sys
from streamlog.errors import DiskFull
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = await LocalObjectStore.open(sys.argv[1], ThreadOffload(), SystemClock())
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    await store.put("small", (bytes(50_000),))
    for if_absent in (False, True):
        try:
            await store.put("data/large", (bytes(60_000), bytes(60_000)), if_absent=if_absent)
        except DiskFull as error:
            print(error)
    assert [info.key for info in (await store.list("")).objects] == ["small"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.put("data/large", (bytes(120_000),))
    assert len(await store.get("data/large")) == 120_000

asyncio.run(main())
"""


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[LocalObjectStore]:
    offload = ThreadOffload()
    store = await LocalObjectStore.open(root, offload, ManualClock())
    try:
        yield store
    finally:
        await store.close()
        await offload.close()


def temporary_files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".tmp").iterdir())


def test_a_kill_leaves_whole_objects_and_all_that_were_acknowledged(tmp_path: Path) -> None:
    root = tmp_path / "objects"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(30)]
    child.kill()
    lines += child.stdout.read().splitlines(keepends=True)
    child.stdout.close()
    child.wait()
    acknowledged = {
        f"w{writer}/{int(n):06d}" for writer, n in (x.split() for x in lines if x.endswith("\n"))
    }

    async def main() -> None:
        async with opened(root) as store:
            assert temporary_files(root) == []
            listed = await list_all(store, "w")
            assert acknowledged <= set(listed)
            for key in listed:
                assert await read(store, key) == key[-6:].encode() * 20_000

    asyncio.run(main())


def test_half_written_objects_are_deleted_unless_a_writer_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second store on the same root opens in the middle of a put of the first."""
    root = tmp_path / "objects"

    async def main() -> None:
        async with opened(root) as store:
            (root / ".tmp" / "host-1-7").write_bytes(b"left over")
            inner = FileWriter.write
            seen: list[list[str]] = []

            def write(writer: FileWriter, descriptor: int, parts: list[bytes]) -> int:
                checksum = inner(writer, descriptor, parts)
                seen.append(temporary_files(root))
                swept = local_files.LocalFiles(str(root)).open()
                assert swept == 1
                seen.append(temporary_files(root))
                return checksum

            monkeypatch.setattr(FileWriter, "write", write)
            await store.put("a", (b"x",))
            assert [len(names) for names in seen] == [2, 1]
            assert await read(store, "a") == b"x"
            assert temporary_files(root) == []

    asyncio.run(main())


def test_a_put_whose_new_file_was_deleted_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process deletes the temporary file between its creation and its lock."""
    root = tmp_path / "objects"
    inner = fcntl.flock
    swept: list[str] = []

    def flock(descriptor: int, operation: int) -> None:
        if not swept and temporary_files(root):
            (path,) = (root / ".tmp").iterdir()
            swept.append(path.name)
            path.unlink()
        inner(descriptor, operation)

    async def main() -> None:
        async with opened(root) as store:
            monkeypatch.setattr(fcntl, "flock", flock)
            await store.put("a", (b"x",))
            assert len(swept) == 1
            assert await read(store, "a") == b"x"

    asyncio.run(main())


def test_nothing_changes_between_compare_and_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = os.rename
    free: list[tuple[bool, bool]] = []

    def can_lock(mode: int) -> bool:
        with open(tmp_path / ".replace") as lock:
            try:
                fcntl.flock(lock, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def rename(source: str, target: str) -> None:
        free.append((can_lock(fcntl.LOCK_SH), can_lock(fcntl.LOCK_EX)))
        inner(source, target)

    async def main() -> None:
        async with opened(tmp_path) as store:
            monkeypatch.setattr(os, "rename", rename)
            info = await store.put("a", (b"1",))
            await store.put_if_match("a", (b"2",), info.etag)
            # puts run side by side; a compare-and-replace runs alone
            assert free == [(True, False), (False, False)]

    asyncio.run(main())


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "objects"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_CHILD, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    messages = done.stdout.splitlines()
    assert len(messages) == 2
    assert all(str(root) in message and "free some space" in message for message in messages)
    assert temporary_files(root) == []


def test_no_room_is_disk_full_and_other_errors_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path / "objects") as store:
            for number, expected in ((28, DiskFull), (122, DiskFull), (5, StoreUnavailable)):

                def fsync(descriptor: int, number: int = number) -> None:
                    raise OSError(number, os.strerror(number))

                with monkeypatch.context() as broken:
                    broken.setattr(os, "fsync", fsync)
                    with pytest.raises(expected) as raised:
                        await store.put("a", (b"x",))
                    assert type(raised.value) is expected
                    assert raised.value.is_retryable
            assert await list_all(store, "") == []
            assert temporary_files(tmp_path / "objects") == []

    asyncio.run(main())


def test_a_failed_folder_sync_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(5, "Input/output error")

    async def main() -> None:
        async with opened(tmp_path / "objects") as store:
            await store.put("a", (b"1",))
            with monkeypatch.context() as broken:
                broken.setattr(local_files, "fsync_folder", fail)
                with pytest.raises(OutcomeUnknown):
                    await store.put("a", (b"2",))
                with pytest.raises(OutcomeUnknown):
                    await store.delete(["a"])
            await store.put("a", (b"2",))
            assert await read(store, "a") == b"2"

    asyncio.run(main())


def test_a_file_in_place_of_the_root_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        for root in (tmp_path / "file", tmp_path / "file" / "objects"):
            with pytest.raises(StoreUnavailable) as raised:
                async with opened(root):
                    pass
            assert "a file stands where a folder is needed" in str(raised.value)
            assert str(root) in str(raised.value)

    asyncio.run(main())


def test_a_folder_without_the_right_to_write_is_explained(tmp_path: Path) -> None:
    root = tmp_path / "objects"
    root.mkdir()
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    root.chmod(0o555)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)  # the rights of files do not bind root

    async def main() -> None:
        with pytest.raises(StoreUnavailable) as raised:
            async with opened(root):
                pass
        assert "give this user the right to write" in str(raised.value)
        assert raised.value.path == str(root)

    try:
        asyncio.run(main())
    finally:
        if was_root:
            os.seteuid(0)
        root.chmod(0o755)


def test_objects_cannot_lie_below_objects(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "objects") as store:
            await store.put("a/b", (b"x",))
            for key in ("a/b/c", "a"):
                with pytest.raises(InvalidName):
                    await store.put(key, (b"y",))
            assert await list_all(store, "") == ["a/b"]

    asyncio.run(main())


def test_metadata_and_wal_beside_the_objects_are_no_objects(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            for folder in ("meta", "wal"):
                (tmp_path / folder).mkdir()
                (tmp_path / folder / "000009.sst").write_bytes(b"not an object")
            await store.put("data/0", (b"x",))
            assert await list_all(store, "") == ["data/0"]
            for key in ("meta/000009.sst", "wal/000009.sst"):
                with pytest.raises(InvalidName):
                    await store.delete([key])

    asyncio.run(main())


def test_a_removed_folder_is_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        root = tmp_path / "objects"
        async with opened(root) as store:
            await store.put("data/0", (b"x",))
            (root / "data" / "0").unlink()
            (root / "data").rmdir()
            with pytest.raises(StoreUnavailable):
                await store.put("data/1", (b"x",))
            await store.put("data/1", (b"x",))
            assert await list_all(store, "") == ["data/1"]

    asyncio.run(main())


def test_two_stores_on_one_root_agree(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as one, opened(tmp_path) as other:
            info = await one.put("a", (b"1",))
            assert await other.head("a") == info
            await other.put_if_match("a", (b"2",), info.etag)
            with pytest.raises(ValueConflict):
                await one.put_if_match("a", (b"3",), info.etag)

    asyncio.run(main())
