"""Files of no segment in a file system of fsspec are purged as those of an object store are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import fsspec
import pyarrow.fs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem

from streamlog.errors import Invalid, InvalidConfig
from streamlog.format.kafka_files.properties import encode_id
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import LogSegmentData, RemoteLogSegmentMetadata
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.storage.fsspec_storage_manager import FsspecStorageManager
from tests.tiered.harness import TieredLogUnderTest, tiered_log, values

DAY_MS = 86_400_000
CONFIG = RemoteLogConfig(purge_age_ms=2 * DAY_MS)
GONE = UUID(int=0xDEAD)
STRANGE = UUID(int=0x5742A)


class OfArrow(ArrowFSWrapper):  # type: ignore[misc]
    """This machine's files, as fsspec's HadoopFileSystem has those of HDFS."""

    protocol = "purgedarrow"

    def __init__(self, **options: Any) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), **options)


class OfHdfs(MemoryFileSystem):  # type: ignore[misc]
    """Its listings have the time in WebHDFS's field."""

    protocol = "purgedhdfs"

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        listed = super().ls(path, detail=detail, **options)
        for one in listed if detail else ():
            one["modificationTime"] = round(one.pop("created", 0) * 1000)
        return listed

    def modified(self, path: str) -> Any:
        raise AssertionError("a call for each file")


class WithoutTimes(MemoryFileSystem):  # type: ignore[misc]
    protocol = "purgeless"

    def modified(self, path: str) -> Any:
        raise NotImplementedError


