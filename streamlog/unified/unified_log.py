"""UnifiedLog: a partition in local files, as Kafka keeps it.

Invariants
1. The .log files hold Kafka batches one behind the other, each at its offset; a batch is cut or
   changed by nobody, and only the last segment grows.
2. Producer state, segments, indexes and leader epochs change at sequencing, in offset order, and
   are provisional until the batch is carried out. A batch that cannot be ends this object.
3. What readers see is carried out (`flusher.py`): durable, unless the topic asks for less.
4. high_watermark moves in offset order, with the acks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from operator import index

from streamlog.codec.batch import (
    CONTROL,
    BatchHeader,
    ScannedBatch,
    parse_header,
    placed,
    placed_at_append_time,
)
from streamlog.codec.control import ControlType, EndMarker, decode_end_marker, encode_end_marker
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    OffsetConflict,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    PolicyViolation,
    QuotaExceeded,
    StreamlogError,
    TokenMismatch,
)
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import (
    EARLIEST,
    LATEST,
    LATEST_TIERED,
    PRODUCE,
    AbortedTransaction,
    AbstractLogSegment,
    EpochEndOffset,
    Isolation,
    LogAppendInfo,
    LogFetch,
    PartitionDescription,
    ProduceContext,
    ProducerDescription,
    TimestampAndOffset,
    TransactionMarker,
)
from streamlog.log.api.batch_reader import BatchReader
from streamlog.log.api.cleaning import (
    AbortedRange,
    CleanableLog,
    LastRecordOfProducer,
    SegmentReplacement,
)
from streamlog.log.api.tiering import (
    AS_LONG_AS_A_LOOK_UP,
    LocalSegmentFiles,
    RemoteTier,
    TierableLog,
)
from streamlog.log.api.topic_config import LOG_APPEND_TIME, TopicConfig
from streamlog.log.partition.ack_queue import AckQueue, PendingAppend
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.partition.conditions.append_conditions import AppendConditions, refused_after
from streamlog.log.partition.conditions.token_change import LogTokenChange, TokenKeeper
from streamlog.log.partition.lifecycle import LogLifecycle, LogState
from streamlog.log.partition.log_validator import validate_batches
from streamlog.log.partition.producer_state_entry import ProducerBatch
from streamlog.log.partition.record_keys import check_keys
from streamlog.log.partition.retention import BELOW_START
from streamlog.log.partition.timestamp_lookup import lookup
from streamlog.log.partition.view.reading import BatchesRead, fetch_batches
from streamlog.log.partition.view.visibility import Visibility
from streamlog.model.append_condition import ANY, AppendCondition
from streamlog.model.batch_limits import check_deadline
from streamlog.model.fencing_token import check_token
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.run_ack import RunAck
from streamlog.runtime.concurrency.turn import Turn
from streamlog.runtime.offload import Lane
from streamlog.unified.cleaning.replacement import UnifiedReplacement, checked
from streamlog.unified.disk.log_files import AppendBatches
from streamlog.unified.flusher import Flusher
from streamlog.unified.partition_folder import PartitionFolder
from streamlog.unified.read.aborted_search import aborted_between
from streamlog.unified.read.catch_up_reader import CatchUpReader
from streamlog.unified.read.segment_reader import SegmentFileReader
from streamlog.unified.read.tiers import TieredReader, held_files, nothing_lost
from streamlog.unified.read.timestamp_search import FileSearch
from streamlog.unified.recovery.loader import LoadedLog
from streamlog.unified.recovery.segment_end import lost_from
from streamlog.unified.recovery.snapshots import snapshot_of
from streamlog.unified.state.segment import SegmentReplaced, UnifiedLogSegment
from streamlog.unified.state.tail import UnifiedTail

FailureCallback = Callable[["UnifiedLog", StreamlogError], None]
KEYS_INLINE_BYTES = 8 << 10
"""Uncompressed batches up to this size are looked through on the event loop, in less than 1 ms."""
CLEANING_BYTES = 1 << 20
"""Bytes that a cleaning reads at a time."""
PENDING_BYTES_MAX = 32 << 20
"""Bytes of one log that are sequenced and not carried out; appends beyond them wait."""
UNKNOWN_MS = -1


class _TierIsLate(Exception):
    """The remote tier has not told of aborted transactions by a fetch's deadline."""


