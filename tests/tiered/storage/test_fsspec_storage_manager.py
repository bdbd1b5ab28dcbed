"""Remote segments in file systems of fsspec: this machine's, by fsspec's own class and by that of
pyarrow's file systems, on which hdfs:// stands."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import fsspec
import pyarrow.fs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem

from streamlog.errors import InvalidConfig, ObjectNotFound, StoreUnavailable
from streamlog.testing.tiers.segments import SegmentMaker
from streamlog.testing.tiers.storage_conformance import RemoteStorageManagerConformance
from streamlog.tiered.api.storage_manager import IndexType, RemoteStorageManager
from streamlog.tiered.storage.fsspec_storage_manager import FsspecStorageManager
from streamlog.tiered.storage.names import partition_folder


def files_below(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


class TestFsspecStorageManager(RemoteStorageManagerConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path / "tier"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[RemoteStorageManager]:
        storage = FsspecStorageManager()
        storage.configure({"url": f"file://{self.root}", "storage_options.auto_mkdir": "false"})
        yield storage
        await storage.close()

    async def stored(self) -> Collection[str]:
        return files_below(self.root)

    def test_a_deleted_partition_leaves_no_folder_and_its_neighbour_has_all(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            data = make.data()
            gone, kept = [make.metadata(data, partition=number) for number in range(2)]
            for metadata in (gone, kept):
                await storage.copy_log_segment_data(metadata, data)
            await storage.delete_log_segment_data(gone)
            (self.root / partition_folder(gone.topic_id_partition) / "left").write_bytes(b"half")
            for _ in range(2):
                await storage.delete_partition_data(gone.topic_id_partition)
                (folder,) = self.root.iterdir()
                assert folder.name == partition_folder(kept.topic_id_partition)
            size = kept.segment_size_bytes
            assert len(await storage.fetch_log_segment(kept, 0, size - 1)) == size

        self.run(body)


class FilesOfArrow(ArrowFSWrapper):  # type: ignore[misc]
    """This machine's files, as fsspec's HadoopFileSystem has those of HDFS."""

    protocol = "arrowfiles"

    def __init__(self, **options: Any) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), **options)


class TestOverArrow(TestFsspecStorageManager):
    @asynccontextmanager
    async def make(self) -> AsyncIterator[RemoteStorageManager]:
        fsspec.register_implementation(FilesOfArrow.protocol, FilesOfArrow, clobber=True)
        storage = FsspecStorageManager()
        storage.configure({"url": f"{FilesOfArrow.protocol}://{self.root}"})
        yield storage
        await storage.close()


def test_the_files_have_the_names_of_the_kip(tmp_path: Path) -> None:
    async def main() -> None:
        make = SegmentMaker()
        data = make.data(has_aborted=True)
        metadata = make.metadata(data, topic="Topic-1", partition=2, start_offset=11)
        storage = FsspecStorageManager()
        storage.configure({"url": f"file://{tmp_path}"})
        await storage.copy_log_segment_data(metadata, data)
        await storage.close()
        (folder,) = tmp_path.iterdir()
        assert folder.name.startswith("Topic-1-2-")
        assert {path.name.rpartition(".")[2] for path in folder.iterdir()} == {
            "segment",
            "OFFSET",
            "TIMESTAMP",
            "PRODUCER_SNAPSHOT",
            "TRANSACTION",
            "LEADER_EPOCH",
        }

    asyncio.run(main())


def test_what_the_library_raises_is_unavailable(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "tier").write_bytes(b"")
        make = SegmentMaker()
        data = make.data()
        storage = FsspecStorageManager()
        storage.configure({"url": f"file://{tmp_path}/tier"})
        with pytest.raises(StoreUnavailable, match="Not a directory"):
            await storage.copy_log_segment_data(make.metadata(data), data)
        await storage.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({}, "needs the setting url"),
        ({"url": ""}, "needs the setting url"),
        ({"url": "/tmp/tier"}, "it is no URL"),
        ({"url": "nosuch://x/y"}, "Protocol not known: nosuch"),
        ({"url": "hdfs://me:secret@name:8020/tier"}, "holds no password"),
        ({"url": "file:///x", "storage_options.": "1"}, "unknown setting 'storage_options.'"),
        ({"url": "file:///x", "host": "h"}, r"known are exclusive, url, storage_options\.\*"),
    ],
)
def test_settings_that_are_refused(configs: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message) as raised:
        FsspecStorageManager().configure(configs)
    assert "secret" not in str(raised.value)


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InvalidConfig, match=r"pip install 'streamlog-engine\[fsspec\]'"):
        FsspecStorageManager().configure({"url": "hdfs://namenode:8020/tier"})


def test_without_settings_it_does_nothing() -> None:
    async def main() -> None:
        storage = FsspecStorageManager()
        make = SegmentMaker()
        with pytest.raises(InvalidConfig, match="lacks its setting url"):
            await storage.delete_log_segment_data(make.metadata(make.data()))
        await storage.close()

    asyncio.run(main())


class KeepsListings(MemoryFileSystem):  # type: ignore[misc]
    """Looks files up in listings that it keeps, as fsspec's file system of FTP does."""

    protocol = "keepslistings"
    cachable = False

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            folder, _, name = path.rpartition("/")
            if folder not in self.dircache:
                listed = self.ls(folder, detail=False)
                self.dircache[folder] = [one.rpartition("/")[2] for one in listed]
            if name not in self.dircache[folder]:
                raise FileNotFoundError(path)
        return super().open(path, mode=mode, **options)


