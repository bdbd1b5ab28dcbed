"""Every await of changes to remote segments fails in turn, and their caller is cancelled at each.

Whatever was struck: every call is answered. A manager on the same engine goes on, unless the engine
has failed, and one on the next process finds what was answered, and nothing that the table of
states does not allow.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

import streamlog
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import StreamlogError
from streamlog.testing.tiers.metadata_conformance import FIRST, SECOND, brought_to, change, segment
from streamlog.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from streamlog.tiered.metadata.topic_manager import TopicBasedRemoteLogMetadataManager
from streamlog.wiring import OpenEngine, WalMode
from tests.support.every_await import Kind, Lab, every, start

CONFIG = StreamEngineConfig(
    compaction=CompactionConfig(compaction_process="inline", compaction_interval_ms=10**9)
)
COPIED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
LEAVING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
MINE, OTHER = segment(1, (0, 9)), segment(2, (0, 9), None, SECOND)


def opened(lab: Lab, wal: WalMode) -> AbstractAsyncContextManager[OpenEngine]:
    return streamlog.open(
        "memory://",
        meta="memory://",
        wal=wal,
        config=CONFIG,
        components=lab.components(has_disk=wal == "disk"),
    )


def manager_of(lab: Lab, engine: OpenEngine) -> TopicBasedRemoteLogMetadataManager:
    manager = TopicBasedRemoteLogMetadataManager(engine.logs, lab.clock)
    manager.configure({"remote.log.metadata.topic.num.partitions": "1"})
    return manager


async def known(
    manager: RemoteLogMetadataManager, one: RemoteLogSegmentMetadata
) -> RemoteLogSegmentState | None:
    found = await manager.list_remote_log_segments(one.topic_id_partition)
    assert len(found) <= 1
    return found[0].state if found else None


async def goes_on(engine: OpenEngine, manager: RemoteLogMetadataManager) -> bool:
    """Whether it answered; it does not where the engine has failed."""
    for _ in range(100):
        try:
            for one in (MINE, OTHER):
                await known(manager, one)
            return True
        except StreamlogError:
            if engine.engine.failure is not None or engine.logs.failure is not None:
                return False
        await asyncio.sleep(1)
    raise AssertionError("the manager never answers again")


async def scenario(lab: Lab, wal: WalMode) -> None:
    async with opened(lab, wal) as engine:
        manager = manager_of(lab, engine)
        await manager.on_partition_leadership_changes([FIRST, SECOND], ())
        victim = lab.striker.arm(brought_to(manager, MINE, LEAVING))
        other = start("other segment", brought_to(manager, OTHER, LEAVING))
        await lab.answered(victim, other)
        done = [not one.cancelled() and one.exception() is None for one in (victim, other)]
        await lab.calm_down()
        await goes_on(engine, manager)
        await engine.kill()
    lab.restart()
    async with opened(lab, wal) as engine:
        manager = manager_of(lab, engine)
        assert await goes_on(engine, manager), lab.striker.struck
        for one, is_done in zip((MINE, OTHER), done, strict=True):
            state = await known(manager, one)
            assert state is LEAVING or not is_done, lab.striker.struck
            if state is None:
                await brought_to(manager, one, LEAVING)
            for step in (COPIED, LEAVING):
                if state is not None and state <= step:
                    await manager.update_remote_log_segment_metadata(change(one, step))
            assert await known(manager, one) is LEAVING, lab.striker.struck
        await engine.kill()
    await lab.close()


@pytest.mark.parametrize("wal", ["disk", "object"])
@pytest.mark.parametrize("kind", ["fail", "cancel"])
def test_whatever_fails_every_change_is_answered_and_what_was_answered_stays(
    kind: Kind, wal: WalMode
) -> None:
    assert every(kind, lambda lab: scenario(lab, wal)) > 20
