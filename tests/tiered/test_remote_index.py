"""The seed's remote index names the segments that readers of the node are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.codec.batch import placed
from streamlog.codec.records import encode_values
from streamlog.errors import Corrupt
from streamlog.format.kafka_files.checkpoints import encode_epochs
from streamlog.format.remote_index import RemoteIndex, RemoteIndexEntry, decode_files, encode_files
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.tiered.metadata.placement import metadata_partition_of
from streamlog.tiered.metadata.replay import RemoteMetadataAtRest, RemoteMetadataReplay
from streamlog.tiered.metadata.state import RemoteMetadataState
from streamlog.tiered.metadata.topic_manager import TopicBasedRemoteLogMetadataManager
from streamlog.tiered.reading.remote_index_build import (
    RemoteDataId,
    SegmentLookup,
    remote_index_entries,
)
from tests.log.cluster import cluster
from tests.tiered.harness import BreakableStorage, TieredLogUnderTest, tiered_log

OF = TopicIdPartition(UUID(int=7), "t", 0)
STEP_MS = 1_000


def index_of(entries: list[RemoteIndexEntry]) -> list[RemoteIndex]:
    """As the files say it, one entry in each: every look-up goes over their borders."""
    return [decode_files(files) for files in encode_files(entries, 1)]


def named_at(indexes: list[RemoteIndex], offset: int) -> UUID | None:
    for index in indexes:
        if (entry := index.at(offset)) is not None:
            return RemoteDataId.decode(entry.rdi).segment_id
    return None


def named_for(indexes: list[RemoteIndex], timestamp_ms: int) -> UUID | None:
    for index in indexes:
        if (entry := index.first_at_or_after(timestamp_ms)) is not None:
            return RemoteDataId.decode(entry.rdi).segment_id
    return None


class Copy(NamedTuple):
    """What one leader copied: offsets from `first` to `last`, with its own epochs."""

    first: int
    last: int
    epochs: dict[int, int]


class Leaders(NamedTuple):
    """Epochs of the newest log, and the copies of all, in the order in which they finished."""

    epochs: list[tuple[int, int]]
    copies: list[Copy]


@st.composite
def leaders(draw: st.DrawFn) -> Leaders:
    """Leaders after each other; each begins somewhere within what the last one had."""
    epochs: list[tuple[int, int]] = []
    copies: list[Copy] = []
    begin = 0
    for epoch in range(1, draw(st.integers(1, 4)) + 1):
        epochs = [*(one for one in epochs if one[1] < begin), (epoch, begin)]
        offset = draw(st.integers(0, begin))
        for length in draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)):
            ends = [first for _, first in epochs[1:]] + [1 << 40]
            within = {
                one: max(first, offset)
                for (one, first), end in zip(epochs, ends, strict=True)
                if first < offset + length and end > offset
            }
            copies.append(Copy(offset, offset + length - 1, within))
            offset += length
        begin = draw(st.integers(begin, max(begin, offset)))
    return Leaders(epochs, draw(st.permutations(copies)))


def batches(first: int, last: int) -> bytes:
    """Of two records each, as far as they go."""
    made: list[bytes] = []
    for offset in range(first, last + 1, 2):
        count = min(2, last + 1 - offset)
        batch = encode_values([b"v"] * count, timestamp_ms=STEP_MS * offset).data
        made.append(b"".join(placed(memoryview(batch), offset, 1)))
    return b"".join(made)


class Managers:
    """Of one place for metadata: a manager for each node, and what stays when all have ended."""

    def __init__(self, logs: LogManager | None, clock: ManualClock) -> None:
        """`logs`: those with the topic; None: a KV store."""
        self._logs, self._clock, self._kv = logs, clock, BasicKV()

    def new(self) -> RemoteLogMetadataManager:
        if self._logs is None:
            return KVRemoteLogMetadataManager(self._kv)
        manager = TopicBasedRemoteLogMetadataManager(self._logs, self._clock)
        manager.configure({"remote.log.metadata.topic.num.partitions": "2"})
        return manager

    async def at_rest(self, of: TopicIdPartition) -> SegmentLookup:
        if self._logs is None:
            return self.new()
        if self._logs.topic(REMOTE_LOG_METADATA) is None:
            return RemoteMetadataAtRest(RemoteMetadataState())
        number = metadata_partition_of(of, 2)
        topic = await self._logs.log(TopicPartition(REMOTE_LOG_METADATA, number))
        replay = RemoteMetadataReplay("the topic")
        offset = 0
        while offset < topic.high_watermark:
            fetched = await topic.fetch(offset, 1000)
            for at, value in replay.records(b"".join(fetched.parts), offset):
                replay.apply(at, value)
            offset = fetched.next_offset
        return RemoteMetadataAtRest(replay.state)


def with_managers(is_in_topic: bool, test: Callable[[Managers], Awaitable[None]]) -> None:
    async def body() -> None:
        if not is_in_topic:
            await test(Managers(None, ManualClock()))
            return
        async with cluster() as made:
            await test(Managers(await made.node(), made.clock))

    asyncio.run(body())


in_both_places = pytest.mark.parametrize("is_in_topic", [False, True], ids=["kv", "topic"])


async def copied(given_leaders: Leaders, metadata: RemoteLogMetadataManager) -> BreakableStorage:
    storage = BreakableStorage()
    for number, copy in enumerate(given_leaders.copies):
        data = batches(copy.first, copy.last)
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(OF, UUID(int=number + 1)),
            copy.first,
            copy.last,
            STEP_MS * copy.last,
            1,
            number,
            len(data),
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            copy.epochs,
        )
        known = [one for one in given_leaders.epochs if one[1] <= copy.last]
        storage.segments[segment.remote_log_segment_id.id] = {
            "LOG": data,
            "OFFSET": b"",
            "LEADER_EPOCH": encode_epochs(known or given_leaders.epochs[:1]),
        }
        await metadata.add_remote_log_segment_metadata(segment)
        await metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                segment.remote_log_segment_id,
                number,
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                1,
            )
        )
    return storage


@in_both_places
@settings(max_examples=200, deadline=None)
@given(of=leaders())
def test_copies_of_many_leaders_are_named_as_the_manager_names_them(
    is_in_topic: bool, of: Leaders
) -> None:
    async def test(managers: Managers) -> None:
        metadata = managers.new()
        storage = await copied(of, metadata)
        newest = max(of.copies, key=lambda one: (max(one.epochs), one.last))
        lineage = [one for one in of.epochs if one[1] <= newest.last] or of.epochs[:1]
        entries = await remote_index_entries(OF, await managers.at_rest(OF), storage)
        indexes = index_of(entries)
        for offset in range(max(one.last for one in of.copies) + 2):
            epoch = max((one for one, first in lineage if first <= offset), default=-1)
            segment = await metadata.remote_log_segment_metadata(OF, epoch, offset)
            wanted = None if segment is None else segment.remote_log_segment_id.id
            assert named_at(indexes, offset) == wanted
        assert await remote_index_entries(OF, metadata, storage) == entries

    with_managers(is_in_topic, test)


def test_an_entry_says_where_its_data_begins() -> None:
    """The second leader's copy begins within the first one's, and hides its end."""

    async def test() -> None:
        of = Leaders([(1, 0), (2, 6)], [Copy(0, 9, {1: 0}), Copy(4, 11, {1: 4, 2: 6})])
        metadata = KVRemoteLogMetadataManager(BasicKV())
        storage = await copied(of, metadata)
        first, second = await remote_index_entries(OF, metadata, storage)
        assert (first.first_offset, first.last_offset, first.first_timestamp_ms) == (0, 3, 0)
        assert (second.first_offset, second.last_offset) == (4, 11)
        assert second.first_timestamp_ms == 4 * STEP_MS
        assert RemoteDataId.decode(first.rdi) == (UUID(int=1), 0)
        assert RemoteDataId.decode(second.rdi) == (UUID(int=2), 0)
        assert second.data_length == len(batches(4, 11))
        storage.segments[UUID(int=2)]["LOG"] = b"\0" * 10
        with pytest.raises(Corrupt, match="damaged at byte 0"):
            await remote_index_entries(OF, metadata, storage)

    asyncio.run(test())


steps = st.lists(
    st.one_of(st.tuples(st.integers(1, 4), st.integers(-5, 20)), st.just("reopened")),
    min_size=1,
    max_size=40,
)


@in_both_places
@settings(max_examples=40, deadline=None)
@given(taken=steps)
def test_a_logs_index_names_the_segment_of_every_offset_and_time(
    is_in_topic: bool, taken: list[tuple[int, int] | str]
) -> None:
    """Times go forth and back; each life of the log has an epoch of its own."""

    async def test(t: TieredLogUnderTest, managers: Managers) -> None:
        begun_ms = t.clock.now_ms()
        for step in taken:
            if isinstance(step, str):
                await t.reopened()
            else:
                count, later = step
                at_ms = begun_ms + STEP_MS * (t.log.log_end_offset + later)
                await append(t.log, encoded([b"x" * 60] * count, at_ms=at_ms))
        await t.copy()
        end = t.manager.highest_offset(t.partition.topic_partition) + 1
        at_rest = await managers.at_rest(t.partition)
        indexes = index_of(await remote_index_entries(t.partition, at_rest, t.storage))
        segments: dict[int, UUID] = {}
        for offset in range(end):
            epoch = max(one for one, first in t.log.leader_epochs if first <= offset)
            segment = await t.metadata.remote_log_segment_metadata(t.partition, epoch, offset)
            assert segment is not None
            segments[offset] = segment.remote_log_segment_id.id
            assert named_at(indexes, offset) == segments[offset]
        assert named_at(indexes, end) is None
        await t.configure(local_retention_bytes="0")
        await t.retain()
        last_ms = begun_ms + STEP_MS * (t.log.log_end_offset + 25)
        for timestamp_ms in range(begun_ms - 6 * STEP_MS, last_ms, STEP_MS // 2):
            found = await t.log.offset_for_timestamp(timestamp_ms, Isolation.READ_UNCOMMITTED)
            assert named_for(indexes, timestamp_ms) == segments.get(found.offset)

    async def body(managers: Managers) -> None:
        async with tiered_log(TornTree(SeededRandom(3)), new_metadata=managers.new) as t:
            await test(t, managers)

    with_managers(is_in_topic, body)