class SlowTier(FsspecStorageManager):
    """Copies wait while `gate` is closed, their files being stored."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waits = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        await super().copy_log_segment_data(metadata, data)
        if not self.gate.is_set():
            self.waits.set()
            await self.gate.wait()


class Scene:
    """A tiered log over a file system, which the test looks into past the plug-in."""

    def __init__(self, t: TieredLogUnderTest, storage: SlowTier, clock: ManualClock, url: str):
        self.t, self.storage, self.clock = t, storage, clock
        self.files, self.root = fsspec.core.url_to_fs(url)

    def paths(self) -> set[str]:
        """Of all files, relative to the URL."""
        self.files.invalidate_cache()
        found = self.files.find(self.root) if self.files.exists(self.root) else []
        return {one.removeprefix(self.root).lstrip("/") for one in found}

    def put(self, path: str) -> str:
        """A file whose folder is made."""
        full = f"{self.root}/{path}"
        self.files.makedirs(full.rpartition("/")[0], exist_ok=True)
        with self.files.open(full, "wb") as file:
            file.write(b"12345")
        return path

    def put_stranger(self, topic_id: UUID, number: int = 0) -> set[str]:
        folder = f"t-0-{encode_id(topic_id)}"
        name = f"{7:020d}.{encode_id(UUID(int=STRANGE.int + number))}"
        return {self.put(f"{folder}/{name}.{kind}") for kind in ("OFFSET", "segment")}

    async def fill(self) -> dict[int, bytes]:
        wanted: dict[int, bytes] = {}
        for number in range(40):
            value = b"%06d" % number * 16
            wanted[(await append(self.t.log, encoded([value]))).base_offset] = value
        return wanted

    async def purge(self) -> None:
        topic_id = self.t.topic_id
        await self.t.manager.purge(lambda asked: "t" if asked == topic_id else None)


@pytest.fixture(params=["file", OfArrow, OfHdfs, MemoryFileSystem], ids=str)
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    kind = request.param
    if kind == "file":
        return f"file://{tmp_path}/tier"
    return url_of(kind, f"{tmp_path}/tier")


def url_of(kind: Any, path: str) -> str:
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    return f"{kind.protocol}://{path}"


def run(url: str, test: Callable[[Scene], Awaitable[None]], **configs: str) -> None:
    async def body() -> None:
        storage = SlowTier()
        storage.configure({"url": url, **configs})
        # The files have times of this machine.
        clock = ManualClock(SystemClock().now_ms())
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            await test(Scene(t, storage, clock, url))

    asyncio.run(body())


def test_strangers_go_when_they_are_old_and_segments_stay(url: str) -> None:
    async def test(scene: Scene) -> None:
        t = scene.t
        await scene.purge()
        wanted = await scene.fill()
        await t.copy()
        own = scene.paths()
        assert len(own) > 20
        strangers = scene.put_stranger(t.topic_id)
        await scene.purge()
        assert scene.paths() == own | strangers, "they are young"
        scene.clock.advance(3 * DAY_MS)
        await scene.purge()
        assert scene.paths() == own
        sample = t.registry.get_sample_value
        assert sample("streamlog_remote_purged_files_total") == 2
        assert sample("streamlog_remote_purged_bytes_total") == 10
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert await values(t.log) == wanted

    run(url, test)


def test_what_a_copy_under_way_wrote_stays_however_old_it_is(url: str) -> None:
    async def test(scene: Scene) -> None:
        wanted = await scene.fill()
        scene.storage.gate.clear()
        await scene.t.manager.tick()
        async with asyncio.timeout(30):
            await scene.storage.waits.wait()
        written = scene.paths()
        assert written
        scene.clock.advance(9 * DAY_MS)
        await scene.purge()
        assert scene.paths() == written
        scene.storage.gate.set()
        await scene.t.copy()
        await scene.t.configure(local_retention_bytes="0")
        await scene.t.retain()
        assert await values(scene.t.log) == wanted

    run(url, test)


def test_other_files_are_not_touched(url: str) -> None:
    async def test(scene: Scene) -> None:
        topic, segment = encode_id(scene.t.topic_id), encode_id(STRANGE)
        name = f"{7:020d}.{segment}.segment"
        others = {
            scene.put(path)
            for path in (
                "notes.txt",
                name,
                f"t-0-{topic}/notes.txt",
                f"t-0-{topic}/7.{segment}.segment",
                f"t-0-{topic}/{7:020d}.{segment}.SEGMENT",
                f"t-0-{topic}/{7:020d}.{segment}.segment.old",
                f"t-0-{topic}/more/{name}",
                f"t-00-{topic}/{name}",
                f"t-0-{topic}x/{name}",
                f"t-x-{topic}/{name}",
                f"more/t-0-{topic}/{name}",
            )
        }
        strangers = scene.put_stranger(scene.t.topic_id)
        scene.clock.advance(9 * DAY_MS)
        await scene.purge()
        assert scene.paths() == others
        assert strangers
        for path in ("notes.txt", f"t-0-{topic}/../notes.txt", f"../t-0-{topic}/{name}"):
            with pytest.raises(Invalid, match="no file of a remote segment"):
                await scene.storage.delete_stored_files([path])
        assert scene.paths() == others

    run(url, test, exclusive="true")


@pytest.mark.parametrize("exclusive", ["true", "false", None])
def test_a_topic_that_is_not_known_is_another_clusters_unless_the_place_is_this_ones(
    url: str, exclusive: str | None
) -> None:
    async def test(scene: Scene) -> None:
        await scene.fill()
        await scene.t.copy()
        own = scene.paths()
        unknown = scene.put_stranger(GONE)
        scene.put_stranger(scene.t.topic_id)
        scene.clock.advance(9 * DAY_MS)
        await scene.purge()
        assert scene.paths() == (own if exclusive == "true" else own | unknown)
        assert scene.t.manager.alarms() == []

    run(url, test, **({} if exclusive is None else {"exclusive": exclusive}))


def test_many_segments_of_another_cluster_are_no_lost_metadata(url: str) -> None:
    async def test(scene: Scene) -> None:
        await scene.fill()
        await scene.t.copy()
        own = scene.paths()
        unknown = set().union(*(scene.put_stranger(GONE, number) for number in range(90)))
        strangers = scene.put_stranger(scene.t.topic_id)
        scene.clock.advance(9 * DAY_MS)
        await scene.purge()
        assert scene.paths() == own | unknown
        assert strangers
        assert scene.t.manager.alarms() == []

    run(url, test)


def test_a_file_whose_age_nobody_knows_stays() -> None:
    async def test(scene: Scene) -> None:
        strangers = scene.put_stranger(scene.t.topic_id)
        scene.clock.advance(9 * DAY_MS)
        await scene.purge()
        assert scene.paths() == strangers

    run(url_of(WithoutTimes, "/tier/without/times"), test, exclusive="true")


def test_exclusive_is_true_or_false() -> None:
    with pytest.raises(InvalidConfig, match="exclusive of the remote storage is 'yes'"):
        FsspecStorageManager().configure({"url": "memory://x", "exclusive": "yes"})
