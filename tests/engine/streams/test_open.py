"""`streamlog.open`: memory:// and local:// in both modes, restart and crash, what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import streamlog
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.errors import DataInUse, ForeignCluster, Invalid
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.kv import Key
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.wal.config import WalMode
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import batch, error_of, read_all, run, until
from tests.support.slow_store import SlowStore

MODES: list[WalMode] = ["disk", "object"]
both = pytest.mark.parametrize("mode", MODES)
NEVER_UPLOADS = StreamEngineConfig(upload=UploadConfig(upload_interval_ms=1 << 30))


async def opening(store: str, **kwargs: Any) -> None:
    """Opens and closes."""
    async with streamlog.open(store, **kwargs):
        pass


@asynccontextmanager
async def crashing(
    store: str, wal: WalMode, config: StreamEngineConfig | None = None
) -> AsyncIterator[OpenEngine]:
    """An engine that is killed at the end."""
    async with streamlog.open(store, wal=wal, config=config) as engine:
        yield engine
        await engine.kill()


def test_memory_needs_nothing() -> None:
    async def scenario() -> None:
        async with streamlog.open("memory://") as engine:
            stream = await engine.streams.create_and_open_stream()
            assert (await stream.append(batch(b"hello"))).base_offset == 0
            assert await read_all(stream) == [b"hello"]
            await engine.kv.put_kv(Key(b"name"), b"value")
            value = await engine.kv.get_kv(Key(b"name"))
            assert value is not None
            assert value.data == b"value"
            status = await engine.status()
            assert (status.wal, status.streams, status.node_id) == ("object", 1, 1)
            assert (status.store_url, status.meta_url) == ("memory://", "memory://")
            assert engine.registry.get_sample_value("streamlog_engine_appends_total") == 1

    run(scenario)


@both
@pytest.mark.parametrize("crash", [False, True])
def test_a_folder_keeps_everything_acknowledged(tmp_path: Path, mode: WalMode, crash: bool) -> None:
    async def scenario() -> None:
        store = f"local://{tmp_path}/data"
        expected: dict[int, list[bytes]] = {}
        epochs: dict[int, int] = {}
        for life in range(3):
            config = NEVER_UPLOADS if crash else None
            opened = crashing if crash else streamlog.open
            async with opened(store, wal=mode, config=config) as engine:
                if not expected:
                    made = await engine.streams.create_and_open_streams(
                        [CreateStreamOptions()] * 20
                    )
                    expected = {stream.stream_id: [] for stream in made}
                else:
                    made = [await engine.streams.open_stream(stream_id) for stream_id in expected]
                for stream in made:
                    assert stream.stream_epoch > epochs.get(stream.stream_id, 0)
                    epochs[stream.stream_id] = stream.stream_epoch
                    assert await read_all(stream) == expected[stream.stream_id]
                appends = []
                for number in range(200):
                    stream = made[number % 20]
                    payload = b"%d.%d" % (life, number) * (1 + number)
                    expected[stream.stream_id].append(payload)
                    appends.append(stream.append(batch(payload)))
                await asyncio.gather(*appends)
                trimmed = made[life]
                await trimmed.trim(trimmed.start_offset + 4)
                del expected[trimmed.stream_id][:4]

    run(scenario)


@both
def test_a_wal_mode_can_be_changed(tmp_path: Path, mode: WalMode) -> None:
    async def scenario() -> None:
        store = f"local://{tmp_path}/data"
        other: WalMode = "object" if mode == "disk" else "disk"
        async with crashing(store, mode, NEVER_UPLOADS) as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"a"))
        async with crashing(store, other, NEVER_UPLOADS) as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            assert await read_all(stream) == [b"a"]
            await stream.append(batch(b"b"))
        async with streamlog.open(store, wal=mode) as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            assert await read_all(stream) == [b"a", b"b"]

    run(scenario)


def test_a_second_process_learns_which_process_has_the_data(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = f"local://{tmp_path}/data"
        async with streamlog.open(store) as engine:
            stream = await engine.streams.create_and_open_stream()
            error = await error_of(opening(store))
            assert isinstance(error, DataInUse)
            assert "pid" in error.fields
            assert (await stream.append(batch(b"x"))).base_offset == 0
        await opening(store)

    run(scenario)


def test_a_foreign_store_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        await opening(f"local://{tmp_path}/a")
        await opening(f"local://{tmp_path}/b")
        mixed = opening(f"local://{tmp_path}/a", meta=f"rocksdb://{tmp_path}/b/meta")
        error = await error_of(mixed)
        assert isinstance(error, ForeignCluster)
        cluster = json.loads((tmp_path / "a" / "cluster.json").read_text())["cluster_id"]
        assert error.fields["store_cluster"] == cluster
        assert error.fields["meta_cluster"]
        empty = opening(f"local://{tmp_path}/a", meta=f"rocksdb://{tmp_path}/new")
        error = await error_of(empty)
        assert isinstance(error, ForeignCluster)
        assert error.fields == {"store_cluster": cluster, "meta_cluster": ""}

    run(scenario)


@pytest.mark.parametrize(
    ("store", "kwargs", "says"),
    [
        ("s3://bucket/prefix", {}, "meta"),
        ("memory://", {"wal": "disk"}, "wal_dir"),
        ("/tmp/x", {}, "local://"),
        ("file:///tmp/x", {}, "local"),
        ("local://relative", {}, "absolute"),
        ("memory://", {"wal": "tape"}, "disk or object"),
        ("memory://", {"meta": "rocksdb:///never/made"}, "ends with the process"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    store: str, kwargs: dict[str, str], says: str
) -> None:
    async def scenario() -> None:
        error = await error_of(opening(store, **kwargs))
        assert isinstance(error, Invalid)
        assert says in str(error)

    run(scenario)


class NotedDeletes(SlowStore):
    """When which object was deleted, by the engine's clock."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store)
        self._noting_clock = clock
        self.deleted_at: dict[str, float] = {}

    async def delete(self, keys: Sequence[str]) -> None:
        now = self._noting_clock.monotonic()
        self.deleted_at |= dict.fromkeys(keys, now)
        await super().delete(keys)