class UnifiedLog(CleanableLog, TierableLog):
    """Made from what the loader found, whose files are durable."""

    def __init__(
        self,
        partition: TopicPartition,
        folder: PartitionFolder,
        loaded: LoadedLog,
        config: TopicConfig,
        on_failure: FailureCallback,
    ) -> None:
        self._partition = partition
        self._folder = folder
        self._config = config
        self._on_failure = on_failure
        environment = self._environment = folder.environment
        self._clock = environment.clock
        self._offload = folder.offload
        self._throttle = environment.throttle
        self._metrics = environment.metrics.of_topic(partition.topic)
        self._tail = tail = UnifiedTail(loaded.segments, loaded.producers, loaded.epochs)
        self._leader_epoch = max(tail.epochs.latest, 0) + 1
        self._jitter = environment.random.random()
        self._changes = 0
        """Replacements and removals of segments that have begun."""
        self._tier: RemoteTier | None = None
        self._turn = Turn()
        self._token = loaded.fencing_token
        self._conditions = AppendConditions(partition, lambda: self._token)
        self._removing = asyncio.Lock()
        self._lifecycle = LogLifecycle(str(partition), self._failed)
        self._background = Background(f"log {partition}", self._task_failed)
        self._visibility = Visibility[UnifiedLogSegment](
            _nothing,
            self._lifecycle,
            tail.producers.unstable,
            loaded.log_start_offset,
            tail.end_offset,
        )
        self._acks = AckQueue[UnifiedLogSegment](
            self._background, self._visibility, self._lifecycle
        )
        self._flusher = Flusher(
            str(partition),
            folder.files,
            self._offload,
            self._clock,
            self._background,
            self._lifecycle,
            config,
            folder.writes,
        )
        self._reader = SegmentFileReader(
            str(partition),
            folder.folder,
            tail.segments,
            self._offload,
            folder.kept_files,
            self._check_open,
        )
        tail.producers.count_by(environment.metrics.producer_ids.inc)

    # Description

    @property
    def topic_partition(self) -> TopicPartition:
        return self._partition

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

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
    def segments(self) -> Sequence[UnifiedLogSegment]:
        return tuple(self._tail.segments)

    def describe(self) -> PartitionDescription:
        return replace(super().describe(), fencing_token=self._token)

    def producers(self) -> Sequence[ProducerDescription]:
        self._check_open()
        state = self._tail.producers
        state.expire(self._clock.now_ms())
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

    # Append

    async def append(
        self, batches: Buffer, context: ProduceContext = PRODUCE
    ) -> Awaitable[LogAppendInfo]:
        condition = context.condition
        if condition is not None:
            condition.check()
        self._check_open()
        checks = self._environment.config.checks_records
        valid = validate_batches(batches, self._config, self._clock.now_ms(), with_records=checks)
        if self._config.needs_keys:
            return await self._append_in_turn(valid, context, None, has_keys=True)
        if not self._turn.is_free or not self._has_room:
            return await self._append_in_turn(valid, context, None)
        return self._sequence_all(valid, condition)

    async def append_marker(
        self, marker: TransactionMarker, context: ProduceContext = PRODUCE
    ) -> Awaitable[LogAppendInfo]:
        self._check_open()
        control_type = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
        data = encode_end_marker(
            marker.producer_id,
            marker.producer_epoch,
            EndMarker(control_type, marker.coordinator_epoch),
            self._clock.now_ms(),
        )
        batch = ScannedBatch(parse_header(data), memoryview(data))
        return await self._append_in_turn([batch], context, marker)

    @property
    def _has_room(self) -> bool:
        return self._flusher.pending_bytes <= PENDING_BYTES_MAX

    async def _append_in_turn(
        self,
        batches: Sequence[ScannedBatch],
        context: ProduceContext,
        marker: TransactionMarker | None,
        *,
        has_keys: bool = False,
    ) -> Awaitable[LogAppendInfo]:
        """Waits for the calls before it, and for room; nothing is sequenced meanwhile."""
        left_s = None if context.deadline is None else context.deadline - self._clock.monotonic()
        try:
            async with asyncio.timeout(left_s) as timeout, self._turn:
                while not self._has_room and self._lifecycle.is_open:
                    await self._flusher.room()
                if has_keys:
                    await self._check_keys(batches)
                self._check_open()
                if marker is not None:
                    self._tail.producers.check_marker(marker, self._clock.now_ms())
                return self._sequence_all(batches, context.condition)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Overloaded(
                f"appends to {self._partition} waited for the disk until the deadline; nothing was "
                "stored: retry with back-off"
            ) from None

    async def _check_keys(self, batches: Sequence[ScannedBatch]) -> None:
        most = self._environment.config.decoded_bytes_max
        size = sum(len(batch.view) for batch in batches)
        is_plain = not any(batch.header.codec for batch in batches)
        if is_plain and size <= KEYS_INLINE_BYTES:
            check_keys(batches, self._config, most)
        else:
            await self._offload.run(Lane.CPU, check_keys, batches, self._config, most)

    def _sequence_all(
        self, batches: Sequence[ScannedBatch], condition: AppendCondition | None
    ) -> Awaitable[LogAppendInfo]:
        """Awaits nothing: no other batch comes between those of one call, and what was tested still
        holds. Errors: those of an append."""
        first, *others = batches
        try:
            answer = self._sequence(first, None, condition)
        except (OffsetConflict, TokenMismatch) as refusal:
            outcome = refused_after(refusal, self._acks.last)
            if isinstance(outcome, StreamlogError):
                raise
            return outcome
        base = self._tail.end_offset - first.header.record_count
        for position, batch in enumerate(others, 1):
            try:
                answer = self._sequence(batch, base)
            except StreamlogError as error:
                raise OutcomeUnknown(
                    f"{position} of {len(batches)} batches were sequenced, then: {error}"
                ) from error
        return answer

    def _sequence(
        self,
        batch: ScannedBatch,
        first_base: int | None,
        condition: AppendCondition | None = None,
    ) -> asyncio.Future[LogAppendInfo]:
        tail, config, now_ms = self._tail, self._config, self._clock.now_ms()
        header, view = batch
        is_marker = header.attributes & CONTROL
        original = None if is_marker else self._original(header, now_ms)
        if original is not None:
            return self._duplicate(original)
        base, span, stamp = tail.end_offset, header.last_offset_delta + 1, header.max_timestamp_ms
        if condition is not None:
            refusal = self._conditions.refusal(condition, base)
            if refusal is not None:
                raise refusal
        if config.message_timestamp_type == LOG_APPEND_TIME:
            stamp = now_ms
            parts = placed_at_append_time(view, base, self._leader_epoch, now_ms)
        else:
            parts = placed(view, base, self._leader_epoch)
        metadata = LogBatchMetadata.of(
            header,
            leader_epoch=self._leader_epoch,
            append_time_ms=now_ms,
            max_timestamp_ms=stamp,
            marker=decode_end_marker(view) if is_marker else None,
        )
        if tail.should_roll(span, metadata, config, self._jitter):
            self._roll()
        begun = tail.account(base, span, metadata, config)
        if begun is not None:
            self._flusher.add(begun)
        pending = PendingAppend(base, base + span, tail.active, stamp)
        is_stamped = config.message_timestamp_type == LOG_APPEND_TIME
        answer = pending.wait(
            LogAppendInfo(
                base if first_base is None else first_base,
                base + span - 1,
                now_ms if is_stamped else -1,
                self.log_start_offset,
            )
        )
        ack = RunAck()
        self._throttle.note_foreground_io()
        self._flusher.add(AppendBatches(parts), size_bytes=len(view), records=span, ack=ack)
        self._acks.push_run([pending], ack)
        self._metrics.appended(1, span, metadata.size_bytes)
        return answer

    def _original(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        if header.producer_id < 0:
            return None
        try:
            return self._tail.producers.check(header, now_ms)
        except QuotaExceeded:
            self._environment.metrics.producers_refused.inc()
            raise

    def _duplicate(self, original: ProducerBatch) -> asyncio.Future[LogAppendInfo]:
        """Answers a retry as its original, when that is durable."""
        self._metrics.duplicates.inc()
        base, last = original.base_offset, original.last_offset
        info = LogAppendInfo(base, last, UNKNOWN_MS, self.log_start_offset, is_duplicate=True)
        pending = self._acks.find(base)
        if pending is not None:
            return pending.wait(info._replace(log_append_time_ms=pending.append_time_ms))
        future: asyncio.Future[LogAppendInfo] = asyncio.get_running_loop().create_future()
        if self._config.message_timestamp_type != LOG_APPEND_TIME:
            future.set_result(info)
            return future

        async def answer() -> None:
            at_ms = await self._append_time_of(base)
            if not future.done():
                future.set_result(info._replace(log_append_time_ms=at_ms))

        def ended(_: object) -> None:
            if not future.done():
                # The log ended first; the original is stored all the same.
                future.set_result(info)

        self._background.spawn(answer(), name="duplicate").add_done_callback(ended)
        return future

    async def _append_time_of(self, offset: int) -> int:
        """Of a durable batch; -1 where it has none, is deleted, or cannot be read now."""
        try:
            run = await self._reader.read(offset, offset + 1, 1, is_required=True)
            header = parse_header(run.batches[0].parts[0])
        except (StreamlogError, IndexError):
            return UNKNOWN_MS
        return header.max_timestamp_ms if header.is_log_append_time else UNKNOWN_MS

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
            self._clock,
            self._lifecycle,
            self._background,
            self._turn,
            self._conditions.refusal,
            lambda: self._visibility.wait_durable(self.log_end_offset),
            self._write_token,
        )
        await LogTokenChange(keeper, token, condition).apply(deadline)

    async def _write_token(self, token: bytes) -> None:
        await self._folder.save_token(token)
        self._token = token

    def needs_verification(self, producer_id: int, producer_epoch: int) -> bool:
        now_ms = self._clock.now_ms()
        return self._tail.producers.needs_verification(producer_id, producer_epoch, now_ms)

    def verification_guard(self) -> int:
        return self._tail.producers.verification_guard

    def verified(self, producer_id: int, producer_epoch: int, guard: int | None = None) -> None:
        producers = self._tail.producers
        taken = producers.verification_guard if guard is None else guard
        producers.verified(producer_id, producer_epoch, taken)

    # Read

    def _visible_end(self, isolation: Isolation) -> int:
        committed = isolation is Isolation.READ_COMMITTED
        return self.last_stable_offset if committed else self.high_watermark

    async def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        deadline: float | None = None,
    ) -> LogFetch:
        visible = self._visibility
        while True:
            self._check_fetch(offset)
            changes, end = self._changes, self._visible_end(isolation)
            reader = self._reader_until(deadline)
            read = await fetch_batches(reader, offset, end, max_bytes, min_one_batch=min_one_batch)
            if isolation is Isolation.READ_UNCOMMITTED:
                aborted: tuple[AbortedTransaction, ...] = ()
                break
            try:
                found = await self._aborted_between(offset, read.next_offset, deadline)
            except _TierIsLate:
                # Without the list nobody may have the records: this fetch has none.
                read, aborted = BatchesRead(offset, is_paced=True), ()
                break
            if changes == self._changes and offset >= visible.log_start_offset:
                aborted = tuple(AbortedTransaction(*entry[:2]) for entry in found)
                break
            # The batches may be of an old segment, whose aborted transactions are no longer here,
            # and the list of the one in its place. In front of the start no tier was searched.
        self._metrics.fetched(read.size_bytes)
        return LogFetch(
            parts=tuple(read.parts),
            size_bytes=read.size_bytes,
            batches=read.batches,
            next_offset=read.next_offset,
            high_watermark=visible.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=visible.log_start_offset,
            aborted=aborted,
            is_paced=read.is_paced,
        )

    def _check_fetch(self, offset: int) -> None:
        """Errors: OffsetOutOfRange, OffsetNotAvailable; why the log is not open."""
        self._check_open()
        visible = self._visibility
        if offset < visible.log_start_offset or offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset > visible.high_watermark:
            raise OffsetNotAvailable(
                f"offset {offset} of {self._partition} is not durable yet: the high watermark is "
                f"{visible.high_watermark}; fetch again"
            )

    def is_remote(self, offset: int) -> bool:
        return self._tier is not None and (
            self.log_start_offset <= offset < self.local_log_start_offset
        )

    def _reader_until(self, deadline: float | None) -> BatchReader:
        local, tier = CatchUpReader(self._reader, self._throttle, deadline), self._tier
        return local if tier is None else TieredReader(local, tier.reader(deadline), self)

    async def _aborted_between(
        self, offset: int, end_offset: int, deadline: float | None = AS_LONG_AS_A_LOOK_UP
    ) -> list[AbortedTxn]:
        """Of the segments as they are by then: it begins anew where some are replaced or removed
        meanwhile. Errors: as of `_aborted_now`, but for SegmentReplaced."""
        while True:
            try:
                return await self._aborted_now(offset, end_offset, deadline)
            except SegmentReplaced as replaced:
                await asyncio.wait({replaced.done})
                # Where the change failed, and the log with it, no others come.
                self._check_open()

    async def _aborted_now(
        self, offset: int, end_offset: int, deadline: float | None
    ) -> list[AbortedTxn]:
        """Errors: as of `aborted_between`; why the log is not open: its successor may have deleted
        files meanwhile, and one that is gone is like one of a segment without entries; _TierIsLate.
        """
        segments, tier = tuple(self._tail.segments), self._tier
        remote: Sequence[AbortedTxn] = ()
        if tier is not None and self.is_remote(offset):
            remote, is_complete, is_late = await tier.aborted_between(offset, end_offset, deadline)
            if is_late:
                raise _TierIsLate
            if is_complete:
                return list(remote)
        local = await aborted_between(
            self._folder.folder, segments, offset, end_offset, self._offload
        )
        self._check_open()
        # A segment that was copied is in both tiers until it is removed here.
        return sorted({*remote, *local}, key=lambda entry: entry.first_offset)

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"offset {offset} of {self._partition} is not in the log, which goes from "
            f"{self.log_start_offset} to {self.log_end_offset}",
            offset=offset,
            start_offset=self.log_start_offset,
            end_offset=self.log_end_offset,
        )

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
            start, changes = self.log_start_offset, self._changes
            local_start = self.local_log_start_offset
            try:
                found = await self._in_tier(timestamp_ms)
                if found is not None:
                    return found
                if self.local_log_start_offset != local_start:
                    # What became remote meanwhile was looked for in neither tier.
                    continue
                search = FileSearch(
                    self._reader,
                    max(start, self.local_log_start_offset),
                    self._visible_end(isolation),
                    self._offload,
                    self._environment.config.decoded_bytes_max,
                )
                return await lookup(timestamp_ms, self.segments, self._tail.epochs, search)
            except OffsetOutOfRange:
                if self.log_start_offset == start and self._changes == changes:
                    raise
                # Segments were removed during the search: search those that are left, and the tier.
            except SegmentReplaced as replaced:
                await asyncio.wait({replaced.done})

    async def _in_tier(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """What the tier answers of a look-up; None: nothing."""
        tier, epochs, start = self._tier, self._tail.epochs, self.log_start_offset
        if tier is None:
            return None
        if timestamp_ms == EARLIEST:
            return TimestampAndOffset(-1, start, epochs.epoch_at(start))
        if timestamp_ms == LATEST_TIERED:
            highest = tier.highest_offset
            return TimestampAndOffset(-1, highest, epochs.epoch_at(highest))
        local_start = self.local_log_start_offset
        if timestamp_ms < 0 or start >= local_start:
            return None
        record = await tier.first_at_or_after(timestamp_ms, start, local_start)
        if record is None:
            return None
        offset, stamp = record
        return TimestampAndOffset(stamp, offset, epochs.epoch_at(offset))

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        return self._tail.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # Segments, deletion, settings

    async def delete_records(self, before_offset: int) -> int:
        self._check_open()
        if not self._config.is_deleted_by_age:
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
                    await self._save_start(target)
                    self._visibility.raise_start(target)
                    self._tail.epochs.raise_start(target)
            return self.log_start_offset

        return await self._background.shielded(remove, name="remove")

    async def _save_start(self, offset: int) -> None:
        """A start that may or may not be there fails the log: the next open tells. Where there was
        no room for it nothing has changed."""
        try:
            await self._folder.save_start(offset)
        except StreamlogError as error:
            if not error.has_no_side_effects:
                self._lifecycle.fail(error)
            raise

    async def delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        self._check_open()
        end_offset = index(predicate_end_offset)
        return await self._background.shielded(
            lambda: self._delete_oldest_segments(end_offset, reason), name="remove"
        )

    async def _delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        async with self._removing:
            bound = min(predicate_end_offset, self.high_watermark)
            removed = await self._remove_closed(bound, reason)
            if self._tail.active.size and self.log_end_offset <= bound:
                # Not before: a roll needs room, which the removal makes where the disk is full.
                self._roll()
                removed += await self._remove_closed(bound, reason)
        return removed

    async def _remove_closed(self, bound: int, reason: str) -> int:
        """Removes the closed segments that end at or before the bound; how many there were."""
        await self._flush()
        if self._config.is_copied and reason != BELOW_START:
            # Of what the tier had when the bound was chosen its metadata may have lost some.
            bound = min(bound, self.copied_end_offset)
        expired = [
            segment
            for segment in self._tail.segments
            if not segment.is_active and segment.end_offset <= bound
        ]
        if not expired:
            return 0
        end = expired[-1].end_offset
        if self._config.remote_storage_enable and self._is_new_start(end):
            # The checkpoint alone says where a log with a tier begins.
            await self._save_start(end)
            self._visibility.raise_start(end)
        if await self._remove(expired):
            # Where the disk is full the removal makes the room for it.
            await self._folder.note_start(end)
        self._metrics.removed(reason, len(expired), sum(segment.size for segment in expired))
        return len(expired)

    def _is_new_start(self, end_offset: int) -> bool:
        """Whether the log begins there where it is removed up to there: what the tier has stays."""
        return end_offset > max(self.log_start_offset, self.copied_end_offset)

    async def _remove(self, expired: Sequence[UnifiedLogSegment]) -> bool:
        """Whether the log begins behind them now. Who reads one waits until it is gone for certain
        then: a start that readers have seen never goes back. What the tier has is read there at
        once, and is the log's still whatever becomes of the tier meanwhile."""
        bases, end = [segment.base_offset for segment in expired], expired[-1].end_offset
        is_new_start = self._is_new_start(end)
        async with self._leaving(expired) as gone:
            if not is_new_start:
                del self._tail.segments[: len(expired)]
                gone.set_result(None)
            await self._folder.remove_segments(bases, self._config.file_delete_delay_ms)
            if is_new_start:
                del self._tail.segments[: len(expired)]
                self._visibility.raise_start(end)
            self._tail.epochs.raise_start(self.log_start_offset)
        return is_new_start

    async def roll(self) -> None:
        self._check_open()
        if self._tail.active.size:
            self._roll()
        await self._flush()

    def _roll(self) -> None:
        """Seals the active segment at the log's end."""
        step, sealed = self._tail.roll(self._clock.now_ms())
        base = step.base_offset

        def done() -> None:
            sealed.drop_indexes()
            self._folder.note_recovery_point(base)

        self._flusher.add(step, done=done)
        self._jitter = self._environment.random.random()
        self._metrics.rolls.inc()

    async def _flush(self) -> None:
        """What was sequenced and rolled so far is carried out on return. Errors: why it is not."""
        self._check_open()
        end = self.log_end_offset
        await self._flusher.carried_out()
        self._check_open()
        await self._visibility.wait_durable(end)

    async def configure(self, config: TopicConfig) -> None:
        self._config = config
        self._flusher.config = config

    # Tiers

    def attach_tier(self, tier: RemoteTier) -> None:
        self._check_open()
        self._tier = tier
        self.has_tier = True

    @property
    def topic_config(self) -> TopicConfig:
        return self._config

    @property
    def local_log_start_offset(self) -> int:
        return max(self._tail.segments[0].base_offset, self.log_start_offset)

    @property
    def copied_end_offset(self) -> int:
        return 0 if self._tier is None else self._tier.highest_offset + 1

    @property
    def leader_epochs(self) -> Sequence[tuple[int, int]]:
        return tuple(self._tail.epochs.entries)

    def restore_epochs(self, older: Sequence[tuple[int, int]]) -> None:
        entries = self._tail.epochs.entries
        if entries and older and entries[0][0] == older[-1][0]:
            del entries[0]
        entries[:0] = older
        self._tail.epochs.raise_start(self.log_start_offset)

    @asynccontextmanager
    async def segment_files(self, segment: AbstractLogSegment) -> AsyncIterator[LocalSegmentFiles]:
        """As TierableLog.segment_files."""
        (own,) = checked(self._tail.segments, [segment])
        if own.is_active or own.end > self.high_watermark:
            raise Invalid(f"the segment {own.log_name} of {self._partition} may still grow")
        await self._flush()
        epochs = [entry for entry in self._tail.epochs.entries if entry[1] < own.end]
        folder = self._folder.folder
        find_lost = nothing_lost if self._folder.may_have_gaps else partial(lost_from, folder, own)
        async with held_files(folder, own, epochs, self._offload, find_lost) as files:
            self._check_open()
            yield files

    # Cleaning

    @property
    def clean_end_offset(self) -> int:
        return self._folder.clean_end_offset

    async def set_clean_end_offset(self, offset: int) -> None:
        self._check_open()
        await self._folder.save_clean_end(offset)

    async def read_for_cleaning(
        self, segment: AbstractLogSegment, start_offset: int
    ) -> AsyncIterator[Buffer]:
        """As CleanableLog.read_for_cleaning."""
        (own,) = checked(self._tail.segments, [segment])
        position = max(start_offset, own.base_offset)
        while position < own.end:
            self._check_open()
            found = await self._reader.find(own, position, own.end, CLEANING_BYTES)
            if found is None:
                raise Invalid(f"a segment of {self._partition} was replaced while it was read")
            if not found:
                return
            yield b"".join(batch.parts[0] for batch in found)
            position = found[-1].end_offset

    async def aborted_transactions(
        self, start_offset: int, end_offset: int
    ) -> Sequence[AbortedRange]:
        found = await self._aborted_between(start_offset, end_offset)
        return [AbortedRange(*entry[:3]) for entry in found]

    def last_records_of_producers(self) -> Mapping[int, LastRecordOfProducer]:
        state = self._tail.producers
        state.expire(self._clock.now_ms())
        return {
            entry.producer_id: LastRecordOfProducer(
                entry.batches[-1].last_offset if entry.packed else -1, entry.producer_epoch
            )
            for entry in state.snapshot()
        }

    def first_batch_timestamp_ms(self, segment: AbstractLogSegment) -> int:
        # Also of one that is being removed: who looks whether the log is dirty needs no more of it.
        assert isinstance(segment, UnifiedLogSegment)
        return segment.first_timestamp

    async def replace_segments(self, old: Sequence[AbstractLogSegment]) -> SegmentReplacement:
        # A roll that is under way writes the indexes of its segment.
        await self._flush()
        own = checked(self._tail.segments, old)
        aborted = await self._aborted_between(own[0].base_offset, own[-1].end)
        return UnifiedReplacement(
            self,
            self._folder,
            own,
            aborted,
            self._config.index_interval_bytes,
            lambda: self._config.file_delete_delay_ms,
        )

    async def shielded(self, work: Callable[[], Awaitable[None]]) -> None:
        """As OwnsSegments.shielded."""
        await self._background.shielded(work, name="swap")

    @asynccontextmanager
    async def swapping(
        self, old: Sequence[UnifiedLogSegment], new: UnifiedLogSegment
    ) -> AsyncIterator[None]:
        """As OwnsSegments.swapping."""
        async with self._removing:
            self._check_open()
            segments = self._tail.segments
            first = segments.index(checked(segments, old)[0])
            async with self._leaving(old):
                yield
                segments[first : first + len(old)] = [new]

    @asynccontextmanager
    async def _leaving(
        self, old: Sequence[UnifiedLogSegment]
    ) -> AsyncIterator[asyncio.Future[None]]:
        """Around the change of files and list that takes segments out of the log: their readers
        wait for its end, or for the future that it gives. Fails the log where it is cut off."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for segment in old:
            segment.replaced = done
        self._changes += 1
        try:
            self._reader.leave(old)
            yield done
        except BaseException as error:
            cut_off = Closed(f"a change of {self._partition}'s files was cut off; open it again")
            self._lifecycle.fail(error if isinstance(error, StreamlogError) else cut_off)
            raise
        finally:
            if not done.done():
                done.set_result(None)

    # The end

    def _check_open(self) -> None:
        self._lifecycle.check_open()

    def _failed(self, error: StreamlogError) -> None:
        """The lifecycle's first failure. The owner hears of it unless it ends the log already."""
        self._folder.failed()
        self._visibility.release()
        self._flusher.give_up()
        self._reader.end()
        if self._lifecycle.state is LogState.FAILED:
            self._on_failure(self, error)

    def _task_failed(self, error: BaseException) -> None:
        if not isinstance(error, StreamlogError):
            error = Internal(f"{self._partition}: {error!r}")
        self._lifecycle.fail(error)

    async def close(self) -> None:
        """Waits until sequenced batches are durable, then writes down the indexes and producers.

        After a failure it waits for nothing. Errors: what kept the last appends from being stored.
        """
        if self._lifecycle.state is LogState.ENDED:
            return
        is_orderly = self._lifecycle.end()
        self._visibility.release()
        try:
            if is_orderly:
                await self._acks.drained()
                await self._flusher.drained()
                async with self._removing:
                    """What changes segments is at its end."""
                if self._lifecycle.failure is None:
                    self._tail.producers.expire(self._clock.now_ms())
                    await self._folder.finish(
                        self._tail.indexes(), self.log_end_offset, snapshot_of(self._tail.producers)
                    )
        finally:
            await self._end_work()

    async def _end_work(self) -> None:
        """Stops background work; waiting calls get an error, even if this call is cancelled."""
        if self._tier is not None:
            self._tier.detached()
        self._reader.end()
        try:
            await self._background.close()
        finally:
            self._flusher.give_up()
            self._acks.give_up()
            self._tail.producers.forget_all()
            await self._folder.close()

    async def kill(self) -> None:
        self._lifecycle.end()
        self._visibility.release()
        await self._end_work()

    async def delete(self) -> None:
        await self.kill()
        if self._tier is not None:
            await self._tier.delete()
        await self._folder.delete()


def _nothing(high_watermark: int) -> None:
    """Nothing waits for the high watermark but readers."""
