"""A log whose old records are in the remote tier alone, and whose indexes there, or in this node's
cache, were damaged: readers get the right answer or a Corrupt that names the segment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from streamlog.errors import Corrupt, OffsetOutOfRange
from streamlog.log.api.abstract_log import AbortedTransaction, Isolation
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tests.support.damage import cut, one_bit_changed
from tests.tiered.damage.places import ChangeablePlace, InterruptedReads, object_place
from tests.tiered.harness import TieredLogUnderTest, tiered_log

CACHE = "remote-log-index-cache"
SUFFIXES = {
    IndexType.OFFSET: ".index",
    IndexType.TIMESTAMP: ".timeindex",
    IndexType.TRANSACTION: ".txnindex",
}


class RemoteLog(NamedTuple):
    """`first` has an aborted transaction at its offsets 0 and 1, and plain records behind it, whose
    timestamps are `times`."""

    t: TieredLogUnderTest
    place: ChangeablePlace
    first: RemoteLogSegmentMetadata
    times: Mapping[int, int]


def run(test: Callable[[RemoteLog], Awaitable[None]]) -> None:
    async def body() -> None:
        configs = {"internal.segment.bytes": "1200", "index.interval.bytes": "200"}
        tree = TornTree(SeededRandom(3))
        async with (
            object_place(Path()) as place,
            tiered_log(tree, configs, plugin=place.storage) as t,
        ):
            await begin(t.log, transactional([b"aborted" * 20], 8, 0, 0))
            await end(t.log, False, 8)
            times: dict[int, int] = {}
            for number in range(30):
                # Far from each other: a changed time of an index is in order with its neighbours.
                at_ms = t.clock.now_ms() + 20 * (1 + number)
                info = await append(t.log, encoded([b"%06d" % number * 16], at_ms=at_ms))
                times[info.base_offset] = at_ms
            await t.copy()
            await t.configure(local_retention_bytes="0")
            await t.retain()
            assert t.log.local_log_start_offset > 20
            first = (await t.metadata.list_remote_log_segments(t.partition))[0]
            assert first.start_offset == 0 < first.end_offset
            await test(RemoteLog(t, place, first, times))

    asyncio.run(body())


async def answers(log: RemoteLog) -> list[Any]:
    """What readers hear of the first segment, by each index: backwards, so that each needs one."""
    found: list[Any] = []
    questions: list[Callable[[], Awaitable[Any]]] = []
    for offset in reversed(range(2, log.first.end_offset + 1)):
        questions.append(partial(served, log.t, offset))
        questions.append(partial(looked_up, log.t, log.times[offset]))
    questions.append(partial(aborted, log.t))
    for question in questions:
        try:
            found.append(await question())
        except Corrupt as error:
            found.append(error)
    return found


def check(log: RemoteLog, found: Sequence[Any], right: Sequence[Any]) -> None:
    """One answer at least is an error, which names the segment; the others are right."""
    refused = [one for one in found if isinstance(one, Corrupt)]
    assert refused
    assert all(str(log.first.remote_log_segment_id) in str(one) for one in refused)
    for one, wanted in zip(found, right, strict=True):
        assert one == wanted or one in refused


async def served(t: TieredLogUnderTest, offset: int) -> bytes:
    return b"".join((await t.log.fetch(offset, 1)).parts)


async def looked_up(t: TieredLogUnderTest, stamp: int) -> int:
    found = await t.log.offset_for_timestamp(stamp, Isolation.READ_UNCOMMITTED)
    assert found is not None
    return found.offset


async def aborted(t: TieredLogUnderTest) -> tuple[AbortedTransaction, ...]:
    fetched = await t.log.fetch(0, 1000, isolation=Isolation.READ_COMMITTED)
    return tuple(fetched.aborted)


async def with_an_empty_cache(t: TieredLogUnderTest) -> None:
    folder = t.tree.open(CACHE)
    for name in folder.list():
        folder.remove(name)
    await t.reopened()


def damages(stored: bytes) -> list[bytes]:
    lengths = islice(cut(stored), 0, None, 3)
    return list(chain(one_bit_changed(stored), lengths, [stored + stored]))


@pytest.mark.parametrize("kind", SUFFIXES)
def test_no_change_of_an_index_in_the_tier_gives_a_wrong_answer(kind: IndexType) -> None:
    async def test(log: RemoteLog) -> None:
        right = await answers(log)
        assert right[-1] == (AbortedTransaction(8, 0),)
        stored = await log.place.get(log.first, kind)
        for damaged in damages(stored):
            await log.place.put(log.first, kind, damaged)
            await with_an_empty_cache(log.t)
            check(log, await answers(log), right)
        await log.place.put(log.first, kind, stored)
        assert await answers(log) == right, "one that was put back is read"

    run(test)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_an_index_that_was_changed_in_the_cache_is_fetched_anew(kind: IndexType) -> None:
    async def test(log: RemoteLog) -> None:
        right = await answers(log)
        folder = log.t.tree.open(CACHE)
        name = min(one for one in folder.list() if one.endswith(SUFFIXES[kind]))
        for damaged in damages(await log.place.get(log.first, kind)):
            folder.remove(name)
            file = folder.create(name)
            file.append([damaged])
            file.sync()
            file.close()
            await log.t.reopened()
            assert await answers(log) == right
            folder = log.t.tree.open(CACHE)

    run(test)


@pytest.mark.parametrize("kind", [*SUFFIXES, None], ids=[*(one.value for one in SUFFIXES), "LOG"])
def test_a_file_that_is_gone_is_an_error_that_names_its_segment(kind: IndexType | None) -> None:
    """A consumer that heard of an offset out of range would go on behind the segment; one with
    read_committed that heard of no aborted transactions would get their records."""

    async def test(log: RemoteLog) -> None:
        right = await answers(log)
        stored = await log.place.get(log.first, kind)
        await log.place.put(log.first, kind, None)
        await with_an_empty_cache(log.t)
        check(log, await answers(log), right)
        await log.place.put(log.first, kind, stored)
        assert await answers(log) == right

    run(test)


@pytest.mark.parametrize("kind", [*SUFFIXES, None], ids=[*(one.value for one in SUFFIXES), "LOG"])
def test_a_segment_that_is_deleted_meanwhile_is_no_loss(kind: IndexType | None) -> None:
    """A reader that found the segment, and no file of this kind behind it."""

    async def test(log: RemoteLog) -> None:
        t, first = log.t, log.first
        deletion = [
            RemoteLogSegmentMetadataUpdate(first.remote_log_segment_id, 7, state, 1)
            for state in (
                RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
                RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
            )
        ]

        async def expires() -> None:
            await t.log.raise_start(first.end_offset + 1)
            for update in deletion:
                await t.metadata.update_remote_log_segment_metadata(update)
                await log.place.storage.delete_log_segment_data(first)

        assert isinstance(log.place.storage, InterruptedReads)
        log.place.storage.events[kind] = expires
        last = first.end_offset
        reads: dict[IndexType | None, Callable[[], Awaitable[object]]] = {
            IndexType.OFFSET: lambda: t.log.fetch(last, 1),
            IndexType.TRANSACTION: lambda: t.log.fetch(0, 1, isolation=Isolation.READ_COMMITTED),
            None: lambda: t.log.fetch(0, 1),
        }
        if kind is IndexType.TIMESTAMP:
            assert await looked_up(t, log.times[last]) == last + 1
            return
        with pytest.raises(OffsetOutOfRange):
            await reads[kind]()

    run(test)
