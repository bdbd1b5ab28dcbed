"""Faults that other programs with tiered storage had; others of them have their tests elsewhere.

A fetch that makes no progress because each wait passes: test_tiers.py. One slow partition that
holds up an answer, and storms of small ranges: tests/server/kafka/test_tiered_fetches.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from uuid import UUID

import pytest

from streamlog.codec.batch import scan
from streamlog.errors import Corrupt
from streamlog.log.api.abstract_log import AbortedTransaction, Isolation
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tests.tiered.harness import TieredLogUnderTest, tiered_log, values

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def run(test: Callable[[TieredLogUnderTest], Awaitable[None]]) -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), {}) as t:
            await test(t)

    asyncio.run(body())


async def filled(t: TieredLogUnderTest, count: int) -> dict[int, bytes]:
    """Values of 100 bytes, about five a segment."""
    wanted: dict[int, bytes] = {}
    for number in range(count):
        value = b"%06d" % number * 16
        info = await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        wanted[info.base_offset] = value
    return wanted


async def only_newest_local(t: TieredLogUnderTest) -> None:
    await t.copy()
    await t.configure(local_retention_bytes="0")
    await t.retain()
    assert t.log.local_log_start_offset > t.log.log_start_offset


@pytest.mark.parametrize("restarts", [False, True])
def test_segments_below_deleted_records_go_although_their_epochs_are_forgotten(
    restarts: bool,
) -> None:
    """A deletion of records cuts the list of leader epochs, too: a check of the lineage that asks
    for all epochs of a segment would leave it in the store for ever."""

    async def test(t: TieredLogUnderTest) -> None:
        for _ in range(4):
            await filled(t, 12)
            await t.log.roll()
            await t.reopened()
        await only_newest_local(t)
        await t.copy()
        assert len(t.log.leader_epochs) >= 4
        newest = t.log.leader_epochs[-2][1] + 1
        await t.log.delete_records(newest)
        assert len(t.log.leader_epochs) == 2
        if restarts:
            await t.reopened()
        await t.copy()
        listed = await t.metadata.list_remote_log_segments(t.partition)
        assert all(one.end_offset >= newest for one in listed)
        assert {one.remote_log_segment_id.id for one in listed} == set(t.storage.segments)
        await t.log.delete_records(t.log.high_watermark)
        await t.copy()
        assert t.storage.segments == {}

    run(test)


async def copied_by_another(t: TieredLogUnderTest, first: int, last: int) -> UUID:
    """Another leader copied these offsets as one segment, across the ends of this one's."""
    data, stamp, position = b"", 0, first
    while position <= last:
        fetched = await t.log.fetch(position, 1)
        (batch,) = scan(b"".join(fetched.parts))
        data += bytes(batch.view)
        stamp = max(stamp, batch.header.max_timestamp_ms)
        position = batch.header.next_offset
    unique = t.random.uuid()
    segment_id = RemoteLogSegmentId(t.partition, unique)
    metadata = RemoteLogSegmentMetadata(
        segment_id,
        first,
        last,
        stamp,
        2,
        t.clock.now_ms(),
        len(data),
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        {t.log.leader_epochs[0][0]: first},
        is_txn_index_empty=True,
    )
    await t.metadata.add_remote_log_segment_metadata(metadata)
    # Indexes without an entry: a reader begins at the segment's first byte.
    t.storage.segments[unique] = {"LOG": data, "OFFSET": b"", "TIMESTAMP": b""}
    update = RemoteLogSegmentMetadataUpdate(segment_id, t.clock.now_ms(), FINISHED, 2)
    await t.metadata.update_remote_log_segment_metadata(update)
    return unique


