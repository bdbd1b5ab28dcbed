"""Topics at rest: their metadata read without a node, once for each question's revision.

A metadata folder that a node has open is DataInUse: then the node is to be asked, by the option
server. The folder is held while the driver plans, not while executors read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import Corrupt, DataInUse, WalPending
from streamlog.format.rows import Placements
from streamlog.kvstore.interface import KVStore
from streamlog.log.shared.meta.codec import SegmentOpened, SegmentSealed, decode_entry
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.shared.state.slices import slices
from streamlog.log.topics.topic_record import (
    PARTITION_NAMESPACE,
    TOPIC_NAMESPACE,
    decode_partition,
    decode_topic,
)
from streamlog.metadata.compaction.pins import Pins
from streamlog.metadata.compaction_interface import LiveObject
from streamlog.metadata.interface import StreamRow
from streamlog.metadata.keys.fence import Fence
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.lookup.live_objects import new_objects
from streamlog.metadata.lookup.locating import Locating, Section
from streamlog.model.batch import StreamSlice
from streamlog.model.located import Located, LocatedRun, ObjectTable, OffsetWindow
from streamlog.objectstore.interface import ObjectStore
from streamlog.repair.fsck.fsck import cluster_of
from streamlog.repair.in_flight import in_flight
from streamlog.repair.view import MetadataView, load_view
from streamlog.runtime.buffers import join
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.cluster.cluster import CLIENT_ID, Offsets, Topic
from streamlog.spark.cluster.offline_streams import first_offset_at, read_stream
from streamlog.spark.options import TopicPartition
from streamlog.wiring import is_shared, open_metadata_store, open_object_store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OfflineSegment:
    """A segment whose end is known; `largest_timestamp_ms` None: not known."""

    base_offset: int
    end_offset: int
    size_bytes: int
    data: StreamSlice
    largest_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class OfflinePartition:
    start: int
    end: int
    segments: Sequence[OfflineSegment]


class OfflineCluster:
    """Opens store and metadata when first asked, and lets go of them at `close`.

    Errors of every call: DataInUse, ForeignCluster, Invalid, Corrupt, Unavailable; WalPending for
    partitions of which acknowledged records lie in the log of a node that did not end well.
    """

    def __init__(self, store: str, meta: str | None, *, fail_on_data_loss: bool = True) -> None:
        self.server: str | None = None
        self._urls = (store, meta)
        self._checks_wal = fail_on_data_loss
        self._runner = asyncio.Runner()
        self._opened: _Opened | None = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def _at(self) -> _Opened:
        if self._opened is None:
            self._opened = self._run(_open(*self._urls, checks_wal=self._checks_wal))
        return self._opened

    @property
    def store_url(self) -> str:
        return self._urls[0]

    @property
    def cluster_id(self) -> str:
        return self._at().cluster_id

    def topics(self) -> dict[str, Topic]:
        return self._run(self._at().topics())

    def offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offsets]:
        found = self._run(self._at().partitions(partitions))
        return {at: Offsets(one.start, one.end) for at, one in found.items()}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._run(self._at().offsets_at(times))

    def locate(self, windows: Sequence[OffsetWindow]) -> Located:
        return self._run(self._at().locate(windows))

    def pin(self, ttl_ms: int) -> int:
        return self._run(self._at().pins.put(CLIENT_ID, ttl_ms))

    def renew(self, pin_id: int) -> bool:
        """The lease counts its whole time from when a node opens the metadata."""
        return True

    def unpin(self, pin_id: int) -> None:
        self._run(self._at().pins.remove(pin_id))

    def let_go(self) -> None:
        """Frees the metadata for others; the next question reads it anew."""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._run(opened.built.aclose())

    def close(self) -> None:
        try:
            self.let_go()
        finally:
            self._runner.close()


async def _open(store_url: str, meta: str | None, *, checks_wal: bool) -> _Opened:
    clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
    async with AsyncExitStack() as built:
        built.push_async_callback(offload.close)
        try:
            kv = await open_metadata_store(meta, store_url, clock, offload)
        except DataInUse as error:
            raise DataInUse(
                f"a node has the metadata open: give the option server instead of meta "
                f"({error.message})",
                **error.fields,
            ) from error
        built.push_async_callback(kv.close)
        store = await open_object_store(
            store_url, StreamEngineConfig(), clock, random, offload, CollectorRegistry()
        )
        built.push_async_callback(store.close)
        cluster_id = await cluster_of(kv, store)
        view = await load_view(kv, store, cluster_id, clock=clock, random=random, offload=offload)
        wal = None
        if checks_wal:
            wal = _Wal(nodes_may_run=is_shared(meta, store_url))
        return _Opened(kv, store, offload, cluster_id, view, wal, built.pop_all())


@dataclass(frozen=True, slots=True)
class _Wal:
    """Whether a node's write-ahead log may hold what is in no object. A node that runs will show
    it; one that ended without draining will not."""

    nodes_may_run: bool

    def is_pending(self, fence: Fence) -> bool:
        is_over = not (fence.is_live and self.nodes_may_run)
        return fence.has_disk_wal and not fence.is_drained and is_over


class _Opened:
    """The metadata at one revision. A pin is put after it, so `locate` reads it once more."""

    def __init__(
        self,
        kv: KVStore,
        store: ObjectStore,
        offload: ThreadOffload,
        cluster_id: str,
        view: MetadataView,
        wal: _Wal | None,
        built: AsyncExitStack,
    ) -> None:
        self.cluster_id = cluster_id
        self.built = built
        self.pins = Pins(kv, prefix_of(cluster_id))
        self._kv = kv
        self._store = store
        self._offload = offload
        self._view = view
        self._wal = wal
        self._known: dict[TopicPartition, OfflinePartition] = {}

    async def topics(self) -> dict[str, Topic]:
        base = self._view.prefix + f"u/{TOPIC_NAMESPACE}/".encode()
        found: dict[str, Topic] = {}
        async for kv in self._view.keys(base):
            name = kv.key[len(base) :].decode()
            record = decode_topic(name, kv.value[1:])
            if record.is_usable:
                found[name] = Topic(record.partitions, str(record.topic_id))
        return found

    async def partitions(
        self, wanted: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OfflinePartition]:
        missing = [at for at in wanted if at not in self._known]
        for at, one in zip(missing, await in_flight(missing, self._partition), strict=True):
            if one is not None:
                self._known[at] = one
        return {at: self._known[at] for at in wanted if at in self._known}

    async def _partition(self, at: TopicPartition) -> OfflinePartition | None:
        name = f"{at[0]}/{at[1]}".encode()
        key = self._view.prefix + f"u/{PARTITION_NAMESPACE}/".encode() + name
        kv = await self._kv.get(key)
        if kv is None:
            return None
        meta = self._row(decode_partition(name, kv.value[1:]), at)
        state = MetaState()
        async for batch in read_stream(
            self._view, self._store, self._offload, meta.stream_id, meta.start, meta.end
        ):
            state.apply_entry(decode_entry(join(batch.parts)))
        return self._of_state(state, at)

    def _of_state(self, state: MetaState, at: TopicPartition) -> OfflinePartition:
        active = state.active
        if active is None:
            raise Corrupt(f"the meta stream of {at[0]}-{at[1]} has no open segment")
        data = self._row(active.data.stream_id, at)
        end = data.end - (active.data.start_offset - active.base_offset)
        segments = [_sealed(one) for one in state.sealed]
        segments.append(_active(active, end, state))
        first = segments[0]
        row = self._row(first.data.stream_id, at)
        start = row.start - (first.data.start_offset - first.base_offset)
        start = max(state.log_start_offset, first.base_offset, start)
        return OfflinePartition(min(start, end), end, segments)

    def _row(self, stream_id: int, at: TopicPartition) -> StreamRow:
        fold = self._view.state.fold
        row = fold.row(stream_id)
        if row is None:
            raise Corrupt(f"{at[0]}-{at[1]} lies on stream {stream_id}, which there is not")
        fence = self._view.state.fences.get(row.holder)
        if self._wal is not None and fence is not None and self._wal.is_pending(fence):
            raise _pending(at, row)
        return row

    async def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        known = await self.partitions(list(times))
        found: dict[TopicPartition, int | None] = dict.fromkeys(times)
        for at, partition in known.items():
            found[at] = await self._offset_at(partition, times[at])
        return found

    async def _offset_at(self, partition: OfflinePartition, time_ms: int) -> int | None:
        for segment in partition.segments:
            largest = segment.largest_timestamp_ms
            if largest is not None and largest < time_ms:
                continue
            shift = segment.data.start_offset - segment.base_offset
            start = max(segment.base_offset, partition.start)
            found = await first_offset_at(
                self._view,
                self._store,
                self._offload,
                segment.data.stream_id,
                start + shift,
                segment.end_offset + shift,
                time_ms,
                start,
            )
            if found is not None:
                return found
        return None

    async def locate(self, windows: Sequence[OffsetWindow]) -> Located:
        # What this process has locked nobody changes: the view is above the pin's revision.
        known = await self.partitions([(one.topic, one.partition) for one in windows])
        sections: list[Section] = []
        for number, window in enumerate(windows):
            partition = known[window.topic, window.partition]
            sections += [
                Section(number, one.stream_id, one.shift, one.start, one.end, one.size_bytes)
                for one in slices(partition.segments, window.start, window.end)
            ]
        return await located_in(self._view, sections)


async def located_in(view: MetadataView, sections: Sequence[Section]) -> Located:
    """Where the sections lie, as the view has it. Errors: Corrupt, StoreUnavailable."""
    locating = Locating(_Places(view), sections)
    runs: list[LocatedRun] = []
    objects = ObjectTable()
    async for part in locating.ranges():
        runs += part
    async for table in locating.objects():
        objects.extend(table)
    return Located(view.revision, runs, objects)


class _Places:
    """What `Locating` asks of a view."""

    def __init__(self, view: MetadataView) -> None:
        self._fold = view.state.fold
        lookup = view.lookup
        self.ranges = lookup.ranges
        self.warm = lookup.warm
        self.object = lookup.object
        self.object_files = lookup.object_files
        self.object_blocks = lookup.object_blocks

    def new_objects(self) -> list[LiveObject]:
        return new_objects(self._fold.generations)

    def attached(self) -> Mapping[int, Placements]:
        return self._fold.staging.attached


def _sealed(one: SegmentSealed) -> OfflineSegment:
    return OfflineSegment(
        one.base_offset, one.end_offset, one.size_bytes, one.data, one.largest_timestamp_ms
    )


def _active(one: SegmentOpened, end: int, state: MetaState) -> OfflineSegment:
    """Its size is that of the last checkpoint, as much more as offsets came since."""
    known = state.checkpoint
    size = 0
    if known is not None and known.active_base_offset == one.base_offset < known.offset:
        size = known.size_bytes * (end - one.base_offset) // (known.offset - one.base_offset)
    return OfflineSegment(one.base_offset, max(end, one.base_offset), size, one.data, None)


def _pending(at: TopicPartition, row: StreamRow) -> WalPending:
    return WalPending(
        f"acknowledged records of {at[0]}-{at[1]} lie in the write-ahead log of tenure "
        f"{row.holder}, which did not end well: start its node, or run streamlog wal upload, and "
        "read then; failOnDataLoss=false reads what is in objects"
    )


__all__ = ["OfflineCluster"]
