"""An object that comes in pieces to a folder: whole or not there, and little of it in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.errors import Closed, DiskFull, ObjectNotFound
from streamlog.objectstore.interface import UploadingStore, upload_to
from streamlog.objectstore.local.direct_write import BUFFER_BYTES, DIRECT_BYTES_MIN
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.store_conformance import read

MIB = 1 << 20
SIZES = (0, 1, 4096, DIRECT_BYTES_MIN, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 4097)


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[LocalObjectStore]:
    offload = ThreadOffload()
    store = await LocalObjectStore.open(root, offload, ManualClock())
    try:
        yield store
    finally:
        await store.close()
        await offload.close()


def temporary_files(root: Path) -> list[Path]:
    return list((root / ".tmp").iterdir())


def pieces(size: int) -> list[bytes]:
    choose, left, found = random.Random(size), size, []
    while left:
        taken = min(left, choose.randrange(1, 700_000))
        found.append(choose.randbytes(taken))
        left -= taken
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("about_bytes", [0, 64 * MIB])
def test_an_object_is_there_whole_when_it_is_finished(
    tmp_path: Path, size: int, about_bytes: int
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            upload = store.upload("folder/a", about_bytes)
            sent = pieces(size)
            for piece in sent:
                await upload.write([piece])
                with pytest.raises(ObjectNotFound):
                    await store.head("folder/a")
            info = await upload.finish()
            upload.give_up()
            assert info == await store.head("folder/a")
            assert await read(store, "folder/a") == b"".join(sent)
            assert temporary_files(tmp_path) == []

    asyncio.run(main())


def test_an_upload_takes_the_place_of_an_object(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            before = await store.put("a", [b"old"])
            upload = store.upload("a", 3)
            await upload.write([b"n", b"", b"ew"])
            assert await read(store, "a") == b"old"
            after = await upload.finish()
            assert after.etag != before.etag
            assert await read(store, "a") == b"new"

    asyncio.run(main())


def test_an_upload_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            upload = store.upload("a", MIB)
            await upload.write([bytes(2 * MIB)])
            assert len(temporary_files(tmp_path)) == 1
            upload.give_up()
            with pytest.raises(Closed):
                await upload.finish()
            store.upload("b", MIB).give_up()
        assert temporary_files(tmp_path) == []
        assert not (tmp_path / "a").exists()

    asyncio.run(main())


def test_a_write_that_is_cancelled_ends_before_its_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would write into whatever got the descriptor's number next."""
    begun, may_go_on = threading.Event(), threading.Event()
    inner = os.pwrite

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        begun.set()
        assert may_go_on.wait(30)
        return inner(descriptor, data, position)

    async def main() -> None:
        async with opened(tmp_path) as store:
            upload = store.upload("a", MIB)
            writing = asyncio.ensure_future(upload.write([bytes(3 * MIB)]))
            await asyncio.to_thread(begun.wait, 30)
            writing.cancel()
            await asyncio.wait({writing})
            upload.give_up()
            with pytest.raises(ObjectNotFound):
                await store.head("a")
            assert len(temporary_files(tmp_path)) == 1
            may_go_on.set()
        assert temporary_files(tmp_path) == []

    monkeypatch.setattr(os, "pwrite", pwrite)
    asyncio.run(main())


def test_a_full_disk_ends_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    async def main() -> None:
        async with opened(tmp_path) as store:
            upload = store.upload("a", MIB)
            monkeypatch.setattr(os, "pwrite", full)
            with pytest.raises(DiskFull):
                await upload.write([bytes(2 * MIB)])
            upload.give_up()
        assert temporary_files(tmp_path) == []

    asyncio.run(main())


@pytest.mark.parametrize("fails_at", [0, MIB])
def test_a_file_system_without_direct_writes_takes_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    inner = os.pwrite
    refused: list[int] = []

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        if position >= fails_at and not refused:
            refused.append(position)
            raise OSError(errno.EINVAL, "no direct writes here")
        return inner(descriptor, data, position)

    async def main() -> None:
        async with opened(tmp_path) as store:
            sent = pieces(3 * MIB + 5)
            monkeypatch.setattr(os, "pwrite", pwrite)
            upload = store.upload("a", 3 * MIB)
            await upload.write(sent)
            await upload.finish()
            assert await read(store, "a") == b"".join(sent)
            assert refused == [fails_at]

    asyncio.run(main())


def test_a_large_object_takes_little_memory(tmp_path: Path) -> None:
    async def main() -> int:
        async with opened(tmp_path) as store:
            assert isinstance(store, UploadingStore)
            upload = upload_to(store, "a", 64 * MIB)
            assert upload is not None
            tracemalloc.start()
            try:
                for _ in range(16):
                    await upload.write([os.urandom(4 * MIB)])
                await upload.finish()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (await store.head("a")).size_bytes == 64 * MIB
            return peak

    assert asyncio.run(main()) < 12 * MIB
