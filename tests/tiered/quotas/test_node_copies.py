"""The quota of copies as a node's tasks keep it: real segments and rounds, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamlog.log.api.topic_config import parse
from streamlog.testing.simulation.world.loop import run
from streamlog.tiered.config import RemoteLogConfig
from tests.tiered.quotas.quota_node import (
    OVERHEAD_BYTES,
    RATE,
    QuotaNode,
    most_above,
    quota_node,
    rates_over,
)

INTERVAL_S = RemoteLogConfig().task_interval_ms / 1000
WINDOWS = 3
TURNED_OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}


def on_node(
    test: Callable[[QuotaNode], Awaitable[None]],
    config: RemoteLogConfig,
    *,
    partitions: int = 1,
    segment_bytes: int = 1000,
) -> None:
    async def body() -> None:
        async with quota_node(config, partitions=partitions, segment_bytes=segment_bytes) as node:
            await test(node)

    run(body, limit_s=1e6)


def uses(node: QuotaNode) -> list[tuple[float, int]]:
    return [(copy.begun_s, copy.size_bytes) for copy in node.slow.copies]


@pytest.mark.parametrize(("tasks", "partitions"), [(1, 1), (1, 10), (10, 1), (10, 10), (10, 15)])
@pytest.mark.parametrize("share", [0.03, 0.1, 0.49])
@pytest.mark.parametrize("buckets", [11, 61])
def test_tasks_copy_at_the_quota_however_many_there_are(
    tasks: int, partitions: int, share: float, buckets: int
) -> None:
    """Also where one partition alone has something to copy: its runs leave one after another."""
    segment_bytes = int(RATE * buckets * share)
    length_s = WINDOWS * buckets
    used_s = INTERVAL_S + 2 * length_s
    each = int(RATE * (used_s + buckets) / segment_bytes / partitions) + 2

    async def body(node: QuotaNode) -> None:
        for log in node.logs:
            await node.fill(log, each)
        await asyncio.sleep(used_s)
        rates = rates_over(uses(node), length_s)
        assert rates
        assert min(rates) >= 0.95
        assert max(rates) <= 1.05

    on_node(
        body,
        RemoteLogConfig(copy_bytes_per_second=RATE, copy_windows=buckets, copier_tasks=tasks),
        partitions=partitions,
        segment_bytes=segment_bytes,
    )


@pytest.mark.parametrize("partitions", [1, 10])
@pytest.mark.parametrize("copy_s", [0, 3])
@pytest.mark.parametrize("share", [0.3, 1.5])
def test_what_is_above_the_quota_is_two_buckets_and_one_segment_however_many_tasks_copy(
    share: float, copy_s: float, partitions: int
) -> None:
    buckets = 11
    segment_bytes = int(RATE * buckets * share)

    async def body(node: QuotaNode) -> None:
        node.slow.copy_s = copy_s
        for log in node.logs:
            await node.fill(log, 200 // partitions)
        await asyncio.sleep(40 * buckets)
        assert len(node.slow.copies) >= 20
        above = most_above(uses(node), buckets + 1)
        assert segment_bytes - OVERHEAD_BYTES <= above <= 2 * RATE + segment_bytes

    config = RemoteLogConfig(copy_bytes_per_second=RATE, copy_windows=buckets)
    on_node(body, config, partitions=partitions, segment_bytes=segment_bytes)


def test_a_partition_that_has_much_to_copy_leaves_the_others_their_turns() -> None:
    """One task: each run copies one segment, and the partition goes behind the others."""
    seconds = 4

    async def body(node: QuotaNode) -> None:
        for log, segments in zip(node.logs, (12, 2, 3), strict=True):
            await node.fill(log, segments)
        await asyncio.sleep(INTERVAL_S + 30 * seconds)
        order = [copy.partition for copy in node.slow.copies]
        assert order == [0, 1, 2, 0, 1, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        # And the first one's runs wait for room, not for the next round.
        pauses = {
            round(after.begun_s - before.begun_s)
            for before, after in zip(node.slow.copies, node.slow.copies[1:], strict=False)
        }
        assert pauses == {seconds}

    config = RemoteLogConfig(copy_bytes_per_second=RATE, copier_tasks=1)
    on_node(body, config, partitions=3, segment_bytes=seconds * RATE)


def test_expiration_goes_on_while_every_task_waits_to_copy() -> None:
    partitions, kept_s = 10, 300

    async def body(node: QuotaNode) -> None:
        for log in node.logs:
            await node.fill(log, 2)
        await asyncio.sleep(INTERVAL_S + 1)
        assert len(node.slow.segments) == 2 * partitions
        node.manager.set_quotas(1, RATE)
        for log in node.logs:
            await node.fill(log, 2)
        await node.configure_all(retention_ms=str(kept_s * 1000))
        await asyncio.sleep(kept_s + 2 * INTERVAL_S)
        # One was copied meanwhile, when the window had forgotten those before, and all are gone.
        assert len(node.slow.copies) == 2 * partitions + 1
        assert node.quota_metric("copy_throttles_total") >= partitions
        assert not node.slow.segments
        assert all(log.log_start_offset >= 2 for log in node.logs)

    config = RemoteLogConfig(copy_bytes_per_second=RATE * 1000)
    on_node(body, config, partitions=partitions)


def test_a_changed_quota_holds_at_once_for_tasks_that_wait() -> None:
    async def body(node: QuotaNode) -> None:
        await node.fill(node.log, 10)
        await asyncio.sleep(INTERVAL_S + 100)
        assert len(node.slow.copies) == 1
        node.manager.set_quotas(RATE * 1000, RATE)
        await asyncio.sleep(1)
        assert len(node.slow.copies) == 10
        assert node.quota_metric("copy_quota_bytes_per_second") == RATE * 1000

    on_node(body, RemoteLogConfig(copy_bytes_per_second=1))


def test_waits_of_tasks_are_in_the_nodes_metrics() -> None:
    seconds = 20

    async def body(node: QuotaNode) -> None:
        await node.fill(node.log, 5)
        assert node.quota_metric("copy_throttle_time_max_ms") == 0
        await asyncio.sleep(INTERVAL_S + 4 * seconds + 1)
        assert len(node.slow.copies) == 5
        # Three waits are of the last minute: the second segment's was over before.
        assert node.quota_metric("copy_throttle_time_avg_ms") == pytest.approx(
            seconds * 1000, rel=0.01
        )
        assert node.quota_metric("copy_throttle_time_max_ms") == pytest.approx(
            seconds * 1000, rel=0.01
        )
        # A run is turned away, and the next one waits.
        assert node.quota_metric("copy_throttles_total") == 8
        await asyncio.sleep(61)
        assert node.quota_metric("copy_throttle_time_avg_ms") == 0

    config = RemoteLogConfig(copy_bytes_per_second=RATE)
    on_node(body, config, segment_bytes=seconds * RATE)


def test_topics_that_are_turned_off_while_they_wait_to_copy_hold_no_expiration_up() -> None:
    waiting = 3

    async def body(node: QuotaNode) -> None:
        *off, other = node.logs
        for log in node.logs:
            await node.fill(log, 1)
        await asyncio.sleep(INTERVAL_S + 3)
        assert len(node.slow.segments) == waiting + 1
        assert await node.tier_quotas.copy.before_segment(
            RATE * 100_000, may_wait=True, is_wanted=lambda: True
        )
        for log in off:
            await node.fill(log, 3)
        await asyncio.sleep(INTERVAL_S)
        assert node.quota_metric("copy_throttles_total") >= waiting
        for log in off:
            await log.configure(parse(node.configs | TURNED_OFF))
        await asyncio.sleep(INTERVAL_S)
        await other.configure(parse(node.configs | {"retention.ms": "1"}))
        await asyncio.sleep(3 * INTERVAL_S)
        assert node.slow.segments == {}
        assert len(node.slow.copies) == waiting + 1
        assert node.manager.alarms() == []

    config = RemoteLogConfig(
        copy_bytes_per_second=RATE, copier_tasks=waiting, expiration_tasks=waiting
    )
    on_node(body, config, partitions=waiting + 1)


@pytest.mark.parametrize("change", ["deleted", "copies are off", "turned off"])
def test_what_is_no_longer_to_be_copied_when_its_turn_comes_costs_no_quota(change: str) -> None:
    segment_bytes, seconds = 1000, 100

    async def body(node: QuotaNode) -> None:
        log = node.log
        await node.fill(log, 3)
        await asyncio.sleep(INTERVAL_S + seconds / 2)
        assert len(node.slow.copies) == 1, "the next one waits"
        if change == "deleted":
            await log.delete_records(log.high_watermark)
            await node.retain()
        else:
            off = TURNED_OFF if change == "turned off" else {"remote.log.copy.disable": "true"}
            await log.configure(parse(node.configs | off))
        await asyncio.sleep(seconds)
        assert len(node.slow.copies) == 1
        assert node.manager.alarms() == []
        assert await node.tier_quotas.copy.before_segment(
            1, may_wait=False, is_wanted=lambda: True
        ), "the wait was not charged"

    config = RemoteLogConfig(copy_bytes_per_second=segment_bytes // seconds, copy_windows=11)
    on_node(body, config, segment_bytes=segment_bytes)
