"""Records whose remote segments no metadata names are neither there nor deleted: a reader is told
so, and what comes back is read again."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import Corrupt
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_folder import TornTree
from tests.tiered.harness import filled_and_moved, lose_metadata, tiered_log, values


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
