"""Remote segments as objects, over every kind of store."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from streamlog.errors import Internal, Invalid, InvalidName, ObjectNotFound, StoreUnavailable
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.url import S3Url, parse_store_url
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.tiers.segments import BytesFile, HeldFile, SegmentMaker
from streamlog.testing.tiers.storage_conformance import RemoteStorageManagerConformance
from streamlog.tiered.api.storage_manager import RemoteStorageManager
from streamlog.tiered.storage.files import PIECE_BYTES
from streamlog.tiered.storage.object_storage_manager import ObjectRemoteStorageManager
from tests.support.s3 import BUCKET, S3Tests

PREFIX = "tiers/cluster"


async def keys_of(store: ObjectStore) -> list[str]:
    page = await store.list("")
    assert page.next_token is None
    return [info.key for info in page.objects]


class OverAStore(RemoteStorageManagerConformance):
    def store(self) -> AbstractAsyncContextManager[ObjectStore]:
        """An empty one."""
        raise NotImplementedError

    @asynccontextmanager
    async def make(self) -> AsyncIterator[RemoteStorageManager]:
        async with self.store() as store:
            self.opened = store
            storage = ObjectRemoteStorageManager(store, PREFIX)
            storage.configure({})
            yield storage
            await storage.close()

    async def stored(self) -> Collection[str]:
        return await keys_of(self.opened)


class TestOverMemory(OverAStore):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[ObjectStore]:
        yield MemoryObjectStore(ManualClock())


class TestOverAFolder(OverAStore):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path / "objects"

    @asynccontextmanager
    async def store(self) -> AsyncIterator[ObjectStore]:
        offload = ThreadOffload()
        store = await LocalObjectStore.open(self.root, offload, ManualClock())
        yield store
        await store.close()
        await offload.close()
        assert list((self.root / ".tmp").iterdir()) == []


class OverS3(OverAStore):
    client = "boto3"

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Tests) -> None:
        self.server = s3.server
        self.url = s3.new_url(client=self.client)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[ObjectStore]:
        offload = ThreadOffload()
        store = await open_store(parse_store_url(self.url), offload, SystemClock())
        yield store
        await store.close()
        await offload.close()
        assert self.uploads() == []

    def uploads(self) -> list[str]:
        """Begun and not ended, of this test: others use the same server."""
        url = parse_store_url(self.url)
        assert isinstance(url, S3Url)
        return self.server.uploads(BUCKET, f"{url.prefix}/")


class TestOverS3(OverS3):
    large_mib = 40
    """More than one PUT takes."""

    def test_a_cancelled_upload_of_parts_leaves_nothing(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            held = HeldFile(make.bytes(50 << 20), 40 << 20)
            data = make.data(log_segment=held)
            metadata = make.metadata(data)
            copy = asyncio.ensure_future(storage.copy_log_segment_data(metadata, data))
            await asyncio.wait_for(held.reached.wait(), 60)
            assert len(self.uploads()) == 1
            copy.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copy
            await storage.delete_log_segment_data(metadata)
            await self.check_missing(storage, metadata)
            assert await self.stored() == []

        self.run(body)


class TestOverS3ByObstore(OverS3):
    client = "obstore"


class SlowPuts(MemoryObjectStore):
    """PUTs of keys with this ending take effect a while after they were sent, also when their
    callers have gone."""

    def __init__(self, ending: str) -> None:
        super().__init__(ManualClock())
        self._ending = ending
        self.sent: asyncio.Queue[list[int]] = asyncio.Queue()
        """The sizes of the parts of each such PUT."""
        self.may_land = asyncio.Event()

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if key.endswith(self._ending):
            self.sent.put_nowait([len(part) for part in parts])
            await self.may_land.wait()
        return await super().put(key, parts, if_absent=if_absent)


def test_a_delete_finds_what_a_cancelled_put_has_stored() -> None:
    async def main() -> None:
        store = SlowPuts(".offset")
        storage = ObjectRemoteStorageManager(store, PREFIX)
        make = SegmentMaker()
        data = make.data()
        metadata = make.metadata(data)
        copy = asyncio.ensure_future(storage.copy_log_segment_data(metadata, data))
        await store.sent.get()
        copy.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not copy.done()
        store.may_land.set()
        with pytest.raises(asyncio.CancelledError):
            await copy
        assert len(await keys_of(store)) == 1
        await storage.delete_log_segment_data(metadata)
        assert await keys_of(store) == []

    asyncio.run(main())


def test_a_store_of_whole_objects_gets_one_log_at_a_time() -> None:
    async def main() -> None:
        store = SlowPuts(".segment")
        storage = ObjectRemoteStorageManager(store, PREFIX)
        make = SegmentMaker()
        several = [make.data(PIECE_BYTES + 5) for _ in range(3)]
        copies = [
            asyncio.ensure_future(storage.copy_log_segment_data(make.metadata(data), data))
            for data in several
        ]
        assert await store.sent.get() == [PIECE_BYTES, 5]
        for _ in range(100):
            await asyncio.sleep(0)
        assert store.sent.empty()
        store.may_land.set()
        await asyncio.gather(*copies)
        assert len(await keys_of(store)) == 15

    asyncio.run(main())


class GeneratedFile:
    """A SegmentFile whose bytes are made when they are read, as a disk's are."""

    path = None

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    async def read(self, position: int, length: int) -> Buffer:
        return bytes([position // PIECE_BYTES % 251]) * min(length, self.size_bytes - position)


def test_a_copy_into_a_folder_holds_a_few_pieces_of_the_log(tmp_path: Path) -> None:
    async def main() -> int:
        offload = ThreadOffload()
        store = await LocalObjectStore.open(tmp_path, offload, ManualClock())
        storage, make = ObjectRemoteStorageManager(store, PREFIX), SegmentMaker()
        size = 16 * PIECE_BYTES + 5
        data = make.data(log_segment=GeneratedFile(size))
        metadata = make.metadata(data)
        tracemalloc.start()
        try:
            await storage.copy_log_segment_data(metadata, data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        end = await storage.fetch_log_segment(metadata, size - 6, size - 1)
        assert bytes(end) == bytes([15]) + bytes([16]) * 5
        await store.close()
        await offload.close()
        return peak

    assert asyncio.run(main()) < 4 * PIECE_BYTES


def test_keys_are_golden() -> None:
    async def main() -> None:
        store = MemoryObjectStore(ManualClock())
        make = SegmentMaker()
        data = make.data(has_aborted=True)
        metadata = make.metadata(data, topic="Öff/../x", partition=3, start_offset=42)
        storage = ObjectRemoteStorageManager(store, PREFIX)
        await storage.copy_log_segment_data(metadata, data)
        stem = (
            f"tiers/cluster/{make.topic_id.hex}/3/00000000000000000042."
            f"{metadata.remote_log_segment_id.id.hex}."
        )
        assert await keys_of(store) == [
            stem + kind
            for kind in (
                "leader_epoch",
                "offset",
                "producer_snapshot",
                "segment",
                "timestamp",
                "transaction",
            )
        ]

    asyncio.run(main())


@pytest.mark.parametrize("prefix", ["", "/", "Tiers", "../x", "a//b", "meta/x", "wal"])
def test_a_prefix_that_no_key_can_have_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidName):
        ObjectRemoteStorageManager(MemoryObjectStore(ManualClock()), prefix)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5), (11, 20)])
