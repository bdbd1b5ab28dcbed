"""Segments are deleted while a fetch reads: no aborted record is taken for a committed one."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import OffsetOutOfRange
from streamlog.log.api.abstract_log import Isolation
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from tests.unified.harness import unified_log


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