@both
def test_objects_without_data_go_after_the_delay(mode: WalMode, tmp_path: Path) -> None:
    """None goes earlier than the delay after it became garbage, and all go."""
    delay_ms = 400

    async def scenario() -> None:
        config = StreamEngineConfig(
            upload=UploadConfig(upload_interval_ms=1),
            collector=CollectorConfig(deletion_delay_ms=delay_ms, collect_interval_ms=5),
            metadata=MetadataConfig(checkpoint_interval_ms=10),
        )
        clock = SystemClock()
        store, kv = NotedDeletes(MemoryObjectStore(clock), clock), MemoryKVStore(clock)
        async with streamlog.open(
            "memory://",
            wal=mode,
            wal_dir=tmp_path,
            config=config,
            components=Components(store=store, kv=kv, registry=CollectorRegistry()),
        ) as engine:
            kept, gone = await engine.streams.create_and_open_streams([CreateStreamOptions()] * 2)
            for _ in range(5):
                await gone.append(batch(b"gone"))
                await engine.drain()
            await kept.append(batch(b"kept"))
            await engine.drain()
            before = {info.key for info in (await store.list("data/")).objects}
            destroyed_at = clock.monotonic()
            await gone.destroy()
            assert len(before) >= 6

            await until(lambda: len(store.deleted_at.keys() & before) == len(before) - 1)
            assert await read_all(kept) == [b"kept"]
            trimmed_at = clock.monotonic()
            await kept.trim(1)
            await until(lambda: store.deleted_at.keys() >= before)
            times = sorted(store.deleted_at[key] for key in before)
            assert times[0] - destroyed_at >= delay_ms / 1000
            assert times[-1] - trimmed_at >= delay_ms / 1000
            assert not (await store.list("data/")).objects

    run(scenario)


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, streamlog; print(sorted(m for m in sys.modules if m.startswith('streamlog.')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ended.stdout == "[]\n"


def test_components_stay_open_and_keep_the_data() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        parts = Components(store=MemoryObjectStore(clock), kv=MemoryKVStore(clock))
        async with streamlog.open("memory://", components=parts) as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"x"))
        async with streamlog.open(
            "memory://", components=dataclasses.replace(parts, registry=CollectorRegistry())
        ) as engine:
            stream = await engine.streams.open_stream(stream.stream_id)
            assert await read_all(stream) == [b"x"]
            with pytest.raises(AttributeError):
                _ = streamlog.no_such_name

    run(scenario)
