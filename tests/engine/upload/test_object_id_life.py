"""An object id is committed or given up, however the call that took it ends.

One id that is neither would end all uploads, 63 objects later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import streamlog
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import FlushConfig, StreamEngineConfig
from streamlog.errors import MessageTooLarge, StoreUnavailable, Unavailable
from streamlog.kvstore.interface import Put
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.model.stream import Stream
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import batch, error_of, run, until
from tests.metadata.scripted_kv import ScriptedKV, Sent
from tests.support.metadata_insides import allocator_of, skip_ids

WINDOW = 8
CONFIG = StreamEngineConfig(metadata=MetadataConfig(put_window=WINDOW))


class HeldStore(MemoryObjectStore):
    """PUTs wait while `gate` is shut, and fail while `is_away`."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_away = False
        self.puts = 0

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if key.startswith("data/"):
            self.puts += 1
            await self.gate.wait()
            if self.is_away:
                raise StoreUnavailable("away", operation="put")
        return await super().put(key, parts, if_absent=if_absent)


class World:
    """Made inside a running loop."""

    def __init__(self) -> None:
        self.store = HeldStore()
        self.kv = ScriptedKV(MemoryKVStore(SystemClock()))

    def open(self, config: StreamEngineConfig = CONFIG) -> AbstractAsyncContextManager[OpenEngine]:
        return streamlog.open(
            "memory://", config=config, components=Components(store=self.store, kv=self.kv)
        )


def first(payload: bytes) -> Any:
    """First batches: one for each new stream."""
    return lambda ids: [(stream_id, batch(payload)) for stream_id in ids]


async def check_uploads(stream: Stream, engine: OpenEngine) -> None:
    """More objects are uploaded than the window has ids, and no id stays open."""
    for number in range(2 * WINDOW):
        await stream.append(batch(b"%d" % number))
    assert not engine.metadata.open_object_ids
    assert not (await engine.status()).alarms


def puts_key(kind: bytes) -> Callable[[Sent], bool]:
    """Transactions that put a key of that kind, of whatever cluster."""
    return lambda sent: any(
        isinstance(write, Put) and write.key.split(b"/", 3)[3].startswith(kind) for write in sent[1]
    )


def test_a_create_that_no_record_can_hold_stores_nothing() -> None:
    async def scenario() -> None:
        world = World()
        async with world.open() as engine:
            stream = await engine.streams.create_and_open_stream()
            options = [CreateStreamOptions(tags={"purpose": "x" * 1000})] * 600
            for _ in range(2 * WINDOW):
                with pytest.raises(MessageTooLarge, match="Nothing was stored"):
                    await engine.streams.create_and_open_streams(options, first(b"x"))
            assert world.store.puts == 0
            await check_uploads(stream, engine)
            assert len(await engine.streams.list_streams()) == 1

    run(scenario)


def test_creates_with_a_refused_object_release_their_ids() -> None:
    async def scenario() -> None:
        world = World()
        async with world.open() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.is_away = True
            for _ in range(2):
                assert isinstance(
                    await error_of(
                        engine.streams.create_and_open_streams([CreateStreamOptions()], first(b"x"))
                    ),
                    StoreUnavailable,
                )
            world.store.is_away = False
            await check_uploads(stream, engine)

    run(scenario)


@pytest.mark.parametrize("size_bytes", [1, 1 << 20])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_cancelled_creates_release_their_object_ids(turns: int, size_bytes: int) -> None:
    """1 MiB: the object is built in a thread."""

    async def scenario() -> None:
        world = World()
        async with world.open() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.gate.clear()
            for _ in range(2 * WINDOW):
                creating = asyncio.ensure_future(
                    engine.streams.create_and_open_streams(
                        [CreateStreamOptions()] * 2, first(bytes(size_bytes))
                    )
                )
                for _ in range(turns):
                    await asyncio.sleep(0)
                creating.cancel()
                assert isinstance(await error_of(creating), asyncio.CancelledError)
            world.store.gate.set()
            await check_uploads(stream, engine)

    run(scenario)


