"""A metadata plug-in that hangs or raises anything is told, and holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamlog.errors import MetadataUnavailable
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.tiers.metadata_conformance import (
    FIRST,
    OpenManager,
    RemoteLogMetadataManagerConformance,
    segment,
)
from streamlog.tiered.api import RemoteLogMetadataManager
from streamlog.tiered.metadata.bounded import BoundedMetadataManager
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager


class TestBoundedManager(RemoteLogMetadataManagerConformance):
    @asynccontextmanager
    async def make(self) -> AsyncIterator[OpenManager]:
        kv = BasicKV()

        async def opened() -> RemoteLogMetadataManager:
            return BoundedMetadataManager(KVRemoteLogMetadataManager(kv), 60_000)

        yield opened


class DeafKV(BasicKV):
    """Never answers, or raises."""

    error: BaseException | None = None

    async def list_kv(self, *_: Any, **__: Any) -> Any:
        if self.error is None:
            await asyncio.Event().wait()
        assert self.error is not None
        raise self.error


@pytest.mark.parametrize("error", [None, ZeroDivisionError(), asyncio.CancelledError()])
def test_a_call_that_never_ends_or_fails_by_a_bug_is_unavailable(
    error: BaseException | None,
) -> None:
    async def body() -> None:
        kv = DeafKV()
        kv.error = error
        manager = BoundedMetadataManager(KVRemoteLogMetadataManager(kv), 20)
        for call in (
            manager.add_remote_log_segment_metadata(segment(1, (0, 9))),
            manager.remote_log_segment_metadata(FIRST, 0, 0),
            manager.highest_offset_for_epoch(FIRST, 0),
            manager.next_segment_with_txn_index(FIRST, 0, 0),
            manager.list_remote_log_segments(FIRST),
            manager.deleted_partitions(),
            manager.on_partition_leadership_changes([FIRST], []),
        ):
            with pytest.raises(MetadataUnavailable, match="KVRemoteLogMetadataManager"):
                await call
        await manager.on_stop_partitions([FIRST])
        await manager.close()

    asyncio.run(body())


def test_a_caller_that_is_cancelled_hears_of_that() -> None:
    async def body() -> None:
        manager = BoundedMetadataManager(KVRemoteLogMetadataManager(DeafKV()), 60_000)
        task = asyncio.ensure_future(manager.deleted_partitions())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
