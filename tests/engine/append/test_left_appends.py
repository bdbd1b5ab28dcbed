"""Appends that were refused or cancelled: their bytes are freed, and they block no other append.

In virtual time: a deadline passes when nothing else is left to do, never while appends are made.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref
from typing import Any

import pytest

from streamlog.engine.config import MIB
from streamlog.engine.engine import Engine
from streamlog.errors import Overloaded, StreamFenced
from streamlog.model.batch import AppendContext, Priority, RecordBatch
from streamlog.model.stream import Stream
from streamlog.wal.config import WalMode
from tests.engine.harness import NO_CACHE, QUICK, World, batch, error_of, sent, until
from tests.engine.remote import virtually

both = pytest.mark.parametrize("mode", ["disk", "object"])
SMALL = dataclasses.replace(
    NO_CACHE, append=dataclasses.replace(QUICK.append, append_bytes_max=MIB)
)
AWAY = 1 << 30


class Payload(bytearray):
    """A payload with weak references."""


class Payloads:
    """Appended payloads, and how many of them are in memory."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Payload]] = []

    def new(self, size_bytes: int = 400 << 10) -> RecordBatch:
        payload = Payload(size_bytes)
        self._made.append(weakref.ref(payload))
        return RecordBatch(1, 0, (payload,))

    @property
    def alive(self) -> int:
        return sum(ref() is not None for ref in self._made)


