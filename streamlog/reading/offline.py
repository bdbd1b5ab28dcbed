"""Offline topics: their metadata at one revision, read while no node runs.

A metadata folder that a node has open raises DataInUse. The folder is locked until `close`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from streamlog.errors import Corrupt, PolicyViolation, WalPending
from streamlog.kvstore.interface import KVStore
from streamlog.log.api.log_factory import LogKind
from streamlog.log.shared.meta.codec import SegmentOpened, SegmentSealed, decode_entry
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.stream_slices import slices
from streamlog.log.topics.topic_record import (
    PARTITION_NAMESPACE,
    TOPIC_NAMESPACE,
    decode_partition,
    decode_topic,
)
from streamlog.metadata.compaction.pins import Pins
from streamlog.metadata.interface import StreamRow
from streamlog.metadata.keys.fence import Fence
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.lookup.locating import LocateSection
from streamlog.model.batch import StreamSlice
from streamlog.model.located import AbortedSpan, Located, OffsetWindow
from streamlog.objectstore.interface import ObjectStore
from streamlog.reading.locating import located_in
from streamlog.reading.stores import open_store
from streamlog.reading.streams import (
    first_offset_at,
    read_stream,
    read_stream_from_batch,
)
from streamlog.reading.topics import Topic, TopicPartition
from streamlog.reading.transactions import OfflineTransactions, transactions_of
from streamlog.reading.views import offline_view
from streamlog.repair.in_flight import in_flight
from streamlog.repair.view import MetadataView
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import Offload, ThreadOffload
from streamlog.runtime.rand import Random, SystemRandom
from streamlog.wiring import check_is_there, is_shared, open_metadata_store


@dataclass(frozen=True, slots=True)
class OfflineSegment:
    """A segment of a log. `largest_timestamp_ms` None: unknown."""

    base_offset: int
    end_offset: int
    size_bytes: int
    data: StreamSlice
    largest_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class OfflinePartition:
    """Readable offsets of a partition from `start` to `end` (exclusive), and its segments."""

    start: int
    end: int
    segments: Sequence[OfflineSegment]
    transactions: OfflineTransactions
    """Nothing aborted and all of it stable, unless the topics were opened for committed reads."""


async def open_offline(
    store_url: str, meta: str | None, *, checks_wal: bool, is_committed: bool = False
) -> OfflineTopics:
    """Opens store and metadata and reads the metadata once; the caller closes the result.

    `meta` None: the metadata that goes with the store. `checks_wal`: a partition with acknowledged
    records in a WAL alone raises WalPending. `is_committed`: partitions end at their last stable
    offsets, and `locate` tells aborted transactions. Errors: DataInUse (a node has the metadata
    open), ForeignCluster, Invalid, Corrupt, Unavailable.
    """
    clock, offload = SystemClock(), ThreadOffload()
    async with AsyncExitStack() as resources:
        resources.push_async_callback(offload.close)
        await check_is_there(store_url, offload)
        kv = await open_metadata_store(meta, store_url, clock, offload, if_absent="refuse")
        resources.push_async_callback(kv.close)
        store = await open_store(store_url, clock, offload)
        resources.push_async_callback(store.close)
        view = await offline_view(kv, store, clock=clock, random=SystemRandom(), offload=offload)
        wal = WalCheck(nodes_may_run=is_shared(meta, store_url)) if checks_wal else None
        return OfflineTopics(
            kv, store, offload, view, wal, resources.pop_all(), is_committed=is_committed
        )


async def offline_topics(
    kv: KVStore,
    store: ObjectStore,
    offload: Offload,
    *,
    clock: Clock,
    random: Random,
    wal: WalCheck,
) -> OfflineTopics:
    """As `open_offline`, over what the caller has open, and closes. Errors: those of it."""
    view = await offline_view(kv, store, clock=clock, random=random, offload=offload)
    return OfflineTopics(kv, store, offload, view, wal, AsyncExitStack(), is_committed=False)


@dataclass(frozen=True, slots=True)
class WalCheck:
    """Tells whether a node's WAL may hold records that no object has and no node will upload."""

    nodes_may_run: bool

    def is_pending(self, fence: Fence) -> bool:
        is_over = not (fence.is_live and self.nodes_may_run)
        return fence.has_disk_wal and not fence.is_drained and is_over


