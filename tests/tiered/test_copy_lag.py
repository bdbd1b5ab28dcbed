"""A segment is copied when it is old enough, or enough of the log lies behind it (KIP-1241)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamlog.errors import InvalidConfig
from streamlog.log.api.topic_config import TopicConfig, alter, parse
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from tests.tiered.harness import TieredLogUnderTest, tiered_log

MINUTE_MS = 60_000
UNIFIED = {"log.type": "unified", "remote.storage.enable": "true"}


def run(test: Callable[[TieredLogUnderTest], Awaitable[None]], **configs: str) -> None:
    async def body() -> None:
        named = {name.replace("_", "."): text for name, text in configs.items()}
        async with tiered_log(TornTree(SeededRandom(3)), named) as t:
            await test(t)

    asyncio.run(body())


async def filled(t: TieredLogUnderTest, count: int = 20) -> None:
    """Records of 200 bytes a minute: some four a segment."""
    for _ in range(count):
        await append(t.log, encoded([b"x" * 200], at_ms=t.clock.now_ms()))
        t.clock.advance(MINUTE_MS)


async def copied(t: TieredLogUnderTest) -> int:
    await t.copy()
    return t.manager.highest_offset(t.partition.topic_partition)


def test_a_segment_waits_until_its_newest_record_is_old_enough() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        closed = [one for one in t.log.segments if not one.is_active]
        for segment in closed:
            ready_ms = segment.largest_timestamp_ms + 60 * MINUTE_MS
            t.clock.advance(ready_ms - 1 - t.clock.now_ms())
            assert await copied(t) == segment.base_offset - 1
            t.clock.advance(1)
            assert await copied(t) == segment.end_offset - 1

    run(test, remote_copy_lag_ms=str(60 * MINUTE_MS))


def test_a_segment_waits_until_enough_lies_behind_it_or_it_is_old_enough() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        assert await copied(t) >= 0
        behind = [one for one in t.log.segments if one.base_offset > await copied(t)]
        first = behind[0].size_bytes
        total = sum(one.size_bytes for one in behind)
        assert total - first < 2000 <= total
        t.clock.advance(600 * MINUTE_MS)
        assert await copied(t) == t.log.segments[-1].base_offset - 1

    run(test, remote_copy_lag_ms=str(600 * MINUTE_MS), remote_copy_lag_bytes="2000")


def test_a_change_holds_at_the_next_round() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        assert await copied(t) == -1
        await t.configure(remote_copy_lag_ms="0")
        assert await copied(t) == t.log.segments[-1].base_offset - 1

    # Without a local limit -1 is never.
    run(test, remote_copy_lag_ms="-1")


def test_a_segment_whose_time_is_still_to_come_is_copied() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        for _ in range(10):
            later_ms = t.clock.now_ms() + 30 * MINUTE_MS
            await append(t.log, encoded([b"x" * 200], at_ms=later_ms))
        assert await copied(t) >= 0

    run(test, remote_copy_lag_ms=str(60 * MINUTE_MS))


@pytest.mark.parametrize(
    ("configs", "lags"),
    [
        ({}, (1000, 0)),
        ({"remote.copy.lag.ms": "-1"}, (1000, 604_800_000)),
        ({"remote.copy.lag.ms": "-1", "local.retention.ms": "7"}, (1000, 7)),
        ({"remote.copy.lag.ms": "-1", "retention.ms": "-1", "retention.bytes": "-1"}, (-1, -1)),
        ({"remote.copy.lag.ms": "5", "local.retention.bytes": "9"}, (9, 5)),
        ({"remote.copy.lag.ms": "5", "remote.copy.lag.bytes": "0"}, (0, 5)),
    ],
)
def test_what_holds_where_a_lag_is_that_of_local_retention(
    configs: dict[str, str], lags: tuple[int, int]
) -> None:
    assert parse({**UNIFIED, "retention.bytes": "1000", **configs}).copy_lags == lags


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({"remote.copy.lag.ms": "-2"}, "must be -1"),
        ({"remote.copy.lag.bytes": "soon"}, "whole number"),
        ({"remote.copy.lag.ms": "8", "local.retention.ms": "7"}, "more than local.retention.ms"),
        ({"remote.copy.lag.ms": "8", "retention.ms": "7"}, "more than local.retention.ms"),
        ({"remote.copy.lag.bytes": "8", "local.retention.bytes": "7"}, "more than local"),
    ],
)
def test_lags_that_cannot_be_kept_are_refused(configs: dict[str, str], says: str) -> None:
    given = {"retention.bytes": "1000", **configs}
    with pytest.raises(InvalidConfig, match=says):
        parse({**UNIFIED, **given})
    with pytest.raises(InvalidConfig, match=says):
        alter(UNIFIED, set=given, delete=(), append={}, subtract={})


def test_shared_topics_have_no_lag() -> None:
    with pytest.raises(InvalidConfig, match="tiered storage"):
        parse({"remote.copy.lag.ms": "5"})
    assert TopicConfig().copy_lags[1] == 0
