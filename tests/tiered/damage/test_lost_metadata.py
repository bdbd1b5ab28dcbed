"""Records whose remote segments no metadata names are neither there nor deleted: a reader is told
so, and what comes back is read again."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from streamlog.errors import Corrupt, StoreUnavailable
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import RemoteLogSegmentMetadataUpdate
from tests.tiered.harness import (
    TieredLogUnderTest,
    filled_and_copied,
    filled_and_moved,
    lose_metadata,
    tiered_log,
    values,
)


@pytest.mark.parametrize(
    "numbers", [slice(-3, None), slice(2, 3), slice(0, None)], ids=["the newest", "middle", "all"]
)
def test_lost_metadata_is_told_and_nothing_is_given_up(numbers: slice) -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3))) as t:
            wanted = await filled_and_moved(t, 60)
            segments = await t.metadata.list_remote_log_segments(t.partition)
            first, last = segments[numbers][0].start_offset, segments[numbers][-1].end_offset
            lost = await lose_metadata(t, numbers)
            await t.reopened()
            assert t.log.log_start_offset == 0
            (alarm,) = t.manager.alarms()
            assert f"t-0, ({first}, {last + 1})" in alarm
            for offset in (first, last):
                with pytest.raises(Corrupt, match=f"offset {offset} of t-0 is in neither tier"):
                    await t.log.fetch(offset, 1000)
            for key, data in lost.items():
                await t.kv.put_kv(key, data)
            await t.reopened()
            assert t.manager.alarms() == []
            assert await values(t.log) == wanted

    asyncio.run(body())


def test_offsets_that_are_given_up_are_no_alarm() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3))) as t:
            wanted = await filled_and_moved(t, 60)
            await lose_metadata(t, slice(-3, None))
            await t.reopened()
            start = t.log.local_log_start_offset
            await t.log.delete_records(start - 1)
            assert len(t.manager.alarms()) == 1
            await t.log.delete_records(start)
            assert t.manager.alarms() == []
            assert await values(t.log, start) == {
                offset: value for offset, value in wanted.items() if offset >= start
            }

    asyncio.run(body())


def test_what_lost_its_metadata_while_it_is_local_is_copied_again() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3))) as t:
            wanted = await filled_and_copied(t, 60)
            copied = t.log.copied_end_offset
            listed = await t.metadata.list_remote_log_segments(t.partition)
            await lose_metadata(t, slice(3, 5))
            await t.reopened()
            assert t.log.copied_end_offset == listed[3].start_offset, "what is behind may not go"
            await _all_is_read_when_it_has_moved(t, wanted, copied)

    asyncio.run(body())


def test_what_is_copied_behind_a_gap_counts_once_for_retention() -> None:
    """As long as the gap is there: here no copy gets through."""

    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3))) as t:
            wanted = await filled_and_copied(t, 60)
            copied = t.log.copied_end_offset
            await lose_metadata(t, slice(3, 5))
            await t.reopened()

            def away(call: str) -> None:
                if call == "copy":
                    raise OSError("no connection")

            t.storage.strike = away
            size = sum(one.size_bytes for one in t.log.segments)
            await t.configure(retention_bytes=str(size))
            await t.copy()
            assert t.log.log_start_offset == 0, "the log has no more than retention.bytes"
            await t.configure(retention_bytes=str(size - t.log.segments[0].size_bytes))
            await t.copy()
            start = t.log.segments[0].end_offset
            assert t.log.log_start_offset == start, "the oldest segment alone is too much"
            t.storage.strike = lambda _: None
            await _all_is_read_when_it_has_moved(
                t, {offset: value for offset, value in wanted.items() if offset >= start}, copied
            )

    asyncio.run(body())


def test_a_tier_that_is_turned_off_and_on_beside_failing_metadata_loses_nothing() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3))) as t:
            wanted = await filled_and_copied(t, 60)
            copied = t.log.copied_end_offset
            change, refused = t.metadata.update_remote_log_segment_metadata, 0

            async def changed(update: RemoteLogSegmentMetadataUpdate) -> None:
                nonlocal refused
                refused += 1
                if refused == 1:
                    raise StoreUnavailable("the metadata store is away")
                await change(update)

            with mock.patch.object(t.metadata, "update_remote_log_segment_metadata", changed):
                await t.configure(
                    remote_storage_enable="false", remote_log_delete_on_disable="true"
                )
                await t.copy()
            listed = await t.metadata.list_remote_log_segments(t.partition)
            assert listed[-1].end_offset == copied - 1
            await t.configure(remote_storage_enable="true")
            await _all_is_read_when_it_has_moved(t, wanted, copied)
            found = await t.metadata.list_remote_log_segments(t.partition)
            assert found[: len(listed)] == listed, "none was copied twice"

    asyncio.run(body())


async def _all_is_read_when_it_has_moved(
    t: TieredLogUnderTest, wanted: dict[int, bytes], copied: int
) -> None:
    await t.copy()
    assert t.log.copied_end_offset == copied
    await t.configure(local_retention_bytes="0")
    await t.retain()
    assert t.log.local_log_start_offset == copied
    assert await values(t.log, t.log.log_start_offset) == wanted
    await t.reopened()
    assert t.log.copied_end_offset == copied
    assert t.manager.alarms() == []
    assert await values(t.log, t.log.log_start_offset) == wanted