def test_a_create_cancelled_while_its_commit_is_under_way_leaves_no_stream() -> None:
    async def scenario() -> None:
        world = World()
        async with world.open() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.kv.matches, world.kv.plan = puts_key(b"c/"), ["hold"]
            creating = asyncio.ensure_future(
                engine.streams.create_and_open_streams([CreateStreamOptions()] * 3, first(b"x"))
            )
            await world.kv.held.wait()
            creating.cancel()
            assert isinstance(await error_of(creating), asyncio.CancelledError)
            # Its outcome is unknown: the id must not be given up, its object may be committed yet.
            assert len(engine.metadata.open_object_ids) == 1
            world.kv.released.set()
            await check_uploads(stream, engine)
            await until(lambda: engine.metadata.stream_count == 1)
            assert [described.stream_id for described in await engine.streams.list_streams()] == [
                stream.stream_id
            ]

    run(scenario)


def test_uploads_that_end_together_share_records_that_hold_them() -> None:
    """Each object has as many rows as a record may have, the second half of the window with it."""

    async def scenario() -> None:
        world = World()
        config = StreamEngineConfig(
            metadata=MetadataConfig(object_streams_max=4),
            flush=FlushConfig(flush_bytes_target=4096, flush_bytes_overlap=4096),
        )
        async with world.open(config) as engine:
            streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * 4)
            world.store.gate.clear()
            appends = [
                asyncio.ensure_future(stream.append(RecordBatch(1, 1, (bytes(1100),))))
                for _ in range(3)
                for stream in streams
            ]
            await until(lambda: world.store.puts > 1)
            world.store.gate.set()
            await asyncio.gather(*appends)
            assert [stream.confirm_offset for stream in streams] == [3] * 4

    run(scenario)


def test_uploads_wait_for_a_new_block_of_ids_while_the_metadata_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A create fails in time; an append waits, and continues by itself."""

    async def scenario() -> None:
        world = World()
        config = StreamEngineConfig(
            metadata=MetadataConfig(
                put_window=WINDOW,
                retry_backoff_ms=1,
                retry_backoff_max_ms=5,
                operation_timeout_ms=200,
            )
        )
        async with world.open(config) as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"1"))
            skip_ids(engine.metadata, 1 << 20)
            world.kv.matches = puts_key(b"b/object")
            world.kv.plan = ["away"] * 1000
            append = asyncio.ensure_future(stream.append(batch(b"2")))
            await until(lambda: allocator_of(engine.metadata).waits_for_block)
            due = allocator_of(engine.metadata).progress()
            assert due is not None
            assert "a new block of ids" in due.waits_for
            with pytest.raises(Unavailable, match="try again"):
                await engine.streams.create_and_open_streams([CreateStreamOptions()], first(b"x"))
            assert not append.done()
            world.kv.plan[:] = ["lost"]
            await append
            assert not (await engine.status()).alarms
            await check_uploads(stream, engine)
        assert "a new block of object ids waits for the metadata store" in caplog.text

    run(scenario)


def test_a_topic_whose_names_fill_many_records_is_created() -> None:
    async def scenario() -> None:
        name, config = (
            "t" * 249,
            StreamEngineConfig(metadata=MetadataConfig(record_bytes_max=16 << 10)),
        )
        async with streamlog.open("memory://", config=config) as engine:
            await engine.logs.create_topic(name, 60)
            assert len(await engine.streams.list_streams()) == 4 * 60
            assert not engine.metadata.open_object_ids

    run(scenario)


def test_a_topic_of_which_a_part_cannot_be_created_leaves_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("streamlog.log.shared.shared_logs.PARTITIONS_PER_COMMIT", 3)
        world = World()
        async with world.open() as engine:
            create = engine.streams.create_and_open_streams
            calls = 0

            async def failing(*arguments: Any) -> list[Stream]:
                nonlocal calls
                calls += 1
                world.store.is_away = calls == 3
                return await create(*arguments)

            monkeypatch.setattr(engine.streams, "create_and_open_streams", failing)
            error = await error_of(engine.logs.create_topic("topic", 10))
            assert isinstance(error, StoreUnavailable)
            assert calls == 3
            world.store.is_away = False
            assert await engine.streams.list_streams() == []
            await engine.logs.create_topic("topic", 10)
            assert len(await engine.streams.list_streams()) == 40

    run(scenario)


@pytest.mark.slow
def test_a_topic_of_10000_partitions_with_the_longest_name() -> None:
    async def scenario() -> None:
        quiet = StreamEngineConfig(compaction=CompactionConfig(compaction_process="inline"))
        async with streamlog.open("memory://", config=quiet) as engine:
            topic = await engine.logs.create_topic("t" * 249, 10_000)
            assert topic.partitions == 10_000
            assert engine.metadata.stream_count == 40_000
            assert not engine.metadata.open_object_ids

    run(scenario)