class OfflineTopics:
    """Topics as the metadata has them at one revision.

    Owns what `resources` closes. Pins are put after the revision; while this process holds the
    metadata's lock nothing changes in between, so that `locate` may answer from the view.

    Errors of every call: Corrupt, Unavailable; WalPending for partitions with acknowledged records
    in the WAL of a node that did not end well.
    """

    def __init__(
        self,
        kv: KVStore,
        store: ObjectStore,
        offload: Offload,
        view: MetadataView,
        wal: WalCheck | None,
        resources: AsyncExitStack,
        *,
        is_committed: bool,
    ) -> None:
        self.cluster_id = view.cluster_id
        self._pins = Pins(kv, prefix_of(view.cluster_id))
        self._kv = kv
        self._store = store
        self._offload = offload
        self._view = view
        self._wal = wal
        self._resources = resources
        self._is_committed = is_committed
        self._partitions: dict[TopicPartition, OfflinePartition] = {}

    async def close(self) -> None:
        """Releases the metadata for other processes."""
        await self._resources.aclose()

    async def pin(self, name: str, ttl_ms: int) -> int:
        """Keeps the objects of this revision from being deleted; returns the pin's id."""
        return await self._pins.put(name, ttl_ms)

    async def unpin(self, pin_id: int) -> None:
        await self._pins.remove(pin_id)

    async def topics(self) -> dict[str, Topic]:
        """All topics by name."""
        base = self._view.prefix + f"u/{TOPIC_NAMESPACE}/".encode()
        topics: dict[str, Topic] = {}
        async for kv in self._view.keys(base):
            name = kv.key[len(base) :].decode()
            record = decode_topic(name, kv.value[1:])
            if record.is_usable:
                topics[name] = Topic(record.partitions, str(record.topic_id))
        return topics

    async def partitions(
        self, wanted: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OfflinePartition]:
        """The partitions of `wanted` that exist."""
        missing = [partition for partition in wanted if partition not in self._partitions]
        loaded = await in_flight(missing, self._load)
        for partition, state in zip(missing, loaded, strict=True):
            if state is not None:
                self._partitions[partition] = state
        return {key: self._partitions[key] for key in wanted if key in self._partitions}

    async def _load(self, partition: TopicPartition) -> OfflinePartition | None:
        name = f"{partition[0]}/{partition[1]}".encode()
        key = self._view.prefix + f"u/{PARTITION_NAMESPACE}/".encode() + name
        kv = await self._kv.get(key)
        if kv is None:
            return None
        await self._check_kind(partition)
        meta = self._row(decode_partition(name, kv.value[1:]), partition)
        state = MetaState()
        async for batch in read_stream(
            self._view, self._store, self._offload, meta.stream_id, meta.start, meta.end
        ):
            state.apply_entry(decode_entry(join(batch.parts)))
        return await self._of_state(state, partition)

    async def _check_kind(self, partition: TopicPartition) -> None:
        """Errors: PolicyViolation."""
        key = self._view.prefix + f"u/{TOPIC_NAMESPACE}/{partition[0]}".encode()
        kv = await self._kv.get(key)
        record = None if kv is None else decode_topic(partition[0], kv.value[1:])
        if record is not None and record.log_kind is not LogKind.SHARED:
            raise PolicyViolation(
                f"topic {partition[0]} has log.type={record.log_kind.value}: its records are files "
                "of one node, and not in the store; read it through that node (readMode=service)"
            )

    async def _of_state(self, state: MetaState, partition: TopicPartition) -> OfflinePartition:
        active = state.active
        if active is None:
            raise Corrupt(f"the meta stream of {_name(partition)} has no open segment")
        data = self._row(active.data.stream_id, partition)
        end = data.end - (active.data.start_offset - active.base_offset)
        segments = [_sealed(segment) for segment in state.sealed]
        segments.append(_active(active, end, state))
        first = segments[0]
        row = self._row(first.data.stream_id, partition)
        start = row.start - (first.data.start_offset - first.base_offset)
        start = max(state.log_start_offset, first.base_offset, start)
        transactions = OfflineTransactions(end)
        if self._is_committed:
            transactions = await transactions_of(self._view, self._store, self._offload, state, end)
        stable = transactions.last_stable_offset
        return OfflinePartition(min(start, stable), stable, segments, transactions)

    def _row(self, stream_id: int, partition: TopicPartition) -> StreamRow:
        """Errors: Corrupt, WalPending."""
        row = self._view.state.fold.row(stream_id)
        if row is None:
            raise Corrupt(
                f"the metadata of {_name(partition)} names stream {stream_id}, which does not exist"
            )
        fence = self._view.state.fences.get(row.holder)
        if self._wal is not None and fence is not None and self._wal.is_pending(fence):
            raise WalPending(
                f"acknowledged records of {_name(partition)} lie in the write-ahead log of tenure "
                f"{row.holder}, which did not end well: start its node, or run streamlog wal "
                "upload, and read then"
            )
        return row

    async def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time, ms; None: no such record, or no such partition."""
        partitions = await self.partitions(list(times))
        offsets: dict[TopicPartition, int | None] = dict.fromkeys(times)
        for key, partition in partitions.items():
            offsets[key] = await self._offset_at(partition, times[key])
        return offsets

    async def _offset_at(self, partition: OfflinePartition, time_ms: int) -> int | None:
        for segment in partition.segments:
            largest = segment.largest_timestamp_ms
            if largest is not None and largest < time_ms:
                continue
            shift = segment.data.start_offset - segment.base_offset
            start = max(segment.base_offset, partition.start)
            offset = await first_offset_at(
                self._view,
                self._store,
                self._offload,
                segment.data.stream_id,
                start + shift,
                min(segment.end_offset, partition.end) + shift,
                time_ms,
                start,
            )
            if offset is not None:
                return offset
        return None

    async def batches(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[Buffer]:
        """The record batches that hold offsets start to end (exclusive), whole, as stored."""
        state = (await self.partitions([partition]))[partition]
        for part in slices(state.segments, max(start, state.start), min(end, state.end)):
            async for batch in read_stream_from_batch(
                self._view,
                self._store,
                self._offload,
                part.stream_id,
                part.start + part.shift,
                part.end + part.shift,
            ):
                yield join(batch.parts)

    async def locate(self, windows: Sequence[OffsetWindow]) -> Located:
        """Where the records of all windows lie; call it under a pin."""
        partitions = await self.partitions([(window.topic, window.partition) for window in windows])
        sections: list[LocateSection] = []
        aborted: dict[int, Sequence[AbortedSpan]] = {}
        for number, window in enumerate(windows):
            partition = partitions[window.topic, window.partition]
            aborted[number] = partition.transactions.overlapping(window.start, window.end)
            sections += [
                LocateSection(
                    number, part.stream_id, part.shift, part.start, part.end, part.size_bytes
                )
                for part in slices(partition.segments, window.start, window.end)
            ]
        return replace(await located_in(self._view, sections), aborted=aborted)


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _sealed(segment: SegmentSealed) -> OfflineSegment:
    return OfflineSegment(
        segment.base_offset,
        segment.end_offset,
        segment.size_bytes,
        segment.data,
        segment.largest_timestamp_ms,
    )


def _active(segment: SegmentOpened, end: int, state: MetaState) -> OfflineSegment:
    """The size is scaled from the last checkpoint by the number of offsets since."""
    base, checkpoint = segment.base_offset, state.checkpoint
    size = 0
    if checkpoint is not None and checkpoint.active_base_offset == base < checkpoint.offset:
        size = checkpoint.size_bytes * (end - base) // (checkpoint.offset - base)
    return OfflineSegment(base, max(end, base), size, segment.data, None)
