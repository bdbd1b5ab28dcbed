"""A log whose remote segments' records were damaged in the metadata store."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import Corrupt
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import RemoteLogSegmentState
from streamlog.tiered.metadata.kv_records import segment_key
from tests.tiered.harness import filled_and_moved, tiered_log, values

STATE_AT = 1
"""Of a segment's record."""


def test_a_finished_copy_whose_record_says_that_it_has_only_begun_is_not_deleted() -> None:
    """One bit: its state. What a copy left that did not end is deleted, and here it is all there
    is: the local segment has gone."""

    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), {}) as t:
            wanted = await filled_and_moved(t, 40)
            assert t.log.local_log_start_offset > 20
            second = (await t.metadata.list_remote_log_segments(t.partition))[1]
            assert second.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            key = segment_key(second.remote_log_segment_id)
            stored = await t.kv.get_kv(key)
            assert stored is not None
            changed = bytearray(stored.data)
            changed[STATE_AT] ^= 1
            await t.kv.put_kv(key, bytes(changed))
            there = set(t.storage.segments)
            with pytest.raises(Corrupt, match=str(second.remote_log_segment_id.id)):
                await t.reopened()
            await t.copy()
            assert set(t.storage.segments) == there
            await t.kv.put_kv(key, stored.data)
            await t.open()
            await t.copy()
            assert await values(t.log) == wanted

    asyncio.run(body())
