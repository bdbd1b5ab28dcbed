"""When the commit loop fails, all waiting and all later calls get the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import streamlog
from streamlog.errors import Corrupt, Internal, StreamlogError
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.journal import committer
from streamlog.model.stream import Stream
from streamlog.runtime.clock import SystemClock
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import batch, error_of, run
from tests.metadata.scripted_kv import ScriptedKV

ANSWER_S = 20.0


def calls(engine: OpenEngine, streams: list[Stream]) -> list[asyncio.Future[Any]]:
    """One call of each kind that waits for a commit; streams 0 to 3 have three batches."""
    return [
        asyncio.ensure_future(call)
        for call in (
            streams[0].trim(2),
            streams[0].append(batch(b"y")),
            streams[1].close(),
            streams[2].destroy(),
            engine.streams.delete_stream(streams[3].stream_id),
            engine.streams.create_and_open_stream(),
        )
    ]


async def made(engine: OpenEngine) -> list[Stream]:
    streams = [await engine.streams.create_and_open_stream() for _ in range(4)]
    for stream in streams:
        for _ in range(3):
            await stream.append(batch(b"x"))
    return streams


async def check_told(engine: OpenEngine, waiting: list[asyncio.Future[Any]]) -> None:
    done, left = await asyncio.wait(waiting, timeout=ANSWER_S)
    assert not left
    assert all(isinstance(call.exception(), StreamlogError) for call in done)
    failure = await asyncio.wait_for(engine.engine.wait_stopped(), ANSWER_S)
    stream = engine.streams.create_and_open_stream()
    later = await asyncio.wait_for(error_of(stream), ANSWER_S)
    assert str(failure) in str(later)


@pytest.mark.parametrize("error", [ValueError("a bug"), Corrupt("damaged", object_key="k")])
def test_every_caller_gets_the_reason_of_an_unexpected_exception(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with streamlog.open("memory://") as engine:
            streams = await made(engine)

            def fail(record: object) -> bytes:
                raise error

            monkeypatch.setattr(committer.commit_record, "encode", fail)  # type: ignore[attr-defined]
            await check_told(engine, calls(engine, streams))
            await engine.kill()

    run(scenario)


def test_a_commit_under_way_is_answered_when_another_part_of_the_metadata_fails() -> None:
    """The store never answers the commit, so the outcome is reported as unknown."""

    async def scenario() -> None:
        kv = ScriptedKV(MemoryKVStore(SystemClock()))
        async with streamlog.open("memory://", components=Components(kv=kv)) as engine:
            streams = await made(engine)
            kv.matches, kv.plan = (lambda sent: bool(sent[1])), ["hold"]
            first = asyncio.ensure_future(streams[3].trim(1))
            await kv.held.wait()
            waiting = calls(engine, streams[:3] + streams[2:3])
            engine.metadata._on_failure(Internal("the follower failed"))
            await check_told(engine, [first, *waiting])
            error = first.exception()
            assert isinstance(error, Internal)
            assert not error.has_no_side_effects
            await engine.kill()

    run(scenario)
