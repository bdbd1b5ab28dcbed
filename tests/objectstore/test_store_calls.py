"""Kernel calls of the local store and the metadata folder: the syncs behind each promise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.errors import AlreadyExists
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.objectstore.local import direct_write
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from tests.support.kernel_calls import KernelCalls, recorded


def without_names(calls: KernelCalls) -> list[str]:
    """The calls of one put: temporary files have names that count up, locks are no data."""
    lines = []
    for line in calls.take():
        words = [".tmp/*" if word.startswith(".tmp/") else word for word in line.split()]
        if ".replace" not in words:
            lines.append(" ".join(words))
    return lines


@pytest.mark.parametrize("size", [10, direct_write.DIRECT_BYTES_MIN + 5])
def test_an_object_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        with recorded(tmp_path, monkeypatch) as calls:
            store = await LocalObjectStore.open(tmp_path, offload, ManualClock())
            # What the first put finds out: the folder's entry, whether direct writes are taken.
            await store.put("data/0", (bytes(size),))
            calls.take()
            info = await store.put("data/1", (bytes(size),))
            lines = [line for line in without_names(calls) if not line.startswith(("write", "cut"))]
            stored = ["create .tmp/*", "fsync .tmp/*", "rename .tmp/* data/1", "fsync data"]
            assert lines == stored
            await store.put_if_match("data/1", (bytes(size),), info.etag)
            lines = without_names(calls)
            assert [line for line in lines if not line.startswith(("write", "cut"))] == stored
            last_write = max(n for n, line in enumerate(lines) if line.startswith(("write", "cut")))
            assert last_write < lines.index("fsync .tmp/*")
            await store.put("data/2", (bytes(size),), if_absent=True)
            lines = [line for line in without_names(calls) if not line.startswith(("write", "cut"))]
            assert lines == [
                "create .tmp/*",
                "fsync .tmp/*",
                "link .tmp/* data/2",
                "unlink .tmp/*",
                "fsync data",
            ]
            with pytest.raises(AlreadyExists):
                await store.put("data/2", (b"x",), if_absent=True)
            # Who is told that it exists relies on it.
            assert "fsync data" in calls.take()
            await store.delete(["data/1", "data/2", "cluster.json"])
            assert without_names(calls) == ["unlink data/1", "unlink data/2", "fsync data"]
            await store.close()
        await offload.close()

    asyncio.run(scenario())


def test_folders_are_synced_even_if_another_process_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have died between making a folder and syncing its parent, or between storing
    cluster.json and syncing the root."""
    root = tmp_path / "objects"
    (root / "data").mkdir(parents=True)
    (root / ".tmp").mkdir()

    async def scenario() -> None:
        offload = ThreadOffload()
        with recorded(tmp_path, monkeypatch) as calls:
            store = await LocalObjectStore.open(root, offload, ManualClock())
            assert {"fsync objects", "fsync ."} <= set(calls.take())
            await store.put("data/1", (b"x",))
            lines = calls.take()
            named = next(line for line in lines if line.startswith("rename"))
            # The entry of `data` is durable before an object in it is stored.
            assert "fsync objects" in lines[: lines.index(named)]
            await store.put("data/2", (b"x",))
            assert "fsync objects" not in calls.take()
            await store.close()
        await offload.close()

    asyncio.run(scenario())


def test_the_metadata_folder_is_synced_even_if_another_process_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "meta").mkdir(parents=True)

    async def scenario() -> None:
        offload = ThreadOffload()
        with recorded(tmp_path, monkeypatch) as calls:
            kv = await RocksKVStore.open(tmp_path / "data" / "meta", SystemClock(), offload)
            assert {"fsync data", "fsync ."} <= set(calls.take())
            await kv.close()
        await offload.close()

    asyncio.run(scenario())