def test_a_range_outside_the_segment_is_invalid(start: int, end: int) -> None:
    async def main() -> None:
        storage = ObjectRemoteStorageManager(MemoryObjectStore(ManualClock()), PREFIX)
        make = SegmentMaker()
        data = make.data(10)
        metadata = make.metadata(data)
        await storage.copy_log_segment_data(metadata, data)
        with pytest.raises(Invalid) as raised:
            await storage.fetch_log_segment(metadata, start, end)
        assert not isinstance(raised.value, ObjectNotFound)

    asyncio.run(main())


class ShorterFile(BytesFile):
    """It has lost its last bytes."""

    @property
    def size_bytes(self) -> int:
        return len(self.data) + 10


def test_a_file_that_shrinks_is_no_segment() -> None:
    async def main() -> None:
        store = MemoryObjectStore(ManualClock())
        storage = ObjectRemoteStorageManager(store, PREFIX)
        make = SegmentMaker()
        data = make.data(log_segment=ShorterFile(bytes(100)))
        with pytest.raises(Internal, match="ended at 100 of 110 bytes"):
            await storage.copy_log_segment_data(make.metadata(data), data)
        assert [key for key in await keys_of(store) if key.endswith(".segment")] == []

    asyncio.run(main())


def test_a_failed_put_is_a_failed_copy() -> None:
    class FailingPuts(MemoryObjectStore):
        async def put(
            self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
        ) -> ObjectInfo:
            raise StoreUnavailable("the store is away in this test")

    async def main() -> None:
        storage = ObjectRemoteStorageManager(FailingPuts(ManualClock()), PREFIX)
        make = SegmentMaker()
        data = make.data()
        with pytest.raises(StoreUnavailable):
            await storage.copy_log_segment_data(make.metadata(data), data)

    asyncio.run(main())
