"""The contract of RemoteStorageManager: inherit `RemoteStorageManagerConformance` and say how to
make one.

The rules are those of `streamlog.tiered.api.storage_manager`; each test shows one through it alone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from itertools import groupby
from uuid import UUID

import pytest

from streamlog.errors import ObjectNotFound, StoreUnavailable
from streamlog.testing.tiers.segments import BytesFile, HeldFile, SegmentMaker, indexes_of
from streamlog.tiered.api.segments import (
    CUSTOM_METADATA_BYTES_MAX,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from streamlog.tiered.api.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    StoredFile,
)

MIB = 1 << 20


class RemoteStorageManagerConformance(ABC):
    large_mib = 20
    """Size of a segment that the plug-in copies in several pieces."""

    @abstractmethod
    def make(self) -> AbstractAsyncContextManager[RemoteStorageManager]:
        """A plug-in that is configured, over an empty storage; closed at the end."""

    async def stored(self) -> Collection[str] | None:
        """The names of all files in the storage, half ones among them, so that tests see what stays
        behind. None: nobody can tell."""
        return None

    def run(self, body: Callable[[RemoteStorageManager], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self.make() as storage:
                await body(storage)

        asyncio.run(main())

    async def check_there(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
    ) -> None:
        """All files are there, byte for byte, and an index that the node keeps is taken."""
        expected = await data.log_segment.read(0, data.log_segment.size_bytes)
        found = await storage.fetch_log_segment(metadata, 0, len(expected) - 1)
        assert bytes(found) == bytes(expected)
        indexes = await indexes_of(data)
        for kind in IndexType:
            if kind in indexes:
                found = await storage.fetch_index(metadata, kind)
                assert bytes(found) == indexes[kind]
                storage.check_index(metadata, kind, found)
            else:
                with pytest.raises(ObjectNotFound):
                    await storage.fetch_index(metadata, kind)

    async def check_missing(
        self, storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
    ) -> None:
        """None of its files is there."""
        with pytest.raises(ObjectNotFound):
            await storage.fetch_log_segment(metadata, 0, 0)
        for kind in IndexType:
            with pytest.raises(ObjectNotFound):
                await storage.fetch_index(metadata, kind)

    # copies

    @pytest.mark.parametrize("has_aborted", [False, True])
    def test_all_files_of_a_segment_come_back(self, has_aborted: bool) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            data = make.data(has_aborted=has_aborted)
            metadata = make.metadata(data, start_offset=4_711)
            custom = await storage.copy_log_segment_data(metadata, data)
            assert custom is None or len(custom) <= CUSTOM_METADATA_BYTES_MAX
            finished = metadata.updated(
                RemoteLogSegmentMetadataUpdate(
                    metadata.remote_log_segment_id,
                    metadata.event_timestamp_ms + 1,
                    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                    0,
                    custom,
                )
            )
            await self.check_there(storage, finished, data)

        self.run(body)

    def test_a_segment_without_an_aborted_transaction_has_no_transaction_index(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            data = make.data(has_aborted=False)
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            with pytest.raises(ObjectNotFound):
                await storage.fetch_index(metadata, IndexType.TRANSACTION)

        self.run(body)

    def test_an_empty_index_is_an_index(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            data = make.data()._replace(offset_index=BytesFile(b""), time_index=BytesFile(b""))
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            await self.check_there(storage, metadata, data)

        self.run(body)

    def test_a_large_segment_comes_back_byte_for_byte(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            expected = make.bytes(self.large_mib * MIB + 17)
            data = make.data(log_segment=BytesFile(expected))
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            await self.check_there(storage, metadata, data)
            for start in (0, 4 * MIB - 3, 8 * MIB + 1, len(expected) - 7):
                found = await storage.fetch_log_segment(metadata, start, start + 6)
                assert bytes(found) == expected[start : start + 7]

        self.run(body)

    def test_a_repeated_copy_comes_to_the_same(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            data = make.data(has_aborted=True)
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            before = await self.stored()
            await storage.copy_log_segment_data(metadata, data)
            await self.check_there(storage, metadata, data)
            assert await self.stored() == before

        self.run(body)

    def test_a_second_copy_under_an_id_replaces_the_first(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            first, second = make.data(50_000), make.data(9_000)
            metadata = make.metadata(second)
            await storage.copy_log_segment_data(metadata, first)
            await storage.copy_log_segment_data(metadata, second)
            await self.check_there(storage, metadata, second)
            past = await storage.fetch_log_segment(metadata, 8_990, 20_000)
            assert len(past) == 10

        self.run(body)

    def test_copies_of_a_segment_under_several_ids_run_at_a_time(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            copies = [make.data(100_000 + n, has_aborted=n % 2 == 0) for n in range(6)]
            several = [(make.metadata(data, start_offset=7), data) for data in copies]
            await asyncio.gather(*(storage.copy_log_segment_data(*one) for one in several))
            for metadata, data in several:
                await self.check_there(storage, metadata, data)

        self.run(body)

    def test_a_copy_that_failed_is_repeated(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            content = make.bytes(30_000)
            data = make.data(log_segment=BytesFile(content))
            failing = data._replace(log_segment=HeldFile(content, 10_000, fails=True))
            metadata = make.metadata(data)
            with pytest.raises(StoreUnavailable):
                await storage.copy_log_segment_data(metadata, failing)
            await storage.copy_log_segment_data(metadata, data)
            await self.check_there(storage, metadata, data)

        self.run(body)

    # reads

    def test_both_ends_of_a_range_are_inclusive(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            expected = make.bytes(1000)
            data = make.data(log_segment=BytesFile(expected))
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            for start, end in ((0, 0), (0, 9), (5, 5), (17, 400), (999, 999), (0, 999)):
                found = await storage.fetch_log_segment(metadata, start, end)
                assert bytes(found) == expected[start : end + 1]

        self.run(body)

    def test_a_range_past_the_end_has_fewer_bytes(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            expected = make.bytes(1000)
            data = make.data(log_segment=BytesFile(expected))
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            for start, end in ((990, 1000), (999, 5000), (0, 1 << 31), (1000, 1010)):
                found = await storage.fetch_log_segment(metadata, start, end)
                assert bytes(found) == expected[start:]

        self.run(body)

    def test_ranges_are_read_several_at_a_time(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            expected = make.bytes(100_000)
            data = make.data(log_segment=BytesFile(expected))
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            starts = range(0, 100_000, 4_000)
            found = await asyncio.gather(
                *(storage.fetch_log_segment(metadata, start, start + 3_999) for start in starts)
            )
            assert b"".join(map(bytes, found)) == expected

        self.run(body)

    def test_what_was_never_copied_is_not_found(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            await self.check_missing(storage, make.metadata(make.data()))
            data = make.data()
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            await self.check_missing(storage, make.metadata(data))

        self.run(body)

    # deletes

    def test_a_deleted_segment_is_not_found(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            before = await self.stored()
            data = make.data(has_aborted=True)
            metadata = make.metadata(data)
            await storage.copy_log_segment_data(metadata, data)
            await storage.delete_log_segment_data(metadata)
            await self.check_missing(storage, metadata)
            assert await self.stored() == before

        self.run(body)

    def test_a_repeated_delete_is_no_error(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            data = make.data()
            metadata = make.metadata(data)
            await storage.delete_log_segment_data(metadata)
            await storage.copy_log_segment_data(metadata, data)
            for _ in range(3):
                await storage.delete_log_segment_data(metadata)
                await self.check_missing(storage, metadata)
            await storage.copy_log_segment_data(metadata, data)
            await self.check_there(storage, metadata, data)

        self.run(body)

    def test_a_delete_removes_its_own_segment_alone(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            segment_id = make.uuid()
            data = make.data()
            gone = make.metadata(data, segment_id=segment_id, partition=1, start_offset=1)
            # Each differs from it in one thing.
            kept = [
                make.metadata(data, partition=1, start_offset=1),
                make.metadata(data, segment_id=segment_id, partition=11, start_offset=1),
                make.metadata(
                    data, segment_id=segment_id, partition=1, start_offset=1, topic_id=make.uuid()
                ),
                make.metadata(data, partition=1, start_offset=10),
            ]
            for metadata in (gone, *kept):
                await storage.copy_log_segment_data(metadata, data)
            await storage.delete_log_segment_data(gone)
            await self.check_missing(storage, gone)
            for metadata in kept:
                await self.check_there(storage, metadata, data)

        self.run(body)

    def test_two_topics_of_one_name_do_not_meet(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            segment_id = make.uuid()
            both = [
                (make.metadata(data, topic_id=make.uuid(), segment_id=segment_id), data)
                for data in (make.data(5_000), make.data(6_000, has_aborted=True))
            ]
            for one in both:
                await storage.copy_log_segment_data(*one)
            for metadata, data in both:
                await self.check_there(storage, metadata, data)
            await storage.delete_log_segment_data(both[0][0])
            await self.check_missing(storage, both[0][0])
            await self.check_there(storage, *both[1])

        self.run(body)

    # listings, where the plug-in offers them

    def test_files_are_listed_with_their_segments_and_go_one_by_one(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            assert await _listed(storage) == [], "a place without files"
            topic_id = make.uuid()
            several = [
                (make.metadata(data, topic="a-0.B", topic_id=topic_id, partition=number), data)
                for number in (0, 11)
                for data in (make.data(has_aborted=True), make.data(has_aborted=False))
            ]
            for one in several:
                await storage.copy_log_segment_data(*one)
            if storage.stored_files() is None:
                return
            listed = await _listed(storage)
            assert len({one.name for one in listed}) == len(listed) == 6 + 5 + 6 + 5
            partitions = [key for key, _ in groupby(one[:2] for one in listed)]
            assert len(partitions) == len(set(partitions)), "a partition comes in several pieces"
            for metadata, data in several:
                files = [one for one in listed if one[:3] == _ids(metadata)]
                assert sum(one.size_bytes for one in files) == data.size_bytes
            gone, kept = several[0], several[1:]
            names = [one.name for one in listed if one[:3] == _ids(gone[0])]
            await storage.delete_stored_files(names[:2])
            left = {one.name for one in await _listed(storage)}
            assert left == {one.name for one in listed} - set(names[:2])
            for _ in range(2):
                await storage.delete_stored_files(names)
            await self.check_missing(storage, gone[0])
            for one in kept:
                await self.check_there(storage, *one)

        self.run(body)

    # cancellation

    def test_a_copy_that_was_cancelled_in_a_read_is_deleted_whole(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            before = await self.stored()
            held = HeldFile(make.bytes(3 * MIB), 2 * MIB)
            data = make.data(log_segment=held, has_aborted=True)
            metadata = make.metadata(data)
            copy = asyncio.ensure_future(storage.copy_log_segment_data(metadata, data))
            await asyncio.wait_for(held.reached.wait(), 30)
            copy.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copy
            await storage.delete_log_segment_data(metadata)
            await self.check_missing(storage, metadata)
            assert await self.stored() == before
            held.release()
            await storage.copy_log_segment_data(metadata, data)
            await self.check_there(storage, metadata, data)

        self.run(body)

    def test_a_copy_that_was_cancelled_anywhere_is_deleted_whole(self) -> None:
        async def body(storage: RemoteStorageManager) -> None:
            make = SegmentMaker()
            before = await self.stored()
            data = make.data(200_000, has_aborted=True)
            cancelled = []
            for wait_ms in (0, 0.1, 0.3, 1, 2, 3, 5, 8, 13, 21, 34):
                metadata = make.metadata(data)
                copy = asyncio.ensure_future(storage.copy_log_segment_data(metadata, data))
                await asyncio.sleep(wait_ms / 1000)
                copy.cancel()
                with suppress(asyncio.CancelledError):
                    await copy
                await storage.delete_log_segment_data(metadata)
                await self.check_missing(storage, metadata)
                cancelled.append(metadata)
            # A write that went on behind its delete has ended by now.
            await asyncio.sleep(0.3)
            for metadata in cancelled:
                await self.check_missing(storage, metadata)
            assert await self.stored() == before

        self.run(body)


async def _listed(storage: RemoteStorageManager) -> list[StoredFile]:
    """Nothing also where the plug-in does not list."""
    listing = storage.stored_files()
    return [] if listing is None else [one async for one in listing]


def _ids(metadata: RemoteLogSegmentMetadata) -> tuple[UUID, int, UUID]:
    of = metadata.topic_id_partition
    return of.topic_id, of.partition, metadata.remote_log_segment_id.id
