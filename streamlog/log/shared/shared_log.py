"""SharedLog: a partition on four streams (data, time, txn, meta).

Invariants
1. An entry of the data stream is one Kafka batch, placed at its offset; its attributes say what the
   log must know of it, so that opening reads no data.
2. Producer state, segments and leader epochs change at sequencing, in offset order, and are
   provisional until the data is durable. A batch that cannot be made durable ends this object.
3. Meta records follow the data that they describe (`meta_jobs`); a deletion's records precede it.
4. high_watermark moves in offset order, with the acks.
5. Segments change by one meta record, which this log follows at once: removals, and cleanings.
6. An append goes one way through the parts (LogParts): validate → sequence → append → acknowledge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from operator import index

from streamlog.codec.batch import ScannedBatch, parse_header
from streamlog.codec.control import ControlType, EndMarker, encode_end_marker
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    StreamlogError,
)
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import (
    LATEST,
    PRODUCE,
    AbortedTransaction,
    AbstractLogSegment,
    AppendOutcome,
    EpochEndOffset,
    Isolation,
    LogAppend,
    LogAppendInfo,
    LogFetch,
    PartitionDescription,
    ProduceContext,
    ProducerDescription,
    TimestampAndOffset,
    TransactionMarker,
)
from streamlog.log.api.cleaning import (
    AbortedRange,
    CleanableLog,
    LastRecordOfProducer,
    SegmentReplacement,
)
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.topic_config import TopicConfig, overrides
from streamlog.log.partition.ack_queue import AckQueue
from streamlog.log.partition.conditions.append_conditions import AppendConditions
from streamlog.log.partition.conditions.token_change import LogTokenChange, TokenKeeper
from streamlog.log.partition.lifecycle import LogLifecycle, LogState
from streamlog.log.partition.timestamp_lookup import lookup
from streamlog.log.partition.view.reading import BatchesRead, fetch_batches
from streamlog.log.partition.view.visibility import Visibility
from streamlog.log.shared.aborted.aborted_search import AbortedSearch
from streamlog.log.shared.append.attaching import SharedLogAttach
from streamlog.log.shared.append.waiting import STREAM_LOST, WaitingAppends
from streamlog.log.shared.append.writer import LogWriter
from streamlog.log.shared.cleaning.cleaned_streams import CleanedStreamSet
from streamlog.log.shared.cleaning.replacement import SharedReplacement, replaceable
from streamlog.log.shared.cleaning.slice_trimmer import Hold, SliceTrimmer
from streamlog.log.shared.durable.meta_jobs import MetaJob, MetaJobs
from streamlog.log.shared.meta.codec import (
    CleanEnd,
    FencingToken,
    LogStart,
    MetaRecord,
    SegmentRemoved,
    SegmentSealed,
    SegmentsReplaced,
)
from streamlog.log.shared.parts import LogParts
from streamlog.log.shared.placing import BatchPlacer
from streamlog.log.shared.state.recovery import OpenStreams, StreamIds, open_streams, recover_tail
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.log.shared.state.segment_reader import SegmentReader, reads_objects
from streamlog.log.shared.state.tail import LogTail
from streamlog.log.shared.state.timestamp_search import SegmentSearch
from streamlog.log.stream_slices import SlicesView
from streamlog.model.append_condition import ANY, AppendCondition
from streamlog.model.batch import (
    AppendResult,
    FetchContext,
    Priority,
    ReadMode,
    RecordBatch,
    StreamSlice,
)
from streamlog.model.batch_limits import check_deadline
from streamlog.model.fencing_token import check_token
from streamlog.model.partition import TopicPartition
from streamlog.model.stream import StreamClient
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.gather import gather_all
from streamlog.runtime.offload import Lane

logger = logging.getLogger(__name__)

FailureCallback = Callable[["SharedLog", StreamlogError], None]
STAGE_INLINE_BYTES = 256 << 10
"""Larger batches are checked off the loop: their CRC would hold it up."""
CLEANING_BYTES = 1 << 20
"""Bytes that a cleaning reads at a time."""
CLEANING = FetchContext(priority=Priority.BACKGROUND, is_catch_up=True, read_mode=ReadMode.WAIT)


class SharedLog(CleanableLog):
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
        self._removing = asyncio.Lock()
        self._lifecycle = LogLifecycle(str(partition), self._failed)
        self._background = Background(f"log {partition}", self._task_failed)
        self._jobs = MetaJobs(
            streams.meta, streams.time, streams.txn, self._background, self._lifecycle
        )
        self._visibility = Visibility[SharedLogSegment](
            self._jobs.advance,
            self._lifecycle,
            tail.producers.unstable,
            _first_offset(streams, tail),
            tail.end_offset,
        )
        self._aborted = AbortedSearch(streams.by_id)
        self._cleaned = CleanedStreamSet(streams, self._write_meta)
        self._trimmer = SliceTrimmer(
            streams.by_id, tail.segments, lambda: self._visibility.log_start_offset
        )
        self._swaps = 0
        """How often cleaned segments came in the place of others."""
        self._writing: Hold = ()
        self._acks = AckQueue(self._background, self._visibility, self._lifecycle)
        self._parts = LogParts(
            partition,
            streams,
            tail,
            environment,
            self._lifecycle,
            self._jobs,
            self._visibility,
            self._acks,
        )
        self._placer = BatchPlacer(
            streams,
            tail,
            self._jobs,
            self._visibility,
            environment,
            environment.metrics.of_topic(partition.topic),
            topic_config,
            self._background,
        )
        self._conditions = AppendConditions(partition, lambda: streams.meta.state.fencing_token)
        self._waiting = WaitingAppends(self._parts, self._placer, self._conditions)
        self._writer = LogWriter(self._parts, self._placer, self._waiting, self._conditions)
        tail.producers.count_by(environment.metrics.producer_ids.inc)
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
            await log._trimmer.trim()
            await log._delete_left_streams()
            # The owner does not know the log yet: a failure up to here would be lost on it.
            log._check_open()
        except BaseException:
            await log.kill()
            raise
        return log

    # Description

    def describe(self) -> PartitionDescription:
        return replace(
            super().describe(),
            storage_ids=self.stream_ids._asdict(),
            fencing_token=self._conditions.token(),
        )

    def producers(self) -> Sequence[ProducerDescription]:
        self._check_open()
        state = self._tail.producers
        state.expire(self._environment.clock.now_ms())
        return [
            ProducerDescription(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_append_ms,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in state.snapshot()
        ]

    @property
    def topic_partition(self) -> TopicPartition:
        return self._partition

    @property
    def leader_epoch(self) -> int:
        return self._streams.meta.stream.stream_epoch

    @property
    def log_start_offset(self) -> int:
        return self._visibility.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._visibility.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._visibility.last_stable_offset

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

    def slices_view(self) -> SlicesView:
        """As LiesOnStreams.slices_view."""
        segments = tuple(self._tail.segments)

        async def aborted_in(start: int, end: int) -> Sequence[AbortedTxn]:
            return await self._aborted.overlapping(segments, start, end, None)

        return SlicesView(segments, aborted_in, lambda: self._keeping(segments))

    @contextmanager
    def _keeping(self, segments: Sequence[SharedLogSegment]) -> Iterator[None]:
        held = self._trimmer.hold(part for one in segments for part in (one.data, one.txn))
        try:
            yield
        finally:
            self._trimmer.release(held)
            self._trim_soon()

    def _visible_end(self, isolation: Isolation) -> int:
        committed = isolation is Isolation.READ_COMMITTED
        return self.last_stable_offset if committed else self.high_watermark

    # Append and read

    async def append(
        self, batches: Buffer, context: ProduceContext = PRODUCE
    ) -> Awaitable[LogAppendInfo]:
        self._check_open()
        return await self._writer.append(batches, context)

    async def append_many(self, appends: Sequence[LogAppend]) -> Sequence[AppendOutcome]:
        try:
            self._check_open()
        except StreamlogError as error:
            return [error] * len(appends)
        return await self._writer.append_many(appends)

    async def append_marker(
        self, marker: TransactionMarker, context: ProduceContext = PRODUCE
    ) -> Awaitable[LogAppendInfo]:
        self._check_open()
        control_type = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
        data = encode_end_marker(
            marker.producer_id,
            marker.producer_epoch,
            EndMarker(control_type, marker.coordinator_epoch),
            self._environment.clock.now_ms(),
        )
        batch = ScannedBatch(parse_header(data), memoryview(data))
        return await self._waiting.append_marker(batch, marker, context)

    def needs_verification(self, producer_id: int, producer_epoch: int) -> bool:
        now_ms = self._environment.clock.now_ms()
        return self._tail.producers.needs_verification(producer_id, producer_epoch, now_ms)

    def verification_guard(self) -> int:
        return self._tail.producers.verification_guard

    def verified(self, producer_id: int, producer_epoch: int, guard: int | None = None) -> None:
        producers = self._tail.producers
        taken = producers.verification_guard if guard is None else guard
        producers.verified(producer_id, producer_epoch, taken)

    @property
    def tests_conditions(self) -> bool:
        return True

    async def set_fencing_token(
        self, token: bytes, condition: AppendCondition = ANY, *, deadline: float | None = None
    ) -> None:
        check_token(token)
        check_deadline(deadline)
        condition.check()
        self._check_open()
        keeper = TokenKeeper(
            self._partition,
            self._environment.clock,
            self._lifecycle,
            self._background,
            self._waiting.turn,
            self._conditions.refusal,
            lambda: self._visibility.wait_durable(self._tail.end_offset),
            self._write_token,
        )
        await LogTokenChange(keeper, token, condition).apply(deadline)

    async def _write_token(self, token: bytes) -> None:
        """To the meta stream, and not as the data stream's own token: it is replayed at each open
        with the rest of the log's state, lies in the objects like the data, and asks nothing more
        of a medium."""
        await self._streams.meta.write((FencingToken(token),))

    # Staged writes

    @property
    def data_stream_id(self) -> int:
        return self._streams.data.stream_id

    def offset_of(self, stream_offset: int) -> int:
        return stream_offset - self._tail.active.data_shift

    async def to_stage(
        self, batches: Buffer, producer: tuple[int, int] | None = None
    ) -> list[RecordBatch]:
        self._check_open()
        offload = self._environment.offload
        if offload is None or len(batches) <= STAGE_INLINE_BYTES:
            return self._writer.to_stage(batches, producer)
        return await offload.run(Lane.CPU, self._writer.to_stage, batches, producer)

    @asynccontextmanager
    async def attaching(self) -> AsyncIterator[SharedLogAttach]:
        """As TakesStaged.attaching.

        A commit that is cut off after it has attached batches fails the log: the next open finds
        them in the stream.
        """
        async with self._waiting.turn:
            self._check_open()
            attach = SharedLogAttach(self._parts, self._placer)
            try:
                yield attach
            except StreamlogError as error:
                if attach.has_attached or error.fields.get("stream_id") == self.data_stream_id:
                    self._lifecycle.fail(error)
                raise
            except BaseException:
                self._lifecycle.fail(
                    Closed(f"a commit to {self._partition} was cut off; open it again")
                )
                raise

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
        visible = self._visibility
        if offset < visible.log_start_offset or offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset > visible.high_watermark:
            raise OffsetNotAvailable(
                f"offset {offset} of {self._partition} is not durable yet: the high watermark is "
                f"{visible.high_watermark}; fetch again"
            )
        while True:
            swaps = self._swaps
            try:
                read, aborted = await self._read(
                    offset, max_bytes, isolation, deadline, min_one_batch=min_one_batch
                )
                if swaps == self._swaps or isolation is Isolation.READ_UNCOMMITTED:
                    break
                # The batches may be of an old segment, and the list of the one in its place.
            except OffsetOutOfRange as error:
                if swaps == self._swaps or offset < visible.log_start_offset:
                    raise self._out_of_range(offset) from error
                # The slice was trimmed, and another one is in its place.
            except STREAM_LOST as error:
                self._lifecycle.fail(error)
                raise
        self._metrics.fetched(read.size_bytes)
        return LogFetch(
            parts=tuple(read.parts),
            size_bytes=read.size_bytes,
            batches=read.batches,
            next_offset=read.next_offset,
            high_watermark=visible.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=visible.log_start_offset,
            aborted=tuple(AbortedTransaction(*entry[:2]) for entry in aborted),
            is_paced=read.is_paced,
        )

    async def _read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation,
        deadline: float | None,
        *,
        min_one_batch: bool,
    ) -> tuple[BatchesRead, Sequence[AbortedTxn]]:
        """Batches, and the aborted transactions that a committed reader has to know for them."""
        segments = self._tail.segments
        read = await fetch_batches(
            SegmentReader(segments, self._streams.by_id, deadline),
            offset,
            self._visible_end(isolation),
            max_bytes,
            min_one_batch=min_one_batch,
        )
        if isolation is Isolation.READ_UNCOMMITTED:
            return read, ()
        end = read.next_offset
        return read, await self._aborted.overlapping(segments, offset, end, deadline)

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"offset {offset} of {self._partition} is not in the log, which goes from "
            f"{self.log_start_offset} to {self.log_end_offset}",
            offset=offset,
            start_offset=self.log_start_offset,
            end_offset=self.log_end_offset,
        )

    def is_cold(self, offset: int) -> bool:
        is_there = self._lifecycle.is_open and self.log_start_offset <= offset
        return is_there and reads_objects(self._tail.segments, self._streams.by_id, offset)

    async def wait_for(self, offset: int, isolation: Isolation) -> None:
        if self._lifecycle.is_open and self._visible_end(isolation) <= offset:
            visible = self._visibility
            committed = isolation is Isolation.READ_COMMITTED
            await (visible.stable_waiters if committed else visible.waiters).wait(offset)

    def subscribe(self, changed: Callable[[], None]) -> None:
        if self._lifecycle.is_open:
            self._visibility.waiters.subscribe(changed)
        else:
            changed()

    def unsubscribe(self, changed: Callable[[], None]) -> None:
        self._visibility.waiters.unsubscribe(changed)

    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation
    ) -> TimestampAndOffset:
        while True:
            self._check_open()
            start, swaps = self.log_start_offset, self._swaps
            search = SegmentSearch(
                self._streams.by_id,
                start,
                self._visible_end(isolation),
                self._environment.offload,
                self._environment.config.decoded_bytes_max,
            )
            try:
                return await lookup(timestamp_ms, self.segments, self._tail.epochs, search)
            except OffsetOutOfRange:
                if (self.log_start_offset, self._swaps) == (start, swaps):
                    raise
                # Segments were removed or replaced during the search: search those that are there.
            except STREAM_LOST as error:
                self._lifecycle.fail(error)
                raise

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        return self._tail.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # Segments, deletion, settings

    async def delete_records(self, before_offset: int) -> int:
        self._check_open()
        if not self._placer.config.is_deleted_by_age:
            raise PolicyViolation(f"{self._partition} does not have cleanup.policy=delete")
        return await self.raise_start(before_offset)

    async def raise_start(self, before_offset: int) -> int:
        self._check_open()
        target = self.high_watermark if before_offset == LATEST else index(before_offset)
        if target < 0 or target > self.high_watermark:
            raise self._out_of_range(before_offset)

        async def remove() -> int:
            async with self._removing:
                if target > self.log_start_offset:
                    # Producer state is recovered from batches: it is written down before they go.
                    self._placer.checkpoint()
                    await self._raise_start(target, ())
            return self.log_start_offset

        return await self._background.shielded(remove, name="remove")

    async def delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        self._check_open()
        end_offset = index(predicate_end_offset)
        # Once the meta stream has the removal, this log must follow, even if the caller gave up.
        return await self._background.shielded(
            lambda: self._delete_oldest_segments(end_offset, reason), name="remove"
        )

    async def _delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        async with self._removing:
            bound = min(predicate_end_offset, self.high_watermark)
            if self._tail.active.size and self.log_end_offset <= bound:
                self._placer.roll()
            expired = [
                segment
                for segment in self._tail.segments
                if not segment.is_active and segment.end_offset <= bound
            ]
            if not expired:
                return 0
            start = max(expired[-1].end_offset, self.log_start_offset)
            removed = [SegmentRemoved(segment.base_offset) for segment in expired]
            await self._raise_start(start, removed)
        self._metrics.removed(reason, len(expired), sum(segment.size for segment in expired))
        return len(expired)

    async def _raise_start(self, offset: int, removed: Sequence[MetaRecord]) -> None:
        """The new start is durable before it is visible, and visible before streams are trimmed."""
        await self._flush()
        try:
            await self._streams.meta.write((*removed, LogStart(offset)))
        except StreamlogError as error:
            self._lifecycle.fail(error)
            raise
        self._visibility.raise_start(offset)
        del self._tail.segments[: len(removed)]
        self._tail.epochs.raise_start(offset)
        await self._trimmer.trim()

    async def roll(self) -> None:
        self._check_open()
        if self._tail.active.size:
            self._placer.roll()
            await self._flush()

    async def _flush(self) -> None:
        """Data and meta records up to the log's present end are durable on return."""
        end = await self._visibility.wait_durable(self.log_end_offset)
        await self._jobs.flush_until(end)

    async def configure(self, config: TopicConfig) -> None:
        self._placer.follow(config)
        self._describe(config)

    def _describe(self, config: TopicConfig) -> None:
        """Writes the settings to the meta stream, if it has others."""
        configs = overrides(config)
        if self._described != configs:
            self._described = configs
            described = replace(self._streams.meta.description, configs=configs)
            self._jobs.add(MetaJob(0, (described,)))

    # Cleaning

    @property
    def clean_end_offset(self) -> int:
        """As CleanableLog.clean_end_offset.

        -1, too, where a cleaning has left data that goes with the slices before it alone.
        """
        state = self._streams.meta.state
        ids = () if state.cleaned is None else state.cleaned.ids
        if ids and self._trimmer.has_left_over(ids[0]):
            return -1
        return state.clean_end_offset

    async def set_clean_end_offset(self, offset: int) -> None:
        self._check_open()
        await self._write_meta(CleanEnd(offset))

    async def _write_meta(self, record: MetaRecord) -> None:
        """A record whose outcome is not known ends the log: its next open finds it or does not."""
        try:
            await self._streams.meta.write((record,))
        except StreamlogError as error:
            self._lifecycle.fail(error)
            raise

    async def read_for_cleaning(
        self, segment: AbstractLogSegment, start_offset: int
    ) -> AsyncIterator[Buffer]:
        """As CleanableLog.read_for_cleaning."""
        (own,) = replaceable(self._tail.segments, [segment])
        stream, shift = self._streams.by_id[own.data.stream_id], own.data_shift
        end = own.end_offset + shift
        position = max(start_offset, own.base_offset) + shift
        while (position := max(position, stream.start_offset)) < end:
            self._check_open()
            try:
                read = await stream.fetch(position, end, CLEANING_BYTES, CLEANING)
            except OffsetOutOfRange as error:
                raise Invalid(
                    f"a segment of {self._partition} was deleted while it was read"
                ) from error
            except STREAM_LOST as error:
                self._lifecycle.fail(error)
                raise
            yield b"".join(join(batch.parts) for batch in read.batches)
            position = read.batches[-1].end_offset

    async def aborted_transactions(
        self, start_offset: int, end_offset: int
    ) -> Sequence[AbortedRange]:
        found = await self._aborted.overlapping(
            tuple(self._tail.segments), start_offset, end_offset, None
        )
        return [AbortedRange(*entry[:3]) for entry in found]

    def last_records_of_producers(self) -> Mapping[int, LastRecordOfProducer]:
        state = self._tail.producers
        state.expire(self._environment.clock.now_ms())
        return {
            entry.producer_id: LastRecordOfProducer(
                entry.batches[-1].last_offset if entry.packed else -1, entry.producer_epoch
            )
            for entry in state.snapshot()
        }

    def first_batch_timestamp_ms(self, segment: AbstractLogSegment) -> int:
        (own,) = replaceable(self._tail.segments, [segment])
        return own.first_timestamp

    async def replace_segments(self, old: Sequence[AbstractLogSegment]) -> SegmentReplacement:
        self._check_open()
        own = replaceable(self._tail.segments, old)
        # The meta stream may not have the end of the newest one yet.
        await self._jobs.flush_until(own[-1].end_offset)
        # An end does not wait for streams that are created later.
        self._check_open()
        streams = await self._background.shielded(self._cleaned.opened, name="clean")
        aborted = await self._aborted.overlapping(own, own[0].base_offset, own[-1].end_offset, None)
        self._writing = self._trimmer.hold(
            StreamSlice(stream.stream_id, stream.next_offset, stream.next_offset)
            for stream in streams
        )
        return SharedReplacement(
            self,
            streams,
            own,
            aborted,
            leader_epoch=self._tail.epochs.epoch_at(own[-1].end_offset - 1),
            last_stable_offset=self.last_stable_offset,
            interval_bytes=self._placer.config.index_interval_bytes,
            entry_bytes_max=self._streams.meta.entry_bytes_max,
        )

    async def switch(self, old: Sequence[SharedLogSegment], new: SegmentSealed) -> None:
        """As SwitchesSegments.switch."""

        # The caller may give up, and its hold with it, before the switch has its turn.
        written = self._trimmer.hold((new.data, new.time, new.txn))

        async def write() -> None:
            async with self._removing:
                self._check_open()
                segments = self._tail.segments
                first = segments.index(replaceable(segments, old)[0])
                await self._write_meta(SegmentsReplaced(new))
                segments[first : first + len(old)] = [self._tail.sealed(new)]
                self._swaps += 1
                # Fetches under way finish on the old slices.
                held = self._trimmer.hold(
                    part for one in old for part in (one.data, one.time, one.txn)
                )
            delay_s = self._placer.config.file_delete_delay_ms / 1000
            self._background.spawn(self._trim_later(held, delay_s), name="trim")

        async def release_after_write() -> None:
            try:
                await write()
            finally:
                self._trimmer.release(written)

        # Once the meta stream has the switch, this log must follow, even if the caller gave up.
        await self._background.shielded(release_after_write, name="switch")

    async def _trim_later(self, held: Hold, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self._trimmer.release(held)
        await self._trim()

    async def _trim(self) -> None:
        try:
            async with self._removing:
                if self._lifecycle.is_open:
                    await self._trimmer.trim()
        except STREAM_LOST as error:
            self._lifecycle.fail(error)
        except StreamlogError as error:
            logger.warning(
                "%s keeps slices that a cleaning replaced until the next one, or its next open: %s",
                self._partition,
                error,
            )

    def _trim_soon(self) -> None:
        """What a hold has kept goes at once, and not with the next removal."""
        if self._lifecycle.is_open and self._trimmer.is_due:
            self._background.spawn(self._trim(), name="trim")

    def cleaning_ended(self, unanswered: Sequence[Awaitable[AppendResult]]) -> None:
        """As SwitchesSegments.cleaning_ended."""
        self._trimmer.release(self._writing)
        for answer in unanswered:
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(self._left)
        self._trim_soon()

    def _left(self, answer: asyncio.Future[AppendResult]) -> None:
        """Nobody waits any more for an append of a cleaning: its data goes, its refusal is seen."""
        if not answer.cancelled() and answer.exception() is None:
            self._trim_soon()

    def cleaning_failed(self, error: StreamlogError) -> None:
        """As SwitchesSegments.cleaning_failed."""
        if isinstance(error, STREAM_LOST):
            self._lifecycle.fail(error)

    async def _delete_left_streams(self) -> None:
        """Deletes what a cleaning has left that ended while it made its streams."""
        if self._cleaned.has_left_some:
            try:
                await self._cleaned.sweep()
            except StreamlogError as error:
                logger.warning("%s: streams of a dead cleaning stay: %s", self._partition, error)

    # The end

    def _check_open(self) -> None:
        self._lifecycle.check_open()

    def _failed(self, error: StreamlogError) -> None:
        """The lifecycle's first failure. The owner hears of it unless it ends the log already."""
        self._jobs.fail(error)
        self._visibility.release()
        if self._lifecycle.state is LogState.FAILED:
            self._on_failure(self, error)

    def _task_failed(self, error: BaseException) -> None:
        if not isinstance(error, StreamlogError):
            error = Internal(f"{self._partition}: {error!r}")
        self._lifecycle.fail(error)

    async def close(self) -> None:
        """Waits until sequenced batches are durable, then gives up the streams.

        After a failure it waits for nothing. Errors: what kept the last appends from being stored.
        """
        if await self._ended():
            await gather_all(stream.close() for stream in self._streams.by_id.values())
            await self._streams.meta.stream.close()

    async def stop(self) -> None:
        """Leaves the streams open: closing them takes four commit entries for each of many
        partitions, and the seal of the node's tenure does the same in one."""
        await self._ended()

    async def _ended(self) -> bool:
        """Whether this call ended the log in order: not after a failure or an earlier end."""
        if self._lifecycle.state is LogState.ENDED:
            return False
        is_orderly = self._lifecycle.end()
        self._visibility.release()
        try:
            if is_orderly:
                await self._finish()
        finally:
            await self._end_work()
        return is_orderly

    async def _finish(self) -> None:
        await self._acks.drained()
        if self._lifecycle.failure is None and self._tail.batches_since_checkpoint:
            self._placer.checkpoint()
        await self._jobs.flush_until(self.log_end_offset)
        await self._cleaned.settled()

    async def _end_work(self) -> None:
        """Stops background work; waiting calls get an error, even if this call is cancelled."""
        try:
            await self._background.close()
        finally:
            self._jobs.fail(self._lifecycle.closed())
            self._acks.give_up()
            self._tail.producers.forget_all()

    async def kill(self) -> None:
        self._lifecycle.end()
        self._visibility.release()
        await self._end_work()

    async def delete(self) -> None:
        await self.kill()
        await gather_all(stream.destroy() for stream in self._streams.by_id.values())
        await self._streams.meta.stream.destroy()


def _first_offset(streams: OpenStreams, tail: LogTail) -> int:
    first = tail.segments[0]
    start = max(streams.meta.state.log_start_offset, first.base_offset)
    return max(start, streams.by_id[first.data.stream_id].start_offset - first.data_shift)
