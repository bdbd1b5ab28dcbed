"""A log that is a plain list: it derives from AbstractLog alone and knows nothing of streams."""

from __future__ import annotations

import asyncio
from typing import Any

from streamlog.codec.batch import placed, scan
from streamlog.codec.records import iterate
from streamlog.errors import Closed, OffsetOutOfRange
from streamlog.log.api.abstract_log import (
    LATEST,
    AbstractLog,
    AbstractLogSegment,
    EpochEndOffset,
    Isolation,
    LogAppendInfo,
    LogFetch,
    ProduceContext,
    TimestampAndOffset,
)
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.waiters import OffsetWaiters

PRODUCE = ProduceContext()


class ListSegment(AbstractLogSegment):
    def __init__(self, base_offset: int) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self._base_offset = base_offset
        self._end_offset = base_offset
        self._largest = -1
        self._is_active = True

    base_offset = property(lambda self: self._base_offset)
    end_offset = property(lambda self: self._end_offset)
    largest_timestamp_ms = property(lambda self: self._largest)
    is_active = property(lambda self: self._is_active)

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for _, _, data in self.batches)

    @classmethod
    def cleaned(
        cls, base_offset: int, end_offset: int, batches: list[tuple[int, int, bytes]], largest: int
    ) -> ListSegment:
        """An inactive segment in place of others, with holes between its batches."""
        segment = cls(base_offset)
        segment.add(end_offset, largest, b"")
        segment.batches = batches
        segment.seal()
        return segment

    def seal(self) -> None:
        self._is_active = False

    def add(self, end: int, stamp: int, data: bytes) -> None:
        self.batches.append((self._end_offset, end, data))
        self._end_offset = end
        self._largest = max(self._largest, stamp)


class ListLog(AbstractLog):
    def __init__(self, partition, config) -> None:
        self._partition = partition
        self.config = config
        self._segments = [ListSegment(0)]
        self._start = 0
        self._moved = asyncio.Event()
        self._waiters = OffsetWaiters()
        self.is_open = True

    topic_partition = property(lambda self: self._partition)
    leader_epoch = property(lambda self: 0)
    log_start_offset = property(lambda self: self._start)
    log_end_offset = property(lambda self: self._segments[-1].end_offset)
    high_watermark = log_end_offset
    last_stable_offset = log_end_offset
    segments = property(lambda self: tuple(self._segments))
    size_bytes = property(lambda self: sum(segment.size_bytes for segment in self._segments))

    async def append(self, batches, context=PRODUCE):
        if not self.is_open:
            raise Closed("closed")
        base = self.log_end_offset
        for batch in scan(batches):
            size = self._segments[-1].size_bytes
            if size and size + len(batch.view) > self.config.segment_bytes:
                await self.roll()
            header, records = placed(batch.view, self.log_end_offset, 0)
            end = self.log_end_offset + batch.header.record_count
            whole = b"".join((header, records))
            self._segments[-1].add(end, batch.header.max_timestamp_ms, whole)
        self._moved.set()
        self._moved = asyncio.Event()
        self._waiters.notify()
        done = asyncio.get_running_loop().create_future()
        done.set_result(LogAppendInfo(base, self.log_end_offset - 1, -1, self._start))
        return done

    async def fetch(
        self,
        offset,
        max_bytes,
        *,
        min_one_batch=True,
        isolation=Isolation.READ_UNCOMMITTED,
        deadline=None,
    ):
        if not self._start <= offset <= self.log_end_offset:
            raise OffsetOutOfRange("outside")
        parts: list[Any] = []
        size, position = 0, offset
        for segment in self._segments:
            for _, end, data in segment.batches:
                is_first = min_one_batch and not parts
                if end > position and (is_first or size + len(data) <= max_bytes):
                    parts.append(data)
                    size, position = size + len(data), end
        end = self.log_end_offset
        return LogFetch(tuple(parts), size, len(parts), position, end, end, self._start)

    async def wait_for(self, offset, isolation):
        while self.is_open and self.log_end_offset <= offset:
            await self._moved.wait()

    def subscribe(self, changed):
        if self.is_open:
            self._waiters.subscribe(changed)
        else:
            changed()

    def unsubscribe(self, changed):
        self._waiters.unsubscribe(changed)

    async def offset_for_timestamp(self, timestamp_ms, isolation):
        for segment in self._segments:
            for _, _, data in segment.batches:
                for offset, stamp, *_ in iterate(data):
                    if stamp >= timestamp_ms and offset >= self._start:
                        return TimestampAndOffset(stamp, offset, 0)
        return TimestampAndOffset(-1, -1, -1)

    def end_offset_for_epoch(self, leader_epoch):
        return EpochEndOffset(-1, -1)

    async def delete_records(self, before_offset):
        target = self.log_end_offset if before_offset == LATEST else before_offset
        self._start = max(self._start, target)
        self._waiters.notify()
        return self._start

    async def delete_oldest_segments(self, predicate_end_offset, reason):
        if self._segments[-1].batches and self.log_end_offset <= predicate_end_offset:
            await self.roll()
        count = len(
            [s for s in self._segments if not s.is_active and s.end_offset <= predicate_end_offset]
        )
        del self._segments[:count]
        self._start = max(self._start, self._segments[0].base_offset)
        self._waiters.notify()
        return count

    async def roll(self):
        if self._segments[-1].batches:
            self._segments[-1].seal()
            self._segments.append(ListSegment(self.log_end_offset))

    def swap(self, old, new):
        where = self._segments.index(old[0])
        self._segments[where : where + len(old)] = [new]

    async def close(self):
        self.is_open = False
        self._moved.set()
        self._waiters.release()

    async def delete(self):
        await self.close()
        self._segments = [ListSegment(self.log_end_offset)]


class ListLogFactory:
    """Handles are keys of `logs`."""

    def __init__(self) -> None:
        self.logs: dict[int, ListLog] = {}
        self._configs: dict[int, object] = {}
        self._next = 0

    def check(self, config: TopicConfig, before: TopicConfig | None) -> None:
        """As LogFactory.check: it follows whatever is accepted."""

    async def create(self, topic, partitions, config):
        handles = []
        for _ in partitions:
            self._next += 1
            handles.append(self._next)
            self._configs[self._next] = config
        return handles

    async def check_created(self, handles):
        pass

    async def open(self, partition, handle, config, on_failure):
        return self.logs.setdefault(handle, ListLog(partition, config))

    async def is_there(self, handle):
        return handle in self._configs

    async def claim(self, partition, topic_id, handle):
        return handle in self._configs

    async def release(self, handle):
        pass

    async def remove(self, handle):
        self._configs.pop(handle, None)
        self.logs.pop(handle, None)

    async def delete_orphans(self, attempts_under_way, registered):
        under_way, handles = attempts_under_way(), await registered()
        orphans = [key for key in self._configs if key not in handles and not under_way]
        for handle in orphans:
            await self.remove(handle)
        return len(orphans)