def test_overlapping_segments_of_two_leaders_are_read_once_counted_once_and_all_deleted() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t, 40)
        await t.copy()
        bases = [one.base_offset for one in t.log.segments if not one.is_active]
        assert len(bases) > 3
        # One across two of ours, one within one of ours, one that is exactly one of ours.
        await copied_by_another(t, bases[0] + 1, bases[1] + 1)
        await copied_by_another(t, bases[2] + 1, bases[2] + 2)
        await copied_by_another(t, bases[2], bases[3] - 1)
        for life in (None, t.reopened):
            if life is not None:
                await life()
            await only_newest_local(t)
            for offset in wanted:
                left = {at: value for at, value in wanted.items() if at >= offset}
                assert await values(t.log, offset) == left
        remote = sum(len(files["LOG"]) for files in t.storage.segments.values())
        local = sum(one.size_bytes for one in t.log.segments)
        once = sum(one.segment_size_bytes for one in await own_segments(t, bases))
        assert remote > once
        await t.configure(local_retention_bytes="-2", retention_bytes=str(once + local))
        await t.copy()
        assert t.log.log_start_offset == 0, "what is there twice counts once"
        await t.configure(retention_bytes=str(local + once // 2))
        await t.copy()
        start = t.log.log_start_offset
        assert start > 0
        kept = {at: value for at, value in wanted.items() if at >= start}
        assert await values(t.log, start) == kept
        await t.log.delete_records(t.log.high_watermark)
        await t.copy()
        assert t.storage.segments == {}
        assert await t.metadata.list_remote_log_segments(t.partition) == []

    run(test)


async def own_segments(t: TieredLogUnderTest, bases: list[int]) -> list[RemoteLogSegmentMetadata]:
    listed = await t.metadata.list_remote_log_segments(t.partition)
    return [one for one in listed if one.start_offset in bases and one.broker_id == 1]


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_fetch_that_is_cut_off_leaves_the_transaction_index_to_the_next(steps: int) -> None:
    """`steps`: how far the event loop has come with the fetch when its client goes."""

    async def test(t: TieredLogUnderTest) -> None:
        await begin(t.log, transactional([b"aborted" * 20], 8, 0, 0))
        await end(t.log, False, 8)
        await filled(t, 20)
        await only_newest_local(t)
        gate = asyncio.Event()
        indexes: list[str] = []

        async def index_waits(call: str) -> None:
            if call == "index":
                indexes.append(call)
                await gate.wait()

        t.storage.strike = index_waits

        async def fetch() -> None:
            fetched = await t.log.fetch(0, 1000, isolation=Isolation.READ_COMMITTED)
            assert fetched.aborted == (AbortedTransaction(8, 0),)

        cut = asyncio.ensure_future(fetch())
        for _ in range(steps):
            await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait({cut})
        gate.set()
        for _ in range(2):
            await fetch()
        assert len(indexes) == 1, "what was under way is there for the next"

    run(test)


@pytest.mark.parametrize("is_stored", [False, True], ids=["in the cache", "in the tier"])
def test_no_bit_of_an_offset_index_makes_a_reader_skip_a_record(is_stored: bool) -> None:
    """An index that was changed here is fetched anew; of one that was changed in the tier a reader
    is told, or it serves the right records nevertheless."""
    folder_name, configs = (
        "remote-log-index-cache",
        {"internal.segment.bytes": "2000", "index.interval.bytes": "200"},
    )

    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), configs) as t:
            await filled(t, 40)
            await only_newest_local(t)
            first = (await t.metadata.list_remote_log_segments(t.partition))[0]
            offsets = range(first.start_offset + 1, first.end_offset + 1)

            async def read_backwards() -> None:
                """So that each read needs the index."""
                for offset in reversed(offsets):
                    try:
                        fetched = await t.log.fetch(offset, 1)
                    except Corrupt:
                        assert is_stored
                        continue
                    header = next(iter(scan(b"".join(fetched.parts)))).header
                    assert header.base_offset <= offset <= header.last_offset

            await read_backwards()
            folder = t.tree.open(folder_name)
            name = min(one for one in folder.list() if one.endswith(".index"))
            good = folder.open(name).read(0, folder.open(name).size())
            stored = t.storage.segments[first.remote_log_segment_id.id]
            assert bytes(stored[IndexType.OFFSET.value]) == good
            for at, bit in product(range(len(good)), range(0, 8, 3)):
                changed = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
                if name in folder.list():
                    folder.remove(name)
                if is_stored:
                    stored[IndexType.OFFSET.value] = changed
                else:
                    file = folder.create(name)
                    file.append([changed])
                    file.sync()
                    file.close()
                await t.reopened()
                folder = t.tree.open(folder_name)
                await read_backwards()

    asyncio.run(body())
