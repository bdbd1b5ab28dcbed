"""A store that is away for minutes, or a WAL that is slow; in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from streamlog.engine.config import MIB, AppendConfig, FlushConfig, StreamEngineConfig, UploadConfig
from streamlog.engine.engine import Engine
from streamlog.errors import (
    MetadataUnavailable,
    OutcomeUnknown,
    Overloaded,
    StreamFenced,
    StreamlogError,
)
from streamlog.model.batch import AppendContext, CreateStreamOptions
from streamlog.model.stream import Stream
from streamlog.wal.config import WalMode
from tests.engine.harness import batch, error_of, read_all
from tests.engine.remote import RemoteWorld, latency, virtually
from tests.support.metrics import value_of
from tests.support.replacing import replace_method

MODES: list[WalMode] = ["disk", "object"]
both = pytest.mark.parametrize("mode", MODES)
SMALL = StreamEngineConfig(
    append=AppendConfig(append_bytes_max=MIB, batch_overhead_bytes=0),
    flush=FlushConfig(flush_bytes_target=256 * 1024),
    upload=UploadConfig(upload_bytes_target=256 * 1024),
)
OUTAGE_S = 180.0
DEADLINE_S = 5.0
RETRY_S_MAX = 5.0


class Writer:
    """Appends numbered payloads to a stream, some at a time, and keeps the outcomes."""

    def __init__(self, stream: Stream, engine: Engine) -> None:
        self.stream = stream
        self.engine = engine
        self.stored: dict[int, bytes] = {}
        self.unknown: set[bytes] = set()
        self.overloaded = 0
        self.number = 0
        self.late_s = 0.0

    async def write(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            self.number += 1
            payload = b"%d.%d" % (self.stream.stream_id, self.number) + bytes(8000)
            deadline = loop.time() + DEADLINE_S
            try:
                result = await self.stream.append(batch(payload), AppendContext(deadline=deadline))
            except Overloaded:
                self.overloaded += 1
            except OutcomeUnknown:
                self.unknown.add(payload)
            else:
                self.stored[result.base_offset] = payload
            self.late_s = max(self.late_s, loop.time() - deadline)
            assert self.engine.budget.used_bytes <= MIB
            await asyncio.sleep(0.05)


async def _check(world: RemoteWorld, writers: list[Writer], streams: list[Stream]) -> None:
    """Every acknowledged payload is there once, at its offset."""
    for writer, stream in zip(writers, streams, strict=True):
        payloads = await read_all(stream)
        assert len(set(payloads)) == len(payloads)
        for offset, payload in writer.stored.items():
            assert payloads[offset] == payload
        assert set(payloads) - set(writer.stored.values()) <= writer.unknown
    committed = [new.row.object_id for entry in world.metadata.commits for new in entry.objects]
    stored = (await world.objects.list("data/")).objects
    assert len(stored) == len(committed) == len(set(committed))


@both
@pytest.mark.parametrize("answers_after_s", [0.0, 20.0])
def test_a_store_that_is_away_for_minutes(mode: WalMode, answers_after_s: float) -> None:
    world = RemoteWorld(mode, latency(30), SMALL)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with world.engine() as (client, engine):
            streams = await client.create_and_open_streams([CreateStreamOptions()] * 10)
            writers = [Writer(stream, engine) for stream in streams]
            back = 10 + OUTAGE_S
            writes = [
                asyncio.ensure_future(writer.write(back + 60)) for writer in writers for _ in "12"
            ]
            await asyncio.sleep(10)
            before = [len(writer.stored) for writer in writers]
            assert all(before)
            world.store.go_away(answers_after_s=answers_after_s)
            await asyncio.sleep(OUTAGE_S)
            assert engine.failure is None
            assert all(writer.overloaded + len(writer.unknown) for writer in writers)
            # What is in memory is served, and what needs metadata alone is done.
            end = streams[0].confirm_offset
            assert (await streams[0].fetch(end - 1, end, 1)).from_cache
            new = await client.create_and_open_stream()
            await new.destroy()
            world.store.come_back()
            during = [len(writer.stored) for writer in writers]
            await asyncio.sleep(RETRY_S_MAX + answers_after_s + 5)
            assert all(
                len(writer.stored) > was for writer, was in zip(writers, during, strict=True)
            )
            await asyncio.gather(*writes)
            assert loop.time() < back + 60 + 2 * DEADLINE_S
            assert max(writer.late_s for writer in writers) <= 0.1
            await engine.drain()
            assert engine.budget.used_bytes == 0
            await _check(world, writers, streams)
        async with world.engine() as (client, _):
            again = [await client.open_stream(stream.stream_id) for stream in streams]
            await _check(world, writers, again)

    virtually(scenario)


@both
def test_a_crash_while_the_store_is_away_loses_nothing_acknowledged(mode: WalMode) -> None:
    world = RemoteWorld(mode, latency(30), SMALL)

    async def scenario() -> None:
        async with world.engine(crash=True) as (client, engine):
            streams = await client.create_and_open_streams([CreateStreamOptions()] * 5)
            writers = [Writer(stream, engine) for stream in streams]
            writes = [asyncio.ensure_future(writer.write(60)) for writer in writers]
            await asyncio.sleep(10)
            world.store.go_away()
            await asyncio.sleep(30)
            for write in writes:
                write.cancel()
            await asyncio.wait(writes)
            # What was under way when its writer went is nobody's.
            left = {
                b"%d.%d" % (writer.stream.stream_id, writer.number) + bytes(8000)
                for writer in writers
            }
        async with world.engine() as (client, engine):
            streams = [await client.open_stream(stream.stream_id) for stream in streams]
            assert all(
                stream.confirm_offset >= len(writer.stored)
                for stream, writer in zip(streams, writers, strict=True)
            )
            world.store.come_back()
            for writer, stream in zip(writers, streams, strict=True):
                writer.unknown |= left
                payloads = await read_all(stream)
                assert [payloads[offset] for offset in writer.stored] == list(
                    writer.stored.values()
                )
            await engine.drain()
            await _check(world, writers, streams)

    virtually(scenario)


@both
def test_errors_and_lost_answers_store_nothing_twice(mode: WalMode) -> None:
    moods = dataclasses.replace(latency(30), refused_share=0.2, lost_answer_share=0.2)
    world = RemoteWorld(mode, moods, SMALL)

    async def scenario() -> None:
        async with world.engine() as (client, engine):
            streams = await client.create_and_open_streams([CreateStreamOptions()] * 5)
            writers = [Writer(stream, engine) for stream in streams]
            await asyncio.gather(*[writer.write(60) for writer in writers])
            await engine.drain()
            assert value_of(engine.metrics.failures.labels("put")) > 20
            assert all(len(writer.stored) > 50 for writer in writers)
            world.store.moods = latency(30)
            await _check(world, writers, streams)

    virtually(scenario)


def test_a_slow_disk_slows_appends_within_the_bound() -> None:
    world = RemoteWorld("disk", latency(30), SMALL)
    wal = world.wal
    assert wal is not None
    append: Callable[..., Awaitable[object]] = wal.append

    async def slow(*arguments: object) -> object:
        await asyncio.sleep(2)
        return await append(*arguments)

    replace_method(wal, "append", slow)

    async def scenario() -> None:
        async with world.engine() as (client, engine):
            streams = await client.create_and_open_streams([CreateStreamOptions()] * 5)
            writers = [Writer(stream, engine) for stream in streams]
            await asyncio.gather(*[writer.write(60) for writer in writers for _ in range(20)])
            assert not any(writer.overloaded + len(writer.unknown) for writer in writers)
            await engine.drain()
            await _check(world, writers, streams)

    virtually(scenario)


def test_object_mode_opens_with_a_disk_wal_to_upload_while_the_store_is_away() -> None:
    world = RemoteWorld("disk", latency(30), SMALL)

    async def scenario() -> None:
        async with world.engine(crash=True) as (client, _):
            stream = await client.create_and_open_stream()
            world.store.go_away()
            await asyncio.gather(*[stream.append(batch(b"%d" % number)) for number in range(50)])
        world.mode = "object"
        async with world.engine() as (client, engine):
            stream = await client.open_stream(stream.stream_id)
            assert stream.confirm_offset == 50
            append = asyncio.ensure_future(stream.append(batch(b"50")))
            await asyncio.sleep(60)
            assert not append.done()
            world.store.come_back()
            assert (await append).base_offset == 50
            await engine.drain()
            assert world.wal is not None
            assert world.wal.groups == []
            assert await read_all(stream) == [b"%d" % number for number in range(51)]

    virtually(scenario)


@both
def test_a_stream_whose_open_failed_stays_usable_under_its_old_epoch(mode: WalMode) -> None:
    world = RemoteWorld(mode, latency(30), SMALL)
    open_streams = world.metadata.open_streams

    def failing(error: StreamlogError) -> None:
        async def fail(*args: object, **kwargs: object) -> object:
            raise error

        replace_method(world.metadata, "open_streams", fail)

    async def scenario() -> None:
        async with world.engine() as (client, _):
            stream = await client.create_and_open_stream()
            await stream.append(batch(b"a"))
            failing(StreamFenced("too low"))
            assert isinstance(await error_of(client.open_stream(stream.stream_id)), StreamFenced)
            await stream.append(batch(b"b"))
            failing(MetadataUnavailable("away"))
            error = await error_of(client.open_stream(stream.stream_id))
            assert isinstance(error, MetadataUnavailable)
            # The move may still take place. With wal=disk an append could be acknowledged before.
            refusal = await error_of(stream.append(batch(b"c")))
            assert (refusal is None) == (mode == "object")
            replace_method(world.metadata, "open_streams", open_streams)
            stream = await client.open_stream(stream.stream_id)
            await stream.append(batch(b"d"))
            assert len(await read_all(stream)) == (4 if mode == "object" else 3)

    virtually(scenario)
