"""A token change that is slow, cancelled, refused or lost blocks no append for ever."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from streamlog.engine.engine import Engine
from streamlog.errors import (
    Closed,
    DeadlinePassed,
    OutcomeUnknown,
    Overloaded,
    StreamFenced,
    StreamlogError,
    TenureFenced,
    TokenMismatch,
)
from streamlog.model.batch import AppendContext
from streamlog.model.stream import Stream
from streamlog.wal.config import WalMode
from tests.engine.harness import QUICK, World, batch, error_of, read_all, run, sent, until

both = pytest.mark.parametrize("mode", ["disk", "object"])
NEW = AppendContext(fencing_token=b"new")
OLD = AppendContext(fencing_token=b"")


def change(stream: Stream, context: AppendContext = OLD) -> asyncio.Task[None]:
    return asyncio.ensure_future(stream.set_fencing_token(b"new", context))


def soon(engine: Engine, token: bytes | None = None) -> AppendContext:
    return AppendContext(deadline=engine.parts.clock.monotonic() + 0.02, fencing_token=token)


async def committing(world: World) -> None:
    """The change is on its way to the metadata, whose gate is closed."""
    await until(lambda: bool(world.metadata.gate._waiters))


@both
def test_appends_behind_a_slow_change_wait_within_their_deadline(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine(crash=True) as (client, engine):
            stream, other = [await client.create_and_open_stream() for _ in range(2)]
            world.metadata.gate.clear()
            changing = change(stream)
            await committing(world)
            late = sent(stream.append(batch(b"late"), soon(engine)))
            after = sent(stream.append(batch(b"after"), NEW))
            wrong = sent(stream.append(batch(b"wrong"), OLD))
            if mode == "disk":
                await other.append(batch(b"beside"))
            assert isinstance(await error_of(late), Overloaded)
            assert not after.done()
            world.metadata.gate.set()
            await changing
            assert (await after).base_offset == 0
            assert isinstance(await error_of(wrong), TokenMismatch)
            await engine.drain()
            assert engine.budget.used_bytes == 0

    run(scenario)


@both
@pytest.mark.parametrize("leaves", ["cancelled", "deadline"])
@pytest.mark.parametrize("stage", ["confirm", "commit", "answer"])
def test_a_token_change_whose_caller_is_cancelled(mode: WalMode, stage: str, leaves: str) -> None:
    """Cancelled before its commit it changes nothing; later it runs to its end."""

    async def scenario() -> None:
        world = World(mode)
        async with world.engine(crash=True) as (client, engine):
            stream = await client.create_and_open_stream()
            core = engine.cores[stream.stream_id]
            hold = world.wal.gate if stage == "confirm" and world.wal else world.metadata.gate
            if stage == "answer":
                world.metadata.answers.clear()
            else:
                hold.clear()
            before = sent(stream.append(batch(b"before"))) if stage == "confirm" else None
            commits = len(world.metadata.commits)
            changing = change(stream, soon(engine, b"") if leaves == "deadline" else OLD)
            await until(lambda: core.append_barrier is not None)
            if stage == "commit":
                await committing(world)
            elif stage == "answer":
                await until(lambda: len(world.metadata.commits) > commits)
            after = sent(stream.append(batch(b"after")))
            if leaves == "cancelled":
                changing.cancel()
                await asyncio.wait([changing])
            else:
                error = await error_of(changing)
                assert isinstance(error, DeadlinePassed if stage == "confirm" else OutcomeUnknown)
            hold.set()
            world.metadata.answers.set()
            if before is not None:
                assert (await before).base_offset == 0
            await after
            description = await client.describe_stream(stream.stream_id)
            assert description.fencing_token == (b"" if stage == "confirm" else b"new")
            assert core.append_barrier is None
            assert (await error_of(stream.append(batch(b"test"), NEW)) is None) == (
                stage != "confirm"
            )
            await stream.close()

    run(scenario)


@both
def test_a_change_to_the_same_token_fails_under_a_holder_that_lost_the_stream(
    mode: WalMode,
) -> None:
    """The new holder may have changed it: an answer from memory would be an old one."""

    async def scenario() -> None:
        world = World(mode)
        async with world.engine(crash=True) as (client, _):
            stream = await client.create_and_open_stream()
            await stream.set_fencing_token(b"")
            world.metadata.steal(stream.stream_id, is_noticed=False)
            assert isinstance(await error_of(stream.set_fencing_token(b"")), StreamFenced)

    run(scenario)


async def stolen(world: World, engine: Engine, stream: Stream) -> None:
    world.metadata.steal(stream.stream_id)
    world.metadata.gate.set()


async def killed(world: World, engine: Engine, stream: Stream) -> None:
    await engine.kill()
    world.metadata.gate.set()


async def sealed(world: World, engine: Engine, stream: Stream) -> None:
    world.metadata.is_fenced = True
    world.metadata.gate.set()


@both
@pytest.mark.parametrize(
    ("ending", "error"), [(stolen, StreamFenced), (killed, Closed), (sealed, TenureFenced)]
)
def test_waiting_changes_and_appends_fail_when_the_engine_stops(
    mode: WalMode, ending: Callable[..., Any], error: type[StreamlogError]
) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine(crash=True) as (client, engine):
            stream = await client.create_and_open_stream()
            world.metadata.gate.clear()
            changing = change(stream)
            await committing(world)
            second = change(stream)
            after = sent(stream.append(batch(b"after"), NEW))
            closing = asyncio.ensure_future(stream.close())
            await asyncio.sleep(0)
            await ending(world, engine, stream)
            assert isinstance(await error_of(changing), error)
            if ending is sealed:
                # The engine hears of it by its own watch; the stream itself goes on until then.
                await engine.kill()
            for call in (second, after, closing):
                assert isinstance(await error_of(call), StreamlogError)
            assert engine.budget.used_bytes == 0

    run(scenario)


def test_an_append_behind_a_change_is_acknowledged_after_its_commit() -> None:
    """Acknowledged earlier, it would be replayed after a crash that brings the old token back."""

    async def scenario() -> None:
        world = World("disk")
        assert world.wal is not None
        async with world.engine(crash=True) as (client, _):
            stream = await client.create_and_open_stream()
            world.store.puts_to_fail = 1 << 30
            await stream.append(batch(b"before"))
            world.metadata.gate.clear()
            changing = change(stream)
            await committing(world)
            after = sent(stream.append(batch(b"after"), NEW))
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(world.wal.groups) == 1
            world.metadata.gate.set()
            await changing
            assert (await after).base_offset == 1
            stream_id = stream.stream_id
        world.store.puts_to_fail = 0
        async with world.engine() as (client, _):
            again = await client.open_stream(stream_id)
            assert isinstance(await error_of(again.append(batch(b"x"), OLD)), TokenMismatch)
            await again.append(batch(b"last"), NEW)
            assert await read_all(again) == [b"before", b"after", b"last"]

    run(scenario)


@both
def test_appends_keep_their_order_when_one_at_the_barrier_releases_room(mode: WalMode) -> None:
    """The refused append's room goes to an append that was called after the waiting ones."""

    async def scenario() -> None:
        config = dataclasses.replace(
            QUICK, append=dataclasses.replace(QUICK.append, append_bytes_max=64 * 1024)
        )
        world = World(mode, config)
        large = bytes(20 * 1024)
        async with world.engine(crash=True) as (client, engine):
            stream = await client.create_and_open_stream()
            world.metadata.gate.clear()
            changing = change(stream)
            await committing(world)
            wrong = sent(stream.append(batch(large), OLD))
            second = sent(stream.append(batch(large)))
            third = sent(stream.append(batch(large)))
            fourth = sent(stream.append(batch(large)))
            await until(lambda: engine.budget.waiters == 1)
            world.metadata.gate.set()
            await changing
            assert isinstance(await error_of(wrong), TokenMismatch)
            offsets = [(await append).base_offset for append in (second, third, fourth)]
            assert offsets == [0, 1, 2]

    run(scenario)
