"""Threads in C that write files: what becomes of each write is told once, and nothing stays."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import select
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlog.runtime.writer_threads import ARE_THERE, WriterThreads

_native: Any = pytest.importorskip(
    "streamlog.runtime._native", reason="nothing is compiled without a C compiler"
)


class Token:
    """What is given back with the end of a write."""


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "written", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def submitted(thread: Any, descriptor: int, tokens: list[Token]) -> None:
    """Returns when the first one is written."""
    for token in tokens:
        thread.submit(descriptor, 0, [b"x"], 0, True, token)
    assert select.select([thread.fileno()], [], [], 30)[0]


def test_an_end_that_finds_no_memory_is_told_by_the_next_call(descriptor: int) -> None:
    """Whoever waits for it would wait for ever: however far a call comes, nothing is dropped."""
    memory: Any = pytest.importorskip("_testcapi", reason="this interpreter refuses no memory")
    failures = 0
    for call in ("take", "close"):
        for allocations in range(12):
            thread, tokens = _native.WriterThread(), [Token() for _ in range(3)]
            submitted(thread, descriptor, tokens)
            take = getattr(thread, call)
            told: list[Any] | None = None
            memory.set_nomemory(allocations, 0)
            try:
                told = take()
            except MemoryError:
                told = []
            finally:
                memory.remove_mem_hooks()
            assert told is not None
            failures += len(told) < 3
            while call == "take" and len(told) < 3:
                assert select.select([thread.fileno()], [], [], 30)[0], "nobody would look again"
                told += thread.take()
            while (more := thread.close()) is not None:
                told += more
            assert [token for token, _, _ in told] == tokens
    assert failures


def test_writes_that_nobody_asked_about_go_with_their_thread(descriptor: int) -> None:
    thread, token = _native.WriterThread(), Token()
    gone = weakref.ref(token)
    submitted(thread, descriptor, [token])
    del token
    assert gone() is not None
    del thread
    gc.collect()
    assert gone() is None


def test_an_end_that_is_cancelled_ends_all_threads(descriptor: int) -> None:
    async def scenario() -> None:
        threads, told = WriterThreads(3), list[OSError | None]()
        all_told = asyncio.Event()

        def done(error: OSError | None, _: bool) -> None:
            told.append(error)
            if len(told) == 3:
                all_told.set()

        for number in range(3):
            threads.write(descriptor, number, [b"x"], done)
        assert threads.count == 3
        ending = asyncio.ensure_future(threads.end())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert threads.count == 0
        await asyncio.wait_for(all_told.wait(), 30)
        assert told == [None] * 3

    asyncio.run(scenario())


def test_that_the_system_gives_no_thread_is_said_once_in_a_while(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left() -> None:
        raise OSError(errno.EAGAIN, "no more threads")

    async def scenario() -> None:
        monkeypatch.setattr("streamlog.runtime._native.WriterThread", none_left)
        threads = WriterThreads(1)
        for _ in range(100):
            assert not threads.write(descriptor, 0, [b"x"], lambda error, _: None)

    assert ARE_THERE
    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) == 1
