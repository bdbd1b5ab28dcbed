"""WAL and objects on one nearly full disk: acknowledged appends reach the store in smaller uploads,
for which the WAL removes free files, and nothing stands still."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.engine.config import AppendConfig, StreamEngineConfig, UploadConfig
from streamlog.errors import DiskFull, StoreUnavailable
from streamlog.model.stream import Stream
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.keys import DATA_PREFIX
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk, TornFile
from streamlog.wal.config import WalConfig
from streamlog.wiring import OpenEngine
from tests.engine.harness import batch, read_all, run, until
from tests.support.disk_machine import DiskMachine
from tests.support.replacing import replace_method

KIB = 1 << 10
FILE_BYTES = 1 << 20
TARGET_BYTES = 512 * KIB
PAYLOAD_BYTES = 40 * KIB
CONFIG = StreamEngineConfig(
    append=AppendConfig(retry_backoff_ms=1, retry_backoff_ms_max=3, drain_timeout_ms=500),
    upload=UploadConfig(upload_bytes_target=TARGET_BYTES, upload_interval_ms=20),
    wal=WalConfig(wal_bytes_max=8 * FILE_BYTES, file_bytes=FILE_BYTES),
)


class Space:
    """The bytes of one file system; the files of others (`ballast`) count, too."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.ballast = 0
        self.wal: dict[str, int] = {}
        self.objects: dict[str, int] = {}

    @property
    def free_bytes(self) -> int:
        used = self.ballast + sum(self.wal.values()) + sum(self.objects.values())
        return self.total_bytes - used


class SpaceDisk(TornDisk):
    def __init__(self, space: Space) -> None:
        super().__init__(SeededRandom(1))
        self.space = space

    def free_bytes(self) -> int:
        return self.space.free_bytes

    def create(self, name: str, size: int) -> TornFile:
        if size > self.space.free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        file = super().create(name, size)
        self.space.wal[name] = size
        return file

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.space.wal[new] = self.space.wal.pop(old)

    def remove(self, name: str) -> None:
        super().remove(name)
        del self.space.wal[name]


class SpaceStore(MemoryObjectStore):
    def __init__(self, space: Space) -> None:
        super().__init__(SystemClock())
        self.space = space
        self.is_away = False
        self.object_bytes_max = 1 << 40

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if self.is_away:
            raise StoreUnavailable("away", operation="put")
        size = parts_size(parts)
        # As large as it is while it is written beside what it may replace.
        if size > min(self.space.free_bytes, self.object_bytes_max):
            raise DiskFull("storing an object failed: No space left on device", path=key)
        info = await super().put(key, parts, if_absent=if_absent)
        self.space.objects[key] = size
        return info

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.space.objects.pop(key, None)


class Machine(DiskMachine):
    """WAL and objects share one file system."""

    store: SpaceStore

    def __init__(self, total_bytes: int) -> None:
        self.space = Space(total_bytes)
        disk, store = SpaceDisk(self.space), SpaceStore(self.space)
        super().__init__(CONFIG, seed=3, disk=disk, store=store)
        self.sent = 0

    async def fill(self, stream: Stream, count: int) -> None:
        for _ in range(count):
            # Different bytes: nothing is saved by compression.
            payload = b"%08d" % self.sent + self.random.bytes(PAYLOAD_BYTES - 8)
            await stream.append(batch(payload))
            self.sent += 1


async def in_store(engine: OpenEngine) -> None:
    """All acknowledged appends are in the store."""

    async def wait() -> None:
        while (await engine.status()).pending_upload_bytes:  # noqa: ASYNC110 - any state
            await asyncio.sleep(0.002)

    await asyncio.wait_for(wait(), 20)


def failed_writes(engine: OpenEngine) -> float:
    value = engine.registry.get_sample_value
    return value("streamlog_engine_write_failures_total", {"place": "wal"}) or 0.0


def stored_end(engine: OpenEngine, stream: Stream) -> int:
    row = engine.metadata.stream(stream.stream_id)
    assert row is not None
    return row.end


def numbers(payloads: Sequence[bytes]) -> list[int]:
    return [int(payload[:8]) for payload in payloads]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_smaller_uploads_free_the_wal(is_restarted: bool) -> None:
    """No upload of full size fits, three times as much waits; also after a restart."""

    async def scenario() -> None:
        machine = Machine(total_bytes=64 << 20)
        async with machine.engine(machine.kill) as engine:
            stream = await engine.streams.create_and_open_stream()
            machine.store.is_away = True
            await machine.fill(stream, 40)
            assert (await engine.status()).pending_upload_bytes > 3 * TARGET_BYTES
        machine.store.is_away = False
        machine.space.ballast = machine.space.free_bytes - TARGET_BYTES // 3
        async with machine.engine(machine.kill if is_restarted else None) as engine:
            await until(lambda: len(machine.space.objects) > 1)
            first_upload = list(machine.space.objects.values())[1]
            assert first_upload <= TARGET_BYTES // 3
            if not is_restarted:
                await in_store(engine)
        if is_restarted:
            # The next life's first WAL file may take what the first uploads freed.
            machine.space.ballast -= FILE_BYTES
        # An object whose commit the kill forestalled keeps its room until the collector's next run.
        collecting = replace(CONFIG, collector=CollectorConfig(collect_interval_ms=20))
        async with machine.engine(config=collecting) as engine:
            await in_store(engine)
            stream = await engine.streams.open_stream(stream.stream_id)
            assert numbers(await read_all(stream)) == list(range(40))
            # With room again, uploads are of full size and appends are taken.
            machine.space.ballast = 0
            await machine.fill(stream, 40)
            await in_store(engine)
            assert max(machine.space.objects.values()) >= TARGET_BYTES * 2 // 3
            assert numbers(await read_all(stream)) == list(range(80))

    run(scenario)


