"""Remote segments in a folder of Kafka's LocalTieredStorage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.errors import InvalidConfig, StoreUnavailable
from streamlog.format.kafka_files.properties import encode_id
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.tiers.segments import BytesFile, HeldFile, SegmentMaker, indexes_of
from streamlog.testing.tiers.storage_conformance import RemoteStorageManagerConformance
from streamlog.tiered.api.storage_manager import IndexType, RemoteStorageManager
from streamlog.tiered.storage.local_tiered_storage import LocalTieredStorage
from tests.support.kernel_calls import recorded

TIER = "kafka-tiered-storage"
TEMPORARY = "kafka-tiered-storage.tmp"


def files_below(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


class TestLocalTieredStorage(RemoteStorageManagerConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path / "tier"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[RemoteStorageManager]:
        storage = LocalTieredStorage()
        storage.configure({"dir": str(self.root)})
        yield storage
        await storage.close()

    async def stored(self) -> Collection[str]:
        return files_below(self.root)


@asynccontextmanager
async def storage_in(root: Path) -> AsyncIterator[LocalTieredStorage]:
    offload = ThreadOffload()
    storage = LocalTieredStorage(offload)
    storage.configure({"dir": str(root)})
    yield storage
    await storage.close()
    await offload.close()


def test_the_files_are_those_of_kafkas_class(tmp_path: Path) -> None:
    async def main() -> None:
        make = SegmentMaker()
        data = make.data(has_aborted=True)
        metadata = make.metadata(data, topic="Topic-1", partition=2, start_offset=11)
        async with storage_in(tmp_path) as storage:
            await storage.copy_log_segment_data(metadata, data)
        (folder,) = (tmp_path / TIER).iterdir()
        assert folder.name.startswith("Topic-1-2-")
        assert {path.name.partition(".")[2] for path in folder.iterdir()} == {
            "log",
            "index",
            "timeindex",
            "snapshot",
            "txnindex",
            "leader_epoch_checkpoint",
        }
        (log,) = folder.glob("00000000000000000011-*.log")
        assert log.read_bytes() == await data.log_segment.read(0, 10_000)
        assert (
            log.with_suffix(".txnindex").read_bytes()
            == ((await indexes_of(data))[IndexType.TRANSACTION])
        )
        assert files_below(tmp_path / TEMPORARY) == []

    asyncio.run(main())


def test_no_file_has_its_name_before_all_are_whole(tmp_path: Path) -> None:
    async def main() -> None:
        make = SegmentMaker()
        held = HeldFile(make.bytes(3_000_000), 2_000_000)
        data = make.data(log_segment=held)
        metadata = make.metadata(data)
        async with storage_in(tmp_path) as storage:
            copy = asyncio.ensure_future(storage.copy_log_segment_data(metadata, data))
            await held.reached.wait()
            assert files_below(tmp_path / TIER) == []
            assert len(files_below(tmp_path / TEMPORARY)) == 5
            held.release()
            await copy
        assert len(files_below(tmp_path / TIER)) == 5
        assert files_below(tmp_path / TEMPORARY) == []

    asyncio.run(main())


def test_a_delete_removes_what_a_crash_left_of_its_segment_alone(tmp_path: Path) -> None:
    async def main() -> None:
        make = SegmentMaker()
        data = make.data()
        metadata, other = (make.metadata(data) for _ in range(2))
        async with storage_in(tmp_path) as storage:
            await storage.copy_log_segment_data(metadata, data)
            await storage.copy_log_segment_data(other, data)
            left = [f"{Path(name).name}.0" for name in files_below(tmp_path / TIER)]
            for name in left:
                (tmp_path / TEMPORARY / name).write_bytes(b"half")
            await storage.delete_log_segment_data(metadata)
            assert len(files_below(tmp_path / TIER)) == 5
            assert len(files_below(tmp_path / TEMPORARY)) == 5
            await storage.delete_log_segment_data(other)
        assert files_below(tmp_path) == []

    asyncio.run(main())


def test_a_copy_writes_over_what_a_crash_left_under_its_temporary_name(tmp_path: Path) -> None:
    async def main() -> None:
        make = SegmentMaker()
        data = make.data(1_000)
        metadata = make.metadata(data)
        async with storage_in(tmp_path) as storage:
            await storage.copy_log_segment_data(metadata, data)
            names = [Path(name).name for name in files_below(tmp_path / TIER)]
        for name in names:
            (tmp_path / TEMPORARY / f"{name}.0").write_bytes(bytes(5_000))
        async with storage_in(tmp_path) as storage:
            await storage.copy_log_segment_data(metadata, data)
            found = await storage.fetch_log_segment(metadata, 0, 9_999)
            assert found == await data.log_segment.read(0, 1_000)
        assert files_below(tmp_path / TEMPORARY) == []

    asyncio.run(main())


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / TIER).write_bytes(b"")
        make = SegmentMaker()
        data = make.data()
        async with storage_in(tmp_path) as storage:
            with pytest.raises(StoreUnavailable, match=TIER):
                await storage.copy_log_segment_data(make.metadata(data), data)
        assert files_below(tmp_path) == [TIER]

    asyncio.run(main())


def test_two_copies_under_one_id_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
        make = SegmentMaker()
        content = make.bytes(9_000_000)
        data = make.data(log_segment=BytesFile(content))
        metadata = make.metadata(data)
        async with storage_in(tmp_path) as storage:
            await asyncio.gather(*(storage.copy_log_segment_data(metadata, data) for _ in range(3)))
            assert await storage.fetch_log_segment(metadata, 0, len(content) - 1) == content
        assert files_below(tmp_path / TEMPORARY) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({}, "needs the setting dir"),
        ({"dir": " "}, "needs the setting dir"),
        ({"dir": "/a\0b"}, "needs the setting dir"),
        ({"dir": "/x", "delete.on.close": "true"}, "unknown setting 'delete.on.close'"),
        ({"dirs": "/x"}, "did you mean dir"),
    ],
)
def test_settings_that_are_refused(configs: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        LocalTieredStorage().configure(configs)


def test_without_settings_it_does_nothing() -> None:
    async def main() -> None:
        storage = LocalTieredStorage()
        make = SegmentMaker()
        data = make.data()
        metadata = make.metadata(data)
        for call in (
            storage.copy_log_segment_data(metadata, data),
            storage.fetch_log_segment(metadata, 0, 1),
            storage.delete_log_segment_data(metadata),
        ):
            with pytest.raises(InvalidConfig, match="lacks its setting dir"):
                await call
        await storage.close()

    asyncio.run(main())


def test_bytes_are_durable_before_they_have_names_and_names_before_a_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffixes = ["index", "timeindex", "snapshot", "leader_epoch_checkpoint", "log"]
    make = SegmentMaker()
    data = make.data()
    metadata = make.metadata(data)
    folder = f"{TIER}/topic-0-{encode_id(make.topic_id)}"
    stem = f"{0:020d}-{encode_id(metadata.remote_log_segment_id.id)}"

    async def main() -> None:
        async with storage_in(tmp_path) as storage:
            await storage.copy_log_segment_data(metadata, data)
            with recorded(tmp_path, monkeypatch) as calls:
                await storage.copy_log_segment_data(metadata, data)
                files = [
                    (f"{TEMPORARY}/{stem}.{one}.1", f"{folder}/{stem}.{one}") for one in suffixes
                ]
                above = ["mkdir", "fsync .", "fsync /"]
                assert [one for one in calls.take() if not one.startswith(tuple(above))] == [
                    *(
                        f"{call} {temporary}"
                        for temporary, _ in files
                        for call in ("create", "write", "fsync")
                    ),
                    f"fsync {TIER}",
                    *(f"rename {temporary} {name}" for temporary, name in files),
                    f"fsync {folder}",
                ]
                await storage.delete_log_segment_data(metadata)
                assert sorted(calls.take()) == [
                    f"fsync {folder}",
                    *(f"unlink {name}" for name in sorted(name for _, name in files)),
                ]

    asyncio.run(main())
