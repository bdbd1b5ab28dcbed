"""The conformance class of storage plug-ins finds those that break a promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamlog.errors import Corrupt, StreamlogError
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.testing.clocks import ManualClock
from streamlog.testing.tiers.storage_conformance import RemoteStorageManagerConformance
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.api.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
)
from streamlog.tiered.storage.names import segment_key
from streamlog.tiered.storage.object_storage_manager import ObjectRemoteStorageManager

PREFIX = "tiers"


class Broken(ObjectRemoteStorageManager):
    """Of itself it breaks no promise."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore(ManualClock())
        super().__init__(self.store, PREFIX)


class EndsAreExclusive(Broken):
    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Buffer:
        found = await super().fetch_log_segment(metadata, start_position, end_position)
        return found if len(found) == 1 else found[:-1]


class LateEndsAreErrors(Broken):
    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Buffer:
        if end_position >= metadata.segment_size_bytes:
            raise EOFError
        return await super().fetch_log_segment(metadata, start_position, end_position)


class WhatIsMissingIsEmpty(Broken):
    async def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Buffer:
        try:
            return await super().fetch_index(metadata, index_type)
        except StreamlogError:
            return b""


class ItsOwnIndexIsRefused(Broken):
    def check_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, data: Buffer
    ) -> None:
        if not data:
            raise Corrupt("an index has one entry at least")


class AnIndexStays(Broken):
    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        key = segment_key(PREFIX, metadata, IndexType.TRANSACTION)
        kept = [info.key for info in (await self.store.list("")).objects if info.key != key]
        own = segment_key(PREFIX, metadata, None).removesuffix("segment")
        await self.store.delete([one for one in kept if one.startswith(own)])


class TheWholePartitionGoes(Broken):
    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        folder = segment_key(PREFIX, metadata, None).rpartition("/")[0]
        found = await self.store.list(f"{folder}/")
        await self.store.delete([info.key for info in found.objects])


class ADeleteWantsSomethingToDelete(Broken):
    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self.store.head(segment_key(PREFIX, metadata, None))
        await super().delete_log_segment_data(metadata)


class TheFirstCopyStays(Broken):
    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        try:
            await self.store.head(segment_key(PREFIX, metadata, None))
        except StreamlogError:
            await super().copy_log_segment_data(metadata, data)


class CopiesGoOnWhenCancelled(Broken):
    def __init__(self) -> None:
        super().__init__()
        self._under_way: set[asyncio.Task[None]] = set()

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        async def late() -> None:
            await asyncio.sleep(0.01)
            await super(CopiesGoOnWhenCancelled, self).copy_log_segment_data(metadata, data)

        task = asyncio.ensure_future(late())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        await asyncio.shield(task)


BROKEN: dict[type[Broken], str] = {
    EndsAreExclusive: "test_both_ends_of_a_range_are_inclusive",
    LateEndsAreErrors: "test_a_range_past_the_end_has_fewer_bytes",
    WhatIsMissingIsEmpty: (
        "test_a_segment_without_an_aborted_transaction_has_no_transaction_index"
    ),
    ItsOwnIndexIsRefused: "test_an_empty_index_is_an_index",
    AnIndexStays: "test_a_deleted_segment_is_not_found",
    TheWholePartitionGoes: "test_a_delete_removes_its_own_segment_alone",
    ADeleteWantsSomethingToDelete: "test_a_repeated_delete_is_no_error",
    TheFirstCopyStays: "test_a_second_copy_under_an_id_replaces_the_first",
    CopiesGoOnWhenCancelled: "test_a_copy_that_was_cancelled_anywhere_is_deleted_whole",
}
"""Each with the test that finds it."""


class Conformance(RemoteStorageManagerConformance):
    def __init__(self, kind: type[Broken]) -> None:
        self._kind = kind

    @asynccontextmanager
    async def make(self) -> AsyncIterator[RemoteStorageManager]:
        yield self._kind()


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_promise_is_found(kind: type[Broken]) -> None:
    getattr(Conformance(Broken), BROKEN[kind])()
    # A test of pytest.raises fails by an exception of pytest's own, no subclass of Exception.
    with pytest.raises((AssertionError, StreamlogError, EOFError, pytest.fail.Exception)):
        getattr(Conformance(kind), BROKEN[kind])()
