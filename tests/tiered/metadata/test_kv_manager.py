"""The manager over the KV store keeps the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamlog.errors import Conflict, Invalid, NotFound, OutcomeUnknown
from streamlog.model.kv import Key, Value
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.tiers.metadata_conformance import (
    FIRST,
    OpenManager,
    RemoteLogMetadataManagerConformance,
    change,
    segment,
)
from streamlog.tiered.api import RemoteLogMetadataManager, RemoteLogSegmentState
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager


class TestKVManager(RemoteLogMetadataManagerConformance):
    @asynccontextmanager
    async def make(self) -> AsyncIterator[OpenManager]:
        kv = BasicKV()

        async def opened() -> RemoteLogMetadataManager:
            return KVRemoteLogMetadataManager(kv)

        yield opened


class HeldPuts(BasicKV):
    """Puts wait for the gate before they take effect."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waits = asyncio.Event()

    async def put_kv_if_absent(self, key: Key, data: bytes) -> Value:
        self.waits.set()
        await self.gate.wait()
        return await super().put_kv_if_absent(key, data)


def test_a_cache_that_is_replaced_during_a_write_has_it() -> None:
    async def body() -> None:
        kv = HeldPuts()
        manager = KVRemoteLogMetadataManager(kv)
        one = segment(1, (0, 9))
        write = asyncio.ensure_future(manager.add_remote_log_segment_metadata(one))
        await kv.waits.wait()
        calls = [
            asyncio.ensure_future(manager.on_stop_partitions([FIRST])),
            asyncio.ensure_future(manager.on_partition_leadership_changes([], [FIRST])),
            asyncio.ensure_future(manager.list_remote_log_segments(FIRST)),
        ]

        async def open_gate() -> None:
            kv.gate.set()

        # Tasks begin in the order in which they were made: the gate opens when all calls wait.
        await asyncio.gather(write, *calls, open_gate())
        assert await manager.list_remote_log_segments(FIRST) == [one]

    asyncio.run(body())


class AnswerlessPuts(BasicKV):
    """Puts take effect, and their answers are lost."""

    async def put_kv_if_absent(self, key: Key, data: bytes) -> Value:
        await super().put_kv_if_absent(key, data)
        raise OutcomeUnknown("no answer")


def test_a_segment_whose_answer_was_lost_is_listed() -> None:
    """Or nobody would delete what was copied for it."""

    async def body() -> None:
        manager, one = KVRemoteLogMetadataManager(AnswerlessPuts()), segment(1, (0, 9))
        with pytest.raises(OutcomeUnknown):
            await manager.add_remote_log_segment_metadata(one)
        assert await manager.list_remote_log_segments(FIRST) == [one]

    asyncio.run(body())


def test_a_segment_that_another_node_deleted_is_forgotten() -> None:
    async def body() -> None:
        kv = BasicKV()
        stale, other = KVRemoteLogMetadataManager(kv), KVRemoteLogMetadataManager(kv)
        one = segment(1, (0, 9))
        await stale.add_remote_log_segment_metadata(one)
        await stale.update_remote_log_segment_metadata(
            change(one, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        )
        deleted = change(one, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        await other.update_remote_log_segment_metadata(deleted)
        assert len(await stale.list_remote_log_segments(FIRST)) == 1
        with pytest.raises(NotFound):
            await stale.update_remote_log_segment_metadata(deleted)
        assert await stale.list_remote_log_segments(FIRST) == []

    asyncio.run(body())


def test_a_copy_that_was_finished_without_an_answer_is_not_deleted_as_one_that_failed() -> None:
    """The node that loads the partition next takes it for finished, and deletes its own file."""

    async def body() -> None:
        kv = BasicKV()
        stale, other = KVRemoteLogMetadataManager(kv), KVRemoteLogMetadataManager(kv)
        one = segment(1, (0, 9))
        await stale.add_remote_log_segment_metadata(one)
        await other.update_remote_log_segment_metadata(
            change(one, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        )
        deletion = change(one, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        with pytest.raises(Conflict):
            await stale.update_remote_log_segment_metadata(deletion)
        (known,) = await stale.list_remote_log_segments(FIRST)
        assert known.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        await stale.update_remote_log_segment_metadata(deletion)

    asyncio.run(body())


@pytest.mark.parametrize("is_over", [False, True], ids=["begun", "over"])
def test_a_copy_whose_segment_another_node_deletes_is_not_finished(is_over: bool) -> None:
    async def body() -> None:
        kv = BasicKV()
        stale, other = KVRemoteLogMetadataManager(kv), KVRemoteLogMetadataManager(kv)
        one = segment(1, (0, 9))
        await stale.add_remote_log_segment_metadata(one)
        states = [RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
        if is_over:
            states.append(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        for state in states:
            await other.update_remote_log_segment_metadata(change(one, state))
        with pytest.raises(NotFound if is_over else Invalid):
            await stale.update_remote_log_segment_metadata(
                change(one, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
            )
        known = await KVRemoteLogMetadataManager(kv).list_remote_log_segments(FIRST)
        assert [known_one.state for known_one in known] == ([] if is_over else states)

    asyncio.run(body())