@pytest.mark.parametrize("is_away", [False, True])
def test_acknowledged_appends_reach_a_store_on_a_full_disk(is_away: bool) -> None:
    """Appends go on until they are refused: then the WAL has left room enough to empty itself, also
    where nothing could be uploaded before the disk was full."""

    async def scenario() -> None:
        machine = Machine(total_bytes=(6 << 20) + 300 * KIB)
        async with machine.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            machine.store.is_away = is_away
            filling = asyncio.ensure_future(machine.fill(stream, 300))
            # The append that finds no room keeps its place and waits; those behind are refused.
            await until(lambda: failed_writes(engine) > 0)
            with pytest.raises(DiskFull):
                await stream.append(batch(b"x"))
            machine.store.is_away = False
            acknowledged = machine.sent
            assert acknowledged > 50
            await until(lambda: stored_end(engine, stream) >= acknowledged)
            machine.space.total_bytes *= 4
            await filling
            await in_store(engine)
            assert numbers(await read_all(stream)) == list(range(300))

    run(scenario)


@pytest.mark.parametrize("left_bytes", [0, 8 * KIB])
def test_files_of_the_wal_are_not_all_filled_while_nothing_can_be_uploaded(left_bytes: int) -> None:
    """The disk was taken by others; what the WAL has in free files is what its uploads need."""

    async def scenario() -> None:
        machine = Machine(total_bytes=64 << 20)
        async with machine.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            machine.store.is_away = True
            await machine.fill(stream, 160)
            machine.store.is_away = False
            await in_store(engine)
            await until(lambda: len(machine.space.wal) > 7)
            machine.space.ballast = machine.space.free_bytes - left_bytes
            machine.store.is_away = True
            filling = asyncio.ensure_future(machine.fill(stream, 300))
            await until(lambda: failed_writes(engine) > 0)
            acknowledged = machine.sent
            machine.store.is_away = False
            await until(lambda: stored_end(engine, stream) >= acknowledged)
            machine.space.total_bytes *= 4
            await filling
            await in_store(engine)
            assert numbers(await read_all(stream)) == list(range(460))

    run(scenario)


def test_a_later_batch_does_not_take_the_room_of_an_earlier_one() -> None:
    async def scenario() -> None:
        machine = Machine(total_bytes=64 << 20)
        async with machine.engine() as engine:
            uploader = engine.engine.uploader
            under_way, most = 0, 0
            put = machine.store.put

            async def watched(key: str, parts: Sequence[Buffer], **how: bool) -> ObjectInfo:
                nonlocal under_way, most
                # Checkpoint files go up beside them.
                is_data = key.startswith(DATA_PREFIX)
                is_scarce = is_data and uploader.limit_bytes is not None
                under_way += is_scarce
                most = max(most, under_way)
                try:
                    await asyncio.sleep(0.002)
                    return await put(key, parts, **how)
                finally:
                    under_way -= is_scarce

            replace_method(machine.store, "put", watched)
            stream = await engine.streams.create_and_open_stream()
            machine.store.is_away = True
            await machine.fill(stream, 60)
            machine.store.is_away = False
            machine.store.object_bytes_max = TARGET_BYTES // 8
            await in_store(engine)
            assert most == 1
            # Nothing waits any more: small batches alone would never end it, and the WAL takes no
            # new files meanwhile.
            assert uploader.limit_bytes is None
            assert numbers(await read_all(stream)) == list(range(60))

    run(scenario)


def test_a_later_batch_between_two_tries_waits_once_the_disk_is_nearly_full() -> None:
    async def scenario() -> None:
        machine = Machine(total_bytes=64 << 20)
        async with machine.engine() as engine:
            uploader = engine.engine.uploader
            later_failed = asyncio.Event()
            was_full = False
            tries_of_the_oldest: list[bool] = []
            put = machine.store.put

            async def watched(key: str, parts: Sequence[Buffer], **how: bool) -> ObjectInfo:
                nonlocal was_full
                is_oldest = key in str(uploader.progress())
                if key.startswith(DATA_PREFIX) and uploader.limit_bytes is not None:
                    tries_of_the_oldest.append(is_oldest)
                    # Longer than the later batch pauses between two tries.
                    await asyncio.sleep(0.01)
                elif key.startswith(DATA_PREFIX) and not was_full:
                    if not is_oldest:
                        later_failed.set()
                        raise StoreUnavailable("away", operation="put")
                    await later_failed.wait()
                    was_full = True
                    raise DiskFull("no space left", path=key)
                return await put(key, parts, **how)

            replace_method(machine.store, "put", watched)
            stream = await engine.streams.create_and_open_stream()
            await machine.fill(stream, 60)
            await in_store(engine)
            assert tries_of_the_oldest, "the disk was never nearly full"
            assert all(tries_of_the_oldest)
            assert numbers(await read_all(stream)) == list(range(60))

    run(scenario)