@pytest.fixture(autouse=True)
def _no_garbage_collection() -> Any:
    """Memory must be freed at once, without the cycle collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def fill(engine: Engine, stream: Stream) -> list[asyncio.Future[Any]]:
    """Appends until the budget is full, and one append that waits without a deadline."""
    kept = [sent(stream.append(RecordBatch(1, 0, (bytes(400 << 10),)))) for _ in range(3)]
    assert engine.budget.waiters == 1
    return kept


@both
@pytest.mark.parametrize("priority", list(Priority))
def test_an_append_refused_for_want_of_room_is_freed(mode: WalMode, priority: Priority) -> None:
    async def scenario() -> None:
        world, payloads = World(mode, SMALL, is_virtual=True), Payloads()
        async with world.engine(crash=True) as (client, engine):
            stream = await client.create_and_open_stream()
            world.store.puts_to_fail = AWAY
            kept = await fill(engine, stream)
            clock = engine.parts.clock
            for wait_s in (-1.0, 0.001) * 10:
                context = AppendContext(clock.monotonic() + wait_s, priority)
                assert isinstance(
                    await error_of(stream.append(payloads.new(), context)), Overloaded
                )
            assert payloads.alive == 0
            late = [
                sent(
                    stream.append(payloads.new(), AppendContext(clock.monotonic() + 0.01, priority))
                )
                for _ in range(50)
            ]
            assert payloads.alive == 50
            await until(lambda: all(append.done() for append in late))
            assert payloads.alive == 0
            assert engine.budget.waiters == 1
            world.store.puts_to_fail = 0
            assert [(await append).base_offset for append in kept] == [0, 1, 2]

    virtually(scenario)


@both
def test_an_append_cancelled_while_it_waits_for_room_is_freed(mode: WalMode) -> None:
    async def scenario() -> None:
        world, payloads = World(mode, SMALL, is_virtual=True), Payloads()
        async with world.engine(crash=True) as (client, engine):
            stream = await client.create_and_open_stream()
            world.store.puts_to_fail = AWAY
            kept = await fill(engine, stream)
            waiting = [sent(stream.append(payloads.new())) for _ in range(20)]
            rooms = [asyncio.ensure_future(stream.reserve(400 << 10)) for _ in range(20)]
            last = sent(stream.append(batch(b"last")))
            await asyncio.sleep(0)
            calls: list[asyncio.Future[Any]] = [*waiting, *rooms]
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert payloads.alive == 0
            assert engine.budget.waiters == 2
            world.store.puts_to_fail = 0
            assert [(await append).base_offset for append in [*kept, last]] == [0, 1, 2, 3]
            await engine.drain()
            assert engine.budget.used_bytes == 0

    virtually(scenario)


@both
def test_an_append_that_waits_for_room_fails_when_its_stream_is_lost(mode: WalMode) -> None:
    async def scenario() -> None:
        world, payloads = World(mode, SMALL, is_virtual=True), Payloads()
        async with world.engine(crash=True) as (client, engine):
            kept = await client.create_and_open_stream()
            lost = await client.create_and_open_stream()
            world.store.puts_to_fail = AWAY
            first = await fill(engine, kept)
            waiting = [sent(lost.append(payloads.new())) for _ in range(5)]
            world.metadata.steal(lost.stream_id)
            for append in waiting:
                assert isinstance(await error_of(append), StreamFenced)
            assert payloads.alive == 0
            world.store.puts_to_fail = 0
            await asyncio.gather(*first)

    virtually(scenario)


@both
@pytest.mark.parametrize("ends", ["deadline", "cancelled"])
def test_an_append_that_leaves_a_barrier_releases_its_room(mode: WalMode, ends: str) -> None:
    async def scenario() -> None:
        world, payloads = World(mode, SMALL, is_virtual=True), Payloads()
        async with world.engine(crash=True) as (client, engine):
            stream = await client.create_and_open_stream()
            core = engine.cores[stream.stream_id]
            engine.sequencer.raise_barrier(core)
            soon = engine.parts.clock.monotonic() + 0.01
            context = AppendContext(soon if ends == "deadline" else None)
            waiting = [sent(stream.append(payloads.new(), context)) for _ in range(5)]
            assert engine.budget.waiters == 3
            if ends == "cancelled":
                for append in waiting:
                    append.cancel()
            await asyncio.wait(waiting)
            assert payloads.alive == 0
            assert (engine.budget.used_bytes, engine.budget.waiters) == (0, 0)
            after = sent(stream.append(batch(b"after")))
            engine.sequencer.lift_barrier(core)
            assert (await after).base_offset == 0

    virtually(scenario)


@both
@pytest.mark.parametrize("stage", ["open", "wal", "put", "commit", "answer"])
def test_a_cancelled_append_is_stored_and_releases_its_bytes(mode: WalMode, stage: str) -> None:
    """The append is cancelled at every stage; appends before, beside and after it are answered."""

    async def scenario() -> None:
        world, payloads = World(mode, NO_CACHE, is_virtual=True), Payloads()
        metadata, store = world.metadata, world.store
        async with world.engine(crash=True) as (client, engine):
            stream, other = [await client.create_and_open_stream() for _ in range(2)]
            if stage == "wal" and world.wal is not None:
                world.wal.gate.clear()
            elif stage == "put":
                store.puts_to_fail = AWAY
            elif stage == "commit":
                metadata.gate.clear()
            elif stage == "answer":
                metadata.answers.clear()
            before = sent(stream.append(batch(b"before")))
            left = sent(stream.append(payloads.new()))
            beside = sent(other.append(batch(b"beside")))
            if stage == "wal" and world.wal is not None:
                wal = world.wal
                await until(lambda: wal.is_writing)
            elif stage == "put":
                await until(lambda: store.puts > 1)
            elif stage == "answer":
                await until(lambda: len(metadata.commits) > 2)
            left.cancel()
            after = sent(stream.append(batch(b"after")))
            await asyncio.wait([left])
            store.puts_to_fail = 0
            metadata.gate.set()
            metadata.answers.set()
            if world.wal is not None:
                world.wal.gate.set()
            assert (await before).base_offset == 0
            assert (await beside).base_offset == 0
            assert (await after).base_offset == 2
            await engine.drain()
            assert (engine.budget.used_bytes, engine.tails.held_batches) == (0, 0)
            if world.wal is not None:
                assert world.wal.groups == []
            assert len((await stream.fetch(1, 2, 1)).batches[0].parts[0]) == 400 << 10

    virtually(scenario)


@both
def test_a_refusal_whose_caller_is_cancelled_is_forgotten(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode, is_virtual=True)
        async with world.engine(crash=True) as (client, engine):
            stream = await client.create_and_open_stream()
            if world.wal is not None:
                world.wal.gate.clear()
            world.store.puts_to_fail = AWAY
            first = sent(stream.append(batch(b"a")))
            context = AppendContext(expected_next_offset=7)
            waiting = [sent(stream.append(batch(b"b"), context)) for _ in range(10)]
            await asyncio.sleep(0)
            for append in waiting:
                append.cancel()
            await asyncio.wait(waiting)
            assert not engine.cores[stream.stream_id]._waiters
            world.store.puts_to_fail = 0
            if world.wal is not None:
                world.wal.gate.set()
            assert (await first).base_offset == 0

    virtually(scenario)
