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
    """Never answers, or fails by a bug."""

    is_hanging = True

    async def list_kv(self, *_: Any, **__: Any) -> Any:
        if self.is_hanging:
            await asyncio.Event().wait()
        raise ZeroDivisionError


@pytest.mark.parametrize("is_hanging", [True, False])
def test_a_call_that_never_ends_or_fails_by_a_bug_is_unavailable(is_hanging: bool) -> None:
    async def body() -> None:
        kv = DeafKV()
        kv.is_hanging = is_hanging
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
