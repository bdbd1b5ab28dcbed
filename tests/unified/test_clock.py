"""What a unified log makes of time: a clock that goes back, records without a timestamp."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from struct import Struct

import pytest

from streamlog.codec.batch import resealed
from streamlog.format.kafka_files.names import INDEX, LOG, file_name
from streamlog.log.api.abstract_log import MAX_TIMESTAMP, Isolation
from streamlog.log.api.topic_config import parse
from streamlog.log.partition.retention import Expired, expired
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.unified.read.timestamp_search import TURN_BATCHES
from tests.support.turns import Turns
from tests.unified.harness import unified_log

CONFIGS = {
    "message.timestamp.type": "LogAppendTime",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "100",
}
TIMES = Struct(">qq")
TIMES_AT = 27
"""Where a batch has its base timestamp, and its largest behind it."""
TIME_MS = 1_700_000_000_000
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


def untimed() -> bytes:
    batch = bytearray(encoded([b"v"]))
    TIMES.pack_into(batch, TIMES_AT, -1, -1)
    return bytes(resealed(batch))


@pytest.mark.parametrize("lost", [None, INDEX])
def test_a_segment_without_timestamps_expires_after_a_restart(
    tmp_path: Path, lost: str | None
) -> None:
    """By the time at which its file was changed last, as in Kafka."""

    async def body() -> None:
        configs = {"retention.ms": "1000"}
        async with unified_log(lambda: SystemTree(tmp_path), configs) as t:
            await append(t.log, untimed())
            await t.log.roll()
            await append(t.log, encoded([b"v"], at_ms=t.clock.now_ms()))
            await t.log.roll()
            changed_s = t.clock.now_ms() // 1000
            os.utime(tmp_path / "t-0" / file_name(0, LOG), (changed_s, changed_s))
            if lost is not None:
                (tmp_path / "t-0" / file_name(0, lost)).unlink()
            t.clock.advance(1000)
            await t.reopened()
            assert t.log.segments[0].largest_timestamp_ms == -1
            assert expired(t.log, parse(configs), t.clock.now_ms()) == []
            t.clock.advance(1)
            assert expired(t.log, parse(configs), t.clock.now_ms()) == [Expired(2, "ms")]

    asyncio.run(body())


@pytest.mark.parametrize("dies", [False, True])
def test_an_active_segment_without_timestamps_is_no_younger_after_opens(
    tmp_path: Path, dies: bool
) -> None:
    async def body() -> None:
        configs = {"retention.ms": "1000"}
        async with unified_log(lambda: SystemTree(tmp_path), configs) as t:
            await append(t.log, untimed())
            changed_s = t.clock.now_ms() // 1000
            t.clock.advance(1001)
            await (t.log.kill() if dies else t.log.close())
            os.utime(tmp_path / "t-0" / file_name(0, LOG), (changed_s, changed_s))
            for _ in range(2):
                await t.open()
                assert expired(t.log, parse(configs), t.clock.now_ms()) == [Expired(1, "ms")]
                await (t.log.kill() if dies else t.log.close())
            await t.open()

    asyncio.run(body())


@pytest.mark.parametrize(("timestamp_ms", "found"), [(MAX_TIMESTAMP, 1), (TIME_MS + 1, -1)])
def test_a_look_up_over_many_batches_gives_others_their_turns(
    timestamp_ms: int, found: int
) -> None:
    """The largest timestamp of all is that of a deleted record: the others are looked through."""
    count = 10_000

    async def body() -> None:
        tree = TornTree(SeededRandom(4))
        async with unified_log(lambda: tree) as t:
            await append(t.log, encoded([b"x"], at_ms=TIME_MS + 1000))
            small = encoded([b"x"], at_ms=TIME_MS)
            for ack in [await t.log.append(small) for _ in range(count)]:
                await ack
            await t.log.delete_records(1)
            async with Turns() as others:
                at = await t.log.offset_for_timestamp(timestamp_ms, Isolation.READ_UNCOMMITTED)
                assert others.count >= count // TURN_BATCHES
            assert at.offset == found

    asyncio.run(body())
