"""A clock that goes back between segments hides no record from a look-up by time."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.log.api.abstract_log import Isolation
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from tests.unified.harness import unified_log

CONFIGS = {
    "message.timestamp.type": "LogAppendTime",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "100",
}
STEPS_MS = (0, 70, -5000, 30, 30, -200, 9000, -8000, 1)


@pytest.mark.parametrize("dies", [False, True])
def test_look_ups_by_time_meet_segments_in_no_order_of_time(dies: bool) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(4))
        async with unified_log(lambda: tree, CONFIGS, cut_power=tree.crash) as t:
            stored: list[tuple[int, int]] = []
            for step_ms in STEPS_MS:
                t.clock.advance(step_ms)
                for number in range(5):
                    t.clock.advance(number)
                    info = await append(t.log, encoded([b"v" * 50]))
                    stored.append((info.log_append_time_ms, info.base_offset))
                await t.log.roll()
            assert [one for one, _ in stored] != sorted(one for one, _ in stored)
            for _ in range(2):
                for target in {one + more for one, _ in stored for more in (-1, 0, 1)}:
                    found = await t.log.offset_for_timestamp(target, Isolation.READ_UNCOMMITTED)
                    first = next((offset for at, offset in stored if at >= target), -1)
                    assert found.offset == first, target
                await (t.crashed() if dies else t.reopened())

    asyncio.run(body())
