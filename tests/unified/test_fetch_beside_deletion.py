"""Segments are deleted while a fetch or a cleaning reads: no aborted record is taken for a
committed one, and the cleaning's owner survives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, cast

import pytest

from streamlog.errors import Invalid, OffsetOutOfRange, StreamlogError
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.cleaning import AbortedRange, CleanableLog
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded, refused
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from streamlog.unified.read.aborted_search import stored_entries
from tests.log.memory_log import turns
from tests.unified.harness import HeldOffload, UnifiedLogUnderTest, unified_log

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


async def two_aborted(t: UnifiedLogUnderTest) -> CleanableLog:
    """In a segment each, of two offsets; another segment follows."""
    for sequence in range(2):
        await begin(t.log, transactional([b"aborted"], sequence=sequence))
        await end(t.log, is_commit=False)
        await t.log.roll()
    return cast(CleanableLog, t.log)


def test_a_cleaning_learns_the_aborted_transactions_that_a_deletion_leaves() -> None:
    """The deletion has begun, and its disk is slow."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, {"log.type": "unified"}) as t:
            log = await two_aborted(t)
            t.hold()
            deletion = asyncio.ensure_future(log.delete_oldest_segments(2, "test"))
            await turns()
            assert log_to_clean(log, parse({}), t.clock.now_ms()).cleanable_bytes
            learning = asyncio.ensure_future(log.aborted_transactions(0, 4))
            await turns()
            t.release()
            assert await deletion == 1
            assert await learning == [AbortedRange(1, 2, 3)]

    asyncio.run(body())


def test_a_replacement_of_segments_that_are_deleted_meanwhile_is_refused() -> None:
    """It is looking for their aborted transactions when they go."""

    async def body() -> None:
        tree, offload = TornTree(SeededRandom(1)), HeldSearch()
        async with unified_log(lambda: tree, {"log.type": "unified"}, offload=offload) as t:
            log = await two_aborted(t)
            begun = asyncio.ensure_future(log.replace_segments(log.segments[:2]))
            await offload.is_there.wait()
            assert await log.delete_oldest_segments(2, "test") == 1
            offload.go_on.set()
            replacement = await begun
            await refused(Invalid, replacement.commit())
            await replacement.abandon()

    asyncio.run(body())