def test_what_another_node_copied_is_found_behind_a_kept_listing() -> None:
    async def main() -> None:
        fsspec.register_implementation(KeepsListings.protocol, KeepsListings, clobber=True)
        make = SegmentMaker()
        nodes = []
        for _ in range(2):
            node = FsspecStorageManager()
            node.configure({"url": f"{KeepsListings.protocol}://kept"})
            nodes.append(node)
        writer, reader = nodes
        for start in (0, 1000):
            data = make.data()
            metadata = make.metadata(data, start_offset=start)
            await writer.copy_log_segment_data(metadata, data)
            size = metadata.segment_size_bytes
            found = await reader.fetch_log_segment(metadata, 0, size - 1)
            assert found == await data.log_segment.read(0, size)
            with pytest.raises(ObjectNotFound):
                await reader.fetch_index(metadata, IndexType.TRANSACTION)
        for node in nodes:
            await node.close()

    asyncio.run(main())


@pytest.mark.parametrize("secret", ["s3cr3t/t0ken", '["s3cr3t/t0ken"]'])
def test_no_error_tells_a_secret_of_the_options(
    secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        class Tells(MemoryFileSystem):  # type: ignore[misc]
            """Fails with the URL of its request, in which the token stands."""

            protocol = "tells"
            cachable = False

            def __init__(self, token: Any, **options: Any) -> None:
                super().__init__(**options)
                self.token = token if isinstance(token, str) else token[0]

            def makedirs(self, path: str, exist_ok: bool = False) -> None:
                raise OSError(f"no route to /v1{path}?delegation={quote_plus(self.token)}")

        fsspec.register_implementation(Tells.protocol, Tells, clobber=True)
        make = SegmentMaker()
        data = make.data()
        storage = FsspecStorageManager()
        storage.configure({"url": "tells://x", "storage_options.token": secret})
        with pytest.raises(StoreUnavailable, match=r"delegation=\*\*\*") as raised:
            await storage.copy_log_segment_data(make.metadata(data), data)
        shown = "".join(traceback.format_exception(raised.value))
        assert "s3cr3t" not in shown + caplog.text
        await storage.close()

    asyncio.run(main())


def test_a_path_may_have_an_at_sign() -> None:
    FsspecStorageManager().configure({"url": "memory://name:8020/tier@v1"})
