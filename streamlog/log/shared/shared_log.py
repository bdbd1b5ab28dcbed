"""SharedLog: a partition on four streams (data, time, txn, meta).

Invariants
1. An entry of the data stream is one Kafka batch, placed at its offset; its attributes say what the
   log must know of it, so that opening reads no data.
2. Producer state, segments and leader epochs change at sequencing, in offset order, and are
   provisional until the data is durable. Whatever cannot be made durable ends this object.
3. Meta records follow the data they tell of (`meta_jobs`); a deletion's records go before it.
4. high_watermark moves in offset order, with the acks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from streamlog.errors import (
    Closed,
    Internal,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    StreamlogError,
)
from streamlog.log.api.abstract_log import (
    LATEST,
    AbstractLog,
    EpochEndOffset,
    Isolation,
    LogAppendInfo,
    LogFetch,
    PartitionDescription,
    ProduceContext,
    TimestampAndOffset,
    TopicPartition,
)
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.topic_config import TopicConfig, overrides
from streamlog.log.partition.ack_queue import AckQueue, PendingAppend
from streamlog.log.partition.waiters import OffsetWaiters
from streamlog.log.shared.attaching import SharedLogAttach
from streamlog.log.shared.meta.codec import LogStart, MetaRecord, SegmentRemoved
from streamlog.log.shared.meta_jobs import MetaJob, MetaJobs
from streamlog.log.shared.state.reading import fetch_batches
from streamlog.log.shared.state.recovery import OpenStreams, StreamIds, open_streams, recover_tail
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.log.shared.state.tail import LogTail
from streamlog.log.shared.state.timestamp_lookup import lookup
from streamlog.log.shared.writer import LogWriter
from streamlog.model.batch import RecordBatch
from streamlog.model.stream import StreamClient
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.gather import all_of
from streamlog.runtime.offload import Lane

FailureCallback = Callable[["SharedLog", StreamlogError], None]
PRODUCE = ProduceContext()
STAGE_INLINE_BYTES = 256 << 10
"""Larger batches are checked off the loop: their CRC would hold it up."""


class SharedLog(AbstractLog):
    def __init__(
        self,
        partition: TopicPartition,
        streams: OpenStreams,
        tail: LogTail,
        topic_config: TopicConfig,
        environment: LogEnvironment,
        on_failure: FailureCallback,
    ) -> None:
        self._partition = partition
        self._streams = streams
        self._tail = tail
        self._environment = environment
        self._on_failure = on_failure
        self._metrics = environment.metrics.of_topic(partition.topic)
        self._failure: StreamlogError | None = None
        self._is_closed = False
        self._removing = asyncio.Lock()
        self._waiters = OffsetWaiters()
        self._background = Background(f"log {partition}", self._task_failed)
        self._acks = AckQueue(self._background, self._durable, self._fail)
        self._jobs = MetaJobs(streams.meta, streams.time, self._background, self._fail)
        self._writer = LogWriter(
            partition,
            streams,
            tail,
            self._acks,
            self._jobs,
            environment,
            topic_config,
            check_open=self._check_open,
            fail=self._fail,
            log_start=lambda: self._log_start,
        )
        tail.producers.count_by(environment.metrics.producer_ids.inc)
        self._high_watermark = tail.end_offset
        self._log_start = _first_offset(streams, tail)
        self._jobs.advance(self._high_watermark)
        self._described = streams.meta.description.configs
        """The settings that the meta stream has, or has when the jobs so far are done."""
        self._describe(topic_config)

    @classmethod
    async def open(
        cls,
        client: StreamClient,
        partition: TopicPartition,
        meta_stream_id: int,
        topic_config: TopicConfig,
        environment: LogEnvironment,
        *,
        on_failure: FailureCallback,
        epochs: Mapping[int, int] | None = None,
    ) -> SharedLog:
        """Becomes the partition's leader, under the meta stream's new epoch.

        `epochs`: of its streams that this process holds already. `on_failure` is told once why the
        log gave itself up; it is still to be closed. Errors: StreamNotFound, StreamFenced,
        Conflict (led elsewhere), WalPending, Corrupt, UnsupportedVersion.
        """
        config = environment.config
        streams = await open_streams(
            client, meta_stream_id, environment.clock, config, epochs or {}
        )
        tail = await recover_tail(streams, config, topic_config)
        log = cls(partition, streams, tail, topic_config, environment, on_failure)
        try:
            await log._trim_streams()
        except BaseException:
            await log.kill()
            raise
        return log

    # Description

    def describe(self) -> PartitionDescription:
        return replace(super().describe(), storage_ids=self.stream_ids._asdict())

    @property
    def topic_partition(self) -> TopicPartition:
        return self._partition

    @property
    def leader_epoch(self) -> int:
        return self._streams.meta.stream.stream_epoch

    @property
    def log_start_offset(self) -> int:
        return self._log_start

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The high watermark: there are no transactions yet."""
        return self._high_watermark

    @property
    def log_end_offset(self) -> int:
        return self._tail.end_offset

    @property
    def size_bytes(self) -> int:
        return self._tail.size_bytes

    @property
    def segments(self) -> Sequence[SharedLogSegment]:
        return tuple(self._tail.segments)

    @property
    def stream_ids(self) -> StreamIds:
        streams = self._streams
        return StreamIds(
            streams.meta.stream.stream_id,
            streams.data.stream_id,
            streams.time.stream_id,
            streams.txn.stream_id,
        )

    def _visible_end(self, isolation: Isolation) -> int:
        committed = isolation is Isolation.READ_COMMITTED
        return self.last_stable_offset if committed else self._high_watermark

    # Append and read

    async def append(
        self, batches: Buffer, context: ProduceContext = PRODUCE
    ) -> Awaitable[LogAppendInfo]:
        self._check_open()
        return await self._writer.append(batches, context)

    # Staged writes

    @property
    def data_stream_id(self) -> int:
        return self._streams.data.stream_id

    def offset_of(self, stream_offset: int) -> int:
        return stream_offset - self._writer.data_shift

    async def to_stage(self, batches: Buffer) -> list[RecordBatch]:
        self._check_open()
        offload = self._environment.offload
        if offload is None or len(batches) <= STAGE_INLINE_BYTES:
            return self._writer.to_stage(batches)
        return await offload.run(Lane.CPU, self._writer.to_stage, batches)

    @asynccontextmanager
    async def attaching(self) -> AsyncIterator[SharedLogAttach]:
        """As TakesStaged.attaching. Cut off when something was attached, the log fails: what came
        is known when it is opened again."""
        async with self._writer.turn:
            self._check_open()
            attach = SharedLogAttach(
                self._streams.data,
                self._writer,
                lambda: self.log_end_offset,
                self._flush_end,
                self._attached,
                self._fail,
            )
            try:
                yield attach
            except StreamlogError as error:
                if attach.has_come or error.fields.get("stream_id") == self.data_stream_id:
                    self._fail(error)
                raise
            except BaseException:
                self._fail(Closed(f"a commit to {self._partition} was cut off; open it again"))
                raise

    async def _flush_end(self) -> None:
        """All before the end is durable, and the leader epoch of what follows; the turn is held."""
        await self._end_durable()
        self._writer.begin_epoch()
        await self._jobs.flush_until(self.log_end_offset)

    def _attached(self, end: int) -> None:
        for segment in self._tail.segments:
            if segment.end_offset > self._high_watermark:
                segment.largest_visible = segment.largest
        self._high_watermark = end
        self._jobs.advance(end)
        self._waiters.advance(end)

    def _durable(self, pending: PendingAppend) -> None:
        segment = pending.segment
        segment.largest_visible = max(segment.largest_visible, pending.max_timestamp_ms)
        self._high_watermark = pending.end_offset
        self._jobs.advance(pending.end_offset)
        self._waiters.advance(pending.end_offset)

    async def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        deadline: float | None = None,
    ) -> LogFetch:
        self._check_open()
        if offset < self._log_start or offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset > self._high_watermark:
            raise OffsetNotAvailable(
                f"offset {offset} of {self._partition} is not durable yet: the high watermark is "
                f"{self._high_watermark}; fetch again"
            )
        try:
            read = await fetch_batches(
                self._tail.segments,
                self._streams.by_id,
                offset,
                self._visible_end(isolation),
                max_bytes,
                min_one_batch=min_one_batch,
                deadline=deadline,
            )
        except OffsetOutOfRange as error:
            raise self._out_of_range(offset) from error
        self._metrics.fetched(read.size_bytes)
        return LogFetch(
            parts=tuple(read.parts),
            size_bytes=read.size_bytes,
            batches=read.batches,
            next_offset=read.next_offset,
            high_watermark=self._high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self._log_start,
            is_paced=read.is_paced,
        )

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"offset {offset} of {self._partition} is not in the log, which goes from "
            f"{self._log_start} to {self.log_end_offset}",
            offset=offset,
            start_offset=self._log_start,
            end_offset=self.log_end_offset,
        )

    async def wait_for(self, offset: int, isolation: Isolation) -> None:
        if self._is_open and self._visible_end(isolation) <= offset:
            await self._waiters.wait(offset)

    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation
    ) -> TimestampAndOffset:
        while True:
            self._check_open()
            start = self._log_start
            try:
                return await lookup(
                    timestamp_ms,
                    segments=self.segments,
                    streams=self._streams,
                    epochs=self._tail.epochs,
                    start_offset=start,
                    end_offset=self._visible_end(isolation),
                    offload=self._environment.offload,
                    record_bytes_max=self._environment.config.decoded_bytes_max,
                )
            except OffsetOutOfRange:
                if self._log_start == start:
                    raise
                # Segments were removed under the search: look again among those that are left.

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        return self._tail.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # Segments, deletion, settings

    async def delete_records(self, before_offset: int) -> int:
        self._check_open()
        if self._writer.config.cleanup_policy != "delete":
            raise PolicyViolation(f"{self._partition} does not have cleanup.policy=delete")
        target = self._high_watermark if before_offset == LATEST else before_offset
        if target < 0 or target > self._high_watermark:
            raise self._out_of_range(before_offset)

        async def remove() -> int:
            async with self._removing:
                if target > self._log_start:
                    # Producer state must not hang on what is trimmed: it is written down first.
                    self._writer.checkpoint()
                    await self._raise_start(target, ())
            return self._log_start

        return await self._background.unbroken(remove, name="remove")

    async def delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        self._check_open()
        # What the meta stream says must be done here, too, whether the caller still waits or not.
        return await self._background.unbroken(
            lambda: self._delete_oldest_segments(predicate_end_offset, reason), name="remove"
        )

    async def _delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        async with self._removing:
            bound = min(predicate_end_offset, self._high_watermark)
            if self._tail.active.size and self.log_end_offset <= bound:
                self._writer.roll()
            gone = [
                one for one in self._tail.segments if not one.is_active and one.end_offset <= bound
            ]
            if not gone:
                return 0
            start = max(gone[-1].end_offset, self._log_start)
            await self._raise_start(start, [SegmentRemoved(one.base_offset) for one in gone])
        self._metrics.removed(reason, len(gone), sum(one.size for one in gone))
        return len(gone)

    async def _raise_start(self, offset: int, removed: Sequence[MetaRecord]) -> None:
        """Durable before it is seen, and seen before the streams are trimmed."""
        await self._jobs.flush_until(await self._end_durable())
        try:
            await self._streams.meta.write((*removed, LogStart(offset)))
        except StreamlogError as error:
            self._fail(error)
            raise
        self._log_start = offset
        del self._tail.segments[: len(removed)]
        self._tail.epochs.raise_start(offset)
        await self._trim_streams()

    async def _trim_streams(self) -> None:
        """Idempotent; repeated at open, should a crash have come between."""
        oldest = self._tail.segments[0]
        data_start = max(self._log_start, oldest.base_offset) + oldest.data_shift
        for part, start in (
            (oldest.time, oldest.time.start_offset),
            (oldest.txn, oldest.txn.start_offset),
            (oldest.data, data_start),
        ):
            stream = self._streams.by_id[part.stream_id]
            if stream.start_offset < start:
                await stream.trim(start)

    async def roll(self) -> None:
        self._check_open()
        if self._tail.active.size:
            self._writer.roll()
            await self._jobs.flush_until(await self._end_durable())

    async def _end_durable(self) -> int:
        """The log's end as it is now, when data is durable up to there."""
        end = self.log_end_offset
        if self._high_watermark < end:
            await self._waiters.wait(end - 1)
            self._check_open()
        return end

    async def configure(self, config: TopicConfig) -> None:
        self._writer.config = config
        self._describe(config)

    def _describe(self, config: TopicConfig) -> None:
        """Has the settings written to the meta stream where it has others."""
        configs = overrides(config)
        if self._described != configs:
            self._described = configs
            described = replace(self._streams.meta.description, configs=configs)
            self._jobs.add(MetaJob(0, (described,)))

    # The end

    @property
    def _is_open(self) -> bool:
        return self._failure is None and not self._is_closed

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> Closed:
        return Closed(f"{self._partition} was closed here; open it again")

    def _fail(self, error: StreamlogError) -> None:
        """Nothing more is taken; provisional state is never used again."""
        if self._failure is not None:
            return
        self._failure = error
        self._jobs.fail(error)
        self._waiters.release()
        if not self._is_closed:
            self._on_failure(self, error)

    def _task_failed(self, error: BaseException) -> None:
        is_known = isinstance(error, StreamlogError)
        self._fail(error if is_known else Internal(f"{self._partition}: {error!r}"))  # type: ignore[arg-type]

    async def close(self) -> None:
        """What was sequenced becomes durable, then the streams are given up.

        After a failure nothing is waited for. Errors: what kept the last appends from being stored.
        """
        if await self._ended():
            await all_of(stream.close() for stream in self._streams.by_id.values())
            await self._streams.meta.stream.close()

    async def stop(self) -> None:
        """Four commit entries for each of many partitions would take longer than all else that a
        node does when it stops; the seal of its tenure says the same in one."""
        await self._ended()

    async def _ended(self) -> bool:
        """Whether the log came to its end in order, now."""
        if self._is_closed:
            return False
        is_orderly = self._failure is None
        self._is_closed = True
        self._waiters.release()
        try:
            if is_orderly:
                await self._finish()
        finally:
            await self._end_work()
        return is_orderly

    async def _finish(self) -> None:
        await self._acks.drained()
        if self._failure is None and self._tail.batches_since_checkpoint:
            self._writer.checkpoint()
        await self._jobs.flush_until(self.log_end_offset)

    async def _end_work(self) -> None:
        """Whoever still waits is told."""
        await self._background.close()
        self._jobs.fail(self._closed())
        self._acks.give_up()
        self._tail.producers.forget_all()

    async def kill(self) -> None:
        self._is_closed = True
        self._waiters.release()
        await self._end_work()

    async def delete(self) -> None:
        await self.kill()
        await all_of(stream.destroy() for stream in self._streams.by_id.values())
        await self._streams.meta.stream.destroy()


def _first_offset(streams: OpenStreams, tail: LogTail) -> int:
    first = tail.segments[0]
    start = max(streams.meta.state.log_start_offset, first.base_offset)
    return max(start, streams.by_id[first.data.stream_id].start_offset - first.data_shift)
