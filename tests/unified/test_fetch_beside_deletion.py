"""Segments are deleted while a fetch reads: no aborted record is taken for a committed one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, cast

import pytest

from streamlog.errors import OffsetOutOfRange, StreamlogError
from streamlog.log.api.abstract_log import Isolation
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from streamlog.unified.read.aborted_search import stored_entries
from tests.unified.harness import HeldOffload, unified_log

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class HeldSearch(HeldOffload):
    """A search for aborted transactions stands still before it reads a file, until `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = asyncio.Event()
        self.go_on = asyncio.Event()

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        if cast(object, fn) is stored_entries:
            self.is_there.set()
            await self.go_on.wait()
        return await super().run(lane, fn, *args)


@pytest.mark.parametrize("steps", range(12))
def test_no_aborted_record_is_shown_by_a_fetch_whose_segment_is_deleted(steps: int) -> None:
    """`steps`: how far the event loop has come with the fetch when the deletion begins."""

    async def body() -> None:
        tree = TornTree(SeededRandom(steps))
        async with unified_log(lambda: tree, {"log.type": "unified"}) as t:
            await begin(t.log, transactional([b"aborted"]))
            await end(t.log, is_commit=False)
            await t.log.roll()
            await append(t.log, encoded([b"plain"]))
            fetch = asyncio.ensure_future(t.log.fetch(0, 1000, isolation=Isolation.READ_COMMITTED))
            for _ in range(steps):
                await asyncio.sleep(0)
            assert await t.log.delete_oldest_segments(2, "test") == 1
            (answer,) = await asyncio.gather(fetch, return_exceptions=True)
            if isinstance(answer, OffsetOutOfRange):
                assert answer.fields["start_offset"] == 2
            else:
                assert not isinstance(answer, BaseException)
                assert [one.first_offset for one in answer.aborted] == [0]

    asyncio.run(body())


@pytest.mark.parametrize("ends_by_failure", [True, False])
def test_no_aborted_record_is_shown_by_a_fetch_whose_log_has_a_successor(
    ends_by_failure: bool,
) -> None:
    """The successor deletes files, and the old log hears nothing of it."""

    async def body() -> None:
        tree, offload = TornTree(SeededRandom(1)), HeldSearch()
        async with unified_log(lambda: tree, {"log.type": "unified"}, offload=offload) as t:
            await begin(t.log, transactional([b"aborted"]))
            await end(t.log, is_commit=False)
            await t.log.roll()
            await append(t.log, encoded([b"plain"]))
            fetch = asyncio.ensure_future(t.log.fetch(0, 1000, isolation=Isolation.READ_COMMITTED))
            await offload.is_there.wait()
            await (t.log.kill() if ends_by_failure else t.log.close())
            await t.open()
            assert await t.log.delete_oldest_segments(2, "test") == 1
            offload.go_on.set()
            with pytest.raises(StreamlogError) as refused:
                await fetch
            assert refused.value.is_retryable

    asyncio.run(body())
